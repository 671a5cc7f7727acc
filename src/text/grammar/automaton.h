// A grammar compiled to a recursive transition network over bytes: what the recogniser walks.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"

namespace riptide {

/// Nodes with edges; each node belongs to one rule. Nothing is empty: what a rule may leave out is spread over the
/// edges of its callers, and every edge lies on some way to an accepting node. Immutable.
class Automaton {
  public:
    static constexpr std::size_t kMostNodes = 200'000, kMostEdges = 1'000'000;
    static constexpr int32_t kMostDepth = 128;  // rules inside each other

    /// Bytes fall into classes that no edge tells apart; markup tokens are classes behind them.
    struct Edge {
        uint16_t low, high;  // classes
        int32_t to;
    };
    struct Call {
        int32_t rule, to;
    };

    /// `bytes`: those that some token of the vocabulary spells alone; others are taken out of the grammar, so that no
    /// way through it ends where no token fits. `tokens`: the added tokens of the vocabulary; others are taken out too.
    /// Throws GrammarError if it is too large, nothing can match, or only what nests deeper than kMostDepth.
    Automaton(const Grammar& grammar, const std::array<bool, 256>& bytes, std::span<const std::string> tokens);

    std::span<const Edge> edges(int32_t node) const { return range(edges_, edge_begin_, node); }
    std::span<const Call> calls(int32_t node) const { return range(calls_, call_begin_, node); }
    bool accepts(int32_t node) const { return accepts_[index(node)]; }
    int32_t rule_of(int32_t node) const { return rule_of_[index(node)]; }
    int32_t start_of(int32_t rule) const { return starts_[index(rule)]; }
    /// Rules that must be entered, one inside the other, on the way from the node to the end of its rule, at least.
    int32_t need(int32_t node) const { return need_[index(node)]; }
    int32_t most_need() const { return most_need_; }

    /// Whether it is a rule of items that all differ (Grammar::distinct), and whether there are any.
    bool distinct(int32_t rule) const { return !distinct_.empty() && distinct_[index(rule)]; }
    bool any_distinct() const { return !distinct_.empty(); }

    int32_t root() const { return root_; }  // a rule
    bool root_empty() const { return root_empty_; }
    int32_t nodes() const { return static_cast<int32_t>(rule_of_.size()); }

    /// Memory, about.
    std::size_t bytes() const {
        return edges_.size() * sizeof(Edge) + calls_.size() * sizeof(Call) + rule_of_.size() * 17 + starts_.size() * 4;
    }

    uint16_t class_of(uint8_t byte) const { return class_of_[byte]; }
    int32_t byte_classes() const { return byte_classes_; }
    /// Markup token i of token_spellings() is class byte_classes() + i.
    const std::vector<std::string>& token_spellings() const { return tokens_; }
    int32_t classes() const { return byte_classes_ + static_cast<int32_t>(tokens_.size()); }

  private:
    friend class AutomatonBuilder;
    Automaton() = default;

    static std::size_t index(int32_t i) { return static_cast<std::size_t>(i); }
    template <class T>
    static std::span<const T> range(const std::vector<T>& all, const std::vector<int32_t>& begin, int32_t i) {
        return std::span(all).subspan(index(begin[index(i)]), index(begin[index(i + 1)] - begin[index(i)]));
    }

    std::vector<Edge> edges_;
    std::vector<Call> calls_;
    std::vector<int32_t> edge_begin_, call_begin_;  // of each node; one more at the end
    std::vector<uint8_t> accepts_;
    std::vector<int32_t> rule_of_, need_, starts_;
    std::vector<uint8_t> distinct_;  // of each rule; empty: none is
    int32_t root_ = 0, most_need_ = 0, byte_classes_ = 0;
    bool root_empty_ = false;
    std::array<uint16_t, 256> class_of_{};
    std::vector<std::string> tokens_;
};

}  // namespace riptide
