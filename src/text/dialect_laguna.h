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
//   `</assistant>` or the end of the answer: then it closes the call. All other tags inside a value belong to it.
// - NAME ends at a newline, `<arg_key>` or `</tool_call>`; white space round it is dropped. A "call" whose name is
// empty,
//   longer than 256 bytes, contains white space or one of < > { } [ ] ", or never ends, is text (reasoning, if it began
//   there). Any other name is a call, whether or not a tool of that name was offered.
// - `<tool_call>` inside reasoning ends the reasoning. A missing `</tool_call>` before `<tool_call>` is supplied.
// - `</think>` outside reasoning is dropped. `<think>` is dropped at the start of reasoning, starts reasoning if
// nothing
//   visible came before, and is text otherwise (as is then the `</think>` that goes with it).
// - Other text between the parts of a call is delivered as text. A key without a value is dropped.
// - If the answer ends inside a call, string and object are closed; a half-written tag is dropped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/stream_parser.h"
#include "text/tool_arguments.h"

namespace riptide {

struct LagunaParserOptions {
    /// The prompt ended inside `<think>`; see ends_inside_thinking (text/chat.h).
    bool thinking = false;
    /// Only single tokens are the five single-token tags; their spelling in plain text is text. Off: spelling is enough
    /// (for a stream of text without token borders).
    bool strict_specials = true;
    /// One newline directly behind <think>, </think> and </tool_call> (and at the start of the answer), and one
    /// directly before </think>, <tool_call>, </assistant> and the end, is framing and dropped, as v5 writes it. Off:
    /// v8, verbatim. See ChatTraits::newlines_in_tags.
    bool newline_framing = true;
    /// Tool call ids are this with the index behind it.
    std::string call_id_prefix = "call_";
    ToolSchemas tools;
};

/// A parser for one answer.
std::unique_ptr<StreamParser> make_laguna_parser(LagunaParserOptions options);

}  // namespace riptide
