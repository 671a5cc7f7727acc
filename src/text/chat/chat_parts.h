// What the tokens of a rendered chat are: markup, system prompt and tools, and what was said by whom.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/jinja/template.h"
#include "text/tokenizer/token_map.h"

namespace riptide {

/// A run of tokens of one kind. Parts follow one another and cover the prompt.
struct ChatPart {
    enum class Kind : uint8_t {
        markup,  // all or some of it was written by the template
        fixed,   // written by the client and needed as it is: system prompt, tool schemas, tool calls, what stands in
                 // places that are not known
        user,    // what a user said
        assistant,  // what the model said or thought, without its tool calls
        tool,       // what a tool returned
    };
    Kind kind = Kind::fixed;
    int32_t message = 0;  // counts what the template opens: parts of one message have one number
    TokenRun tokens;
    friend bool operator==(const ChatPart&, const ChatPart&) = default;
};

/// The parts of a rendered prompt whose tokens have these spans. Who speaks is read from the markup that the template
/// wrote (Laguna's tags and ChatML), never from what a client wrote. A token that reaches into markup is markup, so
/// that markup is never cut. Tool calls are fixed as wholes, with all between their tags. Time linear.
std::vector<ChatPart> chat_parts(const jinja::Rendered& prompt, std::span<const TextSpan> spans);

}  // namespace riptide
