// The chat dialects that are known: how the answers of a family of models are parsed and held to a form.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "text/dialects/parser_options.h"
#include "text/dialects/response_form.h"
#include "text/dialects/stream_parser.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide {

struct Dialect {
    std::string_view name;
    /// Added tokens that a vocabulary must have.
    std::span<const std::string_view> tokens;
    /// Added tokens that end an answer, as far as a vocabulary has them; a file may name fewer.
    std::span<const std::string_view> stops;
    /// The template writes a newline in front of </think>.
    bool line_before_end_think;
    /// Whether a template writes this dialect.
    bool (*fits)(const ChatTraits& traits);
    /// A parser for one answer.
    std::unique_ptr<StreamParser> (*make_parser)(ParserOptions options);
    /// The answers that have a form. Throws GrammarError; see add_answer (text/dialects/response_grammar.h). `work`:
    /// Grammar's.
    Grammar (*grammar)(const AnswerForm& form, WorkBudget* work);
};

/// Every dialect, the most particular first.
std::span<const Dialect> dialects();

/// The first dialect that fits, or null.
const Dialect* find_dialect(const ChatTraits& traits, const Tokenizer& tokenizer);

/// What the dialects need, for an error: "laguna (<assistant>, </think>), ...".
std::string known_dialects();

}  // namespace riptide
