// How far texts of some kinds stay inside a state of the recogniser, or one like it.
#pragma once

#include <unordered_map>

#include "text/structured/earley.h"
#include "text/tokenizer/token_trie.h"

namespace riptide {

/// Inside a string nearly every byte leads back to where it came from, or (where characters are counted) to the next
/// place of a row of such places. So whole branches of a vocabulary fit, and need not be walked through.
class StateRuns {
  public:
    using State = Recognizer::State;
    static constexpr int32_t kLongest = 64;

    struct Run {
        TokenTrie::Kinds kinds = 0;  // any text of these kinds
        int32_t length = 0;          // of so many bytes leads to no dead state; kLongest: or more
        int32_t depth = 0;           // Recognizer::depth of the states that it passes, at most
        bool escapes = false;        // rules may end in one of them
    };

    /// Both must outlive this.
    StateRuns(const Automaton& automaton, Recognizer& recognizer) : automaton_(automaton), recognizer_(recognizer) {}

    /// Throws as Recognizer::advance does.
    const Run& from(State state);
    /// Memory, about.
    std::size_t bytes() const { return steps_.size() * (sizeof(Step) + 32) + runs_.size() * (sizeof(Run) + 32); }

  private:
    /// What one character leads to.
    struct Step {
        TokenTrie::Kinds kinds = 0;
        State next = Recognizer::kDead;
        int32_t depth = 0;  // of `next` and the states inside characters
        bool escapes = false;
    };
    const Step& step(State state);
    void pass(State state, Step& out) const;
    bool whole_characters_lead(State from, Step& out);
    bool bytes_lead(State from, uint8_t low, uint8_t high, int32_t more, Step& out, int32_t& looks);

    const Automaton& automaton_;
    Recognizer& recognizer_;
    std::unordered_map<State, Step> steps_;
    std::unordered_map<State, Run> runs_;
};

}  // namespace riptide
