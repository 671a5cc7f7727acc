// A scheduler with a real cache, a real runner and a FakeModel, and everything that can happen to them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>

#include "engine/execution/prefill_step.h"
#include "engine/scheduler/scheduler.h"
#include "tests/engine/fake_model.h"

namespace riptide {

struct WorldOptions {
    SchedulerOptions scheduler;
    KvCacheOptions cache;
    bool keep_prefixes = false;  // a simple prefix cache hangs on the hooks
    bool parts = false;          // beside decoding requests prompts run in parts, of random numbers of layers
};

/// Runs steps and holds every request to the law: its tokens are those of the request run alone.
class SchedulerWorld {
  public:
    struct Asked {
        std::vector<int32_t> prompt;
        int64_t max_tokens = 0;
        int64_t submitted = 0;  // step
        int64_t left = -1;      // step
        int preemptions = 0;
        bool cancelled = false;
        std::set<int64_t> computed;  // lengths after a step of the prompt
        std::optional<Leaving> why;
    };

    SchedulerWorld(const WorldOptions& options, uint64_t seed)
        : rng_(seed),
          options_(options),
          cache_(model_.state_specs(), options.cache),
          runner_(model_, cache_, nullptr),
          prompts_(runner_, cache_, 0, [] { return 0; }),
          scheduler_(cache_, options.scheduler, hooks()) {}

    ~SchedulerWorld() {
        for (const int32_t page : stolen_) cache_.pool().release(page);
        while (!kept_.empty()) forget(0);
        EXPECT_TRUE(alive() > 0 || scheduler_.sessions() == 0) << "sessions have leaked";
        if (scheduler_.running() > 0) return;
        EXPECT_EQ(cache_.pool().free_count(), cache_.pool().size()) << "pages have leaked";
        EXPECT_EQ(cache_.free_slots(), options_.cache.max_sequences) << "ring slots have leaked";
    }

    size_t pick(size_t n) { return static_cast<size_t>(rng_() % n); }
    Scheduler& scheduler() { return scheduler_; }
    KvCache& cache() { return cache_; }
    const std::map<RequestId, Asked>& asked() const { return asked_; }
    int64_t steps() const { return steps_; }
    int64_t last_rows() const { return last_rows_; }
    const StepPlan* last_plan() const { return plan_; }
    int64_t alive() const { return scheduler_.waiting() + scheduler_.running(); }

    int64_t drafted_tokens = 0, trees = 0, restored = 0, left_while_read = 0, steps_under_way = 0;
    bool accept_all = false;    // else some right drafts are turned down
    size_t undrawn_one_in = 0;  // rows of answers of which one is not drawn, and its request sits out for some steps
    int64_t undrawn = 0;

    std::vector<int32_t> invent(size_t tokens) {
        std::vector<int32_t> prompt(tokens);
        for (int32_t& token : prompt) token = static_cast<int32_t>(1 + pick(FakeModel::kVocab - 1));
        return prompt;
    }
    /// A prompt whose answer has at least `answer` tokens.
    std::vector<int32_t> invent(size_t tokens, int64_t answer) {
        for (;;) {
            std::vector<int32_t> prompt = invent(tokens);
            if (std::ssize(FakeModel::answer(prompt, answer)) == answer) return prompt;
        }
    }
    RequestId submit(ScheduledRequest request) {
        Asked asked{request.prompt, request.max_tokens, steps_};
        const RequestId id = scheduler_.submit(std::move(request), now());
        asked_.emplace(id, std::move(asked));
        return id;
    }
    void cancel(RequestId id) {
        asked_.at(id).cancelled = true;
        scheduler_.cancel(id);
    }
    /// Takes pages away, as something else on the device might.
    void steal(size_t pages) {
        for (; pages > 0 && cache_.pool().free_count() > 0; --pages) stolen_.push_back(cache_.pool().acquire());
    }
    void give_back() {
        for (const int32_t page : stolen_) cache_.pool().release(page);
        stolen_.clear();
    }
    bool stealing() const { return !stolen_.empty(); }
    int64_t now() const { return steps_ * 1000; }

    /// Proposes random drafts, right ones among them.
    void propose(size_t most) {
        for (const RequestId id : scheduler_.decoding()) {
            if (pick(3) == 0) continue;
            std::vector<int32_t> tokens, parents;
            const bool tree = pick(2) == 0;
            const std::span<const int32_t> known = scheduler_.tokens(id);
            for (size_t i = 1 + pick(most); i > 0; --i) {
                const auto row = static_cast<int32_t>(tokens.size());
                parents.push_back(tree ? static_cast<int32_t>(pick(static_cast<size_t>(row) + 1)) - 1 : row - 1);
                std::vector<int32_t> path;
                for (int32_t p = parents.back(); p >= 0; p = parents[static_cast<size_t>(p)])
                    path.push_back(tokens[static_cast<size_t>(p)]);
                std::vector<int32_t> past(known.begin(), known.end());
                past.insert(past.end(), path.rbegin(), path.rend());
                const int32_t right = FakeModel::next(past);
                tokens.push_back(pick(4) != 0 ? right : static_cast<int32_t>(pick(FakeModel::kVocab)));
            }
            if (!tree) parents.clear();
            trees += tree;
            scheduler_.propose(id, tokens, parents);
        }
    }

    /// A step of up to `most` rows for each request, run ahead of settle(); how many they were.
    int64_t step_ahead(int64_t most) {
        ++steps_;
        rejoin();
        const StepPlan& plan = scheduler_.plan(now());
        plan_ = &plan;
        check_plan(plan);
        const int64_t steps = scheduler_.run_ahead(most);
        bool done = true;
        results_.clear();
        std::vector<std::vector<int32_t>> ahead(plan.decode.size());
        if (steps == 1) {
            paths_.clear();
            if (!plan.decode.empty()) draw(runner_.step(plan.decode), plan.decode, plan.decode_ids);
            done = read_prompts();
        } else {
            for (size_t i = 0; i < plan.decode.size(); ++i) decode_ahead(plan, i, steps, ahead[i]);
        }
        for (size_t i = 0; steps > 1 && i < results_.size(); ++i) results_[i].ahead = ahead[i];
        for (size_t i = 0; steps == 1 && i < results_.size(); ++i) results_[i].path = paths_[i];
        scheduler_.settle(results_, done);
        return steps;
    }

    /// One step. `between`: called while it runs. `fails`: 1: before the decode part, 2: before the prefill part.
    template <class Between>
    void step(Between&& between, int fails = 0) {
        ++steps_;
        rejoin();
        const StepPlan& plan = scheduler_.plan(now());
        plan_ = &plan;
        check_plan(plan);
        results_.clear();
        paths_.clear();
        if (!plan.decode.empty() && fails != 1) draw(runner_.step(plan.decode), plan.decode, plan.decode_ids);
        const bool done = fails != 0 || read_prompts();
        between();
        if (fails != 0) {
            prompt_items_.clear();
            return scheduler_.abandon();
        }
        for (size_t i = 0; i < results_.size(); ++i) results_[i].path = paths_[i];
        scheduler_.settle(results_, done);
        for (auto it = alive_.begin(); it != alive_.end();) {
            const Asked& a = asked_.at(*it);
            ASSERT_TRUE(!a.cancelled || a.why) << "request " << *it << " was cancelled and lives on";
            it = a.why ? alive_.erase(it) : std::next(it);
        }
        for (RequestId id = last_seen_ + 1; id <= (asked_.empty() ? 0 : asked_.rbegin()->first); ++id)
            alive_.insert(id);
        last_seen_ = asked_.empty() ? 0 : asked_.rbegin()->first;
    }
    void step() {
        step([] {});
    }

  private:
    struct Kept {
        SavedState saved;
        std::vector<int32_t> pages, tokens;
    };

    void check_plan(const StepPlan& plan) {
        int64_t decode = 0, prefill = 0;
        for (const StepItem& item : plan.decode) decode += std::ssize(item.tokens);
        for (const StepItem& item : plan.prefill) prefill += std::ssize(item.tokens);
        last_rows_ = decode + prefill;
        ASSERT_TRUE(scheduler_.reading() == 0 || plan.prefill.empty());
        if (scheduler_.reading() > 0) return;
        prompt_items_ = plan.prefill;
        prompt_ids_ = plan.prefill_ids;
        prompts_begun_ = false;
        ASSERT_LE(decode, options_.scheduler.decode_rows);
        ASSERT_LE(prefill, options_.scheduler.prefill_rows);
        for (size_t i = 0; i < plan.prefill.size(); ++i) {  // the family follows from the position alone
            const StepItem& item = plan.prefill[i];
            ASSERT_LE(item.sequence->length() + std::ssize(item.tokens),
                      std::ssize(asked_.at(plan.prefill_ids[i]).prompt));
        }
        for (size_t i = 0; i < plan.decode.size(); ++i)
            ASSERT_GE(plan.decode[i].sequence->length(), std::ssize(asked_.at(plan.decode_ids[i]).prompt));
    }

    /// The definition of what the model would say: rows beyond the answer's end are dropped.
    void decode_ahead(const StepPlan& plan, size_t i, int64_t steps, std::vector<int32_t>& ahead) {
        const RequestId id = plan.decode_ids[i];
        ASSERT_GE(plan.decode[i].sequence->reserved(), steps);
        const std::span<const int32_t> known = scheduler_.tokens(id);
        std::vector<int32_t> past(known.begin(), known.end());
        StepResult result{.id = id};
        SequenceState& state = *plan.decode[i].sequence;
        for (int64_t s = 0; s < steps && !result.end; ++s) {
            if (s > 0) ahead.push_back(result.next);
            write(state, state.length() + s, past);
            result.next = FakeModel::next(past);
            result.end = result.next == FakeModel::kEnd;
            past.push_back(result.next);
        }
        if (result.end) result.next = -1;
        results_.push_back(result);
    }
    /// What a step would have stored for the last of `tokens`.
    void write(const SequenceState& state, int64_t index, std::span<const int32_t> tokens) {
        const std::vector<int32_t> token(tokens.end() - 1, tokens.end()),
            position = {static_cast<int32_t>(index)}, zero = {0}, begin = {0, 1}, committed = position,
            slot = {state.slot()};
        Batch batch;
        batch.tokens = token, batch.positions = position, batch.row_sequence = zero, batch.row_begin = begin;
        batch.committed = committed, batch.page_table = state.pages(), batch.state_slot = slot;
        batch.max_pages = static_cast<int32_t>(state.pages().size());
        fake_append(cache_.views(), batch);
    }

    /// Some layers of the prompts' step; whether it is complete.
    bool read_prompts() {
        if (prompt_items_.empty()) return true;
        if (!std::exchange(prompts_begun_, true)) prompts_.begin(prompt_items_);
        const bool beside = options_.parts && !plan_->decode.empty();
        prompts_.run(beside ? static_cast<int64_t>(1 + pick(4)) : 4);
        if (!prompts_.complete()) {
            ++steps_under_way;
            return false;
        }
        draw(prompts_.finish(), prompt_items_, prompt_ids_);
        prompt_items_.clear();
        return true;
    }
    void rejoin() {
        std::erase_if(sitting_, [&](const auto& sitting) {
            if (sitting.second > steps_) return false;
            scheduler_.sit_out(sitting.first, false);
            return true;
        });
    }
    /// Whether a row is left undrawn.
    bool leave_undrawn(const StepItem& item, RequestId id) {
        if (undrawn_one_in == 0 || item.sequence->length() < std::ssize(asked_.at(id).prompt)) return false;
        if (pick(undrawn_one_in) != 0) return false;
        ++undrawn;
        sitting_[id] = steps_ + static_cast<int64_t>(1 + pick(5));
        scheduler_.sit_out(id, true);
        results_.push_back({.id = id, .undrawn = true});
        paths_.emplace_back();
        return true;
    }
    void draw(const Tensor& logits, std::span<const StepItem> items, std::span<const RequestId> ids) {
        int64_t row = 0;
        for (size_t i = 0; i < items.size(); ++i) {
            const StepItem& item = items[i];
            if (item.logits == StepRows::Logits::none) continue;
            if (asked_.at(ids[i]).why) {  // it has left while the prompts' step was under way
                ++row;
                continue;
            }
            if (leave_undrawn(item, ids[i])) {
                row += item.logits == StepRows::Logits::all ? std::ssize(item.tokens) : 1;
                continue;
            }
            StepResult result{.id = ids[i]};
            std::vector<int32_t> path;
            int32_t token = fake_choice(logits, row);
            if (item.logits == StepRows::Logits::all) {
                path = {0};
                const size_t most =
                    !accept_all && pick(3) == 0 ? 1 + pick(4) : item.tokens.size();  // some accept less than they could
                while (path.size() < most && token != FakeModel::kEnd) {
                    const int32_t child = child_of(item, path.back(), token);
                    if (child < 0) break;
                    path.push_back(child);
                    token = fake_choice(logits, row + child);
                }
                drafted_tokens += std::ssize(path) - 1;
                row += std::ssize(item.tokens);
            } else {
                ++row;
            }
            ASSERT_GE(token, 0) << "request " << ids[i] << " has read what is not its own";
            result.end = token == FakeModel::kEnd;
            result.next = result.end ? -1 : token;
            results_.push_back(result);
            paths_.push_back(std::move(path));
        }
    }
    static int32_t child_of(const StepItem& item, int32_t parent, int32_t token) {
        for (int32_t r = parent + 1; r < static_cast<int32_t>(item.tokens.size()); ++r) {
            const int32_t above = item.parents.empty() ? r - 1 : item.parents[static_cast<size_t>(r)];
            if (above == parent && item.tokens[static_cast<size_t>(r)] == token) return r;
        }
        return -1;
    }

    void left(RequestId id, Leaving why, std::span<const int32_t> tokens, const SequenceState* state) {
        Asked& a = asked_.at(id);
        ASSERT_FALSE(a.why) << "request " << id << " leaves twice";
        const auto n = std::ssize(a.prompt);
        ASSERT_GE(std::ssize(tokens), n);
        ASSERT_TRUE(std::equal(a.prompt.begin(), a.prompt.end(), tokens.begin()));
        const std::vector<int32_t> answer(tokens.begin() + n, tokens.end());
        std::vector<int32_t> alone = FakeModel::answer(a.prompt, a.max_tokens);
        ASSERT_LE(answer.size(), alone.size()) << "request " << id;
        if (why == Leaving::length) {
            ASSERT_EQ(std::ssize(answer), a.max_tokens);
        } else if (why != Leaving::finished) {
            alone.resize(answer.size());
        }
        ASSERT_EQ(answer, alone) << "request " << id;
        if (why == Leaving::preempted) {
            ++a.preemptions;
        } else {
            a.why = why;
            a.left = steps_;
            const bool read = std::find(prompt_ids_.begin(), prompt_ids_.end(), id) != prompt_ids_.end();
            left_while_read += read && prompts_begun_ && !prompt_items_.empty() && !prompts_.complete();
        }
        if (options_.keep_prefixes && state != nullptr && state->length() > 0 && pick(2) == 0) keep(tokens, *state);
    }
    void keep(std::span<const int32_t> tokens, const SequenceState& state) {
        if (kept_.size() >= 4) forget(pick(kept_.size()));
        kept_.push_back({state.save(),
                         {state.pages().begin(), state.pages().end()},
                         {tokens.begin(), tokens.begin() + state.length()}});
        for (const int32_t page : kept_.back().pages) cache_.pool().retain(page);
    }
    void forget(size_t i) {
        for (const int32_t page : kept_[i].pages) cache_.pool().release(page);
        kept_.erase(kept_.begin() + static_cast<ptrdiff_t>(i));
    }
    const Kept* match(std::span<const int32_t> tokens) const {
        const Kept* best = nullptr;
        for (const Kept& kept : kept_)
            if (kept.tokens.size() < tokens.size() &&
                std::equal(kept.tokens.begin(), kept.tokens.end(), tokens.begin()) &&
                (best == nullptr || kept.tokens.size() > best->tokens.size()))
                best = &kept;
        return best;
    }
    SchedulerHooks hooks() {
        SchedulerHooks hooks;
        hooks.leave = [this](auto... arguments) { left(arguments...); };
        hooks.computed = [this](RequestId id, std::span<const int32_t>, const SequenceState& state) {
            ASSERT_EQ(state.reserved(), 0);
            asked_.at(id).computed.insert(state.length());
        };
        if (!options_.keep_prefixes) return hooks;
        hooks.cached = [this](RequestId, std::span<const int32_t> tokens) {
            const Kept* kept = match(tokens);
            return kept == nullptr ? int64_t{0} : std::ssize(kept->tokens);
        };
        hooks.restore = [this](RequestId, std::span<const int32_t> tokens, SequenceState& state) {
            const Kept* kept = match(tokens);
            if (kept == nullptr) return;
            state.restore(kept->saved, kept->pages);
            ++restored;
        };
        hooks.evict = [this](RequestId, int32_t pages) {
            std::map<int32_t, int32_t> held;  // page -> references of ours
            for (const Kept& kept : kept_)
                for (const int32_t page : kept.pages) ++held[page];
            int32_t ours = 0;
            for (const auto& [page, references] : held) ours += cache_.pool().refcount(page) == references;
            if (ours < pages) return;
            for (const int32_t before = cache_.pool().free_count(); cache_.pool().free_count() < before + pages;)
                forget(0);
        };
        return hooks;
    }

    std::mt19937_64 rng_;
    WorldOptions options_;
    FakeModel model_;
    KvCache cache_;
    Runner runner_;
    PromptStep prompts_;
    std::vector<StepItem> prompt_items_;
    std::vector<RequestId> prompt_ids_;
    bool prompts_begun_ = false;
    std::vector<Kept> kept_;
    std::vector<int32_t> stolen_;
    std::map<RequestId, Asked> asked_;
    std::set<RequestId> alive_;
    std::map<RequestId, int64_t> sitting_;  // until which step
    RequestId last_seen_ = 0;
    std::vector<StepResult> results_;
    std::vector<std::vector<int32_t>> paths_;
    const StepPlan* plan_ = nullptr;
    int64_t steps_ = 0, last_rows_ = 0;
    Scheduler scheduler_;
};

/// A cache and budgets that a few small requests fill.
inline WorldOptions small(int32_t pages, int32_t sequences) {
    WorldOptions o;
    o.cache = {.k_dtype = DType::f32,
               .v_dtype = DType::f32,
               .page_rows = 4,
               .pages = pages,
               .max_sequences = sequences,
               .max_step_rows = 16};
    o.scheduler = {.decode_rows = 16, .prefill_rows = 16, .prefill_rows_beside = 8, .quantum = 4, .max_queue = 64};
    return o;
}

/// Runs until nothing is left; the number of steps.
inline int64_t drain(SchedulerWorld& world, int64_t most = 10'000) {
    const int64_t begin = world.steps();
    while (world.alive() > 0 && world.steps() < begin + most && !::testing::Test::HasFatalFailure()) world.step();
    EXPECT_EQ(world.alive(), 0);
    return world.steps() - begin;
}

}  // namespace riptide
