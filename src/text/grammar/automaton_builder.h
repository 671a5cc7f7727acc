// How a grammar becomes an automaton. Private to automaton*.cpp.
#pragma once

#include <compare>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "text/grammar/automaton.h"

namespace riptide {

/// Thompson's construction over all rules, with edges that take nothing; then those are taken out.
class AutomatonBuilder {
  public:
    AutomatonBuilder(const Grammar& grammar, const std::array<bool, 256>& bytes, std::span<const std::string> tokens);
    Automaton build();

  private:
    struct Edge {
        int32_t low, high, to;  // bytes; a markup token t is 256 + t
    };
    enum class Way : uint8_t {
        edge,
        call,
        solid,  // a call that must take something
        maybe,  // takes nothing, if the rule may be empty
        skip,   // takes nothing
    };
    /// A way out of a node. Those of a node are a list, and all lists stand in arcs_: of 200,000 nodes most have a
    /// single way out, and vectors for each would be most of the memory that compiling takes.
    struct Arc {
        Way way;
        int32_t low, high;  // of an edge; low of a call: the rule
        int32_t to, next;   // next: in arcs_; -1: the last
    };
    struct Node {
        int32_t rule = 0, first = -1;  // first: in arcs_
        bool accepts = false;
    };
    /// A node once nothing is empty: its edges and calls are ranges of edges_ and calls_.
    struct Solid {
        int32_t rule = 0, need = kNever;
        int32_t first_edge = 0, edges = 0, first_call = 0, calls = 0;
        bool accepts = false;
    };
    static constexpr int32_t kNever = 1 << 30;
    /// Beyond them nothing comes of it that is within the bounds of an Automaton: its edges, and some empty ones.
    static constexpr std::size_t kMostArcs = Automaton::kMostEdges + 2 * Automaton::kMostNodes;
    static constexpr int64_t kBlock = 1000;  // repetitions that are counted one by one

    Node& at(int32_t node) { return nodes_[static_cast<std::size_t>(node)]; }
    Solid& solid_at(int32_t node) { return solid_[static_cast<std::size_t>(node)]; }
    std::span<Edge> edges_of(const Solid& node) {
        return std::span(edges_).subspan(static_cast<std::size_t>(node.first_edge),
                                         static_cast<std::size_t>(node.edges));
    }
    std::span<Automaton::Call> calls_of(const Solid& node) {
        return std::span(calls_).subspan(static_cast<std::size_t>(node.first_call),
                                         static_cast<std::size_t>(node.calls));
    }
    /// Calls see(arc) for each way out of the node.
    template <class See>
    void each_arc(int32_t node, const See& see) {
        for (int32_t i = at(node).first; i >= 0; i = arcs_[static_cast<std::size_t>(i)].next)
            see(arcs_[static_cast<std::size_t>(i)]);
    }
    int32_t add_node();
    void add_edge(int32_t from, int32_t low, int32_t high, int32_t to);
    void add_arc(int32_t from, Way way, int32_t low, int32_t high, int32_t to);
    void add_skip(int32_t from, int32_t to) { add_arc(from, Way::skip, 0, 0, to); }
    void add_call(int32_t from, Way way, int32_t rule, int32_t to) { add_arc(from, way, rule, 0, to); }

    // Construction: each gives the node where what it adds ends.
    int32_t add(Grammar::Expr expr, int32_t from, int depth = 0);
    int32_t add_text(const std::string& text, int32_t from);
    int32_t add_chars(const CharSet& set, int32_t from, int32_t to);
    int32_t add_repeat(const Grammar::Node& node, int32_t from, int depth);
    int32_t add_network(const Grammar::Network& network, int32_t from, int depth);
    int32_t add_token(const std::string& spelling, int32_t from);
    void add_rule(int32_t rule, Grammar::Expr body, bool block = false);
    void add_range(int32_t from, int32_t to, char32_t low, char32_t high);
    int32_t continuation(int32_t to, int length);
    int32_t shared(Grammar::Expr expr, bool block = false);
    int32_t add_times(int32_t rule, int64_t count, int32_t from);
    void add_up_to(Grammar::Expr part, int64_t most, int32_t from, int32_t to);

    // What may be empty, what is of use, how deep it nests.
    void find_empty();
    void count_work(std::size_t steps);
    void spend(std::size_t steps);
    void spread(int32_t node);
    int32_t behind_skips(int32_t node);
    void take_out_skips();
    Solid merge_reached(int32_t node);
    void find_needs();
    void drop_useless();
    std::vector<int32_t> numbers();
    Automaton pack();

    const Grammar& grammar_;
    const std::array<bool, 256>& bytes_;
    std::span<const std::string> known_;
    std::vector<std::string> tokens_;
    std::vector<Node> nodes_;  // gone, as arcs_ is, once solid_ is made
    std::deque<Arc> arcs_;     // never copied to grow
    std::vector<Solid> solid_;
    std::vector<Edge> edges_;             // of solid_
    std::vector<Automaton::Call> calls_;  // of solid_
    int32_t rule_ = 0;                    // whose body is being added
    std::vector<int32_t> starts_, ends_;  // of each rule
    std::vector<uint8_t> empty_;          // rules that may be empty
    /// A rule that repetitions made: an expression, or (`block`) kBlock times what it matches, none of them empty.
    struct Extra {
        Grammar::Expr body;
        bool block;
        friend auto operator<=>(const Extra&, const Extra&) = default;
    };
    std::vector<Extra> extra_;
    std::map<Extra, int32_t> extra_rules_;
    std::map<std::pair<int32_t, int>, int32_t> continuations_;
    std::vector<uint32_t> mark_;  // nodes in reached_ carry stamp_
    uint32_t stamp_ = 0;
    int64_t work_ = 0;              // steps of compiling that may take longer than the grammar is large
    std::vector<int32_t> reached_;  // of the last spread()
};

}  // namespace riptide
