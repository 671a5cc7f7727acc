// One turn of a conversation: messages to an answer, its events to a message.
#pragma once

#include <functional>

#include "apps/support/ask.h"
#include "base/json.h"
#include "engine/engine.h"

namespace riptide::apps {

/// What the model said.
struct ChatAnswer {
    /// role, content, and if there: reasoning_content, tool_calls, as OpenAI clients have them; and
    /// incomplete_tool_calls (name, arguments as far as they came, closed) for calls that the answer did not finish,
    /// which nobody should execute.
    json::object message;
    Reply reply;
};

/// Throws Error if the model has no tokenizer, no chat template, or no dialect that is known.
void require_chats(const Engine& engine);

/// Asks, calling `hear` with each event, until the answer is over or interrupted() is true.
ChatAnswer ask_chat(Engine& engine, const json::array& messages, const json::array& tools, bool think,
                    const SamplingParams& params, const std::function<void(const EventBody&)>& hear);

}  // namespace riptide::apps
