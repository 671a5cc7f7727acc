// Fields that say what form an answer must have.
#pragma once

#include <string>
#include <vector>

#include "server/api/fields.h"
#include "text/dialects/response_format.h"

namespace riptide::server {

/// `response_format` (text, json_object, json_schema), this server's own `regex` and `grammar` (EBNF or
/// Lark, see text/structured/grammar_ebnf.h and text/structured/grammar_lark.h), and what other engines call these:
/// `json_schema`, `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar`, `structured_outputs` (json, regex,
/// choice, grammar, json_object). One of them may be given. `strict` of the request tells how a schema is read. Throws
/// ApiError naming the field; what is wrong with the form itself is found out where it is compiled (ModelText).
AnswerFormat parse_format(const Fields& fields);
/// {"type": "json_schema", "schema": ...} or with the schema under "json_schema", {"type": "json_object"} (with or
/// without "schema"), {"type": "text"}; "strict": false beside the schema has it read leniently. `where` names it in
/// errors.
AnswerFormat parse_format_object(const json::object& format, const std::string& where);

/// Which of the tools the model is offered.
struct ToolOffer {
    bool none = false;
    std::vector<std::string> only = {};  // by name; empty: all
};
/// OpenAI's tool_choice: "auto", "none", "required", a function by name, or {"type": "allowed_tools", "mode", "tools"}
/// (the last two in "allowed_tools" or not).
ToolOffer parse_tool_choice(const Fields& fields, ToolChoice& out);
/// Leaves what is offered of functions as prepare_tools makes them. Throws ApiError for a name that none has.
void keep_offered(const ToolOffer& offer, json::array& tools);
/// Anthropic's: an object of type auto, none, any or tool. `disable_parallel_tool_use` sets `single`.
bool parse_anthropic_tool_choice(const Fields& fields, ToolChoice& out);

}  // namespace riptide::server
