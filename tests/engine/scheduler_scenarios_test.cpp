// The scheduler's law: in any company, under any pressure, each request's tokens are those of the request run alone.
#include <gtest/gtest.h>

#include <cstdio>

#include "engine/scheduler/scheduler.h"
#include "tests/engine/scheduler_world.h"
#include "tests/test_device.h"

namespace riptide {
namespace {

struct Totals {
    int64_t steps = 0, requests = 0, finished = 0, length = 0, cancelled = 0, deadline = 0, preempted = 0, refused = 0;
    int64_t drafted = 0, trees = 0, recomputed = 0, rows = 0, restored = 0, abandoned = 0, stalled = 0;
    int64_t under_way = 0, left_while_read = 0;
};

class Scenario {
  public:
    explicit Scenario(uint64_t seed) : rng_(seed), world_(options(), seed + 1) {}

    void run(int64_t steps, Totals& totals) {
        const size_t busy = 2 + pick(12);
        for (int64_t i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) act(busy);
        world_.give_back();
        // From here on each step gets a row done, and rows are done again only as often as counted.
        int64_t work = 0;
        for (const auto& [id, a] : world_.asked())
            if (!a.why) work += std::ssize(a.prompt) + a.max_tokens;
        const int64_t again = world_.scheduler().counts().recomputed_rows, took = drain(world_);
        EXPECT_LE(took, work + world_.scheduler().counts().recomputed_rows - again);
        add(totals);
    }

  private:
    size_t pick(size_t n) { return static_cast<size_t>(rng_() % n); }
    int32_t between(int32_t low, int32_t high) {
        return low + static_cast<int32_t>(pick(static_cast<size_t>(high - low + 1)));
    }

    WorldOptions options() {
        WorldOptions o = small(between(13, 60), between(1, 7));
        o.cache.max_step_rows = between(2, 24);
        o.scheduler.decode_rows = between(2, 24);
        o.scheduler.prefill_rows_beside = between(1, 16);
        o.scheduler.prefill_rows = o.scheduler.prefill_rows_beside + between(0, 24);
        o.scheduler.quantum = between(1, 12);
        o.scheduler.max_queue = between(1, 8);
        o.scheduler.max_running = between(0, o.cache.max_sequences);
        o.scheduler.aging_us = between(1, 200) * 1000;
        o.scheduler.optimistic = pick(4) != 0;
        o.scheduler.max_preemptions = between(0, 4);
        o.keep_prefixes = pick(2) == 0;
        o.parts = pick(3) != 0;
        drafts_ = pick(3) == 0 ? 0 : 1 + pick(10);
        trouble_ = pick(2) == 0 ? 0 : 20 + pick(60);
        return o;
    }

    void submit() {
        ScheduledRequest r{
            .max_tokens = between(1, 30), .session = pick(4), .priority = between(0, ScheduledRequest::kHighest)};
        // Often the beginning of one before, so that prefixes are found.
        if (!prompts_.empty() && pick(2) == 0) {
            r.prompt = prompts_[pick(prompts_.size())];
            r.prompt.resize(1 + pick(r.prompt.size()));
        }
        const std::vector<int32_t> more = world_.invent(1 + pick(r.prompt.size() > 12 ? 4 : 20));
        r.prompt.insert(r.prompt.end(), more.begin(), more.end());
        if (pick(12) == 0) r.deadline_us = world_.now() + between(0, 60) * 1000;
        if (prompts_.size() < 12) prompts_.push_back(r.prompt);
        else prompts_[pick(12)] = r.prompt;
        try {
            ids_.push_back(world_.submit(std::move(r)));
        } catch (const QueueFull& full) {
            EXPECT_GT(full.retry_after_us, 0);
            ++refused_;
        } catch (const Error&) {  // larger than the whole cache
            ++too_large_;
        }
    }
    void cancel_one() {
        if (!ids_.empty()) world_.cancel(ids_[ids_.size() - 1 - pick(std::min<size_t>(ids_.size(), 8))]);
    }

    void act(size_t busy) {
        if (pick(busy) == 0) submit();
        if (pick(40) == 0) cancel_one();
        if (trouble_ > 0 && pick(trouble_) == 0) world_.steal(1 + pick(12));
        if (world_.stealing() && pick(10) == 0) world_.give_back();
        if (drafts_ > 0) world_.propose(drafts_);
        const int fails = trouble_ > 0 && pick(trouble_) == 0 ? 1 + static_cast<int>(pick(2)) : 0;
        abandoned_ += fails != 0;
        world_.step(
            [&] {
                if (pick(40) == 0) cancel_one();
                if (pick(40) == 0) submit();
            },
            fails);
    }

    void add(Totals& t) {
        const SchedulerCounts& counts = world_.scheduler().counts();
        t.steps += world_.steps();
        t.requests += std::ssize(world_.asked());
        for (const auto& [id, a] : world_.asked()) {
            ASSERT_TRUE(a.why) << "request " << id << " never left";
            t.finished += *a.why == Leaving::finished;
            t.length += *a.why == Leaving::length;
            t.cancelled += *a.why == Leaving::cancelled;
            t.deadline += *a.why == Leaving::deadline;
        }
        t.preempted += counts.preempted;
        t.refused += refused_;
        EXPECT_EQ(counts.refused, refused_);
        t.drafted += world_.drafted_tokens;
        t.trees += world_.trees;
        t.recomputed += counts.recomputed_rows;
        t.rows += counts.rows;
        t.restored += world_.restored;
        t.abandoned += abandoned_;
        t.stalled += counts.stalled;
        t.under_way += world_.steps_under_way;
        t.left_while_read += world_.left_while_read;
    }

    std::mt19937_64 rng_;
    size_t drafts_ = 0, trouble_ = 0;
    SchedulerWorld world_;
    std::vector<std::vector<int32_t>> prompts_;
    std::vector<RequestId> ids_;
    int64_t refused_ = 0, too_large_ = 0, abandoned_ = 0;
};

void run_scenarios(int64_t steps, uint64_t first_seed) {
    Totals t;
    uint64_t seed = first_seed;
    for (; t.steps < steps && !::testing::Test::HasFailure(); ++seed) {
        SCOPED_TRACE(::testing::Message() << "seed " << seed);
        Scenario(seed).run(500, t);
    }
    std::printf(
        "seeds %llu to %llu: %lld steps, %lld rows (%lld again), %lld requests: %lld finished, %lld at max_tokens, "
        "%lld cancelled, %lld late, %lld refused; %lld preemptions, %lld prefixes restored, %lld draft tokens "
        "accepted, %lld trees, %lld steps failed, %lld stalled; %lld with prompts under way, %lld requests left "
        "these\n",
        static_cast<unsigned long long>(first_seed), static_cast<unsigned long long>(seed - 1),
        static_cast<long long>(t.steps), static_cast<long long>(t.rows), static_cast<long long>(t.recomputed),
        static_cast<long long>(t.requests), static_cast<long long>(t.finished), static_cast<long long>(t.length),
        static_cast<long long>(t.cancelled), static_cast<long long>(t.deadline), static_cast<long long>(t.refused),
        static_cast<long long>(t.preempted), static_cast<long long>(t.restored), static_cast<long long>(t.drafted),
        static_cast<long long>(t.trees), static_cast<long long>(t.abandoned), static_cast<long long>(t.stalled),
        static_cast<long long>(t.under_way), static_cast<long long>(t.left_while_read));
    // The scenarios must have met what they are about: at least one in so many steps.
    EXPECT_GT(t.finished, t.steps / 200);
    EXPECT_GT(t.length, t.steps / 200);
    EXPECT_GT(t.cancelled, t.steps / 500);
    EXPECT_GT(t.deadline, t.steps / 2000);
    EXPECT_GT(t.refused, t.steps / 500);
    EXPECT_GT(t.preempted, t.steps / 500);
    EXPECT_GT(t.restored, t.steps / 1000);
    EXPECT_GT(t.drafted, t.steps / 20);
    EXPECT_GT(t.trees, t.steps / 50);
    EXPECT_GT(t.abandoned, t.steps / 500);
    EXPECT_GT(t.under_way, t.steps / 20);
    EXPECT_GT(t.left_while_read, t.steps / 2000);
}

TEST(scheduler, random_scenarios_give_each_request_the_tokens_of_a_lone_run) {
    RT_CPU_ONLY("a fake model");
    run_scenarios(kThreadSanitizer ? 100'000 : 1'000'000, 1);
    if (full_counts()) run_scenarios(10'000'000, 100'000);
}

}  // namespace
}  // namespace riptide
