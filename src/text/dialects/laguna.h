// Laguna's answers: thinking, text and tool calls out of the token stream. Covers both template generations: v5 (XS.2),
// which writes newlines round its tags, and v8 (XS-2.1, S-2.1), which does not.
//
//   answer := [ reasoning </think> ] { text | call } </assistant>
//   call   := <tool_call> NAME [newline] { <arg_key> K </arg_key> ws <arg_value> V </arg_value> ws } </tool_call>
//
// <think> </think> <tool_call> </tool_call> </assistant> are single tokens; the arg tags are plain text.
//
// Rules where the format itself leaves a choice:
// - A value is taken verbatim, newlines included, because both templates write it directly between its tags.
// - `</arg_value>` ends a value if what follows, after white space, is `<arg_key>`, `</tool_call>`, `<tool_call>`,
//   `</assistant>` or the end of the answer. Otherwise it belongs to the value.
// - `</tool_call>` inside an open value belongs to the value, unless what follows, after white space, is `<tool_call>`,
//   `</assistant>` or the end of the answer: then it closes the call.
// - A missing `</arg_value>` is supplied before `<arg_key>K</arg_key>`, if the tool has a parameter K and no value of
// it
//   has come (a newline before it is the template's, where it writes them); so is a missing `</arg_key>` before
//   `<arg_value>`. All other tags inside a value belong to it.
// - The NAME of a tool that is offered begins a further call behind `</arg_value>` and white space.
// - NAME ends at a newline, `<arg_key>` or `</tool_call>`; white space round it is dropped. A "call" whose name never
//   ends, or cannot be a tool's (SectionParser::is_tool_name), is text. Any other name is a call, whether or not a tool
//   of that name was offered.
// - A missing `</tool_call>` before `<tool_call>` or `</assistant>` is supplied, unless a value is open. Outside calls:
//   text/dialects/section_parser.h.
// - Other text between the parts of a call is delivered as text, behind the call. A key without a value is dropped.
// - If the answer ends inside a call, or the turn inside a value, the call is incomplete; a half-written tag is
//   dropped, and so is a call whose name has not ended.
#pragma once

#include <memory>

#include "text/dialects/parser_options.h"
#include "text/dialects/response_form.h"
#include "text/dialects/stream_parser.h"
#include "text/grammar/grammar.h"

namespace riptide {

/// A parser for one answer.
std::unique_ptr<StreamParser> make_laguna_parser(ParserOptions options);

/// Answers that are held to a form; see add_answer (text/dialects/response_grammar.h). Newlines stand where the
/// template writes them, so that the parser takes away just these.
Grammar laguna_grammar(const AnswerForm& form, WorkBudget* work);

}  // namespace riptide
