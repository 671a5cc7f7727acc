// Grammars without a word.
#pragma once

#include <string_view>

#include "text/grammar/grammar.h"

namespace riptide {

/// The texts of an expression in which `word` (ASCII, not empty) does not occur. What cannot spell it stays as it is;
/// of the rest there is a copy for each number of the word's letters that may have come already.
/// Throws GrammarError beyond 20 million steps.
/// Source: Bar-Hillel, Perles & Shamir 1961 (the intersection of a context-free and a regular language).
Grammar::Expr without_word(Grammar& grammar, Grammar::Expr expr, std::string_view word);

}  // namespace riptide
