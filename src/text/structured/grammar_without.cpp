#include "text/structured/grammar_without.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace riptide {

namespace {

using Expr = Grammar::Expr;

/// In a state as many letters of the word have just come as its number says (Knuth, Morris & Pratt 1977).
class WordExcluder {
  public:
    WordExcluder(Grammar& grammar, std::string_view word) : g_(grammar), word_(word) {
        RT_ASSERT(!word.empty() && word.size() <= kMostLetters);
    }

    Expr write(Expr expr) {
        find_touching();
        if (!touches(expr)) return expr;
        find_rule_ends(expr);
        std::vector<Expr> ways;
        for (const auto& [state, way] : split(expr, 0)) ways.push_back(way);
        while (!todo_.empty()) {
            const Todo next = todo_.back();
            todo_.pop_back();
            const Ways& all = split(g_.bodies()[static_cast<std::size_t>(next.rule)], next.state);
            g_.define(next.made, all.at(next.to));
        }
        return g_.choice(std::move(ways));
    }

  private:
    using States = uint32_t;           // a bit for each
    using Ways = std::map<int, Expr>;  // by the state they end in
    struct Todo {
        Grammar::Rule rule = 0;
        int state = 0, to = 0;
        Grammar::Rule made = 0;
    };
    /// A sequence, a repetition or a network, as steps between places.
    struct Steps {
        std::vector<Grammar::Arc> arcs;  // sorted by `from`
        std::vector<bool> ends;          // of each place
    };
    static constexpr std::size_t kMostLetters = 31;
    static constexpr int64_t kMostWork = 20'000'000, kMostPlaces = 20'000, kMostArcs = 1'000'000;

    void count_work(std::size_t steps) {
        work_ += static_cast<int64_t>(steps);
        if (work_ > kMostWork)
            throw GrammarError(
                fmt::format("too complex: to keep '{}' out of the text takes more than {} steps", word_, kMostWork));
    }

    /// Whether the word may begin in it. What it may not begin in stays as it is, unless it has begun before.
    bool touches(Expr expr) {
        count_work(1);
        const Grammar::Node& node = g_.node(expr);
        const auto first = static_cast<char32_t>(word_[0]);
        if (node.kind == Grammar::Kind::text) return node.text.find(word_[0]) != std::string::npos;
        if (node.kind == Grammar::Kind::chars) return !intersection(node.chars, {{first, first}}).empty();
        if (node.kind == Grammar::Kind::rule) return touching_[static_cast<std::size_t>(node.rule)];
        return std::any_of(node.parts.begin(), node.parts.end(), [&](Expr part) { return touches(part); }) ||
               (node.network != nullptr && std::any_of(node.network->arcs.begin(), node.network->arcs.end(),
                                                       [&](const Grammar::Arc& arc) { return touches(arc.expr); }));
    }
    void find_touching() {
        touching_.assign(g_.bodies().size(), false);
        for (bool more = true; more;) {
            more = false;
            for (std::size_t rule = touching_.size(); rule-- > 0;) {
                if (touching_[rule] || g_.bodies()[rule] < 0 || !touches(g_.bodies()[rule])) continue;
                touching_[rule] = more = true;
            }
        }
    }

    int next(int state, char c) const {
        for (;;) {
            if (word_[static_cast<std::size_t>(state)] == c) return state + 1;
            if (state == 0) return 0;
            // The longest beginning of the word that what has come ends with.
            const std::string_view come = word_.substr(0, static_cast<std::size_t>(state));
            do --state;
            while (!come.ends_with(word_.substr(0, static_cast<std::size_t>(state))));
        }
    }
    int whole() const { return static_cast<int>(word_.size()); }

    /// The set's characters by the state that they lead to.
    std::map<int, CharSet> split_characters(const CharSet& set, int state) const {
        std::map<int, CharSet> out;
        CharSet letters;
        for (const char c : word_) letters.emplace_back(c, c);
        letters = normalized(std::move(letters));
        for (const auto& [low, high] : intersection(set, letters))
            for (char32_t c = low; c <= high; ++c) out[next(state, static_cast<char>(c))].emplace_back(c, c);
        const CharSet others = intersection(set, complement(letters));
        out[0].insert(out[0].end(), others.begin(), others.end());
        out.erase(whole());
        return out;
    }

    Steps steps_of(const Grammar::Node& node) {
        Steps out;
        const auto add = [&](int64_t from, int64_t to, Expr expr) {
            out.arcs.push_back({static_cast<int32_t>(from), static_cast<int32_t>(to), expr});
        };
        if (node.kind == Grammar::Kind::network) {
            out.arcs = node.network->arcs;
            std::stable_sort(out.arcs.begin(), out.arcs.end(),
                             [](const Grammar::Arc& a, const Grammar::Arc& b) { return a.from < b.from; });
            out.ends.resize(static_cast<std::size_t>(node.network->states));
            for (const int32_t end : node.network->finals) out.ends[static_cast<std::size_t>(end)] = true;
            return out;
        }
        const bool repeats = node.kind == Grammar::Kind::repeat, loops = repeats && node.most == Grammar::kUnbounded;
        const int64_t least = repeats ? node.least : std::ssize(node.parts),
                      most = repeats && !loops ? node.most : least;
        if (most > kMostPlaces)
            throw GrammarError(fmt::format("{} repetitions of what may hold a part of '{}', expected at most {}", most,
                                           word_, kMostPlaces));
        for (int64_t i = 0; i < most; ++i) add(i, i + 1, node.parts[repeats ? 0 : static_cast<std::size_t>(i)]);
        if (loops) add(most, most, node.parts[0]);
        for (int64_t i = 0; i <= most; ++i) out.ends.push_back(i >= least);
        return out;
    }

    /// Calls visit(place, state, arc) for all that is reached, which gives the states behind the arc; and the states at
    /// the ends.
    template <class Visit>
    States walk(const Steps& steps, int state, const Visit& visit) {
        std::vector<States> reached(steps.ends.size(), 0);
        std::vector<std::pair<int32_t, int>> todo;
        States ends = 0;
        const auto reach = [&](int32_t place, int s) {
            States& known = reached[static_cast<std::size_t>(place)];
            if ((known >> s & 1) != 0) return;
            known |= States{1} << s;
            if (steps.ends[static_cast<std::size_t>(place)]) ends |= States{1} << s;
            todo.emplace_back(place, s);
        };
        reach(0, state);
        while (!todo.empty()) {
            const auto [place, s] = todo.back();
            todo.pop_back();
            auto arc = std::lower_bound(steps.arcs.begin(), steps.arcs.end(), place,
                                        [](const Grammar::Arc& a, int32_t from) { return a.from < from; });
            for (; arc != steps.arcs.end() && arc->from == place; ++arc) {
                count_work(1);
                const States behind = visit(s, *arc);
                for (int to = 0; to < whole(); ++to)
                    if ((behind >> to & 1) != 0) reach(arc->to, to);
            }
        }
        return ends;
    }

    /// The states that an expression may end in.
    States ends_of(Expr expr, int state) {
        const Grammar::Node& node = g_.node(expr);
        States out = 0;
        if (state == 0 && !touches(expr)) return 1;
        switch (node.kind) {
            case Grammar::Kind::empty:
                return States{1} << state;
            case Grammar::Kind::token:
                return 1;
            case Grammar::Kind::text:
                for (const char c : node.text)
                    if ((state = next(state, c)) == whole()) return 0;
                return States{1} << state;
            case Grammar::Kind::chars:
                for (const auto& [to, set] : split_characters(node.chars, state))
                    if (!set.empty()) out |= States{1} << to;
                return out;
            case Grammar::Kind::choice:
                for (const Expr part : node.parts) out |= ends_of(part, state);
                return out;
            case Grammar::Kind::rule: {
                const auto [known, is_new] = rule_ends_.try_emplace({node.rule, state}, 0);
                if (is_new) found_more_ = true;
                return known->second;
            }
            default:
                return walk(steps_of(node), state,
                            [&](int s, const Grammar::Arc& arc) { return ends_of(arc.expr, s); });
        }
    }

    /// rule_ends_, of all rules that are reached: the least that agrees with itself.
    void find_rule_ends(Expr root) {
        do {
            found_more_ = false;
            ends_of(root, 0);
            for (auto& [key, ends] : rule_ends_) {  // a map: what is added meanwhile is met too, or in the next round
                const Expr body = g_.bodies()[static_cast<std::size_t>(key.first)];
                const States now = body < 0 ? 0 : ends_of(body, key.second);
                if (now != ends) found_more_ = true;
                ends = now;
            }
        } while (found_more_);
    }

    const Ways& split(Expr expr, int state) {
        if (const auto known = ways_.find({expr, state}); known != ways_.end()) return known->second;
        Ways made = make_ways(expr, state);
        return ways_[{expr, state}] = std::move(made);
    }

    Ways make_ways(Expr expr, int state) {
        const Grammar::Node node = g_.node(expr);  // a copy: the grammar grows
        Ways out;
        if (state == 0 && !touches(expr)) return {{0, expr}};
        switch (node.kind) {
            case Grammar::Kind::empty:
            case Grammar::Kind::token:
            case Grammar::Kind::text:
                for (int to = 0; to < whole(); ++to)
                    if ((ends_of(expr, state) >> to & 1) != 0) out[to] = expr;
                return out;
            case Grammar::Kind::chars: {
                std::map<int, CharSet> sets = split_characters(node.chars, state);
                std::erase_if(sets, [](const auto& set) { return set.second.empty(); });
                for (auto& [to, set] : sets) out[to] = normalized(set) == node.chars ? expr : g_.chars(std::move(set));
                return out;
            }
            case Grammar::Kind::choice: {
                std::map<int, std::vector<Expr>> all;
                for (const Expr part : node.parts)
                    for (const auto& [to, way] : split(part, state)) all[to].push_back(way);
                for (auto& [to, ways] : all) out[to] = ways == node.parts ? expr : g_.choice(std::move(ways));
                return out;
            }
            case Grammar::Kind::rule:
                return rule_ways(node.rule, state);
            default:
                return step_ways(expr, steps_of(node), state);
        }
    }

    Ways rule_ways(Grammar::Rule rule, int state) {
        const States ends = rule_ends_.at({rule, state});
        Ways out;
        for (int to = 0; to < whole(); ++to) {
            if ((ends >> to & 1) == 0) continue;
            const auto [known, is_new] = made_.try_emplace({rule, state, to}, 0);
            if (is_new) {
                const Grammar::Rule made = g_.declare();
                known->second = g_.call(made);
                todo_.push_back({rule, state, to, made});
            }
            out[to] = known->second;
        }
        return out;
    }

    Ways step_ways(Expr expr, const Steps& steps, int state) {
        std::map<std::pair<int32_t, int>, int32_t> numbers;  // of places with states
        const auto number = [&](int32_t place, int s) {
            return numbers.try_emplace({place, s}, static_cast<int32_t>(numbers.size())).first->second;
        };
        bool same = true;  // nothing is taken out, and nothing must be told apart
        std::vector<Grammar::Arc> arcs;
        number(0, state);
        const States ends = walk(steps, state, [&](int s, const Grammar::Arc& arc) {
            States behind = 0;
            for (const auto& [to, way] : split(arc.expr, s)) {
                behind |= States{1} << to;
                same = same && to == state && way == arc.expr;
                arcs.push_back({number(arc.from, s), number(arc.to, to), way});
            }
            same = same && behind != 0;
            return behind;
        });
        Ways out;
        for (int to = 0; to < whole(); ++to) {
            if ((ends >> to & 1) == 0) continue;
            std::vector<int32_t> finals;
            for (const auto& [place, one] : numbers)
                if (place.second == to && steps.ends[static_cast<std::size_t>(place.first)]) finals.push_back(one);
            arcs_ += std::ssize(arcs);
            if (arcs_ > kMostArcs)
                throw GrammarError(
                    fmt::format("too large: to keep '{}' out of the text takes more than {} steps", word_, kMostArcs));
            out[to] = same ? expr : g_.network(arcs, std::move(finals), static_cast<int32_t>(numbers.size()));
        }
        return out;
    }

    Grammar& g_;
    const std::string_view word_;
    std::map<std::pair<Grammar::Rule, int>, States> rule_ends_;
    std::map<std::pair<Expr, int>, Ways> ways_;
    std::vector<bool> touching_;                                // of each rule
    std::map<std::tuple<Grammar::Rule, int, int>, Expr> made_;  // calls of the copies
    std::vector<Todo> todo_;
    bool found_more_ = false;
    int64_t work_ = 0, arcs_ = 0;
};

}  // namespace

Expr without_word(Grammar& grammar, Expr expr, std::string_view word) {
    return WordExcluder(grammar, word).write(expr);
}

}  // namespace riptide
