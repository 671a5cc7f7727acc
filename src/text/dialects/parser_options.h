// What the stream parser of a chat dialect is told of the request.
#pragma once

#include <string>

#include "text/json/tool_arguments.h"

namespace riptide {

struct ParserOptions {
    /// The prompt ended inside `<think>`; see thinking_of (text/chat/chat.h).
    bool thinking = false;
    /// The prompt ended in the text of the answer, which goes on: newlines at its start are text.
    bool continues = false;
    /// Only single tokens are the dialect's single-token tags; their spelling in plain text is text. Off: spelling is
    /// enough (for a stream of text without token borders).
    bool strict_specials = true;
    /// Laguna only: one newline directly behind <think>, </think> and </tool_call> (and at the start of the answer),
    /// and one directly before </think>, <tool_call>, </assistant> and the end, is framing and dropped, as v5 writes
    /// it. Off: v8, verbatim. See ChatTraits::newlines_in_tags.
    bool newline_framing = true;
    /// Tool call ids are this with the index behind it.
    std::string call_id_prefix = "call_";
    /// Tool calls are looked for. Off, for requests that offer no tools: their markup is text like any other.
    bool calls = true;
    /// Those that are offered.
    ToolSchemas tools;
};

}  // namespace riptide
