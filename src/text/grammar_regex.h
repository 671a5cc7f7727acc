// Regular expressions as grammars.
#pragma once

#include <functional>
#include <string_view>

#include "text/grammar.h"

namespace riptide {

/// How one character out of a set is written.
using CharWriter = std::function<Grammar::Expr(Grammar&, const CharSet&)>;

/// A regular expression in the syntax of ECMAScript, as far as it is regular: literals, `.`, classes, \d \w \s and
/// their opposites (ASCII digits and letters; Unicode white space), \t \n \r \f \v \0 \xHH \uHHHH \u{H...}, groups,
/// `|`,
/// `* + ?` and {n} {n,} {n,m} (with a `?` behind, which changes nothing), and ^ and $ at the ends of the whole or of an
/// alternative of the whole. `.` is not a line's end. Look-around, back-references, \b, \p, flags are refused.
///
/// `search`: other text may stand before and behind, except where ^ and $ say that it may not (JSON Schema's
/// `pattern`); else the whole text must match. `write`: empty for UTF-8. Throws GrammarError with the place.
Grammar::Expr add_regex(Grammar& grammar, std::string_view pattern, bool search, const CharWriter& write = {});

/// Texts of `allowed` characters that are none of `texts`, and `end` behind them.
Grammar::Expr other_text(Grammar& grammar, const std::vector<std::string>& texts, const CharSet& allowed,
                         const CharWriter& write, Grammar::Expr end);

}  // namespace riptide
