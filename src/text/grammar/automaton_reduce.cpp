// The second half of compiling: no empty edges, no dead ends, bytes in classes.
#include <algorithm>
#include <deque>

#include "text/grammar/automaton_builder.h"

namespace riptide {

void AutomatonBuilder::count_work(std::size_t steps) {
    constexpr int64_t kMostWork = 40'000'000;
    work_ += static_cast<int64_t>(steps);
    if (work_ > kMostWork)
        throw GrammarError(fmt::format("too complex: compiling takes more than {} steps", kMostWork));
    spend(steps);
}

/// Steps that are as many as the grammar is large: they count in the request's budget only.
void AutomatonBuilder::spend(std::size_t steps) {
    if (grammar_.work() != nullptr) grammar_.work()->spend_small(static_cast<int64_t>(steps));
}

/// reached_: the nodes to be reached from `node` without taking anything, itself included.
void AutomatonBuilder::spread(int32_t node) {
    mark_.resize(nodes_.size(), 0);
    ++stamp_;
    reached_.clear();
    const auto reach = [&](int32_t n) {
        if (std::exchange(mark_[static_cast<std::size_t>(n)], stamp_) != stamp_) reached_.push_back(n);
    };
    reach(node);
    for (std::size_t i = 0; i < reached_.size(); ++i)
        each_arc(reached_[i], [&](const Arc& arc) {
            const bool nothing = arc.way == Way::skip || ((arc.way == Way::call || arc.way == Way::maybe) &&
                                                          empty_[static_cast<std::size_t>(arc.low)]);
            if (nothing) reach(arc.to);
        });
    count_work(reached_.size());
}

void AutomatonBuilder::find_empty() {
    empty_.assign(starts_.size(), 0);
    for (bool more = true; more;) {
        more = false;
        for (std::size_t r = 0; r < starts_.size(); ++r) {
            if (empty_[r]) continue;
            spread(starts_[r]);
            if (mark_[static_cast<std::size_t>(ends_[r])] != stamp_) continue;
            empty_[r] = 1;
            more = true;
        }
    }
}

/// The node that does what this one does, if all that it does is to lead there.
int32_t AutomatonBuilder::behind_skips(int32_t node) {
    for (int steps = 0; steps < 64; ++steps) {
        const Node& n = at(node);
        if (n.accepts || n.first < 0) break;
        const Arc& only = arcs_[static_cast<std::size_t>(n.first)];
        if (only.way != Way::skip || only.next >= 0) break;
        node = only.to;
    }
    return node;
}

AutomatonBuilder::Solid AutomatonBuilder::merge_reached(int32_t node) {
    spread(node);
    Solid out{.rule = at(node).rule,
              .first_edge = static_cast<int32_t>(edges_.size()),
              .first_call = static_cast<int32_t>(calls_.size())};
    for (const int32_t r : reached_) {
        out.accepts = out.accepts || at(r).accepts;
        std::size_t taken = 0;
        each_arc(r, [&](const Arc& arc) {
            if (arc.way == Way::edge) edges_.push_back({arc.low, arc.high, behind_skips(arc.to)});
            else if (arc.way == Way::call || arc.way == Way::solid) calls_.push_back({arc.low, behind_skips(arc.to)});
            else return;
            ++taken;
        });
        count_work(taken);
    }
    const auto edges = edges_.begin() + out.first_edge;
    const auto edge = [](const Edge& e) { return std::tuple(e.low, e.high, e.to); };
    std::sort(edges, edges_.end(), [&](const Edge& a, const Edge& b) { return edge(a) < edge(b); });
    edges_.erase(std::unique(edges, edges_.end(), [&](const Edge& a, const Edge& b) { return edge(a) == edge(b); }),
                 edges_.end());
    const auto calls = calls_.begin() + out.first_call;
    const auto call = [](const Automaton::Call& c) { return std::pair(c.rule, c.to); };
    std::sort(calls, calls_.end(), [&](const auto& a, const auto& b) { return call(a) < call(b); });
    calls_.erase(std::unique(calls, calls_.end(), [&](const auto& a, const auto& b) { return call(a) == call(b); }),
                 calls_.end());
    out.edges = static_cast<int32_t>(edges_.size()) - out.first_edge;
    out.calls = static_cast<int32_t>(calls_.size()) - out.first_call;
    return out;
}

void AutomatonBuilder::take_out_skips() {
    solid_.resize(nodes_.size());
    std::vector<uint8_t> seen(nodes_.size(), 0);
    std::vector<int32_t> todo;
    const auto visit = [&](int32_t node) {
        if (!std::exchange(seen[static_cast<std::size_t>(node)], uint8_t{1})) todo.push_back(node);
    };
    visit(starts_[grammar_.bodies().size()]);
    while (!todo.empty()) {
        const int32_t node = todo.back();
        todo.pop_back();
        Solid& out = solid_at(node);
        out = merge_reached(node);
        if (starts_[static_cast<std::size_t>(out.rule)] == node)
            out.accepts = false;  // callers know that it may be empty
        if (edges_.size() + calls_.size() > Automaton::kMostEdges)
            throw GrammarError(fmt::format("too large: more than {} transitions", Automaton::kMostEdges));
        for (const Edge& edge : edges_of(out)) visit(edge.to);
        for (const Automaton::Call& call : calls_of(out)) {
            visit(starts_[static_cast<std::size_t>(call.rule)]);
            visit(call.to);
        }
    }
    std::vector<Node>().swap(nodes_);
    std::deque<Arc>().swap(arcs_);
    std::vector<uint32_t>().swap(mark_);
}

/// Least fixed point, from the accepting nodes backwards: what a node needs is the least that one of its edges needs; a
/// call needs what follows it, and one more than the rule.
void AutomatonBuilder::find_needs() {
    struct User {
        int32_t node, start, to;  // start: of the rule that is called; -1: an edge
    };
    const auto each_user = [&](const auto& use) {  // use(of which node, User)
        for (std::size_t n = 0; n < solid_.size(); ++n) {
            const auto node = static_cast<int32_t>(n);
            for (const Edge& edge : edges_of(solid_[n])) use(edge.to, User{node, -1, edge.to});
            for (const Automaton::Call& call : calls_of(solid_[n])) {
                const int32_t start = starts_[static_cast<std::size_t>(call.rule)];
                use(call.to, User{node, start, call.to});
                use(start, User{node, start, call.to});
            }
        }
    };
    std::vector<std::size_t> ends(solid_.size() + 1,
                                  0);  // of each node's users: first their number, then where they end
    each_user([&](int32_t of, const User&) { ++ends[static_cast<std::size_t>(of) + 1]; });
    for (std::size_t n = 0; n < solid_.size(); ++n) ends[n + 1] += ends[n];
    std::vector<User> users(ends.back());
    std::vector<std::size_t> begins(ends.begin(), ends.end() - 1), filled = begins;
    each_user([&](int32_t of, const User& user) { users[filled[static_cast<std::size_t>(of)]++] = user; });
    std::deque<int32_t> todo;
    for (std::size_t n = 0; n < solid_.size(); ++n) {
        Solid& node = solid_[n];
        spend(static_cast<std::size_t>(8 + node.edges + 2 * node.calls));
        if (!node.accepts) continue;
        node.need = 0;
        todo.push_back(static_cast<int32_t>(n));
    }
    while (!todo.empty()) {
        const auto node = static_cast<std::size_t>(todo.front());
        todo.pop_front();
        const auto of_node = std::span(users).subspan(begins[node], filled[node] - begins[node]);
        count_work(1 + of_node.size());
        for (const User& user : of_node) {
            const int32_t inside = user.start < 0 ? 0 : 1 + solid_at(user.start).need;
            const int32_t need = std::max(inside, solid_at(user.to).need);
            if (need >= solid_at(user.node).need) continue;
            solid_at(user.node).need = need;
            todo.push_back(user.node);
        }
    }
}

void AutomatonBuilder::drop_useless() {
    const auto left = [](auto range, const auto& useless) {
        return static_cast<int32_t>(std::remove_if(range.begin(), range.end(), useless) - range.begin());
    };
    for (Solid& node : solid_) {
        spend(static_cast<std::size_t>(8 + node.edges + node.calls));
        node.edges = left(edges_of(node), [&](const Edge& edge) { return solid_at(edge.to).need >= kNever; });
        node.calls = left(calls_of(node), [&](const Automaton::Call& call) {
            return solid_at(call.to).need >= kNever ||
                   solid_at(starts_[static_cast<std::size_t>(call.rule)]).need >= kNever;
        });
    }
    const std::size_t root = grammar_.bodies().size();
    const int32_t need = solid_at(starts_[root]).need;
    if (need >= kNever && !empty_[root]) throw GrammarError("nothing can match");
    if (need < kNever && need > Automaton::kMostDepth && !empty_[root])
        throw GrammarError(fmt::format("all that matches nests deeper than {}", Automaton::kMostDepth));
}

/// New numbers of the nodes that are left; -1 for others.
std::vector<int32_t> AutomatonBuilder::numbers() {
    std::vector<int32_t> number(solid_.size(), -1), order;
    const auto visit = [&](int32_t node) {
        if (number[static_cast<std::size_t>(node)] >= 0) return;
        number[static_cast<std::size_t>(node)] = static_cast<int32_t>(order.size());
        order.push_back(node);
    };
    visit(starts_[grammar_.bodies().size()]);
    for (std::size_t i = 0; i < order.size(); ++i) {
        const Solid& node = solid_at(order[i]);
        spend(static_cast<std::size_t>(8 + node.edges + node.calls));
        for (const Edge& edge : edges_of(node)) visit(edge.to);
        for (const Automaton::Call& call : calls_of(node)) {
            visit(starts_[static_cast<std::size_t>(call.rule)]);
            visit(call.to);
        }
    }
    reached_ = std::move(order);
    return number;
}

Automaton AutomatonBuilder::pack() {
    Automaton out;
    const std::vector<int32_t> number = numbers();
    std::array<bool, 257> cut{};
    for (const int32_t node : reached_)
        for (const Edge& edge : edges_of(solid_at(node)))
            if (edge.low < 256)
                cut[static_cast<std::size_t>(edge.low)] = cut[static_cast<std::size_t>(edge.high) + 1] = true;
    uint16_t current = 0;
    for (std::size_t byte = 0; byte < 256; ++byte) {
        if (byte > 0 && cut[byte]) ++current;
        out.class_of_[byte] = current;
    }
    out.byte_classes_ = current + 1;
    out.tokens_ = tokens_;
    const auto class_of = [&](int32_t symbol) {
        if (symbol >= 256) return static_cast<uint16_t>(out.byte_classes_ + symbol - 256);
        return out.class_of_[static_cast<std::size_t>(symbol)];
    };
    for (const int32_t old : reached_) {
        const Solid& node = solid_at(old);
        spend(static_cast<std::size_t>(8 + node.edges + node.calls));
        out.edge_begin_.push_back(static_cast<int32_t>(out.edges_.size()));
        out.call_begin_.push_back(static_cast<int32_t>(out.calls_.size()));
        for (const Edge& edge : edges_of(node))
            out.edges_.push_back({class_of(edge.low), class_of(edge.high), number[static_cast<std::size_t>(edge.to)]});
        for (const Automaton::Call& call : calls_of(node))
            out.calls_.push_back({call.rule, number[static_cast<std::size_t>(call.to)]});
        out.accepts_.push_back(node.accepts);
        out.rule_of_.push_back(node.rule);
        out.need_.push_back(node.need);
        if (node.need < kNever) out.most_need_ = std::max(out.most_need_, node.need);
    }
    out.edge_begin_.push_back(static_cast<int32_t>(out.edges_.size()));
    out.call_begin_.push_back(static_cast<int32_t>(out.calls_.size()));
    for (const int32_t start : starts_) out.starts_.push_back(number[static_cast<std::size_t>(start)]);
    for (const auto& [rule, least] : grammar_.distinct_rules()) {
        out.distinct_.resize(starts_.size());
        out.distinct_[static_cast<std::size_t>(rule)] = 1;
    }
    const std::size_t root = grammar_.bodies().size();
    out.root_ = static_cast<int32_t>(root);
    out.root_empty_ = empty_[root];
    return out;
}

}  // namespace riptide
