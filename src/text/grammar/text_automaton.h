// Deterministic automata over characters: what regular expressions cannot say as grammars, and several conditions at
// once.
#pragma once

#include <span>

#include "text/grammar/grammar_regex.h"
#include "text/grammar/pattern.h"

namespace riptide {

/// Texts of characters. It begins in state 0.
struct TextAutomaton {
    static constexpr std::size_t kMostStates = 20'000;
    struct Edge {
        CharSet chars;  // no two edges of a state share a character
        int32_t to = 0;
    };
    struct State {
        std::vector<Edge> edges;
        bool accepts = false;
    };
    std::vector<State> states;
};

/// One of the things that must hold for a text: it matches `pattern`, as a whole or (`search`) somewhere; or
/// `automaton` takes it.
struct TextCondition {
    const Pattern* pattern = nullptr;
    bool search = false;
    const TextAutomaton* automaton = nullptr;
};

/// The texts for which all of the conditions hold, with every anchor, \b and look-ahead where it stands; minimal unless
/// it is very large. Look-ahead inside (?!...) is refused.
/// Cost: subsets of states, each with what look-ahead still asks for; throws GrammarError beyond 100,000 parts of the
/// patterns (a counted part as often as it may come), TextAutomaton::kMostStates, or 30 million steps; `work` (or null)
/// counts them too.
/// Source: Rabin & Scott 1959; look-ahead as in Chandra, Kozen & Stockmeyer 1981 (alternation).
TextAutomaton text_automaton(std::span<const TextCondition> conditions, WorkBudget* work = nullptr);

/// The texts that both take, minimal. Quicker than two conditions where both automata have many edges.
/// Throws GrammarError beyond TextAutomaton::kMostStates pairs of states.
TextAutomaton intersection(const TextAutomaton& a, const TextAutomaton& b, WorkBudget* work = nullptr);

/// A grammar of an automaton's texts that have `least` to `most` (or Grammar::kUnbounded) characters. `write`: empty
/// for UTF-8. A length that the automaton does not keep by itself is counted: states times counts, up to 70,000, beyond
/// which it throws GrammarError; what repeats one set of characters to the end costs nothing.
Grammar::Expr add_text_automaton(Grammar& grammar, const TextAutomaton& automaton, int64_t least, int64_t most,
                                 const CharWriter& write);

}  // namespace riptide
