// Patterns to networks of nodes (Thompson's construction, from the end to the start), and classes of characters.
#include "text/grammar/text_automaton_parts.h"

#include <algorithm>

namespace riptide {

TextParts::TextParts(std::span<const TextCondition> conditions, WorkBudget* work) : budget_(work) {
    done_ = add(Kind::done, {});
    end_ = add(Kind::end, {done_});
    for (const TextCondition& condition : conditions) {
        if (condition.pattern == nullptr) {
            starts_.push_back(add_automaton(*condition.automaton));
            continue;
        }
        const Pattern& pattern = *condition.pattern;
        int32_t start = add_pattern(pattern, pattern.root, condition.search ? done_ : end_, false);
        if (condition.search) {
            const int32_t loop = add(Kind::skip, {}), any = add_chars(all_characters(), loop);
            nodes_[static_cast<std::size_t>(loop)].to = {any, start};
            start = loop;
        }
        starts_.push_back(start);
    }
    std::sort(starts_.begin(), starts_.end());
    if (has_borders_) word_set_ = number_of(word_characters());
    classes_ = classes_of(sets_);
}

void TextParts::count_work(std::size_t steps) {
    constexpr std::size_t kMostWork = 30'000'000;
    work_ += steps;
    if (work_ > kMostWork)
        throw GrammarError(fmt::format("the conditions on a text take more than {} steps to compile", kMostWork));
    if (budget_ != nullptr) budget_->spend_small(static_cast<int64_t>(steps));
}

int32_t TextParts::add(Node node) {
    constexpr std::size_t kMostParts = 100'000;
    if (nodes_.size() >= kMostParts)
        throw GrammarError(
            fmt::format("a regular expression of more than {} parts, counted as often as they may come", kMostParts));
    nodes_.push_back(std::move(node));
    return static_cast<int32_t>(nodes_.size() - 1);
}

int32_t TextParts::number_of(const CharSet& set) {
    return sets_.try_emplace(set, static_cast<int32_t>(sets_.size())).first->second;
}

/// What matches a node of the pattern and then goes on to `to`.
int32_t TextParts::add_pattern(const Pattern& pattern, int32_t node, int32_t to, bool negative) {
    count_work(1);
    const Pattern::Node& from = pattern.at(node);
    switch (from.kind) {
        case Pattern::Kind::chars:
            return add_chars(from.chars, to);
        case Pattern::Kind::sequence:
            for (auto part = from.parts.rbegin(); part != from.parts.rend(); ++part)
                to = add_pattern(pattern, *part, to, negative);
            return to;
        case Pattern::Kind::choice: {
            std::vector<int32_t> ways;
            for (const int32_t part : from.parts) ways.push_back(add_pattern(pattern, part, to, negative));
            return add(Kind::skip, std::move(ways));
        }
        case Pattern::Kind::repeat:
            return add_repeat(pattern, from, to, negative);
        case Pattern::Kind::start:
            return add(Kind::start, {to});
        case Pattern::Kind::end:
            return add(Kind::end, {to});
        case Pattern::Kind::border:
        case Pattern::Kind::no_border:
            has_borders_ = true;
            return add(from.kind == Pattern::Kind::border ? Kind::border : Kind::no_border, {to});
        case Pattern::Kind::ahead:
        case Pattern::Kind::not_ahead:
            return add_ahead(pattern, from, to, negative);
    }
    return to;
}

int32_t TextParts::add_repeat(const Pattern& pattern, const Pattern::Node& node, int32_t to, bool negative) {
    int32_t from = to;
    if (node.most == Grammar::kUnbounded) {
        from = add(Kind::skip, {});
        const int32_t inside = add_pattern(pattern, node.parts[0], from, negative);
        nodes_[static_cast<std::size_t>(from)].to = {inside, to};
    }
    for (int64_t i = node.least; i < node.most; ++i)
        from = add(Kind::skip, {add_pattern(pattern, node.parts[0], from, negative), to});
    for (int64_t i = 0; i < node.least; ++i) from = add_pattern(pattern, node.parts[0], from, negative);
    return from;
}

int32_t TextParts::add_ahead(const Pattern& pattern, const Pattern::Node& node, int32_t to, bool negative) {
    if (negative) throw GrammarError("regular expression: look-ahead inside (?!...) is not supported");
    has_ahead_ = true;
    const bool is_not = node.kind == Pattern::Kind::not_ahead;
    const int32_t inside = add_pattern(pattern, node.parts[0], done_, is_not);
    return add({is_not ? Kind::not_ahead : Kind::ahead, -1, inside, {to}});
}

int32_t TextParts::add_automaton(const TextAutomaton& automaton) {
    std::vector<int32_t> numbers;
    for (std::size_t i = 0; i < automaton.states.size(); ++i) numbers.push_back(add(Kind::skip, {}));
    for (std::size_t i = 0; i < automaton.states.size(); ++i) {
        std::vector<int32_t> ways;
        for (const TextAutomaton::Edge& edge : automaton.states[i].edges)
            ways.push_back(add_chars(edge.chars, numbers[static_cast<std::size_t>(edge.to)]));
        if (automaton.states[i].accepts) ways.push_back(end_);
        nodes_[static_cast<std::size_t>(numbers[i])].to = std::move(ways);
    }
    return numbers.front();
}

CharClasses classes_of(const std::map<CharSet, int32_t>& sets) {
    std::vector<char32_t> cuts = {0};
    for (const auto& [set, number] : sets)
        for (const auto& [low, high] : set) {
            cuts.push_back(low);
            cuts.push_back(high + 1);
        }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    constexpr std::size_t kMostCells = 200'000'000;
    if (cuts.size() * sets.size() > kMostCells)
        throw GrammarError(fmt::format("{} sets of characters with {} borders in one text, expected at most {} of both",
                                       sets.size(), cuts.size(), kMostCells));
    std::vector<std::vector<bool>> inside(cuts.size(), std::vector<bool>(sets.size()));  // of each piece: its sets
    for (const auto& [set, number] : sets)
        for (const auto& [low, high] : set)
            for (auto i = std::lower_bound(cuts.begin(), cuts.end(), low) - cuts.begin();
                 i < std::ssize(cuts) && cuts[static_cast<std::size_t>(i)] <= high; ++i)
                inside[static_cast<std::size_t>(i)][static_cast<std::size_t>(number)] = true;
    CharClasses out;
    std::map<std::vector<bool>, std::size_t> numbers;
    std::vector<const std::vector<bool>*> sets_of;
    for (std::size_t i = 0; i < cuts.size(); ++i) {
        if (std::find(inside[i].begin(), inside[i].end(), true) == inside[i].end()) continue;  // nothing takes these
        const auto [found, is_new] = numbers.try_emplace(inside[i], out.classes.size());
        if (is_new) {
            out.classes.emplace_back();
            sets_of.push_back(&found->first);
        }
        out.classes[found->second].emplace_back(cuts[i], i + 1 < cuts.size() ? cuts[i + 1] - 1 : 0x10FFFF);
    }
    for (CharSet& set : out.classes) set = normalized(std::move(set));
    out.member.assign(sets.size(), std::vector<bool>(out.classes.size()));
    for (std::size_t c = 0; c < out.classes.size(); ++c)
        for (std::size_t s = 0; s < sets.size(); ++s) out.member[s][c] = (*sets_of[c])[s];
    return out;
}

}  // namespace riptide
