// What an answer may look like: rules made of expressions over bytes and markup tokens, before they are compiled.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/work_budget.h"

namespace riptide {

/// Inclusive ranges of code points.
using CharSet = std::vector<std::pair<char32_t, char32_t>>;

/// Sorted, disjoint, without surrogates and what lies above U+10FFFF.
CharSet normalized(CharSet set);
/// All other Unicode scalar values. REQUIRES: normalized.
CharSet complement(const CharSet& set);
/// In both. REQUIRES: normalized.
CharSet intersection(const CharSet& a, const CharSet& b);
/// Every Unicode scalar value.
CharSet all_characters();

/// Thrown for a grammar that is wrong, not supported, too large, or that no text can match. The message names the
/// place.
class GrammarError : public Error {
  public:
    using Error::Error;
};

/// A context-free grammar. Expressions are numbers of this object and may be used in several places; rules may be
/// recursive, also to the left, and ambiguous. Not thread-safe.
class Grammar {
  public:
    using Expr = int32_t;
    using Rule = int32_t;
    static constexpr int64_t kUnbounded = -1;
    static constexpr int64_t kMostRepeats = 1'000'000;  // finite bounds of repeat()
    static constexpr std::size_t kMostExpressions = 200'000;

    enum class Kind : uint8_t { empty, text, chars, sequence, choice, repeat, rule, token, network };
    /// From one state of a network to another, by way of an expression.
    struct Arc {
        int32_t from, to;
        Expr expr;
    };
    struct Network {
        std::vector<Arc> arcs;
        std::vector<int32_t> finals;  // states that end it
        int32_t states = 0;
    };
    struct Node {
        Kind kind = Kind::empty;
        int32_t rule = -1;                       // rule
        int64_t least = 0, most = 0;             // repeat
        std::string text;                        // text; token: its spelling
        CharSet chars;                           // chars, normalized
        std::vector<Expr> parts;                 // sequence, choice, repeat
        std::shared_ptr<const Network> network;  // network
    };

    /// `work` counts what is done to make this and what is compiled of it, and stops it; null: nobody does. It must
    /// outlive both.
    explicit Grammar(WorkBudget* work = nullptr);
    WorkBudget* work() const { return work_; }

    /// Matches the empty text.
    Expr empty() const { return 0; }
    /// Exactly these bytes.
    Expr text(std::string_view bytes);
    /// One character in UTF-8. An empty set matches nothing.
    Expr chars(CharSet set);
    /// One of these texts.
    Expr words(std::vector<std::string> texts);
    Expr sequence(std::vector<Expr> parts);
    /// One of the alternatives; none of none.
    Expr choice(std::vector<Expr> alternatives);
    /// `least` to `most` (or kUnbounded) times. Throws GrammarError beyond kMostRepeats.
    Expr repeat(Expr part, int64_t least, int64_t most);
    Expr optional(Expr part) { return repeat(part, 0, 1); }
    /// What is said on some way from state 0 to one of `finals`.
    Expr network(std::vector<Arc> arcs, std::vector<int32_t> finals, int32_t states);
    /// One whole added token of the vocabulary, e.g. "<tool_call>": markup that no text can spell.
    Expr token(std::string_view spelling);

    /// A rule without a body yet; until define() nothing matches it.
    Rule declare();
    void define(Rule rule, Expr body);
    Expr call(Rule rule);
    /// declare, define and call.
    Expr named(Expr body);
    /// Named, and an item of a JSON array whose items all differ; the array needs `least` of them. No grammar can say
    /// that: who follows an answer keeps the items in mind (DistinctItems).
    Expr distinct(Expr item, int64_t least);
    /// The rules of such items: how many their arrays need.
    const std::vector<std::pair<Rule, int64_t>>& distinct_rules() const { return distinct_; }

    void set_root(Expr root) { root_ = root; }
    Expr root() const { return root_; }
    const Node& node(Expr expr) const { return nodes_[static_cast<std::size_t>(expr)]; }
    const std::vector<Expr>& bodies() const { return bodies_; }  // of each rule; -1: not defined

  private:
    Expr add(Node node);
    Expr words_from(std::span<const std::string> sorted, std::size_t at);

    WorkBudget* work_;
    std::vector<Node> nodes_;
    std::vector<Expr> bodies_;
    std::vector<std::pair<Rule, int64_t>> distinct_;
    Expr root_ = 0;
};

}  // namespace riptide
