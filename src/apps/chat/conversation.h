// A conversation that is kept in a file:
// {"riptide_conversation": 1, "title": ..., "model": ..., "system": ..., "messages": [...]}
#pragma once

#include <string>

#include "base/json.h"

namespace riptide::apps {

struct Conversation {
    std::string title;     // empty: the beginning of the first question
    std::string model;     // who answered
    std::string system;    // empty: no system message
    json::array messages;  // as OpenAI clients have them, with reasoning_content and tool_calls
};

/// What the model is asked: the system message, then the others.
json::array all_messages(const Conversation& conversation);

/// Throws Error of one sentence that begins with the path: not to be read, larger than 64 MiB, no JSON, another
/// version, no conversation, or messages that no template could be given.
Conversation load_conversation(const std::string& path);
/// Throws Error; the file is as it was then. One that is there and is no conversation is not replaced.
void save_conversation(const Conversation& conversation, const std::string& path);

/// Takes back the last question and all that followed. False: there is none.
bool undo_question(json::array& messages);
/// Takes back all that followed the last question. False: there is none.
bool undo_answer(json::array& messages);

}  // namespace riptide::apps
