#include "text/grammar/grammar.h"

#include <algorithm>

namespace riptide {

namespace {

constexpr char32_t kLast = 0x10FFFF, kSurrogates = 0xD800, kBehindSurrogates = 0xE000;

}  // namespace

CharSet normalized(CharSet set) {
    CharSet parts;
    for (auto [low, high] : set) {
        high = std::min(high, kLast);
        if (low < kSurrogates && high >= kSurrogates) parts.emplace_back(low, kSurrogates - 1);
        if (low < kSurrogates && high < kSurrogates) parts.emplace_back(low, high);
        if (high >= kBehindSurrogates) parts.emplace_back(std::max(low, kBehindSurrogates), high);
    }
    std::erase_if(parts, [](const auto& range) { return range.first > range.second; });
    std::sort(parts.begin(), parts.end());
    CharSet out;
    for (const auto& [low, high] : parts) {
        if (!out.empty() && low <= out.back().second + 1) out.back().second = std::max(out.back().second, high);
        else out.emplace_back(low, high);
    }
    return out;
}

CharSet complement(const CharSet& set) {
    CharSet out;
    char32_t next = 0;
    for (const auto& [low, high] : set) {
        if (low > next) out.emplace_back(next, low - 1);
        next = high + 1;
    }
    if (next <= kLast) out.emplace_back(next, kLast);
    return normalized(std::move(out));
}

CharSet intersection(const CharSet& a, const CharSet& b) {
    CharSet out;
    for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        const char32_t low = std::max(a[i].first, b[j].first), high = std::min(a[i].second, b[j].second);
        if (low <= high) out.emplace_back(low, high);
        ++(a[i].second < b[j].second ? i : j);
    }
    return normalized(std::move(out));
}

CharSet all_characters() { return normalized({{0, kLast}}); }

Grammar::Grammar(WorkBudget* work) : work_(work) { nodes_.emplace_back(); }

Grammar::Expr Grammar::add(Node node) {
    if (nodes_.size() >= kMostExpressions)
        throw GrammarError(fmt::format("too large: more than {} expressions", kMostExpressions));
    if (work_ != nullptr) work_->spend();
    nodes_.push_back(std::move(node));
    return static_cast<Expr>(nodes_.size() - 1);
}

Grammar::Expr Grammar::text(std::string_view bytes) {
    if (bytes.empty()) return empty();
    Node node{Kind::text};
    node.text = bytes;
    return add(std::move(node));
}

Grammar::Expr Grammar::chars(CharSet set) {
    Node node{Kind::chars};
    node.chars = normalized(std::move(set));
    return add(std::move(node));
}

Grammar::Expr Grammar::words(std::vector<std::string> texts) {
    std::sort(texts.begin(), texts.end());
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    return words_from(texts, 0);
}

/// Texts that agree before byte `at`, as a tree: what they share is there once.
Grammar::Expr Grammar::words_from(std::span<const std::string> sorted, std::size_t at) {
    std::vector<Expr> alternatives;
    for (std::size_t i = 0; i < sorted.size();) {
        if (sorted[i].size() == at) {
            alternatives.push_back(empty());
            ++i;
            continue;
        }
        std::size_t end = i + 1;
        while (end < sorted.size() && sorted[end][at] == sorted[i][at]) ++end;
        std::size_t shared = end == i + 1 ? sorted[i].size() : at + 1;
        const std::string &first = sorted[i], &last = sorted[end - 1];
        while (shared < first.size() && shared < last.size() && first[shared] == last[shared]) ++shared;
        const Expr head = text(std::string_view(first).substr(at, shared - at));
        alternatives.push_back(end == i + 1 ? head : sequence({head, words_from(sorted.subspan(i, end - i), shared)}));
        i = end;
    }
    return choice(std::move(alternatives));
}

Grammar::Expr Grammar::sequence(std::vector<Expr> parts) {
    std::erase(parts, empty());
    if (parts.empty()) return empty();
    if (parts.size() == 1) return parts[0];
    Node node{Kind::sequence};
    node.parts = std::move(parts);
    return add(std::move(node));
}

Grammar::Expr Grammar::choice(std::vector<Expr> alternatives) {
    if (alternatives.size() == 1) return alternatives[0];
    Node node{Kind::choice};
    node.parts = std::move(alternatives);
    return add(std::move(node));
}

Grammar::Expr Grammar::repeat(Expr part, int64_t least, int64_t most) {
    if (least > kMostRepeats || most > kMostRepeats)
        throw GrammarError(fmt::format("{} repetitions, expected at most {}", std::max(least, most), kMostRepeats));
    if (most != kUnbounded && least > most)
        throw GrammarError(fmt::format("at least {} repetitions and at most {}: nothing can match", least, most));
    if (most == 0) return empty();
    if (least == 1 && most == 1) return part;
    Node node{Kind::repeat};
    node.least = least;
    node.most = most;
    node.parts = {part};
    return add(std::move(node));
}

Grammar::Expr Grammar::network(std::vector<Arc> arcs, std::vector<int32_t> finals, int32_t states) {
    Node node{Kind::network};
    node.network = std::make_shared<const Network>(Network{std::move(arcs), std::move(finals), states});
    return add(std::move(node));
}

Grammar::Expr Grammar::token(std::string_view spelling) {
    Node node{Kind::token};
    node.text = spelling;
    return add(std::move(node));
}

Grammar::Rule Grammar::declare() {
    bodies_.push_back(-1);
    return static_cast<Rule>(bodies_.size() - 1);
}

void Grammar::define(Rule rule, Expr body) { bodies_[static_cast<std::size_t>(rule)] = body; }

Grammar::Expr Grammar::call(Rule rule) {
    Node node{Kind::rule};
    node.rule = rule;
    return add(std::move(node));
}

Grammar::Expr Grammar::named(Expr body) {
    const Rule rule = declare();
    define(rule, body);
    return call(rule);
}

Grammar::Expr Grammar::distinct(Expr item, int64_t least) {
    const Rule rule = declare();
    define(rule, item);
    distinct_.emplace_back(rule, least);
    return call(rule);
}

}  // namespace riptide
