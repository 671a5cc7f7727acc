// Prompts that are read in parts, some layers between two tokens of the others.
#include <random>

#include "base/error.h"
#include "tests/engine/loop_world.h"

namespace riptide::testing {
namespace {

using Tokens = std::vector<int32_t>;

/// A world in which an answer decodes and the prompt of another is under way, with one layer run.
struct Reading : LoopWorld {
    explicit Reading(const EngineOptions& o = options()) : LoopWorld(o) {
        loop.use_parts([] { return 1; });
        first = ask(talk, 100);
        while (heard(first).tokens.empty()) loop.step();
        free_before = pool().free_count();
        second = ask(long_prompt, 5);
        loop.step();
        EXPECT_EQ(stats().running, 2);
        EXPECT_TRUE(heard(second).progress.empty()) << "a part is not yet progress";
    }
    const Tokens talk = prompt(8, 100), long_prompt = prompt(30, 5, 2);
    RequestId first = 0, second = 0;
    int32_t free_before = 0;
};

TEST(EngineParts, a_token_comes_between_any_two_parts_of_a_prompt) {
    RT_CPU_ONLY("the fake model is host code");
    Reading world;
    for (int part = 2; part <= 4; ++part) {
        const auto tokens = world.heard(world.first).tokens.size();
        EXPECT_TRUE(world.heard(world.second).tokens.empty());
        world.loop.step();
        EXPECT_EQ(world.heard(world.first).tokens.size(), tokens + 1);
    }
    EXPECT_EQ(world.heard(world.second).tokens.size(), 1U) << "the last part brings the first token";
    EXPECT_EQ(world.stats().prompt_parts, 1 + 4);
    world.run();
    EXPECT_EQ(world.heard(world.first).tokens, FakeModel::answer(world.talk, 100));
    EXPECT_EQ(world.heard(world.second).tokens, FakeModel::answer(world.long_prompt, 5));
}

TEST(EngineParts, without_decoding_answers_a_prompt_runs_whole) {
    RT_CPU_ONLY("the fake model is host code");
    LoopWorld world;
    world.loop.use_parts([] { return 1; });
    const RequestId id = world.ask(LoopWorld::prompt(60, 5), 5);
    world.loop.step();
    EXPECT_EQ(world.heard(id).tokens.size(), 1U);
    // An answer that ends leaves the prompt under way to itself.
    const RequestId other = world.ask(LoopWorld::prompt(30, 5, 3), 5);
    while (!world.heard(id).over()) world.loop.step();
    EXPECT_EQ(world.heard(other).tokens.size(), 1U);
    world.run();
}

TEST(EngineParts, a_step_whose_last_request_is_cancelled_is_given_up_at_once) {
    RT_CPU_ONLY("the fake model is host code");
    EngineOptions o = LoopWorld::options();
    o.prefix_cache = false;
    Reading world(o);
    ASSERT_LT(world.pool().free_count(), world.free_before - 6);
    world.loop.cancel(world.second);
    EXPECT_EQ(world.heard(world.second).done->reason, FinishReason::cancelled);
    EXPECT_GE(world.pool().free_count(), world.free_before - 1) << "pages that nothing will write to any more";
    const Tokens next = LoopWorld::prompt(50, 5, 3);
    const RequestId third = world.ask(next, 5);
    int64_t layers = 0;
    world.model().on_layer = [&](Family family, int64_t, const Batch&) { layers += family == Family::prefill; };
    world.run();
    EXPECT_EQ(layers, 2 * 4) << "two steps of the third's prompt, and nothing of the second's";
    EXPECT_EQ(world.heard(third).tokens, FakeModel::answer(next, 5));
    EXPECT_EQ(world.heard(world.first).tokens, FakeModel::answer(world.talk, 100));
    EXPECT_EQ(world.pool().free_count(), world.pool().size());
}

TEST(EngineParts, pages_of_one_who_has_left_stay_taken_while_others_are_read_with_it) {
    RT_CPU_ONLY("the fake model is host code");
    EngineOptions o = LoopWorld::options();
    o.prefix_cache = false;
    LoopWorld world(o);
    world.loop.use_parts([] { return 1; });
    const Tokens talk = LoopWorld::prompt(8, 100), stays = LoopWorld::prompt(12, 5, 3);
    const RequestId first = world.ask(talk, 100);
    while (world.heard(first).tokens.empty()) world.loop.step();
    const RequestId leaves = world.ask(LoopWorld::prompt(12, 5, 2), 5), second = world.ask(stays, 5);
    world.loop.step();
    const int32_t free = world.pool().free_count();
    world.loop.cancel(leaves);
    EXPECT_TRUE(world.heard(leaves).done) << "the client hears of it at once";
    EXPECT_EQ(world.pool().free_count(), free);
    while (world.heard(second).tokens.empty()) {
        EXPECT_LE(world.pool().free_count(), free);
        world.loop.step();
    }
    EXPECT_GE(world.pool().free_count(), free + 2);
    world.run();
    EXPECT_EQ(world.heard(second).tokens, FakeModel::answer(stays, 5));
    EXPECT_EQ(world.heard(first).tokens, FakeModel::answer(talk, 100));
    EXPECT_EQ(world.pool().free_count(), world.pool().size());
}

TEST(EngineParts, a_deadline_ends_a_request_whose_prompt_is_under_way) {
    RT_CPU_ONLY("the fake model is host code");
    LoopWorld world;
    world.loop.use_parts([] { return 1; });
    const Tokens talk = LoopWorld::prompt(8, 100);
    const RequestId first = world.ask(talk, 100);
    while (world.heard(first).tokens.empty()) world.loop.step();
    const RequestId late = world.ask(LoopWorld::prompt(30, 5, 2), 5, world.now_us + 1200);
    world.loop.step();
    EXPECT_FALSE(world.heard(late).over());
    world.loop.step();
    ASSERT_TRUE(world.heard(late).failed);
    EXPECT_EQ(world.heard(late).failed->kind, ErrorKind::unavailable);
    world.run();
    EXPECT_EQ(world.heard(first).tokens, FakeModel::answer(talk, 100));
}

TEST(EngineParts, a_part_that_fails_fails_only_those_that_cannot_run_alone) {
    RT_CPU_ONLY("the fake model is host code");
    for (int64_t layer = 0; layer < 4; ++layer) {
        LoopWorld world;
        world.loop.use_parts([] { return 1; });
        const Tokens talk = LoopWorld::prompt(8, 100), good = LoopWorld::prompt(12, 5, 3);
        Tokens bad = LoopWorld::prompt(12, 5, 2);
        bad[3] = 60;
        world.model().on_layer = [&](Family family, int64_t l, const Batch& batch) {
            if (family == Family::prefill && l == layer &&
                std::find(batch.tokens.begin(), batch.tokens.end(), 60) != batch.tokens.end())
                fail(ErrorKind::unavailable, "no memory for {} rows", batch.rows());
        };
        const RequestId first = world.ask(talk, 100);
        while (world.heard(first).tokens.empty()) world.loop.step();
        const RequestId fails = world.ask(bad, 5), second = world.ask(good, 5);
        world.run();
        ASSERT_TRUE(world.heard(fails).failed);
        EXPECT_EQ(world.heard(fails).failed->message, "no memory for 12 rows");
        EXPECT_EQ(world.heard(second).tokens, FakeModel::answer(good, 5));
        EXPECT_EQ(world.heard(first).tokens, FakeModel::answer(talk, 100));
        EXPECT_EQ(world.stats().failed, 1);
    }
}

// Everything in one: prompts in parts of any size, company that comes and goes, failures, preemption.
TEST(EngineParts, in_parts_of_any_size_each_gets_the_tokens_of_a_lone_run) {
    RT_CPU_ONLY("the fake model is host code");
    int64_t parts = 0, preempted = 0, failed = 0;
    for (uint64_t seed = 1; seed <= 30; ++seed) {
        std::mt19937_64 rng(seed);
        const auto pick = [&](size_t n) { return static_cast<size_t>(rng() % n); };
        EngineOptions o = LoopWorld::options();
        o.context = 160;
        o.kv_tokens = static_cast<int64_t>(160 + 4 * pick(60));
        o.prefix_cache = pick(2) == 0;
        LoopWorld world(o);
        world.loop.use_parts([&] { return static_cast<int64_t>(1 + pick(4)); });
        world.model().on_layer = [&](Family, int64_t, const Batch& batch) {
            if (pick(150) == 0) fail(ErrorKind::unavailable, "no memory for {} rows", batch.rows());
        };
        std::vector<Tokens> prompts(1);
        std::vector<int64_t> most(1);
        Tokens past;
        while (prompts.size() <= 60) {
            if (pick(3) == 0 || world.loop.idle()) {
                if (pick(3) == 0 || past.size() > 80) past.clear();
                for (size_t n = 1 + pick(50); n > 0; --n) past.push_back(static_cast<int32_t>(1 + pick(60)));
                prompts.push_back(past);
                most.push_back(static_cast<int64_t>(1 + pick(30)));
                world.ask(past, most.back(), pick(15) == 0 ? world.now_us + 20'000 : INT64_MAX);
            }
            if (pick(15) == 0) world.loop.cancel(static_cast<RequestId>(1 + pick(prompts.size())));
            if (!world.loop.idle()) world.loop.step();
        }
        world.run();
        for (size_t i = 1; i < prompts.size(); ++i) {
            const Heard heard = world.heard(static_cast<RequestId>(i));
            Tokens alone = FakeModel::answer(prompts[i], most[i]);
            ASSERT_TRUE(heard.over());
            if (heard.failed || heard.done->reason == FinishReason::cancelled)
                alone.resize(std::min(alone.size(), heard.tokens.size()));
            ASSERT_EQ(heard.tokens, alone) << "seed " << seed << ", request " << i;
        }
        const EngineStats stats = world.stats();
        EXPECT_EQ(world.loop.waiting_tokens, 0);
        EXPECT_EQ(world.loop.waiting, 0);
        if (!o.prefix_cache) {
            EXPECT_EQ(world.pool().free_count(), world.pool().size());
        }
        parts += stats.prompt_parts;
        preempted += stats.preempted;
        failed += stats.failed;
    }
    EXPECT_GT(parts, 30 * 60 * 2);
    EXPECT_GT(preempted, 30);
    EXPECT_GT(failed, 100);
}

// The clock is the model's: what a step takes is known exactly.
TEST(EngineParts, while_a_long_prompt_is_read_tokens_come_at_most_so_much_later_and_the_prompt_gets_its_share) {
    RT_CPU_ONLY("the fake model is host code");
    for (const double slowdown : {1.5, 2.0, 3.0}) {
        EngineOptions o = LoopWorld::options();
        o.slowdown = slowdown;
        o.prefill_rows_beside = 64;
        LoopWorld world(o);
        world.model().decode_us = 250;  // a step takes 1 ms
        world.model().prompt_us = 200;  // and a layer of 64 rows 0.392 ms
        world.model().row_us = 3;
        const Tokens talk = LoopWorld::prompt(8, 300), reads = LoopWorld::prompt(480, 1, 2);
        const RequestId first = world.ask(talk, 300);
        while (world.heard(first).tokens.size() < 20) world.loop.step();
        std::vector<double> gaps;
        const RequestId second = world.ask(reads, 1);
        const int64_t begin = world.now_us;
        while (!world.heard(second).over()) {
            const int64_t before = world.now_us;
            world.loop.step();
            gaps.push_back(static_cast<double>(world.now_us - before) / 1000);
        }
        std::sort(gaps.begin(), gaps.end());
        EXPECT_LE(gaps.back(), slowdown);
        const double reading = 8 * 4 * 392;  // 8 steps
        EXPECT_LE(static_cast<double>(world.now_us - begin), 1.3 * reading * slowdown / (slowdown - 1));
        EXPECT_NEAR(world.loop.pace().decode_seconds(), 1e-3, 2e-5);
        EXPECT_NEAR(world.loop.pace().layer_seconds(64, 0), 392e-6, 40e-6);
        world.run();
        EXPECT_EQ(world.heard(second).tokens, FakeModel::answer(reads, 1));
    }
}

// One answer decodes and seven wait for their prompts: by default each has an eighth of the device.
TEST(EngineParts, where_more_answers_wait_than_decode_their_prompts_get_more_of_the_device) {
    RT_CPU_ONLY("the fake model is host code");
    EXPECT_EQ(EngineOptions().slowdown, 0);
    const auto longest_gap = [](int64_t readers) {
        EngineOptions o = LoopWorld::options();
        o.slowdown = 0;
        o.max_running = 8;
        o.prefill_rows_beside = 64;
        LoopWorld world(o);
        world.model().decode_us = 250;  // a step of one row takes 1 ms
        world.model().prompt_us = 200;  // and a layer of 64 rows 0.392 ms
        world.model().row_us = 3;
        const RequestId first = world.ask(LoopWorld::prompt(8, 300), 300);
        while (world.heard(first).tokens.size() < 20) world.loop.step();
        // What a part takes is learnt from a prompt before.
        const RequestId known = world.ask(LoopWorld::prompt(128, 1, 2), 1);
        while (!world.heard(known).over()) world.loop.step();
        for (int64_t i = 0; i < readers; ++i) world.ask(LoopWorld::prompt(64, 10 + static_cast<int>(i), 3), 1);
        double longest = 0;
        for (int step = 0; step < 4; ++step) {  // those of the first prompt
            const int64_t before = world.now_us;
            world.loop.step();
            longest = std::max(longest, static_cast<double>(world.now_us - before) / 1000);
        }
        world.run();
        return longest;
    };
    EXPECT_LE(longest_gap(1), 2.0);
    EXPECT_GT(longest_gap(7), 2.2);
    EXPECT_LE(longest_gap(7), 8.0);
}

TEST(EngineParts, prompts_that_fit_a_step_are_read_whole_so_that_the_first_need_not_wait_for_the_last) {
    RT_CPU_ONLY("the fake model is host code");
    EngineOptions o = LoopWorld::options();
    o.context = 1024;
    o.kv_tokens = 4096;
    o.chunk_rows = 1200;
    LoopWorld world(o);
    std::vector<RequestId> asked;
    for (int32_t i = 0; i < 4; ++i) asked.push_back(world.ask(LoopWorld::prompt(600, 10, 2 + i), 10));
    world.loop.step();
    const auto begun =
        std::count_if(asked.begin(), asked.end(), [&](RequestId id) { return !world.heard(id).tokens.empty(); });
    EXPECT_EQ(begun, 2);
    world.run();
}

}  // namespace
}  // namespace riptide::testing
