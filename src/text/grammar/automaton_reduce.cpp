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
    for (std::size_t i = 0; i < reached_.size(); ++i) {
        const Node& n = at(reached_[i]);
        for (const int32_t to : n.skips) reach(to);
        for (const auto* calls : {&n.calls, &n.maybe})
            for (const Automaton::Call& call : *calls)
                if (empty_[static_cast<std::size_t>(call.rule)]) reach(call.to);
    }
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
        if (n.accepts || !n.edges.empty() || !n.calls.empty() || !n.solid.empty() || !n.maybe.empty()) break;
        if (n.skips.size() != 1) break;
        node = n.skips[0];
    }
    return node;
}

void AutomatonBuilder::merge_reached(int32_t node, Node& out) {
    spread(node);
    out.rule = at(node).rule;
    for (const int32_t r : reached_) {
        const Node& from = at(r);
        out.accepts = out.accepts || from.accepts;
        count_work(from.edges.size() + from.calls.size() + from.solid.size());
        for (Edge edge : from.edges) {
            edge.to = behind_skips(edge.to);
            out.edges.push_back(edge);
        }
        for (const auto* calls : {&from.calls, &from.solid})
            for (Automaton::Call call : *calls) {
                call.to = behind_skips(call.to);
                out.calls.push_back(call);
            }
    }
    const auto key = [](const Edge& e) { return std::tuple(e.low, e.high, e.to); };
    std::sort(out.edges.begin(), out.edges.end(), [&](const Edge& a, const Edge& b) { return key(a) < key(b); });
    out.edges.erase(
        std::unique(out.edges.begin(), out.edges.end(), [&](const Edge& a, const Edge& b) { return key(a) == key(b); }),
        out.edges.end());
    const auto pair = [](const Automaton::Call& c) { return std::pair(c.rule, c.to); };
    std::sort(out.calls.begin(), out.calls.end(), [&](const auto& a, const auto& b) { return pair(a) < pair(b); });
    out.calls.erase(std::unique(out.calls.begin(), out.calls.end(),
                                [&](const auto& a, const auto& b) { return pair(a) == pair(b); }),
                    out.calls.end());
}

void AutomatonBuilder::take_out_skips() {
    std::vector<Node> merged(nodes_.size());
    std::vector<uint8_t> seen(nodes_.size(), 0);
    std::vector<int32_t> todo;
    std::size_t edges = 0;
    const auto visit = [&](int32_t node) {
        if (!std::exchange(seen[static_cast<std::size_t>(node)], uint8_t{1})) todo.push_back(node);
    };
    visit(starts_[grammar_.bodies().size()]);
    while (!todo.empty()) {
        const int32_t node = todo.back();
        todo.pop_back();
        Node& out = merged[static_cast<std::size_t>(node)];
        merge_reached(node, out);
        if (starts_[static_cast<std::size_t>(out.rule)] == node)
            out.accepts = false;  // callers know that it may be empty
        edges += out.edges.size() + out.calls.size();
        if (edges > Automaton::kMostEdges)
            throw GrammarError(fmt::format("too large: more than {} transitions", Automaton::kMostEdges));
        for (const Edge& edge : out.edges) visit(edge.to);
        for (const Automaton::Call& call : out.calls) {
            visit(starts_[static_cast<std::size_t>(call.rule)]);
            visit(call.to);
        }
    }
    nodes_ = std::move(merged);
}

/// Least fixed point, from the accepting nodes backwards: what a node needs is the least that one of its edges needs; a
/// call needs what follows it, and one more than the rule.
void AutomatonBuilder::find_needs() {
    struct User {
        int32_t node, start, to;  // start: of the rule that is called; -1: an edge
    };
    std::vector<std::vector<User>> users(nodes_.size());
    std::deque<int32_t> todo;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
        const auto node = static_cast<int32_t>(n);
        spend(8 + nodes_[n].edges.size() + 2 * nodes_[n].calls.size());
        for (const Edge& edge : nodes_[n].edges)
            users[static_cast<std::size_t>(edge.to)].push_back({node, -1, edge.to});
        for (const Automaton::Call& call : nodes_[n].calls) {
            const int32_t start = starts_[static_cast<std::size_t>(call.rule)];
            users[static_cast<std::size_t>(call.to)].push_back({node, start, call.to});
            users[static_cast<std::size_t>(start)].push_back({node, start, call.to});
        }
        if (!nodes_[n].accepts) continue;
        nodes_[n].need = 0;
        todo.push_back(node);
    }
    while (!todo.empty()) {
        const int32_t node = todo.front();
        todo.pop_front();
        count_work(1 + users[static_cast<std::size_t>(node)].size());
        for (const User& user : users[static_cast<std::size_t>(node)]) {
            const int32_t inside = user.start < 0 ? 0 : 1 + at(user.start).need;
            const int32_t need = std::max(inside, at(user.to).need);
            if (need >= at(user.node).need) continue;
            at(user.node).need = need;
            todo.push_back(user.node);
        }
    }
}

void AutomatonBuilder::drop_useless() {
    for (Node& node : nodes_) {
        spend(8 + node.edges.size() + node.calls.size());
        std::erase_if(node.edges, [&](const Edge& edge) { return at(edge.to).need >= kNever; });
        std::erase_if(node.calls, [&](const Automaton::Call& call) {
            return at(call.to).need >= kNever || at(starts_[static_cast<std::size_t>(call.rule)]).need >= kNever;
        });
    }
    const std::size_t root = grammar_.bodies().size();
    const int32_t need = at(starts_[root]).need;
    if (need >= kNever && !empty_[root]) throw GrammarError("nothing can match");
    if (need < kNever && need > Automaton::kMostDepth && !empty_[root])
        throw GrammarError(fmt::format("all that matches nests deeper than {}", Automaton::kMostDepth));
}

/// New numbers of the nodes that are left; -1 for others.
std::vector<int32_t> AutomatonBuilder::numbers() {
    std::vector<int32_t> number(nodes_.size(), -1), order;
    const auto visit = [&](int32_t node) {
        if (number[static_cast<std::size_t>(node)] >= 0) return;
        number[static_cast<std::size_t>(node)] = static_cast<int32_t>(order.size());
        order.push_back(node);
    };
    visit(starts_[grammar_.bodies().size()]);
    for (std::size_t i = 0; i < order.size(); ++i) {
        const Node& node = at(order[i]);
        spend(8 + node.edges.size() + node.calls.size());
        for (const Edge& edge : node.edges) visit(edge.to);
        for (const Automaton::Call& call : node.calls) {
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
        for (const Edge& edge : at(node).edges)
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
        const Node& node = at(old);
        spend(8 + node.edges.size() + node.calls.size());
        out.edge_begin_.push_back(static_cast<int32_t>(out.edges_.size()));
        out.call_begin_.push_back(static_cast<int32_t>(out.calls_.size()));
        for (const Edge& edge : node.edges)
            out.edges_.push_back({class_of(edge.low), class_of(edge.high), number[static_cast<std::size_t>(edge.to)]});
        for (const Automaton::Call& call : node.calls)
            out.calls_.push_back({call.rule, number[static_cast<std::size_t>(call.to)]});
        out.accepts_.push_back(node.accepts);
        out.rule_of_.push_back(node.rule);
        out.need_.push_back(node.need);
        if (node.need < kNever) out.most_need_ = std::max(out.most_need_, node.need);
    }
    out.edge_begin_.push_back(static_cast<int32_t>(out.edges_.size()));
    out.call_begin_.push_back(static_cast<int32_t>(out.calls_.size()));
    for (const int32_t start : starts_) out.starts_.push_back(number[static_cast<std::size_t>(start)]);
    const std::size_t root = grammar_.bodies().size();
    out.root_ = static_cast<int32_t>(root);
    out.root_empty_ = empty_[root];
    return out;
}

}  // namespace riptide
