// What goes wrong with one request fails it alone; what breaks the machine fails all, loudly.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/fake_model.h"

namespace riptide::testing {
namespace {

constexpr int32_t kNoMemory = 50, kNaN = 51, kBroken = 52;  // tokens that trouble the model

/// A fake model that some tokens trouble.
class TroubledModel final : public FakeModel {
  public:
    /// Fails in the middle: K/V of the first layer are written.
    void layer(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const override {
        const auto holds = [&](int32_t token) {
            return std::find(batch.tokens.begin(), batch.tokens.end(), token) != batch.tokens.end();
        };
        if (l == 1 && holds(kNoMemory)) fail(ErrorKind::unavailable, "no memory for a step of {} rows", batch.rows());
        if (l == 1 && holds(kBroken)) fail(ErrorKind::system, "the device has caught fire");
        FakeModel::layer(ctx, l, x, batch, states);
    }
    Tensor logits(Context& ctx, const Tensor& x, const Batch& batch) const override {
        const Tensor logits = FakeModel::logits(ctx, x, batch);
        for (int64_t r = 0; r < logits.rows(); ++r)
            if (batch.tokens[static_cast<size_t>(batch.logit_rows[static_cast<size_t>(r)])] == kNaN)
                logits.row<float>(r)[3] = std::numeric_limits<float>::quiet_NaN();
        return logits;
    }
};

class EngineFailure : public ::testing::Test {
  protected:
    void SetUp() override {
        RT_CPU_ONLY("the fake model is host code");
        EngineOptions o;
        o.threads = 1;
        o.context = 128;
        o.kv_tokens = 512;
        o.k_dtype = o.v_dtype = DType::f32;
        o.page_rows = 4;
        o.chunk_rows = 32;
        o.checkpoint_every = 16;
        engine = std::make_unique<Engine>(std::make_unique<TroubledModel>(), o);
    }
    /// A prompt whose answer is long and meets no trouble.
    static std::vector<int32_t> quiet(int32_t first) {
        for (int32_t last = 0; last < 60; ++last) {
            std::vector<int32_t> prompt(40, first);
            prompt.back() = last;
            const std::vector<int32_t> answer = FakeModel::answer(prompt, 25);
            const auto troubles = [](int32_t token) { return token >= kNoMemory && token <= kBroken; };
            if (answer.size() == 25 && std::none_of(answer.begin(), answer.end(), troubles) && !troubles(last))
                return prompt;
        }
        ADD_FAILURE() << "no quiet prompt";
        return {};
    }
    std::unique_ptr<Engine> engine;
    Listener listener;
};

TEST_F(EngineFailure, a_step_without_memory_fails_the_request_that_needs_it) {
    engine->pause();
    for (int i = 0; i < 4; ++i) engine->submit(continuation(quiet(i + 1), 25), listener.sink(i));
    engine->submit(continuation({1, 2, kNoMemory, 3}, 5), listener.sink(4));
    engine->resume();
    for (int i = 0; i < 4; ++i) EXPECT_EQ(listener.answer(i).tokens, FakeModel::answer(quiet(i + 1), 25));
    const Heard failed = listener.answer(4);
    ASSERT_TRUE(failed.failed);
    EXPECT_EQ(failed.failed->kind, ErrorKind::unavailable);
    EXPECT_EQ(failed.failed->message, "no memory for a step of 4 rows");
    engine->drain();
    EXPECT_EQ(engine->stats().failed, 1);
    EXPECT_EQ(engine->stats().finished, 4);
}

TEST_F(EngineFailure, logits_that_are_no_numbers_fail_one_answer_and_nothing_of_them_is_kept) {
    std::vector<int32_t> prompt = quiet(1);
    prompt.push_back(kNaN);
    EXPECT_EQ(ask(*engine, continuation(quiet(1), 25)).done->usage.cached, 0);
    EXPECT_EQ(ask(*engine, continuation(quiet(1), 25)).done->usage.cached, 32);
    engine->submit(continuation(prompt, 5), listener.sink(0));
    engine->submit(continuation(quiet(2), 25), listener.sink(1));
    const Heard failed = listener.answer(0);
    ASSERT_TRUE(failed.failed);
    EXPECT_NE(failed.failed->message.find("damaged"), std::string::npos) << failed.failed->message;
    EXPECT_EQ(listener.answer(1).tokens, FakeModel::answer(quiet(2), 25));
    engine->drain();
    engine->resume();
    const Heard again = ask(*engine, continuation(quiet(1), 25));
    EXPECT_EQ(again.tokens, FakeModel::answer(quiet(1), 25));
    EXPECT_EQ(again.done->usage.cached, 0) << "the cache may hold damage too";
}

TEST_F(EngineFailure, a_broken_device_fails_everybody_and_the_engine_says_so) {
    engine->pause();
    for (int i = 0; i < 12; ++i) engine->submit(continuation(quiet(i + 1), 25), listener.sink(i));
    engine->submit(continuation({kBroken}, 5), listener.sink(12));
    engine->resume();
    for (int i = 0; i < 13; ++i) {
        const Heard heard = listener.answer(i);
        if (heard.done) continue;  // it was over before
        EXPECT_EQ(heard.failed->kind, ErrorKind::system);
        EXPECT_EQ(heard.failed->message, "the engine has failed: the device has caught fire");
    }
    EXPECT_TRUE(listener.answer(12).failed);
    try {
        engine->submit(continuation({1}, 1), listener.sink(13));
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::system);
        EXPECT_EQ(std::string(error.what()), "the engine has failed: the device has caught fire");
    }
    engine->drain();  // returns at once
    engine->pause();
    EXPECT_EQ(engine->stats().waiting_tokens, 0);
}

TEST(EngineDisk, a_folder_that_cannot_be_the_third_tier_is_said) {
    RT_CPU_ONLY("the demo model on the CPU will do");
    const std::string folder = ::testing::TempDir() + fmt::format("riptide_engine_disk_{}", ::getpid());
    std::filesystem::remove_all(folder);
    std::vector<std::string> heard;
    EngineOptions o = demo_options();
    o.on_disk_problem = [&](const std::string& problem) { heard.push_back(problem); };
    o.disk_cache = "/dev/null";
    try {
        Engine::open(demo_path(), o);
        ADD_FAILURE() << "a device is taken for a folder";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::no_input);
        EXPECT_NE(std::string(error.what()).find("/dev/null: cannot be used as a cache"), std::string::npos);
    }
    o.disk_cache = folder;
    auto engine = Engine::open(demo_path(), o);
    EXPECT_TRUE(heard.empty()) << heard.front();
    Engine::open(demo_path(), o);  // a second one does without
    ASSERT_EQ(heard.size(), 1U);
    EXPECT_NE(heard[0].find("another process"), std::string::npos) << heard[0];
    EXPECT_TRUE(ask(*engine, continuation(std::vector<int32_t>(300, 7), 2)).done);
    std::filesystem::remove_all(folder);
    engine.reset();  // saves what it holds, or would
    ASSERT_GT(heard.size(), 1U);
    EXPECT_NE(heard[1].find("cannot be written"), std::string::npos) << heard[1];
}

}  // namespace
}  // namespace riptide::testing
