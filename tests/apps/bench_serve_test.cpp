// Small loads on the demo model: what is measured is what was asked for, and an agent's turns come from the cache.
#include "apps/bench/bench_serve.h"

#include <gtest/gtest.h>

#include "apps/bench/load_driver.h"
#include "apps/support/demo_model.h"
#include "apps/support/terminal.h"
#include "tests/test_device.h"

namespace riptide::apps {
namespace {

std::unique_ptr<Engine> demo_engine(int32_t max_running, bool deterministic = false) {
    EngineOptions o;
    o.threads = 2;
    o.context = 2048;
    o.chunk_rows = 64;
    o.max_running = max_running;
    o.deterministic = deterministic;
    if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
    return std::make_unique<Engine>(open_model_or_demo(""), o);
}

TEST(BenchServe, answers_decode_together_for_the_stretches_asked_for) {
    const auto engine = demo_engine(3);
    const ClosedLoad load = bench_closed(*engine, {.gen = 6, .repeat = 2}, 20, 3);
    ASSERT_EQ(load.rates.values.size(), 2u);
    EXPECT_GT(load.rates.values.front(), 0);
    EXPECT_EQ(load.ttft.count, 3);
    EXPECT_GE(load.gaps.count, 3 * (2 * 6));  // at least one stretch's tokens behind the other
    EXPECT_GE(load.context, 20 + 8);
    EXPECT_LT(load.context, 200);
    EXPECT_GE(load.steps, 2 * 6);
    EXPECT_GT(load.host_seconds, 0);
    EXPECT_LT(load.host_seconds, load.step_seconds);
    EXPECT_EQ(load.preempted, 0);
    EXPECT_THROW(bench_closed(*engine, {}, 2040, 1), Error);
    // Nothing is left behind.
    engine->drain();
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.cancelled, 3);
    EXPECT_EQ(stats.failed, 0);
}

TEST(BenchServe, every_arrival_is_answered_in_full) {
    const auto engine = demo_engine(2);
    const OpenLoad load = bench_open(*engine, {.gen = 5}, {10, 30}, 1000, 7);
    EXPECT_EQ(load.requests, 7);
    EXPECT_EQ(load.refused, 0);
    EXPECT_EQ(load.answer_tokens, 7 * 5);
    EXPECT_EQ(load.ttft.count, 7);
    EXPECT_EQ(load.queue.count, 7);
    EXPECT_EQ(load.gaps.count, 7 * 4);
    EXPECT_GE(load.prompt_tokens, 70);
    EXPECT_LE(load.prompt_tokens, 210);
    EXPECT_GE(load.most_at_once, 1);
    EXPECT_LE(load.most_at_once, 7);
    EXPECT_GT(load.seconds, 0);
}

TEST(BenchServe, answers_go_on_beside_a_prompt) {
    const auto engine = demo_engine(3);
    const BesideLoad load = bench_beside(*engine, {.gen = 8, .repeat = 2}, 16, 2, 300);
    EXPECT_EQ(load.ratios.values.size(), 2u);
    EXPECT_EQ(load.ttft.values.size(), 2u);
    EXPECT_GE(load.alone.count, 2 * 2 * 8);
    // 300 rows are at least five steps of 64, and each feeds both answers.
    EXPECT_GE(load.together.count, 2 * 2 * 4);
    EXPECT_GE(load.parts, 5);
}

TEST(BenchServe, an_agents_turns_are_cached_up_to_what_is_new) {
    const auto engine = demo_engine(2);
    const LoadOptions options{.gen = 8, .repeat = 2};
    const AgentLoad load = bench_agent(*engine, options, 4, 800);
    ASSERT_EQ(load.turns.size(), 4u);
    EXPECT_EQ(load.turns[0].prompt, 100);
    EXPECT_EQ(load.turns[0].cached, 0);
    EXPECT_EQ(load.turns[3].prompt, 800);
    for (size_t t = 1; t < 4; ++t) {
        EXPECT_EQ(load.turns[t].known, load.turns[t - 1].prompt + 7);
        EXPECT_EQ(load.turns[t].cached, load.turns[t].known);
    }
    EXPECT_EQ(load.known_share(), 1);
    EXPECT_LT(load.prompt_share(), 1);
    EXPECT_EQ(load.again_new, 1);
    EXPECT_EQ(load.again.values.size(), 2u);
    EXPECT_EQ(load.side_ttft.values.size(), 1u);
    EXPECT_EQ(load.ttft().values.size(), 3u);
    EXPECT_THROW(bench_agent(*engine, options, 40, 800), Error);  // no room for 39 tool results
}

TEST(BenchServe, exact_turns_read_the_answer_again) {
    const auto engine = demo_engine(2, true);
    const AgentLoad load = bench_agent(*engine, {.gen = 8, .repeat = 1}, 3, 900);
    ASSERT_EQ(load.turns.size(), 3u);
    EXPECT_LT(load.known_share(), 1);
    // Prompts of more than 256 tokens are kept but for their last one.
    EXPECT_EQ(load.turns[2].cached, load.turns[1].prompt - 1);
}

TEST(BenchServe, a_request_that_fails_is_an_error) {
    const auto engine = demo_engine(1);
    LoadDriver driver(*engine, 0);
    EXPECT_THROW(driver.submit({}, 4), Error);
    driver.submit(driver.fresh_prompt(4), 4);  // numbers go on as if nothing had been
    EXPECT_TRUE(driver.wait_for_end(0));
    EXPECT_EQ(driver.get(0).tokens.size(), 4u);
    EXPECT_EQ(driver.get(0).times.size(), 4u);
    ASSERT_TRUE(driver.get(0).done);
    EXPECT_EQ(driver.get(0).done->reason, FinishReason::length);
}

TEST(BenchServe, an_interrupt_ends_the_wait_and_the_requests) {
    const auto engine = demo_engine(2);
    interrupted() = true;
    const ClosedLoad load = bench_closed(*engine, {.gen = 500, .repeat = 2}, 8, 2);
    interrupted() = false;
    EXPECT_TRUE(load.rates.values.empty());
    engine->drain();
    EXPECT_EQ(engine->stats().cancelled, 2);
}

}  // namespace
}  // namespace riptide::apps
