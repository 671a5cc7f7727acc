#include "text/structured/token_masks.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>

#include "text/structured/distinct_items.h"
#include "text/structured/earley.h"
#include "text/structured/state_runs.h"

namespace riptide {

namespace {

constexpr std::size_t kMostMasks = 256;

}  // namespace

/// What has been found out: states, and the masks of some.
struct ConstraintState::Table {
    using State = Recognizer::State;

    Table(const Automaton& automaton_, const TokenTrie& trie_, const Constraint::Limits& limits)
        : automaton(automaton_),
          trie(trie_),
          short_walk(limits.short_walk),
          recognizer(automaton_, limits.work),
          runs(automaton_, recognizer),
          reader(automaton_, recognizer),
          path(static_cast<std::size_t>(trie_.most_depth()) + 1) {
        for (std::size_t byte = 0; byte < 256; ++byte) class_of[byte] = automaton.class_of(static_cast<uint8_t>(byte));
        for (const std::string& spelling : automaton.token_spellings()) {
            const auto found = std::find(trie.markup().begin(), trie.markup().end(), spelling);
            markup.push_back(trie.markup_ids()[static_cast<std::size_t>(found - trie.markup().begin())]);
        }
    }

    /// What the tokens do within one rule.
    struct Local {
        explicit Local(int32_t vocab_size) : inside(vocab_size) {}
        TokenMask inside;  // those that fit; if they end the rule, only at their own end
        struct Escape {
            int32_t node, rules;  // the rule has ended at this node of the tree; which: rule_sets[rules]
        };
        std::vector<Escape> escapes;
        std::vector<std::vector<int32_t>> rule_sets;
        int32_t height = 1;  // rules opened inside each other
    };

    bool walk(State from, int32_t top, TokenMask& out, int64_t most, Local* local = nullptr);
    bool all_below(State state, int32_t node, TokenMask& out, Local* local);
    const Local& local_of(State state);
    void add_group(int32_t origin, std::span<const int32_t> nodes, TokenMask& out);
    std::shared_ptr<const TokenMask> mask(State state);
    std::shared_ptr<const TokenMask> distinct_mask(State state, const DistinctReader::Place& from);
    State accept(State state, int32_t token, DistinctReader::Place& place);
    std::size_t bytes() const {
        return recognizer.bytes() + runs.bytes() + local_bytes +
               (masks.size() + outside_masks.size()) * (static_cast<std::size_t>(trie.vocab_size()) / 8 + 64);
    }

    const Automaton& automaton;
    const TokenTrie& trie;
    const int64_t short_walk;
    Recognizer recognizer;
    StateRuns runs;
    DistinctReader reader;  // where the automaton has items that differ
    std::array<uint16_t, 256> class_of{};
    std::vector<int32_t> markup;  // ids of the automaton's markup tokens
    std::unordered_map<State, Local> locals;
    std::size_t local_bytes = 0;
    std::unordered_map<State, std::shared_ptr<const TokenMask>> masks, outside_masks;
    std::vector<State> path;  // of a walk, by depth
};

/// Marks the tokens below a node of the tree, where it is plain that all of them fit behind the state that it led to.
bool ConstraintState::Table::all_below(State state, int32_t node, TokenMask& out, Local* local) {
    constexpr int32_t kFew = 16;  // nodes that are walked through sooner
    const TokenTrie::Node& at = trie.nodes()[static_cast<std::size_t>(node)];
    if (at.end - node <= kFew || (trie.below(node) & TokenTrie::kPieces) != 0) return false;
    const StateRuns::Run& run = runs.from(state);
    if ((trie.below(node) & ~run.kinds) != 0 || at.height > run.length || (local != nullptr && run.escapes))
        return false;
    for (const int32_t id : trie.ids_below(node)) out.set(id);
    if (local != nullptr) local->height = std::max(local->height, run.depth);
    return true;
}

/// Marks the tokens below `top` that fit behind `from`. False if there are more than `most` nodes to look at.
bool ConstraintState::Table::walk(State from, int32_t top, TokenMask& out, int64_t most, Local* local) {
    const std::vector<TokenTrie::Node>& nodes = trie.nodes();
    path[nodes[static_cast<std::size_t>(top)].depth] = from;
    const int32_t end = nodes[static_cast<std::size_t>(top)].end;
    constexpr int64_t kCountEvery = 256;
    int64_t steps = 0;
    int32_t i = top + 1;
    while (i < end && steps < most) {
        if (++steps % kCountEvery == 0) recognizer.count_work(kCountEvery * Recognizer::kKnown);
        const TokenTrie::Node& node = nodes[static_cast<std::size_t>(i)];
        const State next = recognizer.advance(path[node.depth - 1u], class_of[node.byte]);
        if (next == Recognizer::kDead) {
            i = node.end;
            continue;
        }
        path[node.depth] = next;
        for (const int32_t id : trie.ids(i)) out.set(id);
        if (local != nullptr) {
            local->height = std::max(local->height, recognizer.depth(next));
            const std::vector<int32_t>& rules = recognizer.escapes(next);
            if (!rules.empty() && node.end > i + 1) {
                const auto found = std::find(local->rule_sets.begin(), local->rule_sets.end(), rules);
                local->escapes.push_back({i, static_cast<int32_t>(found - local->rule_sets.begin())});
                if (found == local->rule_sets.end()) local->rule_sets.push_back(rules);
            }
        }
        i = all_below(next, i, out, local) ? node.end : i + 1;
    }
    recognizer.count_work((1 + steps % kCountEvery) * Recognizer::kKnown);
    return i >= end;
}

const ConstraintState::Table::Local& ConstraintState::Table::local_of(State state) {
    if (const auto found = locals.find(state); found != locals.end()) return found->second;
    Local local(trie.vocab_size());
    walk(state, 0, local.inside, std::ssize(trie.nodes()), &local);
    local_bytes += sizeof(Local) + local.inside.words.size() * 8 + local.escapes.size() * sizeof(Local::Escape);
    return locals.emplace(state, std::move(local)).first->second;
}

/// The tokens that fit behind items that share their origin.
void ConstraintState::Table::add_group(int32_t origin, std::span<const int32_t> nodes, TokenMask& out) {
    const Local& local = local_of(recognizer.local(nodes));
    for (std::size_t w = 0; w < out.words.size(); ++w) out.words[w] |= local.inside.words[w];
    out.any = out.any || local.inside.any;
    std::vector<State> resumed(local.rule_sets.size(), -1);
    for (const Local::Escape& escape : local.escapes) {
        const auto set = static_cast<std::size_t>(escape.rules);
        if (resumed[set] < 0) resumed[set] = recognizer.resume(origin, local.rule_sets[set]);
        walk(resumed[set], escape.node, out, std::ssize(trie.nodes()));
    }
}

std::shared_ptr<const TokenMask> ConstraintState::Table::mask(State state) {
    if (const auto found = masks.find(state); found != masks.end()) return found->second;
    recognizer.begin_work();
    auto out = std::make_shared<TokenMask>(trie.vocab_size());
    if (!walk(state, 0, *out, short_walk)) {
        std::map<int32_t, std::vector<int32_t>> groups;  // by origin
        for (const Recognizer::Item& item : recognizer.items(state)) groups[item.origin].push_back(item.node);
        bool deep = false;  // so deep that it matters for what fits
        for (const auto& [origin, nodes] : groups) {
            const int32_t height = local_of(recognizer.local(nodes)).height;
            deep = deep || recognizer.frame(origin) + height + automaton.most_need() > Automaton::kMostDepth;
        }
        if (deep) {
            *out = TokenMask(trie.vocab_size());
            walk(state, 0, *out, std::ssize(trie.nodes()));
        } else {
            for (const auto& [origin, nodes] : groups) add_group(origin, nodes, *out);
        }
    }
    for (std::size_t t = 0; t < markup.size(); ++t) {
        const auto symbol = static_cast<uint16_t>(automaton.byte_classes() + static_cast<int32_t>(t));
        if (recognizer.advance(state, symbol) != Recognizer::kDead) out->set(markup[t]);
    }
    if (masks.size() >= kMostMasks) masks.clear();
    masks.emplace(state, out);
    return out;
}

/// The same where items differ: without tokens that say one again, and those behind which nothing else could be said.
std::shared_ptr<const TokenMask> ConstraintState::Table::distinct_mask(State state, const DistinctReader::Place& from) {
    auto all = mask(state);
    if (!automaton.any_distinct()) return all;
    const bool outside = from.at == DistinctItems::At::outside;
    if (const auto found = outside_masks.find(state); outside && found != outside_masks.end()) return found->second;
    recognizer.begin_work();
    const auto out = std::make_shared<TokenMask>(*all);
    const auto take_out = [&](std::span<const int32_t> ids) {
        for (const int32_t id : ids) out->words[static_cast<std::size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64));
    };
    const std::vector<TokenTrie::Node>& nodes = trie.nodes();
    std::vector<DistinctReader::Place> places(path.size());
    path[0] = state;
    places[0] = from;
    for (int32_t i = 1; i < nodes[0].end;) {
        const TokenTrie::Node& node = nodes[static_cast<std::size_t>(i)];
        DistinctReader::Place place = places[node.depth - 1u];
        const State next = reader.advance(place, path[node.depth - 1u], node.byte);
        recognizer.count_work(Recognizer::kKnown);
        if (next == Recognizer::kDead) {
            take_out(trie.ids(i));
            take_out(trie.ids_below(i));
            i = node.end;
            continue;
        }
        path[node.depth] = next;
        places[node.depth] = place;
        if (!trie.ids(i).empty() && !reader.goes_on(place, next)) take_out(trie.ids(i));
        i = reader.may_matter(place, next, trie.below(i)) ? i + 1 : node.end;
    }
    out->any = std::any_of(out->words.begin(), out->words.end(), [](uint64_t word) { return word != 0; });
    std::shared_ptr<const TokenMask> kept = out->words == all->words ? all : out;
    if (outside_masks.size() >= kMostMasks) outside_masks.clear();
    if (outside) outside_masks.emplace(state, kept);
    return kept;
}

/// What follows a token; kDead if it may not come. `place` goes along.
ConstraintState::Table::State ConstraintState::Table::accept(State state, int32_t token, DistinctReader::Place& place) {
    recognizer.begin_work();
    if (token < 0 || token >= trie.vocab_size()) return Recognizer::kDead;
    const auto mark = std::find(markup.begin(), markup.end(), token);
    if (mark != markup.end())
        return recognizer.advance(
            state, static_cast<uint16_t>(automaton.byte_classes() + static_cast<int32_t>(mark - markup.begin())));
    const std::string_view bytes = trie.bytes(token);
    if (bytes.empty()) return Recognizer::kDead;
    for (const char c : bytes) {
        const auto byte = static_cast<uint8_t>(c);
        state =
            automaton.any_distinct() ? reader.advance(place, state, byte) : recognizer.advance(state, class_of[byte]);
        if (state == Recognizer::kDead) return state;
    }
    return automaton.any_distinct() && !reader.goes_on(place, state) ? Recognizer::kDead : state;
}

struct Constraint::Impl {
    Impl(const Grammar& grammar, std::shared_ptr<const TokenTrie> trie, const Limits& limits_)
        : limits(limits_),
          vocabulary(std::move(trie)),
          automaton(grammar, vocabulary->single_bytes(), vocabulary->markup()),
          table(std::make_shared<ConstraintState::Table>(automaton, *vocabulary, limits)) {
        table->recognizer.spend_from(grammar.work());
        check_distinct(grammar, automaton, table->recognizer);
        first = {table->distinct_mask(table->recognizer.start(), {}), automaton.root_empty()};
        bytes = table->bytes() + automaton.bytes();
    }

    const Limits limits;
    const std::shared_ptr<const TokenTrie> vocabulary;
    const Automaton automaton;
    NextTokens first;                    // where answers begin; never changed
    std::atomic<std::size_t> bytes = 0;  // as far as the last that has begun found it
    std::mutex mutex;                    // over all that follows, and all tables
    std::shared_ptr<ConstraintState::Table> table;
};

std::shared_ptr<Constraint> Constraint::compile(const Grammar& grammar, std::shared_ptr<const TokenTrie> vocabulary,
                                                const Limits& limits) {
    return std::shared_ptr<Constraint>(new Constraint(std::make_unique<Impl>(grammar, std::move(vocabulary), limits)));
}

Constraint::Constraint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Constraint::~Constraint() = default;

ConstraintState Constraint::start() { return ConstraintState(shared_from_this()); }

std::size_t Constraint::bytes() const { return impl_->bytes; }

/// To the table that is in use, which is a new one if the last has grown too large; its work is spent from `work`.
/// REQUIRES: the mutex is held.
void ConstraintState::follow(WorkBudget* work) {
    Constraint::Impl& impl = *constraint_->impl_;
    if (impl.table->bytes() > impl.limits.bytes)
        impl.table = std::make_shared<Table>(impl.automaton, *impl.vocabulary, impl.limits);
    impl.bytes = impl.table->bytes() + impl.automaton.bytes();
    Recognizer& recognizer = impl.table->recognizer;
    recognizer.spend_from(work);
    recognizer.begin_work();
    if (table_ == impl.table) return;
    if (items_ != nullptr) {
        auto items = std::make_shared<DistinctItems>(*items_);
        items->origin = recognizer.import(table_->recognizer, items->origin);
        items_ = std::move(items);
    }
    state_ = table_ == nullptr ? recognizer.start() : recognizer.import(table_->recognizer, state_);
    table_ = impl.table;
}

/// next(). REQUIRES: the mutex is held.
NextTokens ConstraintState::go(std::span<const int32_t> tokens, WorkBudget* work) {
    follow(work);
    int32_t state = state_;
    DistinctReader::Place place = table_->reader.begin(items_);
    for (const int32_t token : tokens) {
        state = table_->accept(state, token, place);
        if (state == Recognizer::kDead) return {};
    }
    NextTokens out{table_->distinct_mask(state, place), table_->recognizer.accepts(state)};
    state_ = state;
    items_ = table_->reader.at(place);
    return out;
}

NextTokens ConstraintState::next(std::span<const int32_t> tokens, WorkBudget* work) {
    if (tokens.empty() && table_ == nullptr) return constraint_->impl_->first;
    const std::lock_guard lock(constraint_->impl_->mutex);
    return go(tokens, work);
}

NextTokens ConstraintState::try_next(std::span<const int32_t> tokens, WorkBudget* work) {
    if (tokens.empty() && table_ == nullptr) return constraint_->impl_->first;
    const std::unique_lock lock(constraint_->impl_->mutex, std::try_to_lock);
    if (!lock.owns_lock()) throw TooMuchWork("another thread is finding out what may come next");
    return go(tokens, work);
}

bool ConstraintState::accept(int32_t token) {
    const std::lock_guard lock(constraint_->impl_->mutex);
    follow(nullptr);
    DistinctReader::Place place = table_->reader.begin(items_);
    const int32_t next = table_->accept(state_, token, place);
    if (next == Recognizer::kDead) return false;
    state_ = next;
    items_ = table_->reader.at(place);
    return true;
}

bool ConstraintState::can_end() const {
    if (table_ == nullptr) return constraint_->impl_->first.can_end;
    const std::lock_guard lock(constraint_->impl_->mutex);
    return table_->recognizer.accepts(state_);
}

bool ConstraintState::exhausted() const {
    if (table_ == nullptr) return !constraint_->impl_->first.mask->any;
    const std::lock_guard lock(constraint_->impl_->mutex);
    return table_->recognizer.exhausted(state_);
}

}  // namespace riptide
