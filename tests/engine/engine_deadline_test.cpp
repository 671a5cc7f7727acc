// Deadlines and cancellations where the engine takes no steps for a request: paused, scoring, loading other weights.
#include <future>
#include <thread>

#include "io/checkpoint.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/loop_world.h"
#include "tests/engine/scorer_gate.h"

namespace riptide::testing {
namespace {

using namespace std::chrono_literals;

Request due(Request request, std::chrono::milliseconds deadline) {
    request.deadline = deadline;
    return request;
}

void expect_late(const Heard& heard) {
    ASSERT_TRUE(heard.failed);
    EXPECT_EQ(heard.failed->kind, ErrorKind::unavailable);
    EXPECT_EQ(heard.failed->message.find("the deadline of "), 0U) << heard.failed->message;
}

EngineOptions scoring_options(Gate& gate) {
    EngineOptions o = demo_options();
    o.scorer = gate.scorer();
    o.compression = {.mode = CompressMode::always, .keep = 0.2, .least = 0, .above = 300};
    return o;
}

/// Says nothing of its tensors before it may.
class HeldCheckpoint final : public Checkpoint {
  public:
    explicit HeldCheckpoint(std::shared_future<void> may) : may_(std::move(may)), file_(open_checkpoint(demo_path())) {}
    Format format() const override { return file_->format(); }
    const std::string& path() const override { return file_->path(); }
    std::span<const TensorInfo> tensors() const override {
        wait();
        return file_->tensors();
    }
    const TensorInfo* find(std::string_view name) const override {
        wait();
        return file_->find(name);
    }
    const json::object& metadata() const override { return file_->metadata(); }
    void check_intact() const override { file_->check_intact(); }
    mutable std::atomic<bool> asked = false;  // it is being loaded, and the model before it has gone

  private:
    void wait() const {
        asked = true;
        may_.wait();
    }
    std::shared_future<void> may_;
    std::unique_ptr<Checkpoint> file_;
};

class EngineDeadline : public ::testing::Test {
  protected:
    ~EngineDeadline() override { gate.open(); }
    Gate gate;
    std::unique_ptr<Engine> engine = Engine::open(demo_path(), demo_options());
    Listener listener;
    void expect_no_request_left() const {
        EXPECT_EQ(engine->stats().waiting, 0);
        EXPECT_EQ(engine->stats().running, 0);
        EXPECT_EQ(engine->stats().waiting_tokens, 0);
    }
};

TEST_F(EngineDeadline, is_heard_while_the_engine_is_paused) {
    engine->submit(continuation({1, 2, 3}, 3), listener.sink(3));  // a device's first steps take long
    listener.answer(3);
    engine->submit(due(continuation({1, 2, 3}, 900), kThreadSanitizer ? 10s : 2s), listener.sink(0));
    listener.wait(0, [](const Heard& h) { return h.tokens.size() > 2 || h.failed; });
    engine->pause();
    Request three = due(continuation({4, 5, 6}, 5), 20ms);  // two of its answers are held back
    three.n = 3;
    engine->submit(three, listener.sink(1, 3));
    engine->submit(continuation({7, 8, 9}, 5), listener.sink(2));
    for (int i = 0; i < 3; ++i) expect_late(listener.answer(1, i));
    expect_late(listener.answer(0));
    EXPECT_TRUE(engine->stats().paused);
    EXPECT_EQ(listener.tokens_so_far(2), 0U);
    engine->resume();
    EXPECT_EQ(listener.answer(2).tokens.size(), 5U) << "it had no deadline";
    engine->drain();
    expect_no_request_left();
    EXPECT_EQ(engine->stats().failed, 4);
}

TEST_F(EngineDeadline, is_heard_soon) {
    engine->pause();
    auto best = std::chrono::steady_clock::duration::max();  // of a few: the machine may have other work
    for (int i = 0; i < 10; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        engine->submit(due(continuation({1, 2, 3}, 5), 30ms), listener.sink(i));
        expect_late(listener.answer(i));
        const auto took = std::chrono::steady_clock::now() - begin;
        EXPECT_GE(took, 30ms);
        best = std::min(best, took);
    }
    EXPECT_LT(best, 80ms);
}

TEST_F(EngineDeadline, is_heard_while_prompts_are_with_the_scorer_paused_or_not) {
    engine = std::make_unique<Engine>(open_checkpoint(demo_path()), scoring_options(gate));
    gate.close();
    int key = 0;
    for (const bool paused : {false, true}) {
        if (paused) engine->pause();
        const int inside = key++, queued = key++;
        Request two = due(chat(short_pump_log(60), 8), 30ms);
        two.n = 2;
        engine->submit(two, listener.sink(inside, 2));
        engine->submit(due(chat(short_pump_log(70), 8), 20ms), listener.sink(queued));
        for (const auto& [which, index] : {std::pair{inside, 0}, {inside, 1}, {queued, 0}})
            expect_late(listener.answer(which, index));
        expect_no_request_left();
        EXPECT_EQ(engine->stats().scoring, 0);
    }
    engine->resume();
    gate.open();
    EXPECT_TRUE(ask(*engine, due(chat(short_pump_log(80), 4), 100s)).done);
}

TEST_F(EngineDeadline, of_a_prompt_with_the_scorer_is_heard_between_the_steps_of_others) {
    engine = std::make_unique<Engine>(open_checkpoint(demo_path()), scoring_options(gate));
    gate.close();
    const RequestId other = engine->submit(continuation({1, 2, 3}, 1000), listener.sink(0));
    listener.wait(0, [](const Heard& h) { return h.tokens.size() > 2; });
    engine->submit(due(chat(short_pump_log(60), 8), 10ms), listener.sink(1));
    expect_late(listener.answer(1));
    engine->cancel(other);
    EXPECT_EQ(listener.answer(0).done->reason, FinishReason::cancelled) << "it had not ended";
}

TEST_F(EngineDeadline, and_cancellation_are_heard_while_other_weights_are_loaded) {
    std::promise<void> may;
    auto held = std::make_unique<HeldCheckpoint>(may.get_future().share());
    const std::atomic<bool>& asked = held->asked;
    const std::vector<int32_t> expected = ask(*engine, continuation({1, 2, 3}, 5)).tokens;
    engine->pause();
    engine->submit(continuation({1, 2, 3}, 5), listener.sink(0));
    const RequestId gone = engine->submit(continuation({4, 5, 6}, 5), listener.sink(1));
    std::thread trainer([&] { EXPECT_EQ(engine->reload(std::move(held)), 2); });
    while (!asked) std::this_thread::yield();
    engine->submit(due(continuation({7, 8, 9}, 5), 20ms), listener.sink(2));
    expect_late(listener.answer(2));
    engine->submit(continuation({1, 2, 3}, 5), listener.sink(3));
    engine->cancel(gone);
    EXPECT_EQ(listener.answer(1).done->reason, FinishReason::cancelled);
    EXPECT_EQ(engine->stats().waiting, 2);
    EXPECT_EQ(engine->stats().waiting_tokens, 3 + 3);
    may.set_value();
    trainer.join();
    engine->resume();
    for (const int key : {0, 3}) {
        const Heard after = listener.answer(key);
        EXPECT_EQ(after.tokens, expected);
        EXPECT_EQ(after.done->version, 2);
    }
    engine->drain();
    expect_no_request_left();
}

TEST_F(EngineDeadline, who_has_gone_does_not_wait_for_a_drain_or_a_reload) {
    engine = std::make_unique<Engine>(open_checkpoint(demo_path()), scoring_options(gate));
    gate.close();
    engine->submit(chat(short_pump_log(60), 4), listener.sink(0));
    gate.wait_for_call();
    std::atomic<bool> left = false;
    WorkBudget work(WorkBudget::kUnlimited, &left);
    std::thread client([&] { EXPECT_THROW(engine->drain(&work), WorkStopped); });
    EXPECT_THROW(for (;;) ask(*engine, continuation({1, 2, 3}, 1)), Error) << "the drain has begun";
    left = true;
    client.join();
    EXPECT_TRUE(ask(*engine, continuation({1, 2, 3}, 5)).done) << "requests are taken again";
    gate.open();
    EXPECT_TRUE(listener.answer(0).done);

    std::promise<void> may;  // an answer runs, and the engine's thread waits for its sink
    std::promise<void> inside;
    const RequestId running = engine->submit(
        continuation({1, 2, 3}, 5), [&inside, go = may.get_future().share(), told = false](const Event&) mutable {
            if (!std::exchange(told, true)) inside.set_value();
            go.wait();
        });
    inside.get_future().wait();
    EXPECT_THROW(engine->reload(demo_path(), &work), WorkStopped);
    may.set_value();
    engine->cancel(running);
    EXPECT_EQ(engine->reload(demo_path()), 2);
}

TEST(EngineLoopDeadline, ends_a_prompt_that_is_under_way_between_two_steps) {
    RT_CPU_ONLY("the fake model is host code");
    EngineOptions o = LoopWorld::options();
    o.prefix_cache = false;
    LoopWorld world(o);
    world.loop.use_parts([] { return 1; });
    const std::vector<int32_t> talk = LoopWorld::prompt(8, 100);
    const RequestId first = world.ask(talk, 100);
    while (world.heard(first).tokens.empty()) world.loop.step();
    const int64_t deadline = world.now_us + 1'000'000;
    const RequestId late = world.ask(LoopWorld::prompt(30, 5, 2), 5, deadline);
    world.loop.step();
    EXPECT_EQ(world.loop.nearest_deadline(), deadline);
    world.loop.expire();
    EXPECT_FALSE(world.heard(late).over());
    world.now_us = deadline;
    world.loop.expire();
    ASSERT_TRUE(world.heard(late).failed);
    EXPECT_EQ(world.loop.nearest_deadline(), INT64_MAX);
    world.run();
    EXPECT_EQ(world.heard(first).tokens, FakeModel::answer(talk, 100));
    EXPECT_EQ(world.pool().free_count(), world.pool().size());
}

}  // namespace
}  // namespace riptide::testing
