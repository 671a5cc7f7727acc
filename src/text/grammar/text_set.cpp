#include "text/grammar/text_set.h"

#include <algorithm>
#include <map>

#include "text/grammar/text_automaton.h"
#include "text/utf8.h"

namespace riptide {

namespace {

std::u32string characters_of(std::string_view text) {
    std::u32string out;
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Char c = utf8_at(text, at);
        out += c.code_point;
        at += static_cast<std::size_t>(c.length);
    }
    return out;
}

}  // namespace

int32_t TextSet::add_state() {
    if (states_.size() >= kMostStates)
        throw GrammarError(fmt::format("patterns together: more than {} states", kMostStates));
    states_.emplace_back();
    return static_cast<int32_t>(states_.size() - 1);
}

TextSet TextSet::all() { return of_length(0, Grammar::kUnbounded); }

TextSet TextSet::of_regex(std::string_view pattern, bool search, WorkBudget* work) {
    const Pattern read = parse_pattern(pattern, {.work = work});
    const TextCondition only{.pattern = &read, .search = search};
    const TextAutomaton automaton = text_automaton({&only, 1}, work);
    TextSet out;
    for (const TextAutomaton::State& from : automaton.states) {
        out.add_state();
        State& state = out.states_.back();
        state.accepts = from.accepts;
        for (const TextAutomaton::Edge& edge : from.edges)
            for (const auto& [low, high] : edge.chars) state.edges.push_back({low, high, edge.to});
        std::sort(state.edges.begin(), state.edges.end(), [](const Edge& a, const Edge& b) { return a.low < b.low; });
    }
    out.trim();
    return out;
}

/// A tree of their characters.
TextSet TextSet::of_words(const std::vector<std::string>& words) {
    std::vector<std::u32string> sorted;
    for (const std::string& word : words) sorted.push_back(characters_of(word));
    std::sort(sorted.begin(), sorted.end());
    TextSet out;
    if (words.empty()) return out;
    out.add_state();
    for (const std::u32string& word : sorted) {
        std::size_t at = 0;
        for (const char32_t c : word) {
            if (out.states_[at].edges.empty() || out.states_[at].edges.back().low != c) {
                const int32_t next = out.add_state();
                out.states_[at].edges.push_back({c, c, next});
            }
            at = static_cast<std::size_t>(out.states_[at].edges.back().to);
        }
        out.states_[at].accepts = true;
    }
    return out;
}

TextSet TextSet::of_length(int64_t least, int64_t most) {
    TextSet out;
    const int64_t last = most == Grammar::kUnbounded ? least : most;
    for (int64_t i = 0; i <= last; ++i) {
        const int32_t state = out.add_state();
        out.states_.back().accepts = i >= least;
        const bool loop = i == last && most == Grammar::kUnbounded;
        if (i < last || loop)
            for (const auto& [low, high] : all_characters())
                out.states_.back().edges.push_back({low, high, loop ? state : state + 1});
    }
    return out;
}

TextSet TextSet::operator&(const TextSet& other) const {
    return product(other, [](bool a, bool b) { return a && b; });
}
TextSet TextSet::operator|(const TextSet& other) const {
    return product(other, [](bool a, bool b) { return a || b; });
}
TextSet TextSet::operator-(const TextSet& other) const {
    return product(other, [](bool a, bool b) { return a && !b; });
}

/// States are pairs of states; -1: the text is in that set no more, whatever follows.
TextSet TextSet::product(const TextSet& other, const std::function<bool(bool, bool)>& keep) const {
    TextSet out;
    std::map<std::pair<int32_t, int32_t>, int32_t> numbers;
    std::vector<std::pair<int32_t, int32_t>> todo;
    const auto accepts = [](const TextSet& set, int32_t s) {
        return s >= 0 && set.states_[static_cast<std::size_t>(s)].accepts;
    };
    const auto edges = [](const TextSet& set, int32_t s) {
        return s < 0 ? std::vector<Edge>() : set.states_[static_cast<std::size_t>(s)].edges;
    };
    const auto number = [&](int32_t a, int32_t b) {
        const auto [found, is_new] = numbers.try_emplace({a, b}, 0);
        if (is_new) {
            found->second = out.add_state();
            out.states_.back().accepts = keep(accepts(*this, a), accepts(other, b));
            todo.emplace_back(a, b);
        }
        return found->second;
    };
    number(empty() ? -1 : 0, other.empty() ? -1 : 0);
    for (std::size_t i = 0; i < todo.size(); ++i) {
        const std::vector<Edge> left = edges(*this, todo[i].first), right = edges(other, todo[i].second);
        std::vector<char32_t> cuts;
        for (const auto* list : {&left, &right})
            for (const Edge& edge : *list) {
                cuts.push_back(edge.low);
                cuts.push_back(edge.high + 1);
            }
        std::sort(cuts.begin(), cuts.end());
        cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
        const auto target = [](const std::vector<Edge>& list, std::size_t& at, char32_t c) {
            while (at < list.size() && list[at].high < c) ++at;
            return at < list.size() && list[at].low <= c ? list[at].to : -1;
        };
        std::size_t l = 0, r = 0;
        for (std::size_t k = 0; k + 1 < cuts.size(); ++k) {
            const int32_t a = target(left, l, cuts[k]), b = target(right, r, cuts[k]);
            if (a < 0 && b < 0) continue;
            const int32_t to = number(a, b);
            out.states_[i].edges.push_back({cuts[k], cuts[k + 1] - 1, to});
        }
    }
    out.trim();
    return out;
}

/// Takes out what leads nowhere.
void TextSet::trim() {
    std::vector<std::vector<std::size_t>> from(states_.size());
    std::vector<std::size_t> todo;
    std::vector<bool> alive(states_.size());
    for (std::size_t s = 0; s < states_.size(); ++s) {
        for (const Edge& edge : states_[s].edges) from[static_cast<std::size_t>(edge.to)].push_back(s);
        if (!states_[s].accepts) continue;
        alive[s] = true;
        todo.push_back(s);
    }
    for (std::size_t i = 0; i < todo.size(); ++i)
        for (const std::size_t s : std::vector<std::size_t>(from[todo[i]]))
            if (!alive[s]) {
                alive[s] = true;
                todo.push_back(s);
            }
    if (states_.empty() || !alive[0]) {
        states_.clear();
        return;
    }
    std::vector<int32_t> number(states_.size(), -1);
    int32_t count = 0;
    for (std::size_t s = 0; s < states_.size(); ++s)
        if (alive[s]) number[s] = count++;
    std::vector<State> kept;
    for (std::size_t s = 0; s < states_.size(); ++s) {
        if (!alive[s]) continue;
        State& state = kept.emplace_back(std::move(states_[s]));
        for (Edge& edge : state.edges) edge.to = number[static_cast<std::size_t>(edge.to)];
        std::erase_if(state.edges, [](const Edge& edge) { return edge.to < 0; });
    }
    states_ = std::move(kept);
}

bool TextSet::contains(std::string_view text) const {
    int32_t at = empty() ? -1 : 0;
    for (const char32_t c : characters_of(text)) {
        if (at < 0) return false;
        const std::vector<Edge>& edges = states_[static_cast<std::size_t>(at)].edges;
        const auto edge =
            std::find_if(edges.begin(), edges.end(), [&](const Edge& e) { return e.low <= c && c <= e.high; });
        at = edge == edges.end() ? -1 : edge->to;
    }
    return at >= 0 && states_[static_cast<std::size_t>(at)].accepts;
}

Grammar::Expr TextSet::add_to(Grammar& grammar, const CharWriter& write, int64_t least, int64_t most) const {
    if (empty()) return grammar.choice({});
    TextAutomaton automaton;
    for (const State& from : states_) {
        TextAutomaton::State& state = automaton.states.emplace_back();
        state.accepts = from.accepts;
        std::map<int32_t, CharSet> ways;
        for (const Edge& edge : from.edges) ways[edge.to].emplace_back(edge.low, edge.high);
        for (auto& [to, chars] : ways) state.edges.push_back({normalized(std::move(chars)), to});
    }
    return add_text_automaton(grammar, automaton, least, most, write);
}

}  // namespace riptide
