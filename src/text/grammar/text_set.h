// Sets of texts: what regular expressions, lists of words and lengths let through, together or taken from each other.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/grammar_regex.h"

namespace riptide {

/// A regular set of texts, as a deterministic automaton over code points. Immutable. All that makes one throws
/// GrammarError beyond kMostStates.
class TextSet {
  public:
    static constexpr std::size_t kMostStates = 4000;

    /// Every text.
    static TextSet all();
    /// Texts in which the pattern is found (`search`), or that it matches as a whole; see add_regex.
    /// `work` counts what is done; or null.
    static TextSet of_regex(std::string_view pattern, bool search, WorkBudget* work = nullptr);
    static TextSet of_words(const std::vector<std::string>& words);
    /// Texts of `least` to `most` (or Grammar::kUnbounded) characters.
    static TextSet of_length(int64_t least, int64_t most);

    TextSet operator&(const TextSet& other) const;
    TextSet operator|(const TextSet& other) const;
    TextSet operator-(const TextSet& other) const;

    bool empty() const { return states_.empty(); }
    bool contains(std::string_view text) const;
    /// Its texts of `least` to `most` characters as a grammar, each character written by `write`; see
    /// add_text_automaton.
    Grammar::Expr add_to(Grammar& grammar, const CharWriter& write, int64_t least = 0,
                         int64_t most = Grammar::kUnbounded) const;

  private:
    struct Edge {
        char32_t low, high;
        int32_t to;
    };
    struct State {
        std::vector<Edge> edges;  // sorted, disjoint
        bool accepts = false;
    };

    TextSet product(const TextSet& other, const std::function<bool(bool, bool)>& keep) const;
    void trim();
    int32_t add_state();

    std::vector<State> states_;  // the first is where texts begin; each leads to one that accepts
};

}  // namespace riptide
