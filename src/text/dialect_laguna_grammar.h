// Laguna's answers as a grammar: what constrained output looks like between its tags. See dialect_laguna.h for the
// form.
#pragma once

#include "base/json.h"
#include "text/answer_format.h"

namespace riptide {

/// `thinking`, `newline_framing` as in LagunaParserOptions.
struct LagunaAnswer {
    bool thinking = false;
    bool newline_framing = true;
    json::array tools = {};  // as ToolSchemas takes them
    ToolChoice choice = {};
    AnswerFormat format = {};
};

/// Whether anything holds the answer to a form: a format, a choice of tools that is not automatic, or a tool with
/// "strict": true.
bool is_constrained(const LagunaAnswer& answer);

/// The whole answer, without the id that ends it, but with </assistant> or not: reasoning (any text up to </think>) if thinking; then
/// - the format, or calls if tools are offered;
/// - only calls, if the choice is required or named;
/// - text and calls in any order, if there is only a strict tool.
/// A call's arguments come in the order of the tool's properties. A string's value is raw text that ends at the first
/// </arg_value>, other values are JSON by their schema. Schemas of tools that are not strict are read leniently
/// (SchemaOptions). Newlines stand where the template writes them, so that the parser takes away just these.
/// Throws GrammarError, with the tool or the format and the place in it; for a required or named tool that is not
/// there. REQUIRES: is_constrained(answer).
Grammar laguna_grammar(const LagunaAnswer& answer);

}  // namespace riptide
