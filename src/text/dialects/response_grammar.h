// Chat answers as grammars: what constrained output looks like between the tags of a dialect.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "text/dialects/response_form.h"
#include "text/grammar/grammar.h"

namespace riptide {

/// A tool that may be called.
struct OfferedTool {
    std::string name;
    const json::value& schema;  // of its parameters
    bool strict = false;        // else the schema is read leniently (SchemaOptions)
    std::string lark = {};      // its one argument is a text, `input`, of this grammar; empty: as the schema says
};

/// The white space that a dialect's template writes, so that its parser takes away just this; and the end of a turn.
struct AnswerMarkup {
    std::string_view behind_reasoning;  // behind </think>
    std::string_view at_start;          // where the answer begins without reasoning
    std::string_view between_calls, at_end;
    std::string_view end_turn;  // a token
    /// What stands between <tool_call> and </tool_call>. Throws GrammarError with the place in the schema.
    std::function<Grammar::Expr(const OfferedTool&)> add_call;
};

/// What holds the text of a tool's one argument, `input`, beside its parameters: {"syntax": "lark", "definition":
/// TEXT}.
inline constexpr std::string_view kInputGrammar = "grammar";
inline constexpr std::size_t kMostInputGrammars = 512 << 10;  // bytes, of all tools

/// The whole answer, with the token that ends the turn or without: reasoning (any text up to </think>) if it has begun,
/// or none or some if it may begin; then
/// - the format, or calls if tools are offered;
/// - only calls, if the choice is required or named;
/// - text and calls in any order, if there is only a strict tool.
/// Throws GrammarError, with the tool or the format and the place in it; for a required or named tool that is not
/// there. REQUIRES: is_constrained(form).
Grammar::Expr add_answer(Grammar& grammar, const AnswerForm& form, const AnswerMarkup& markup);

/// How a dialect writes a name and arguments between tags. Newlines are part of it where the template writes them.
struct TagMarkup {
    std::string before_name, behind_name;
    std::string before_key, behind_key;  // behind_key: all that stands before the value
    std::string before_value_end;        // in front of value_end
    std::string value_end;               // the tag
    std::string behind_value, behind_arguments;
    std::string_view not_in_keys;
    bool python_words = false;  // booleans are True and False
};

/// Raw text up to value_end, made once and shared by all calls of a grammar.
struct RawTexts {
    Grammar::Expr any = -1, some = -1;
};

/// Arguments come in the order of the tool's properties. A string's value is raw text that ends at the first value_end,
/// other values are JSON by their schema. REQUIRES: no end of value_end is a beginning of it.
Grammar::Expr add_tag_call(Grammar& grammar, const TagMarkup& markup, RawTexts& texts, const OfferedTool& tool);

/// `{"name": NAME, "arguments": OBJECT}`, the object by the tool's schema, or with the text of its grammar.
Grammar::Expr add_json_call(Grammar& grammar, const OfferedTool& tool);

}  // namespace riptide
