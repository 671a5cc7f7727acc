// Patterns to deterministic automata: a subset of ways to read the text so far, each way a set of things that must all
// come true (the pattern's rest, what look-ahead asks for) and of things that must not.
#include "text/grammar/text_automaton.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "text/grammar/text_automaton_parts.h"

namespace riptide {

namespace {

using PartKind = TextParts::Kind;

/// What stands before and behind a place.
enum Beside : uint8_t { kNothing, kWordCharacter, kOtherCharacter };

/// One way: all of `must` have to match what follows, none of `never`. Sorted.
struct Way {
    std::vector<int32_t> must, never;
    friend auto operator<=>(const Way&, const Way&) = default;
};
using Ways = std::vector<Way>;

void sort_out(std::vector<int32_t>& nodes) {
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
}

/// Both.
Way joined(const Way& a, const Way& b) {
    Way out = a;
    out.must.insert(out.must.end(), b.must.begin(), b.must.end());
    out.never.insert(out.never.end(), b.never.begin(), b.never.end());
    sort_out(out.must);
    sort_out(out.never);
    return out;
}

bool holds(PartKind assertion, Beside before, Beside behind) {
    if (assertion == PartKind::start) return before == kNothing;
    if (assertion == PartKind::end) return behind == kNothing;
    return ((before == kWordCharacter) != (behind == kWordCharacter)) == (assertion == PartKind::border);
}

class Determiniser {
  public:
    Determiniser(std::span<const TextCondition> conditions, WorkBudget* work) : parts_(conditions, work), work_(work) {
        mark_.resize(parts_.size(), 0);
    }

    TextAutomaton build() {
        Way all;
        all.must = parts_.starts();
        number({std::move(all)}, kNothing);
        for (std::size_t s = 0; s < states_.size(); ++s) expand(s);
        return minimal_automaton(std::move(table_), std::move(accepts_), parts_.classes(), work_);
    }

  private:
    struct State {
        Ways ways;
        Beside before;
        friend auto operator<=>(const State&, const State&) = default;
    };

    int32_t number(Ways ways, Beside before) {
        std::sort(ways.begin(), ways.end());
        ways.erase(std::unique(ways.begin(), ways.end()), ways.end());
        State state{std::move(ways), before};
        const auto [found, is_new] = numbers_.try_emplace(std::move(state), static_cast<int32_t>(states_.size()));
        if (is_new) {
            if (states_.size() >= TextAutomaton::kMostStates)
                throw GrammarError(
                    fmt::format("the conditions on a text need more than {} states", TextAutomaton::kMostStates));
            states_.push_back(&found->first);
        }
        return found->second;
    }

    void expand(std::size_t s) {
        const State& state = *states_[s];
        accepts_.push_back(!closed(state, kNothing).empty());
        const Ways other = closed(state, kOtherCharacter);
        const Ways word = parts_.has_borders() ? closed(state, kWordCharacter) : Ways();
        std::vector<int32_t>& row = table_.emplace_back();
        for (std::size_t c = 0; c < parts_.classes().size(); ++c) {
            const bool is_word = parts_.has_borders() && parts_.is_word(c);
            Ways next = moved(is_word ? word : other, c);
            row.push_back(next.empty() ? -1 : number(std::move(next), is_word ? kWordCharacter : kOtherCharacter));
        }
    }

    /// The ways of a state up to the next character (or the end): of nodes that take one.
    Ways closed(const State& state, Beside behind) {
        Ways out;
        for (const Way& way : state.ways) {
            Ways some = {{{}, way.never}};
            for (const int32_t node : way.must) {
                Ways more;
                for (const Way& a : some)
                    for (const Way& b : alternatives(node, state.before, behind)) add_to(more, joined(a, b));
                some = std::move(more);
            }
            for (Way& one : some)
                if (none_done(one.never, state.before, behind)) add_to(out, std::move(one));
        }
        simplify(out);
        return out;
    }

    void add_to(Ways& ways, Way way) {
        constexpr std::size_t kMostWays = 5000;
        parts_.count_work(1 + way.must.size() + way.never.size());
        if (ways.size() >= kMostWays)
            throw GrammarError(fmt::format("the conditions on a text leave more than {} ways to read it", kMostWays));
        ways.push_back(std::move(way));
    }

    /// Without those that ask for all that another asks for.
    void simplify(Ways& ways) {
        std::sort(ways.begin(), ways.end());
        ways.erase(std::unique(ways.begin(), ways.end()), ways.end());
        if (!parts_.has_ahead()) {
            if (!ways.empty() && ways[0].must.empty()) ways.resize(1);
            return;
        }
        const auto within = [](const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
            return std::includes(b.begin(), b.end(), a.begin(), a.end());
        };
        std::sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) {
            return std::pair(a.must.size(), a.never.size()) < std::pair(b.must.size(), b.never.size());
        });
        Ways kept;
        for (Way& way : ways) {
            parts_.count_work(kept.size());
            const bool idle = std::any_of(kept.begin(), kept.end(), [&](const Way& k) {
                return within(k.must, way.must) && within(k.never, way.never);
            });
            if (!idle) kept.push_back(std::move(way));
        }
        ways = std::move(kept);
    }

    /// reached_: nodes that take a character, ask ahead or are done, from `node` on without a character.
    void spread(int32_t node, Beside before, Beside behind) {
        reached_.clear();
        ++stamp_;
        std::vector<int32_t> todo = {node};
        while (!todo.empty()) {
            const int32_t n = todo.back();
            todo.pop_back();
            if (std::exchange(mark_[static_cast<std::size_t>(n)], stamp_) == stamp_) continue;
            const TextParts::Node& at = parts_.at(n);
            parts_.count_work(1 + at.to.size());
            if (at.kind == PartKind::skip || (TextParts::is_assertion(at.kind) && holds(at.kind, before, behind)))
                todo.insert(todo.end(), at.to.rbegin(), at.to.rend());
            else if (at.kind == PartKind::chars ? behind != kNothing : !TextParts::is_assertion(at.kind))
                reached_.push_back(n);
        }
    }

    const Ways& alternatives(int32_t node, Beside before, Beside behind) {
        const auto key = std::tuple(node, before, behind);
        if (const auto known = alternatives_.find(key); known != alternatives_.end()) return known->second;
        std::vector<int32_t> inside;
        return alternatives_[key] = find_alternatives(node, before, behind, inside);
    }

    /// `inside`: look-ahead that has been met at this place. Met again, it asks for nothing new.
    Ways find_alternatives(int32_t node, Beside before, Beside behind, std::vector<int32_t>& inside) {
        constexpr std::size_t kMostAhead = 64;
        if (inside.size() > kMostAhead)
            throw GrammarError(fmt::format("more than {} look-aheads at one place", kMostAhead));
        spread(node, before, behind);
        Ways out;
        const std::vector<int32_t> reached = reached_;
        for (const int32_t n : reached) {
            const TextParts::Node& at = parts_.at(n);
            if (at.kind == PartKind::done) add_to(out, {});
            else if (at.kind == PartKind::chars) add_to(out, {{n}, {}});
            else if (std::find(inside.begin(), inside.end(), n) == inside.end()) {
                inside.push_back(n);
                const Ways rest = find_alternatives(at.to[0], before, behind, inside);
                const Ways ahead = at.kind == PartKind::not_ahead ? Ways{{{}, {at.ahead}}}
                                                                  : find_alternatives(at.ahead, before, behind, inside);
                inside.pop_back();
                for (const Way& a : rest)
                    for (const Way& b : ahead) add_to(out, joined(a, b));
            }
        }
        simplify(out);
        return out;
    }

    /// Takes what must not match up to the next character. False if one of it has matched.
    bool none_done(std::vector<int32_t>& never, Beside before, Beside behind) {
        std::vector<int32_t> next;
        for (const int32_t node : never) {
            spread(node, before, behind);
            for (const int32_t n : reached_) {
                if (parts_.at(n).kind == PartKind::done) return false;
                next.push_back(n);
            }
        }
        sort_out(next);
        never = std::move(next);
        return true;
    }

    Ways moved(const Ways& ways, std::size_t c) {
        Ways out;
        for (const Way& way : ways) {
            Way next;
            parts_.count_work(1 + way.must.size() + way.never.size());
            const bool fits =
                std::all_of(way.must.begin(), way.must.end(), [&](int32_t n) { return parts_.takes(n, c); });
            if (!fits) continue;
            for (const int32_t n : way.must) next.must.push_back(parts_.at(n).to[0]);
            for (const int32_t n : way.never)
                if (parts_.takes(n, c)) next.never.push_back(parts_.at(n).to[0]);
            sort_out(next.must);
            sort_out(next.never);
            out.push_back(std::move(next));
        }
        return out;
    }

    TextParts parts_;
    WorkBudget* work_;
    std::map<State, int32_t> numbers_;
    std::vector<const State*> states_;         // keys of numbers_
    std::vector<std::vector<int32_t>> table_;  // of each state and class: the next, or -1
    std::vector<uint8_t> accepts_;
    std::map<std::tuple<int32_t, Beside, Beside>, Ways> alternatives_;
    std::vector<uint32_t> mark_;
    uint32_t stamp_ = 0;
    std::vector<int32_t> reached_;  // of the last spread()
};

/// What a pattern asks for at its start by look-ahead, and the rest, as conditions of their own; their patterns in
/// `made`.
void take_apart(const TextCondition& condition, std::deque<Pattern>& made, std::vector<TextCondition>& out) {
    const Pattern* all = condition.pattern;
    const Pattern::Node* root = all == nullptr ? nullptr : &all->at(all->root);
    if (root == nullptr || root->kind != Pattern::Kind::sequence) return out.push_back(condition);
    const auto is = [&](std::size_t i, Pattern::Kind kind) {
        return i < root->parts.size() && all->at(root->parts[i]).kind == kind;
    };
    const bool anchored = is(0, Pattern::Kind::start);
    std::size_t first = anchored ? 1 : 0;
    if ((condition.search && !anchored) || !is(first, Pattern::Kind::ahead)) return out.push_back(condition);
    const auto add = [&](std::vector<int32_t> behind_start, bool search) {
        Pattern& part = made.emplace_back(*all);
        const auto start = static_cast<int32_t>(part.nodes.size());
        behind_start.insert(behind_start.begin(), start);
        part.nodes.push_back({.kind = Pattern::Kind::start});
        part.nodes.push_back({.kind = Pattern::Kind::sequence, .parts = std::move(behind_start)});
        part.root = start + 1;
        out.push_back({.pattern = &part, .search = search});
    };
    for (; is(first, Pattern::Kind::ahead); ++first) add({all->at(root->parts[first]).parts[0]}, true);
    add({root->parts.begin() + static_cast<std::ptrdiff_t>(first), root->parts.end()}, condition.search);
}

/// The least automaton of one whose states each have one way at most for a character.
TextAutomaton minimal(const TextAutomaton& automaton, WorkBudget* work) {
    std::map<CharSet, int32_t> sets;
    for (const TextAutomaton::State& state : automaton.states)
        for (const TextAutomaton::Edge& edge : state.edges)
            sets.try_emplace(edge.chars, static_cast<int32_t>(sets.size()));
    const CharClasses chars = classes_of(sets);
    std::vector<std::vector<int32_t>> table;
    std::vector<uint8_t> accepts;
    for (const TextAutomaton::State& state : automaton.states) {
        accepts.push_back(state.accepts);
        std::vector<int32_t>& row = table.emplace_back(chars.classes.size(), -1);
        for (const TextAutomaton::Edge& edge : state.edges) {
            const std::vector<bool>& inside = chars.member[static_cast<std::size_t>(sets.at(edge.chars))];
            for (std::size_t c = 0; c < row.size(); ++c)
                if (inside[c]) row[c] = edge.to;
        }
    }
    return minimal_automaton(std::move(table), std::move(accepts), chars.classes, work);
}

/// Whether it is seen that `b` takes all texts of `a`.
bool within(const TextAutomaton& a, const TextAutomaton& b, WorkBudget* work) {
    constexpr std::size_t kMostPairs = 200'000;
    std::set<std::pair<int32_t, int32_t>> seen = {{0, 0}};
    std::vector<std::pair<int32_t, int32_t>> todo = {{0, 0}};
    while (!todo.empty()) {
        const TextAutomaton::State& from_a = a.states[static_cast<std::size_t>(todo.back().first)];
        const TextAutomaton::State& from_b = b.states[static_cast<std::size_t>(todo.back().second)];
        todo.pop_back();
        if (work != nullptr) work->spend_small(std::ssize(from_a.edges) * std::ssize(from_b.edges));
        if (from_a.accepts && !from_b.accepts) return false;
        for (const TextAutomaton::Edge& x : from_a.edges) {
            CharSet taken;
            for (const TextAutomaton::Edge& y : from_b.edges) {
                const CharSet both = intersection(x.chars, y.chars);
                if (both.empty()) continue;
                taken.insert(taken.end(), both.begin(), both.end());
                if (seen.emplace(x.to, y.to).second) todo.emplace_back(x.to, y.to);
            }
            if (normalized(std::move(taken)) != x.chars || seen.size() > kMostPairs) return false;
        }
    }
    return true;
}

}  // namespace

TextAutomaton text_automaton(std::span<const TextCondition> conditions, WorkBudget* work) {
    std::deque<Pattern> made;
    std::vector<TextCondition> parts;
    for (const TextCondition& condition : conditions) take_apart(condition, made, parts);
    if (parts.size() == 1) return Determiniser(conditions, work).build();
    try {
        std::vector<TextAutomaton> all;  // without those that another implies
        for (const TextCondition& part : parts) {
            TextAutomaton one = Determiniser({&part, 1}, work).build();
            if (std::any_of(all.begin(), all.end(),
                            [&](const TextAutomaton& known) { return within(known, one, work); }))
                continue;
            std::erase_if(all, [&](const TextAutomaton& known) { return within(one, known, work); });
            all.push_back(std::move(one));
        }
        TextAutomaton out = std::move(all.back());
        for (std::size_t i = 0; i + 1 < all.size(); ++i) out = intersection(out, all[i], work);
        return out;
    } catch (const GrammarError&) {  // one may be large by itself, and small beside another
        return Determiniser(conditions, work).build();
    }
}

TextAutomaton intersection(const TextAutomaton& a, const TextAutomaton& b, WorkBudget* work) {
    TextAutomaton out;
    std::map<std::pair<int32_t, int32_t>, int32_t> numbers;
    std::vector<std::pair<int32_t, int32_t>> pairs;
    const auto number = [&](int32_t in_a, int32_t in_b) {
        const auto [found, is_new] = numbers.try_emplace({in_a, in_b}, static_cast<int32_t>(pairs.size()));
        if (is_new) pairs.emplace_back(in_a, in_b);
        return found->second;
    };
    number(0, 0);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        if (pairs.size() > TextAutomaton::kMostStates)
            throw GrammarError(
                fmt::format("the conditions on a text need more than {} states", TextAutomaton::kMostStates));
        const TextAutomaton::State& from_a = a.states[static_cast<std::size_t>(pairs[i].first)];
        const TextAutomaton::State& from_b = b.states[static_cast<std::size_t>(pairs[i].second)];
        if (work != nullptr) work->spend_small(std::ssize(from_a.edges) * std::ssize(from_b.edges));
        TextAutomaton::State state{.accepts = from_a.accepts && from_b.accepts};
        for (const TextAutomaton::Edge& x : from_a.edges)
            for (const TextAutomaton::Edge& y : from_b.edges)
                if (CharSet both = intersection(x.chars, y.chars); !both.empty())
                    state.edges.push_back({std::move(both), number(x.to, y.to)});
        out.states.push_back(std::move(state));
    }
    return minimal(out, work);
}

}  // namespace riptide
