#include "text/structured/earley.h"

#include <algorithm>

namespace riptide {

Recognizer::Recognizer(const Automaton& automaton, int64_t most_work)
    : automaton_(automaton), most_work_(most_work), width_(static_cast<std::size_t>(automaton.classes())) {
    finish();  // the dead state
    std::fill(rows_.begin(), rows_.end(), kDead);
    made_.accepts = automaton.root_empty();
    const int32_t root = automaton.start_of(automaton.root());
    if (root >= 0) add({root, kTop});
    start_ = finish();
}

Recognizer::State Recognizer::compute(State state, uint16_t symbol) {
    const State next = make_next(state, symbol);
    rows_[static_cast<std::size_t>(state) * width_ + symbol] = next;
    return next;
}

Recognizer::State Recognizer::make_next(State state, uint16_t symbol) {
    begin_state();
    work_ += std::ssize(at(state).kernel) + std::ssize(at(state).entered);
    const auto take = [&](int32_t node, int32_t origin) {
        for (const Automaton::Edge& edge : automaton_.edges(node))
            if (edge.low <= symbol && symbol <= edge.high) add({edge.to, origin});
    };
    for (const Item& item : at(state).kernel) take(item.node, item.origin);
    for (const int32_t rule : at(state).entered) take(automaton_.start_of(rule), state);
    return finish();
}

Recognizer::State Recognizer::advance_within(State state, uint16_t symbol, State origin) {
    struct Within {
        State& place;
        ~Within() { place = kDead; }
    };
    const Within within{unended_ = origin};
    return make_next(state, symbol);
}

std::span<const Recognizer::Waiting> Recognizer::waiting_for(int32_t origin, int32_t rule) const {
    const std::vector<Waiting>& all = at(origin).waiting;
    const auto first =
        std::lower_bound(all.begin(), all.end(), rule, [](const Waiting& w, int32_t r) { return w.rule < r; });
    return {first, std::find_if(first, all.end(), [&](const Waiting& w) { return w.rule != rule; })};
}

bool Recognizer::begins_item(State state, uint16_t symbol) const {
    std::vector<int32_t> rules;
    for (const int32_t rule : at(state).entered)
        if (automaton_.distinct(rule)) rules.push_back(rule);
    for (std::size_t i = 0; i < rules.size(); ++i) {
        const int32_t start = automaton_.start_of(rules[i]);
        for (const Automaton::Edge& edge : automaton_.edges(start))
            if (edge.low <= symbol && symbol <= edge.high) return true;
        for (const Automaton::Call& call : automaton_.calls(start))
            if (std::find(rules.begin(), rules.end(), call.rule) == rules.end()) rules.push_back(call.rule);
    }
    return false;
}

bool Recognizer::in_item(State state, State origin) const {
    std::vector<Item> todo = items(state);
    for (std::size_t i = 0; i < todo.size(); ++i) {
        const Item item = todo[i];
        const int32_t rule = automaton_.rule_of(item.node);
        if (item.origin == origin && automaton_.distinct(rule)) return true;
        if (item.origin < 0) continue;
        for (const Waiting& w : waiting_for(item.origin, rule))
            if (std::find(todo.begin(), todo.end(), w.item) == todo.end()) todo.push_back(w.item);
    }
    return false;
}

void Recognizer::count_work(int64_t steps) {
    work_ += steps;
    if (work_ > most_work_)
        throw GrammarError(fmt::format("too ambiguous: what may come next takes more than {} steps", most_work_));
    if (budget_ != nullptr) budget_->spend_small(steps);
}

/// Forgets what an error has left.
void Recognizer::begin_state() {
    items_.clear();
    made_ = {};
}

/// An item of the state being made, once, unless it cannot end within the depth that is allowed.
void Recognizer::add(Item item) {
    count_work(1 + std::ssize(items_));
    if (frame(item.origin) + automaton_.need(item.node) > Automaton::kMostDepth) return;
    if (std::find(items_.begin(), items_.end(), item) != items_.end()) return;
    if (items_.size() >= kMostItems)
        throw GrammarError(fmt::format("too ambiguous: more than {} ways to read a text", kMostItems));
    items_.push_back(item);
}

void Recognizer::end_rule(int32_t rule, int32_t origin) {
    if (unended_ != kDead && origin == unended_ && automaton_.distinct(rule)) return;
    if (origin == kTop) {
        made_.accepts = true;
    } else if (origin == kUnknown) {
        if (std::find(made_.escapes.begin(), made_.escapes.end(), rule) == made_.escapes.end())
            made_.escapes.push_back(rule);
    } else {
        for (const Waiting& w : waiting_for(origin, rule)) add(w.item);
    }
}

/// Ends the rules that can end, and numbers the state.
Recognizer::State Recognizer::finish() {
    for (std::size_t i = 0; i < items_.size(); ++i) {
        const Item item = items_[i];
        if (automaton_.accepts(item.node)) end_rule(automaton_.rule_of(item.node), item.origin);
    }
    std::erase_if(items_, [&](const Item& item) {
        return automaton_.edges(item.node).empty() && automaton_.calls(item.node).empty();
    });
    std::sort(items_.begin(), items_.end());
    std::sort(made_.escapes.begin(), made_.escapes.end());
    made_.kernel.swap(items_);
    items_.clear();
    return number(std::exchange(made_, {}));
}

/// The state that has this kernel, perhaps a new one.
Recognizer::State Recognizer::number(Data data) {
    const uint64_t hash = hash_of(data);
    const auto [first, last] = numbers_.equal_range(hash);
    for (auto it = first; it != last; ++it) {
        const Data& other = at(it->second);
        if (other.kernel == data.kernel && other.accepts == data.accepts && other.escapes == data.escapes)
            return it->second;
    }
    if (bytes_ > kMostBytes) throw GrammarError("the text needs too many states of the grammar");
    for (const Item& item : data.kernel) data.depth = std::max(data.depth, frame(item.origin));
    ++data.depth;
    const auto number = static_cast<State>(states_.size());
    states_.push_back(std::move(data));
    rows_.resize(rows_.size() + width_, -1);
    numbers_.emplace(hash, number);
    enter_rules(number);
    const Data& made = at(number);
    bytes_ += sizeof(Data) + width_ * sizeof(State) + 64 + made.kernel.size() * sizeof(Item) +
              made.waiting.size() * sizeof(Waiting) + made.entered.size() * sizeof(int32_t);
    return number;
}

/// Which rules start here, and what goes on when they have ended.
void Recognizer::enter_rules(State state) {
    Data& data = states_[static_cast<std::size_t>(state)];
    const int32_t depth = data.depth;
    const auto look = [&](int32_t node, int32_t origin) {
        for (const Automaton::Call& call : automaton_.calls(node)) {
            const int32_t start = automaton_.start_of(call.rule);
            if (depth + automaton_.need(start) > Automaton::kMostDepth ||
                frame(origin) + automaton_.need(call.to) > Automaton::kMostDepth)
                continue;
            data.waiting.push_back({call.rule, {call.to, origin}});
            if (std::find(data.entered.begin(), data.entered.end(), call.rule) == data.entered.end())
                data.entered.push_back(call.rule);
        }
    };
    for (const Item& item : data.kernel) look(item.node, item.origin);
    for (std::size_t i = 0; i < data.entered.size(); ++i) look(automaton_.start_of(data.entered[i]), state);
    data.at_item =
        std::any_of(data.entered.begin(), data.entered.end(), [&](int32_t rule) { return automaton_.distinct(rule); });
    std::stable_sort(data.waiting.begin(), data.waiting.end(),
                     [](const Waiting& a, const Waiting& b) { return a.rule < b.rule; });
}

uint64_t Recognizer::hash_of(const Data& data) const {
    uint64_t hash = data.accepts ? 0x9E3779B97F4A7C15 : 0x2545F4914F6CDD1D;
    const auto mix = [&](uint64_t value) {
        hash = (hash ^ value) * 0xFF51AFD7ED558CCD;
        hash ^= hash >> 32;
    };
    for (const Item& item : data.kernel)
        mix((static_cast<uint64_t>(static_cast<uint32_t>(item.node)) << 32) | static_cast<uint32_t>(item.origin));
    for (const int32_t rule : data.escapes) mix(static_cast<uint32_t>(rule));
    return hash;
}

Recognizer::State Recognizer::local(std::span<const int32_t> nodes) {
    // Nodes that accept have ended already: only what follows matters, so their ends are not looked at again.
    Data data;
    for (const int32_t node : nodes) data.kernel.push_back({node, kUnknown});
    std::sort(data.kernel.begin(), data.kernel.end());
    return number(std::move(data));
}

Recognizer::State Recognizer::resume(int32_t origin, std::span<const int32_t> rules) {
    begin_state();
    for (const int32_t rule : rules) end_rule(rule, origin);
    return finish();
}

Recognizer::State Recognizer::import(const Recognizer& other, State state) {
    std::unordered_map<State, State> done;
    return import(other, state, done);
}

Recognizer::State Recognizer::import(const Recognizer& other, State state, std::unordered_map<State, State>& done) {
    if (state == kDead) return kDead;
    if (const auto found = done.find(state); found != done.end()) return found->second;
    const Data& from = other.at(state);
    count_work(1 + std::ssize(from.kernel));
    Data data;
    for (const Item& item : from.kernel)
        data.kernel.push_back({item.node, item.origin < 0 ? item.origin : import(other, item.origin, done)});
    std::sort(data.kernel.begin(), data.kernel.end());
    data.accepts = from.accepts;
    data.escapes = from.escapes;
    return done[state] = number(std::move(data));
}

}  // namespace riptide
