// All that holds one chat answer to a form.
#pragma once

#include "base/json.h"
#include "text/chat/chat.h"
#include "text/dialects/response_format.h"

namespace riptide {

struct AnswerForm {
    Thinking thinking = Thinking::over;
    bool newline_framing = true;  // as in ParserOptions
    json::array tools = {};       // as ToolSchemas takes them
    ToolChoice choice = {};
    AnswerFormat format = {};
};

/// Whether anything holds the answer to a form: a format, a choice of tools that is not automatic, or a tool with
/// "strict": true.
bool is_constrained(const AnswerForm& form);

}  // namespace riptide
