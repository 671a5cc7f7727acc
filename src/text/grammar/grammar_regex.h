// Regular expressions as grammars.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "text/grammar/grammar.h"
#include "text/grammar/pattern.h"

namespace riptide {

/// How one character out of a set is written.
using CharWriter = std::function<Grammar::Expr(Grammar&, const CharSet&)>;

/// A regular expression in the syntax of ECMAScript, as far as it is regular: literals, `.`, classes, \d \w \s and
/// their opposites (ASCII digits and letters; Unicode white space), \p{...} and \P{...}, \t \n \r \f \v \0 \cX \xHH
/// \uHHHH \u{H...}, groups, also with names, `|`, `* + ?` and {n} {n,} {n,m} (with a `?` behind, which changes
/// nothing), and ^, $, \b, \B, (?=...) and (?!...) anywhere. `.` is not a line's end. Look-behind, back-references,
/// flags, and look-ahead inside (?!...) are refused.
///
/// `search`: other text may stand before and behind, except where ^ and $ say that it may not (JSON Schema's
/// `pattern`); else the whole text must match. `write`: empty for UTF-8. Throws GrammarError with the place, or with
/// the limit that is met (see text_automaton.h).
Grammar::Expr add_regex(Grammar& grammar, std::string_view pattern, bool search, const CharWriter& write = {});

/// The whole of a pattern. REQUIRES: it has no anchors, \b or look-ahead.
Grammar::Expr add_plain_pattern(Grammar& grammar, const Pattern& pattern, const CharWriter& write = {});

/// What a text must be, all of it at once.
struct TextRules {
    std::vector<std::string> patterns;              // each matches somewhere
    std::vector<std::string> wholes;                // each matches the whole
    int64_t least = 0, most = Grammar::kUnbounded;  // characters
};
Grammar::Expr add_text(Grammar& grammar, const TextRules& rules, const CharWriter& write = {});

/// Texts of `allowed` characters that are none of `texts`, and `end` behind them.
Grammar::Expr other_text(Grammar& grammar, const std::vector<std::string>& texts, const CharSet& allowed,
                         const CharWriter& write, Grammar::Expr end);

}  // namespace riptide
