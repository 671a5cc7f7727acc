// Tools that take free text: to the model, functions whose one argument is that text.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "server/api/api_error.h"
#include "text/dialects/response_format.h"

namespace riptide::server {

/// Tools that take free text, by name: where in the chat the text's grammar stands
/// ("tools[2].custom.format.definition"), or "".
using CustomTools = std::map<std::string, std::string, std::less<>>;

/// {"type": "custom", "name", "description", "format"} -> {"type": "function", "function"}, whose argument `input` is
/// held to the format's grammar, of syntax `lark` or `regex`. Adds it to `custom`. `where` names the tool in errors,
/// `in_chat` in `custom`. Throws ApiError. The grammar is read where the answer's form is compiled, and only there:
/// grammar_error says what is wrong with it.
json::object custom_function(const json::object& tool, const std::string& where, const std::string& in_chat,
                             CustomTools& custom);
/// The tools of a chat, those of {"type": "custom", "custom": {"name", ...}} as functions.
json::array with_custom_functions(const json::array& tools, CustomTools& custom);
/// What is wrong with the grammar of one of these tools, by its field; nothing if the error is of another tool.
std::optional<ApiError> grammar_error(const ToolError& error, const CustomTools& custom);

/// The text in the arguments of a call, as far as it came.
std::string text_of_input(std::string_view arguments);
/// {"type": "custom", "custom": {"name", "input"}} -> {"type": "function", "function": {"name", "arguments"}}, for the
/// history; other calls stay as they are.
void call_as_function(json::object& call);

}  // namespace riptide::server
