// Automata made small, counted, and written as grammars.
#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

#include "text/grammar/text_automaton_parts.h"

namespace riptide {

namespace {

using Table = std::vector<std::vector<int32_t>>;

/// The fewest characters from each state to an end; -1: there is none.
std::vector<int64_t> shortest_ends(const Table& table, const std::vector<uint8_t>& accepts) {
    std::vector<int64_t> length(table.size(), -1);
    std::vector<std::vector<int32_t>> from(table.size());
    std::vector<int32_t> todo;
    for (std::size_t s = 0; s < table.size(); ++s) {
        for (const int32_t to : table[s])
            if (to >= 0) from[static_cast<std::size_t>(to)].push_back(static_cast<int32_t>(s));
        if (accepts[s]) {
            length[s] = 0;
            todo.push_back(static_cast<int32_t>(s));
        }
    }
    for (std::size_t i = 0; i < todo.size(); ++i)
        for (const int32_t before : from[static_cast<std::size_t>(todo[i])])
            if (length[static_cast<std::size_t>(before)] < 0) {
                length[static_cast<std::size_t>(before)] = length[static_cast<std::size_t>(todo[i])] + 1;
                todo.push_back(before);
            }
    return length;
}

struct KeyHash {
    std::size_t operator()(const std::vector<int32_t>& key) const {
        uint64_t hash = 0xCBF29CE484222325;
        for (const int32_t part : key) hash = (hash ^ static_cast<uint32_t>(part)) * 0xFF51AFD7ED558CCD + (hash >> 29);
        return static_cast<std::size_t>(hash);
    }
};

/// Moore's partition of states that cannot be told apart, from those with as many characters to an end: chains of
/// states, as counted parts make them, are told apart at once. Given up (each state by itself) where it takes too long.
std::vector<int32_t> partition(const Table& table, const std::vector<int64_t>& ends, WorkBudget* budget) {
    constexpr std::size_t kMostWork = 30'000'000;
    std::vector<int32_t> block(ends.begin(), ends.end());
    std::size_t blocks = 0, work = 0;
    for (bool more = true; more;) {
        std::unordered_map<std::vector<int32_t>, int32_t, KeyHash> numbers;
        std::vector<int32_t> next(table.size());
        for (std::size_t s = 0; s < table.size(); ++s) {
            std::vector<int32_t> key = {block[s]};
            for (const int32_t to : table[s]) key.push_back(to < 0 ? -1 : block[static_cast<std::size_t>(to)]);
            work += key.size();
            if (budget != nullptr) budget->spend_small(std::ssize(key));
            next[s] = numbers.try_emplace(std::move(key), static_cast<int32_t>(numbers.size())).first->second;
        }
        more = numbers.size() > blocks;
        blocks = numbers.size();
        block = std::move(next);
        if (work <= kMostWork) continue;
        for (std::size_t s = 0; s < table.size(); ++s) block[s] = static_cast<int32_t>(s);
        break;
    }
    return block;
}

/// Writes an automaton, counting characters where it must.
class AutomatonWriter {
  public:
    AutomatonWriter(Grammar& grammar, const TextAutomaton& automaton, int64_t least, int64_t most,
                    const CharWriter& write)
        : g_(grammar), a_(automaton), least_(least), most_(most), write_(write) {
        Table table;
        std::vector<uint8_t> accepts;
        for (const TextAutomaton::State& state : a_.states) {
            for (table.emplace_back(); const TextAutomaton::Edge& edge : state.edges) table.back().push_back(edge.to);
            accepts.push_back(state.accepts);
            edges_ += std::ssize(state.edges);
        }
        ends_ = shortest_ends(table, accepts);
        find_longest();
    }

    Grammar::Expr write() {
        const bool unlimited = most_ == Grammar::kUnbounded;
        if (ends_[0] < 0) return g_.choice({});
        counts_ = least_ > ends_[0] || (!unlimited && (longest_ < 0 || longest_ > most_));
        if (counts_) top_ = unlimited ? least_ : most_;
        big_ = std::ssize(a_.states) * (top_ + 1) > kMostPlain;
        if (!number({0, 0})) return g_.choice({});
        for (std::size_t i = 0; i < places_.size(); ++i) expand(i);
        const auto end = static_cast<int32_t>(places_.size());
        for (Grammar::Arc& arc : arcs_)
            if (arc.to == kEnd) arc.to = end;
        finals_.push_back(end);
        return g_.network(std::move(arcs_), std::move(finals_), end + 1);
    }

  private:
    struct Place {
        int32_t state;
        int64_t count;
        friend auto operator<=>(const Place&, const Place&) = default;
    };
    static constexpr int64_t kMostPlain = 10'000, kMostPlaces = 70'000, kMostInline = 500;
    static constexpr int32_t kEnd = -1;

    /// longest_: of all texts, in characters; -1: there is no end.
    void find_longest() {
        std::vector<int64_t> ways(a_.states.size(), 0), longest(a_.states.size(), 0);
        for (const TextAutomaton::State& state : a_.states)
            for (const TextAutomaton::Edge& edge : state.edges) ++ways[static_cast<std::size_t>(edge.to)];
        std::vector<int32_t> order = {0};
        if (ways[0] > 0) return;
        for (std::size_t i = 0; i < order.size(); ++i)
            for (const auto from = static_cast<std::size_t>(order[i]);
                 const TextAutomaton::Edge& edge : a_.states[from].edges) {
                const auto to = static_cast<std::size_t>(edge.to);
                longest[to] = std::max(longest[to], longest[from] + 1);
                if (--ways[to] == 0) order.push_back(edge.to);
            }
        if (order.size() == a_.states.size()) longest_ = *std::max_element(longest.begin(), longest.end());
    }

    std::optional<int32_t> number(Place place) {
        const int64_t end = ends_[static_cast<std::size_t>(place.state)];
        if (end < 0 || (counts_ && most_ != Grammar::kUnbounded && place.count + end > most_)) return std::nullopt;
        const auto [found, is_new] = numbers_.try_emplace(place, static_cast<int32_t>(places_.size()));
        if (is_new) {
            count_cost(1);
            places_.push_back(place);
        }
        return found->second;
    }

    void count_cost(int64_t places) {
        cost_ += places;
        if (cost_ > kMostPlaces)
            throw GrammarError(
                fmt::format("counting up to {} characters in {} states of 'pattern' or 'format' takes more "
                            "than {} states; shorten the lengths",
                            top_, a_.states.size(), kMostPlaces));
    }

    void expand(std::size_t i) {
        const Place place = places_[i];
        const TextAutomaton::State& state = a_.states[static_cast<std::size_t>(place.state)];
        const bool to_itself = state.accepts && state.edges.size() == 1 && state.edges[0].to == place.state;
        if (counts_ && big_ && to_itself) {  // one set of characters to the end: a repetition
            const int64_t least = std::max<int64_t>(0, least_ - place.count);
            const int64_t most = most_ == Grammar::kUnbounded ? most_ : most_ - place.count;
            count_cost(std::min<int64_t>(std::max(least, most), 2000));
            arcs_.push_back({static_cast<int32_t>(i), kEnd, g_.repeat(written(state.edges[0].chars), least, most)});
            return;
        }
        if (state.accepts && (!counts_ || place.count >= least_)) finals_.push_back(static_cast<int32_t>(i));
        for (const TextAutomaton::Edge& edge : state.edges) {
            int64_t count = counts_ ? place.count + 1 : 0;
            if (most_ == Grammar::kUnbounded) count = std::min(count, top_);
            if (const auto to = number({edge.to, count}))
                arcs_.push_back({static_cast<int32_t>(i), *to, written(edge.chars)});
        }
    }

    /// A character of the set: a rule of its own where it takes many bytes' edges at many places.
    Grammar::Expr written(const CharSet& set) {
        constexpr std::size_t kMostRanges = 16;
        const auto [known, is_new] = written_.try_emplace(set, 0);
        if (!is_new) return known->second;
        Grammar::Expr one = write_ ? write_(g_, set) : g_.chars(set);
        const bool is_ascii = !set.empty() && set.back().second < 0x80;
        if (set.size() > kMostRanges || (!is_ascii && edges_ * (top_ + 1) > kMostInline)) one = g_.named(one);
        return known->second = one;
    }

    Grammar& g_;
    const TextAutomaton& a_;
    int64_t least_, most_, top_ = 0, longest_ = -1, cost_ = 0, edges_ = 0;
    const CharWriter& write_;
    bool big_ = false, counts_ = false;
    std::vector<int64_t> ends_;
    std::map<Place, int32_t> numbers_;
    std::vector<Place> places_;
    std::vector<Grammar::Arc> arcs_;
    std::vector<int32_t> finals_;
    std::map<CharSet, Grammar::Expr> written_;
};

}  // namespace

TextAutomaton minimal_automaton(std::vector<std::vector<int32_t>> table, std::vector<uint8_t> accepts,
                                const std::vector<CharSet>& classes, WorkBudget* work) {
    const std::vector<int64_t> ends = shortest_ends(table, accepts);
    for (std::vector<int32_t>& row : table)
        for (int32_t& to : row)
            if (to >= 0 && ends[static_cast<std::size_t>(to)] < 0) to = -1;
    const std::vector<int32_t> block = partition(table, ends, work);
    std::vector<int32_t> numbers(table.size(), -1);  // of blocks, in the order in which they are reached
    std::vector<std::size_t> order;                  // a state of each
    const auto number = [&](std::size_t s) {
        int32_t& known = numbers[static_cast<std::size_t>(block[s])];
        if (known < 0) {
            known = static_cast<int32_t>(order.size());
            order.push_back(s);
        }
        return known;
    };
    number(0);
    TextAutomaton out;
    for (std::size_t i = 0; i < order.size(); ++i) {
        const std::size_t s = order[i];
        std::map<int32_t, CharSet> edges;
        for (std::size_t c = 0; c < classes.size(); ++c)
            if (table[s][c] >= 0) {
                CharSet& set = edges[number(static_cast<std::size_t>(table[s][c]))];
                set.insert(set.end(), classes[c].begin(), classes[c].end());
            }
        TextAutomaton::State& state = out.states.emplace_back();
        state.accepts = accepts[s];
        for (auto& [to, set] : edges) state.edges.push_back({normalized(std::move(set)), to});
    }
    return out;
}

Grammar::Expr add_text_automaton(Grammar& grammar, const TextAutomaton& automaton, int64_t least, int64_t most,
                                 const CharWriter& write) {
    return AutomatonWriter(grammar, automaton, least, most, write).write();
}

}  // namespace riptide
