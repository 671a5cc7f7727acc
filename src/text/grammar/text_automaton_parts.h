// Patterns as networks of nodes, and characters in classes. Private to text_automaton*.cpp.
#pragma once

#include <map>

#include "text/grammar/text_automaton.h"

namespace riptide {

/// Characters that are in the same sets are one class.
struct CharClasses {
    std::vector<CharSet> classes;
    std::vector<std::vector<bool>> member;  // of each set: its classes
};
/// `sets`: with their numbers from 0 on. Throws GrammarError beyond 200 million times set and border.
CharClasses classes_of(const std::map<CharSet, int32_t>& sets);

/// Conditions on a text as one network, and the classes of characters that it does not tell apart.
class TextParts {
  public:
    enum class Kind : uint8_t {
        skip,   // to any of `to`
        chars,  // takes a character
        start,
        end,
        border,
        no_border,  // passes only there
        ahead,      // goes on to `to` if what follows matches from `ahead` on
        not_ahead,
        done  // whatever follows
    };
    struct Node {
        Kind kind = Kind::skip;
        int32_t set = -1, ahead = -1;
        std::vector<int32_t> to;
    };

    /// `work`: counts what is done, here and in count_work(); or null.
    TextParts(std::span<const TextCondition> conditions, WorkBudget* work);

    const Node& at(int32_t node) const { return nodes_[static_cast<std::size_t>(node)]; }
    std::size_t size() const { return nodes_.size(); }
    /// Where each condition begins.
    const std::vector<int32_t>& starts() const { return starts_; }
    bool has_borders() const { return has_borders_; }
    bool has_ahead() const { return has_ahead_; }
    static bool is_assertion(Kind kind) { return kind >= Kind::start && kind <= Kind::no_border; }

    const std::vector<CharSet>& classes() const { return classes_.classes; }
    bool takes(int32_t node, std::size_t c) const { return classes_.member[static_cast<std::size_t>(at(node).set)][c]; }
    bool is_word(std::size_t c) const { return classes_.member[static_cast<std::size_t>(word_set_)][c]; }

    /// Throws GrammarError beyond 30 million steps.
    void count_work(std::size_t steps);

  private:
    int32_t add(Node node);
    int32_t add(Kind kind, std::vector<int32_t> to) { return add({kind, -1, -1, std::move(to)}); }
    int32_t add_chars(const CharSet& set, int32_t to) { return add({Kind::chars, number_of(set), -1, {to}}); }
    int32_t number_of(const CharSet& set);
    int32_t add_pattern(const Pattern& pattern, int32_t node, int32_t to, bool negative);
    int32_t add_repeat(const Pattern& pattern, const Pattern::Node& node, int32_t to, bool negative);
    int32_t add_ahead(const Pattern& pattern, const Pattern::Node& node, int32_t to, bool negative);
    int32_t add_automaton(const TextAutomaton& automaton);

    std::vector<Node> nodes_;
    std::vector<int32_t> starts_;
    int32_t done_ = 0, end_ = 0;
    bool has_borders_ = false, has_ahead_ = false;
    std::map<CharSet, int32_t> sets_;
    int32_t word_set_ = -1;
    CharClasses classes_;
    std::size_t work_ = 0;
    WorkBudget* budget_;
};

/// The smallest automaton of the same texts, without states from which no text ends. `table`: of each state and class
/// of characters the next state, or -1. `work` counts what is done; or null.
TextAutomaton minimal_automaton(std::vector<std::vector<int32_t>> table, std::vector<uint8_t> accepts,
                                const std::vector<CharSet>& classes, WorkBudget* work);

}  // namespace riptide
