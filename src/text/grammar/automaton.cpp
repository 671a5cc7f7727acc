// From expressions to nodes: Thompson's construction.
#include "text/grammar/automaton.h"

#include <algorithm>

#include "text/grammar/automaton_builder.h"
#include "text/utf8.h"

namespace riptide {

namespace {

constexpr int kDeepestExpression = 1000;

}  // namespace

Automaton::Automaton(const Grammar& grammar, const std::array<bool, 256>& bytes, std::span<const std::string> tokens)
    : Automaton(AutomatonBuilder(grammar, bytes, tokens).build()) {}

AutomatonBuilder::AutomatonBuilder(const Grammar& grammar, const std::array<bool, 256>& bytes,
                                   std::span<const std::string> tokens)
    : grammar_(grammar), bytes_(bytes), known_(tokens) {}

Automaton AutomatonBuilder::build() {
    const auto rules = static_cast<int32_t>(grammar_.bodies().size());
    // Rule `rules` is the root; those that repetitions make come behind it.
    for (int32_t r = 0; r < rules; ++r) add_rule(r, grammar_.bodies()[static_cast<std::size_t>(r)]);
    add_rule(rules, grammar_.root());
    for (std::size_t i = 0; i < extra_.size(); ++i) {
        const auto [body, block] = extra_[i];
        add_rule(rules + 1 + static_cast<int32_t>(i), body, block);
    }
    find_empty();
    take_out_skips();
    find_needs();
    drop_useless();
    return pack();
}

int32_t AutomatonBuilder::add_node() {
    if (nodes_.size() >= Automaton::kMostNodes)
        throw GrammarError(fmt::format("too large: more than {} states", Automaton::kMostNodes));
    count_work(1);
    nodes_.emplace_back().rule = rule_;
    return static_cast<int32_t>(nodes_.size() - 1);
}

void AutomatonBuilder::add_arc(int32_t from, Way way, int32_t low, int32_t high, int32_t to) {
    if (arcs_.size() >= kMostArcs)
        throw GrammarError(fmt::format("too large: more than {} transitions", Automaton::kMostEdges));
    const auto number = static_cast<int32_t>(arcs_.size());
    arcs_.push_back({way, low, high, to, at(from).first});
    at(from).first = number;
}

/// Without bytes that no token spells.
void AutomatonBuilder::add_edge(int32_t from, int32_t low, int32_t high, int32_t to) {
    const auto spelled = [&](int32_t byte) { return byte >= 256 || bytes_[static_cast<std::size_t>(byte)]; };
    for (int32_t begin = low; begin <= high; ++begin) {
        if (!spelled(begin)) continue;
        int32_t end = begin;
        while (end < high && spelled(end + 1)) ++end;
        add_arc(from, Way::edge, begin, end, to);
        begin = end;
    }
}

void AutomatonBuilder::add_rule(int32_t rule, Grammar::Expr body, bool block) {
    const auto size = static_cast<std::size_t>(rule) + 1;
    if (starts_.size() < size) {
        starts_.resize(size, -1);
        ends_.resize(size, -1);
    }
    rule_ = rule;
    continuations_.clear();
    const int32_t start = add_node();
    const int32_t end = body < 0 ? add_node() : block ? add_times(shared(body), kBlock, start) : add(body, start);
    // An end of its own: the way on from a loop must not start behind the end of the rule.
    const int32_t last = add_node();
    if (body >= 0) add_skip(end, last);
    at(last).accepts = true;
    starts_[static_cast<std::size_t>(rule)] = start;
    ends_[static_cast<std::size_t>(rule)] = last;
}

int32_t AutomatonBuilder::add(Grammar::Expr expr, int32_t from, int depth) {
    if (depth > kDeepestExpression) throw GrammarError("too deeply nested");
    const Grammar::Node& node = grammar_.node(expr);
    switch (node.kind) {
        case Grammar::Kind::empty:
            return from;
        case Grammar::Kind::text:
            return add_text(node.text, from);
        case Grammar::Kind::chars:
            return add_chars(node.chars, from, add_node());
        case Grammar::Kind::sequence:
            for (const Grammar::Expr part : node.parts) from = add(part, from, depth + 1);
            return from;
        case Grammar::Kind::choice: {
            const int32_t to = add_node();
            for (const Grammar::Expr part : node.parts) {
                const int32_t end = add(part, from, depth + 1);
                add_skip(end, to);
            }
            return to;
        }
        case Grammar::Kind::repeat:
            return add_repeat(node, from, depth);
        case Grammar::Kind::rule: {
            const int32_t to = add_node();
            add_call(from, Way::call, node.rule, to);
            return to;
        }
        case Grammar::Kind::token:
            return add_token(node.text, from);
        case Grammar::Kind::network:
            return add_network(*node.network, from, depth);
    }
    return from;
}

int32_t AutomatonBuilder::add_text(const std::string& text, int32_t from) {
    for (const char c : text) {
        const int32_t to = add_node(), byte = static_cast<uint8_t>(c);
        add_edge(from, byte, byte, to);
        from = to;
    }
    return from;
}

int32_t AutomatonBuilder::add_token(const std::string& spelling, int32_t from) {
    const int32_t to = add_node();
    if (std::find(known_.begin(), known_.end(), spelling) == known_.end()) return to;
    const auto found = std::find(tokens_.begin(), tokens_.end(), spelling);
    const auto number = static_cast<int32_t>(found - tokens_.begin());
    if (found == tokens_.end()) tokens_.push_back(spelling);
    add_edge(from, 256 + number, 256 + number, to);
    return to;
}

int32_t AutomatonBuilder::add_network(const Grammar::Network& network, int32_t from, int depth) {
    std::vector<int32_t> states;
    for (int32_t i = 0; i < network.states; ++i) states.push_back(add_node());
    const auto state = [&](int32_t i) { return states[static_cast<std::size_t>(i)]; };
    const int32_t to = add_node();
    add_skip(from, state(0));
    for (const Grammar::Arc& arc : network.arcs) {
        const Grammar::Node& by = grammar_.node(arc.expr);
        const int32_t first = state(arc.from), next = state(arc.to);
        if (by.kind == Grammar::Kind::chars) add_chars(by.chars, first, next);
        else if (by.kind == Grammar::Kind::rule) add_call(first, Way::call, by.rule, next);
        else add_skip(add(arc.expr, first, depth + 1), next);
    }
    for (const int32_t last : network.finals) add_skip(state(last), to);
    return to;
}

/// What is repeated more than once is a rule, so that each repetition costs one node; so are kBlock of it.
int32_t AutomatonBuilder::shared(Grammar::Expr expr, bool block) {
    const Grammar::Node& node = grammar_.node(expr);
    if (node.kind == Grammar::Kind::rule && !block) return node.rule;
    const auto [found, is_new] = extra_rules_.try_emplace({expr, block}, 0);
    if (is_new) {
        found->second = static_cast<int32_t>(grammar_.bodies().size() + 1 + extra_.size());
        extra_.push_back({expr, block});
    }
    return found->second;
}

/// `count` times what the rule matches and is not empty.
int32_t AutomatonBuilder::add_times(int32_t rule, int64_t count, int32_t from) {
    for (int64_t i = 0; i < count; ++i) {
        const int32_t next = add_node();
        add_call(from, Way::solid, rule, next);
        from = next;
    }
    return from;
}

/// From `from` to `to`: up to `most` times what the expression matches. First as many blocks as are full.
void AutomatonBuilder::add_up_to(Grammar::Expr part, int64_t most, int32_t from, int32_t to) {
    const int32_t rule = shared(part);
    const int64_t blocks = most > kBlock ? most / kBlock : 0, singles = most - blocks * kBlock;
    std::vector<int32_t> left = {to};  // by how many may still come
    for (int64_t i = 1; i <= (blocks > 0 ? kBlock - 1 : singles); ++i) {
        const int32_t node = add_node();
        add_skip(node, to);
        add_call(node, Way::solid, rule, left.back());
        left.push_back(node);
    }
    for (int64_t i = 0; i < blocks; ++i) {
        add_skip(from, left.back());
        from = add_times(shared(part, true), 1, from);
    }
    add_skip(from, left[static_cast<std::size_t>(singles)]);
}

int32_t AutomatonBuilder::add_repeat(const Grammar::Node& node, int32_t from, int depth) {
    const Grammar::Expr part = node.parts[0];
    const bool unbounded = node.most == Grammar::kUnbounded;
    if (unbounded && node.least == 0) {
        const int32_t loop = add_node();
        add_skip(from, loop);
        const int32_t end = add(part, loop, depth + 1);
        add_skip(end, loop);
        return loop;
    }
    const int32_t to = add_node();
    if (node.least == 0 && node.most == 1) {
        const int32_t end = add(part, from, depth + 1);
        add_skip(end, to);
        add_skip(from, to);
        return to;
    }
    const int32_t rule = shared(part);
    const auto add_rest = [&](int32_t first, int64_t most) {
        if (unbounded) add_skip(first, to);
        else add_up_to(part, most, first, to);
    };
    // Each repetition takes something. If the part may be empty, so may all that must still come, at once.
    const int64_t blocks = node.least > kBlock ? node.least / kBlock : 0;
    if (blocks > 0) {
        const int32_t none_must = add_node();
        add_call(from, Way::maybe, rule, none_must);
        add_rest(none_must, node.most);
        from = add_times(shared(part, true), blocks, from);
    }
    for (int64_t i = blocks * kBlock; i < node.least; ++i) {
        if (blocks == 0) add_call(from, Way::maybe, rule, to);
        from = add_times(rule, 1, from);
    }
    add_rest(from, node.most - node.least);
    if (unbounded) add_call(to, Way::solid, rule, to);
    return to;
}

/// The node from which `length` continuation bytes lead to `to`.
int32_t AutomatonBuilder::continuation(int32_t to, int length) {
    if (length == 0) return to;
    if (const auto found = continuations_.find({to, length}); found != continuations_.end()) return found->second;
    const int32_t node = add_node(), next = continuation(to, length - 1);
    add_edge(node, 0x80, 0xBF, next);
    continuations_[{to, length}] = node;
    return node;
}

int32_t AutomatonBuilder::add_chars(const CharSet& set, int32_t from, int32_t to) {
    // A range never crosses a border where the encoded length changes.
    constexpr std::pair<char32_t, char32_t> kLengths[] = {
        {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, 0x10FFFF}};
    for (const auto& [low, high] : set)
        for (const auto& [first, last] : kLengths)
            if (low <= last && high >= first) add_range(from, to, std::max(low, first), std::min(high, last));
    return to;
}

/// The characters low ... high, all of one length in bytes, not across surrogates.
void AutomatonBuilder::add_range(int32_t from, int32_t to, char32_t low, char32_t high) {
    if (high < 0x80) return add_edge(from, static_cast<int32_t>(low), static_cast<int32_t>(high), to);
    std::string first, last;
    append_utf8(first, low);
    append_utf8(last, high);
    const auto byte = [](const std::string& text, std::size_t i) { return int32_t{static_cast<uint8_t>(text[i])}; };
    // Recursion over the bytes: `low_tight` while all before equal those of `low`, and so on.
    const auto walk = [&](const auto& self, int32_t node, std::size_t i, bool low_tight, bool high_tight) -> void {
        const int32_t a = low_tight ? byte(first, i) : 0x80, b = high_tight ? byte(last, i) : 0xBF;
        if (i + 1 == first.size()) return add_edge(node, a, b, to);
        const auto rest = static_cast<int>(first.size() - i - 1);
        const auto enter = [&](int32_t value, bool low_too, bool high_too) {
            const int32_t next = add_node();
            add_edge(node, value, value, next);
            self(self, next, i + 1, low_too, high_too);
        };
        if (low_tight && high_tight && a == b) return enter(a, true, true);
        int32_t begin = a, end = b;
        const auto is_edge = [&](const std::string& text, char fill) {
            return text.find_first_not_of(fill, i + 1) == std::string::npos;
        };
        if (low_tight && !is_edge(first, '\x80')) enter(begin++, true, false);
        if (high_tight && !is_edge(last, '\xBF')) enter(end--, false, true);
        if (begin <= end) add_edge(node, begin, end, continuation(to, rest));
    };
    walk(walk, from, 0, true, true);
}

}  // namespace riptide
