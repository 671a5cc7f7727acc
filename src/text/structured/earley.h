// Which bytes may follow: an Earley recogniser whose states are numbered, so that what was found out once is a lookup.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/work_budget.h"
#include "text/grammar/automaton.h"

namespace riptide {

/// Walks any context-free grammar over bytes. A state stands for all ways to read what has been read so far: a set of
/// items (node, origin), where origin is the state in which the node's rule was entered. Equal sets are one state, so
/// loops come back to the state that they left, and a transition is computed once. A state that is not dead has a way
/// to its end (with the automaton trimmed), unless nesting in an ambiguous grammar meets Automaton::kMostDepth.
/// Source: Earley 1970; Aycock & Horspool 2002 (rules that may be empty).
///
/// Not thread-safe. Cost: a known transition is one load; a new one is linear in the items that it moves and completes.
class Recognizer {
  public:
    using State = int32_t;
    static constexpr State kDead = 0;
    static constexpr std::size_t kMostItems = 4'000, kMostBytes = std::size_t{256} << 20;
    static constexpr int64_t kKnown = 16;  // what a known transition counts beside an item: a load from far away

    /// Where a rule was entered, if not in a state: the whole grammar's rule, or (local states) somewhere unknown.
    static constexpr int32_t kTop = -1, kUnknown = -2;
    struct Item {
        int32_t node, origin;
        friend auto operator<=>(const Item&, const Item&) = default;
    };

    /// The automaton must outlive this. `most_work`: items and transitions that may be looked at after begin_work().
    explicit Recognizer(const Automaton& automaton, int64_t most_work);

    State start() const { return start_; }
    /// What follows a byte or markup token of this class. Throws GrammarError beyond kMostItems items in one state (the
    /// grammar is too ambiguous), most_work, or kMostBytes.
    State advance(State state, uint16_t symbol) {
        const State known = rows_[static_cast<std::size_t>(state) * width_ + symbol];
        return known >= 0 ? known : compute(state, symbol);
    }
    /// The same where items that all differ, and that began in `origin`, may not end with this byte.
    State advance_within(State state, uint16_t symbol, State origin);
    bool accepts(State state) const { return at(state).accepts; }
    /// An item of an array whose items all differ may begin here.
    bool at_item(State state) const { return at(state).at_item; }
    /// Whether it can begin with this; whether one that began in `origin` is being said, and more of it can follow.
    bool begins_item(State state, uint16_t symbol) const;
    bool in_item(State state, State origin) const;
    /// Nothing can follow.
    bool exhausted(State state) const { return at(state).kernel.empty(); }

    /// The state of one rule by itself, at these nodes: what goes on behind the end of that rule is unknown, and the
    /// rules whose ends have just been met are the state's escapes.
    State local(std::span<const int32_t> nodes);
    const std::vector<int32_t>& escapes(State state) const { return at(state).escapes; }
    /// The state after rules that were entered in `origin` (or kTop) have ended.
    State resume(int32_t origin, std::span<const int32_t> rules);

    const std::vector<Item>& items(State state) const { return at(state).kernel; }
    /// Rules open inside each other, at most: with one more if a rule is entered here; of what was entered in `origin`.
    int32_t depth(State state) const { return at(state).depth; }
    int32_t frame(int32_t origin) const { return origin < 0 ? 0 : at(origin).depth; }
    /// The same state of another recogniser of the same automaton.
    State import(const Recognizer& other, State state);

    void begin_work() { work_ = 0; }
    /// From now on all work is spent from this budget as well; null: from none. Where it throws, what has been found
    /// out is kept, and no state is half made.
    void spend_from(WorkBudget* budget) { budget_ = budget; }
    /// Steps that the caller takes along known transitions; they count as those that are computed. Throws GrammarError,
    /// and what WorkBudget::spend does.
    void count_work(int64_t steps);
    /// Memory, about.
    std::size_t bytes() const { return bytes_; }

  private:
    struct Waiting {
        int32_t rule;
        Item item;  // that goes on when the rule ends
    };
    struct Data {
        std::vector<Item> kernel;      // sorted; all have edges
        std::vector<int32_t> entered;  // rules entered here
        std::vector<Waiting> waiting;  // sorted by rule
        std::vector<int32_t> escapes;  // sorted
        bool accepts = false, at_item = false;
        int32_t depth = 0;
    };

    const Data& at(State state) const { return states_[static_cast<std::size_t>(state)]; }
    /// What goes on in `origin`, a state, when a rule that was entered there ends.
    std::span<const Waiting> waiting_for(int32_t origin, int32_t rule) const;
    State compute(State state, uint16_t symbol);
    State make_next(State state, uint16_t symbol);
    void begin_state();
    void add(Item item);
    void end_rule(int32_t rule, int32_t origin);
    State finish();
    State number(Data data);
    void enter_rules(State state);
    State import(const Recognizer& other, State state, std::unordered_map<State, State>& done);
    uint64_t hash_of(const Data& data) const;

    const Automaton& automaton_;
    const int64_t most_work_;
    std::size_t width_;
    std::vector<Data> states_;
    std::vector<State> rows_;
    std::unordered_multimap<uint64_t, State> numbers_;
    State start_ = 0;
    std::size_t bytes_ = 0;
    int64_t work_ = 0;
    WorkBudget* budget_ = nullptr;

    // The state being made. unended_: where the items began that may not end; kDead: none.
    State unended_ = kDead;
    std::vector<Item> items_;
    Data made_;
};

}  // namespace riptide
