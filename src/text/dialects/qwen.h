// The answers of Qwen3, Qwen3-Coder, Qwen3.5 and their kind: thinking, text and tool calls out of the token stream.
//
//   answer := [ <think> ] [ reasoning </think> ] { text | call } <|im_end|>
//   call   := <tool_call> ws ( tags | object ) ws </tool_call>
//   tags   := <function=NAME> ws { <parameter=KEY> newline VALUE newline </parameter> ws } </function>
//   object := {"name": NAME, "arguments": {...}}
//
// <think> </think> <tool_call> </tool_call> <|im_end|> are single tokens; the other tags are plain text. Each template
// asks for one kind of call; the parser takes both, whichever comes.
//
// Rules where the format itself leaves a choice; outside calls see text/dialects/section_parser.h:
// - Up to two newlines behind <think>, </think> and </tool_call>, and up to two directly before </think> and
//   <tool_call>, are framing and dropped. At the end of the answer newlines are text.
// - One newline at the start of a VALUE and one at its end are dropped.
// - `</parameter>` ends a value if what follows, after white space, is `<parameter=`, `</tool_call>`, `<tool_call>`,
//   `<|im_end|>`, the end of the answer, or a `</function>` behind which, after white space, one of the last four
//   comes. Otherwise it belongs to the value.
// - A missing `</parameter>` is supplied before a `<parameter=KEY>` that begins a line, if the tool has a parameter KEY
//   and no value of it has come. Other tags inside a value belong to it.
// - `<function=NAME>` with the name of a tool that is offered begins a further call behind `</function>`, behind a
//   `</parameter>` or where no argument has come; a missing `</function>` is supplied. So does a further object.
// - `<function=NAME>` that begins a line of the text is a call whose `<tool_call>` is missing, if NAME is offered and
//   `<parameter=` or `</function>` follows, after white space. `</parameter>` and `</function>` end it together.
// - `</tool_call>` inside an open value, with or without `</function>` before it, belongs to the value, unless what
//   follows, after white space, is `<tool_call>`, `<|im_end|>` or the end of the answer: then it closes the call. The
//   same holds of `</tool_call>` inside an open string of the object.
// - NAME ends at `>`; white space round it is dropped. A call without a NAME that can be a tool's
//   (SectionParser::is_tool_name) is text. Any other NAME is a call, whether or not a tool of that name was offered.
// - A missing `</function>` or `</tool_call>` before `<tool_call>` or `<|im_end|>` is supplied, unless a value is open.
// - Other text between the parts of a call is delivered as text, behind the call. A key without a value is dropped.
// - The object: see text/dialects/json_call.h for what is mended. It is a call once its name is known and its arguments
// begin,
//   or it is closed; before that what cannot be read is text. Where its arguments cannot be read further, the call
//   is incomplete, and what follows up to `</tool_call>` is text behind it.
// - If the answer ends inside a call, or the turn inside a value, the call is incomplete; a half-written tag, key or
//   number is dropped, and so is all that is no call yet.
#pragma once

#include <memory>

#include "text/dialects/parser_options.h"
#include "text/dialects/response_form.h"
#include "text/dialects/stream_parser.h"
#include "text/grammar/grammar.h"

namespace riptide {

/// A parser for one answer.
std::unique_ptr<StreamParser> make_qwen_parser(ParserOptions options);

/// Answers that are held to a form, with calls between tags or in JSON; see add_answer
/// (text/dialects/response_grammar.h). Newlines stand where the templates write them, so that the parser takes away
/// just these.
Grammar qwen_tags_grammar(const AnswerForm& form, WorkBudget* work);
Grammar qwen_json_grammar(const AnswerForm& form, WorkBudget* work);

}  // namespace riptide
