// Fields that say what form an answer must have.
#pragma once

#include <string>

#include "server/fields.h"
#include "text/answer_format.h"

namespace riptide::server {

/// `response_format` (text, json_object, json_schema) and this server's own `regex` and `grammar` (EBNF, see
/// text/grammar_ebnf.h), of which one may be given. Throws ApiError naming the field, and for a schema the word that is
/// not supported and its place.
AnswerFormat parse_format(const Fields& fields);
/// {"type": "json_schema", "schema": ...} or with the schema under "json_schema", {"type": "json_object"}, {"type":
/// "text"}; `where` names it in errors.
AnswerFormat parse_format_object(const json::object& format, const std::string& where);

/// OpenAI's tool_choice: "auto", "none", "required", or a function by name. False: no tools are to be offered.
bool parse_tool_choice(const Fields& fields, ToolChoice& out);
/// Anthropic's: an object of type auto, none, any or tool. `disable_parallel_tool_use` sets `single`.
bool parse_anthropic_tool_choice(const Fields& fields, ToolChoice& out);

}  // namespace riptide::server
