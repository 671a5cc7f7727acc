// Engines whose steps follow each other on the device (hybrid_ahead_test.cpp): however an answer ends, and whoever
// decodes next.
#include <atomic>
#include <functional>
#include <set>

#include "tests/engine/ahead_world.h"
#include "tests/engine/solo.h"
#include "tests/engine/test_drafters.h"

namespace riptide::testing {
namespace {

/// Two engines: one as it is, one that is watched and whose steps do not follow each other, so that it takes them one by
/// one, kernel by kernel.
class HybridSession : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        if (test_gpu() == nullptr) GTEST_SKIP() << "hybrid_loop_test.cpp has a stand-in for a device";
        ahead = open();
        steps = open();
        steps->machine().runner().context().tap = [this](std::string_view, int, const Tensor&) { ++watched; };
        DecodeDevice device = *steps->machine().decoder();
        device.follow_rows = 0;
        steps->machine().use_decoder(device);
        ASSERT_GT(ahead->machine().decoder()->follow_rows, 0);
    }
    static std::unique_ptr<Solo> open() {
        SessionOptions o;
        o.threads = 1;
        o.context = 1024;
        o.k_dtype = o.v_dtype = DType::q8_0;
        o.chunk_rows = 64;
        o.page_rows = 16;
        if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
        auto opened = std::make_unique<Solo>(SeededHybrid::open(GetParam()), o);
        if (Gpu* gpu = opened->machine().gpu()) limit_multiprocessors(*gpu);
        return opened;
    }
    /// What both say; they must agree on it, and on all that they keep of it.
    Answered ask(const Question& request, const std::function<void()>& prepare = {}) {
        const int64_t before = watched;
        if (prepare) prepare();
        const Answered expected = steps->answer(request);
        if (prepare) prepare();
        const Answered seen = ahead->answer(request);
        if (expected.tokens.size() > 1) {  // the first comes of the prompt
            EXPECT_GT(watched, before);
        }
        EXPECT_EQ(seen.tokens, expected.tokens);
        EXPECT_EQ(seen.reason, expected.reason);
        EXPECT_EQ(seen.stop_token, expected.stop_token);
        EXPECT_EQ(seen.reused_tokens, expected.reused_tokens);
        EXPECT_EQ(ahead->kept(request.prompt, seen), steps->kept(request.prompt, expected));
        return seen;
    }
    static Question request(std::vector<int32_t> prompt, int64_t tokens, double temperature) {
        Question r = greedily(std::move(prompt), tokens);
        r.sampling.temperature = temperature;
        r.sampling.seed = 11;
        return r;
    }
    std::unique_ptr<Solo> ahead, steps;
    int64_t watched = 0;
};
INSTANTIATE_TEST_SUITE_P(All, HybridSession, ::testing::Values("bf16", "q4_k_m", "wide"),
                         [](const auto& test) { return test.param; });

TEST_P(HybridSession, answers_end_where_they_should_with_steps_under_way_behind_them) {
    const std::vector<int32_t> prompt = some_tokens(90, 2);
    const auto most = fewer<int64_t>(300, 70);  // stretches of 64 rows
    for (const double temperature : brief<double>({0.0, 1.3}, 1)) {
        const std::vector<int32_t> whole = ask(request(prompt, most, temperature)).tokens;
        ASSERT_EQ(std::ssize(whole), most);
        EXPECT_GT(std::set<int32_t>(whole.begin(), whole.end()).size(), 5u);
        for (const int64_t tokens : fewer<std::vector<int64_t>>({1, 2, 3, 4, 63, 64, 65, 66, 129}, {1, 2, 65})) {
            const Answered cut = ask(request(prompt, tokens, temperature));
            EXPECT_EQ(cut.reason, FinishReason::length);
            EXPECT_TRUE(std::equal(cut.tokens.begin(), cut.tokens.end(), whole.begin())) << tokens;
        }
        for (const size_t at : brief<size_t>({1, 2, 3, 7, 66}, 2)) {  // a stop id, where it comes for the first time
            Question r = request(prompt, most, temperature);
            r.sampling.stop_ids = {whole[at]};
            const auto first = std::find(whole.begin(), whole.end(), whole[at]) - whole.begin();
            const Answered stopped = ask(r);
            EXPECT_EQ(stopped.reason, FinishReason::stop_id);
            EXPECT_EQ(std::ssize(stopped.tokens), first);
        }
    }
}

TEST_P(HybridSession, cancelled_answers_and_listeners_that_throw_leave_what_was_told) {
    const std::vector<int32_t> prompt = some_tokens(40, 3);
    const std::vector<int32_t> whole = ask(request(prompt, 80, 1.0)).tokens;
    for (const int64_t told : brief<int64_t>({1, 2, 3, 8, 70}, 2)) {
        std::atomic<bool> cancel = false;
        int64_t seen = 0;
        Question r = request(prompt, 80, 1.0);
        r.cancel = &cancel;
        r.on_token = [&](const Sampled&) { cancel = ++seen == told; };
        const auto prepare = [&] {
            cancel = false;
            seen = 0;
        };
        const Answered cut = ask(r, prepare);
        EXPECT_EQ(cut.reason, FinishReason::cancelled);
        EXPECT_EQ(std::ssize(cut.tokens), told);
        for (Solo* solo : {steps.get(), ahead.get()}) {
            prepare();
            r.on_token = [&](const Sampled&) {
                if (++seen == told) throw std::runtime_error("the listener has gone");
            };
            EXPECT_THROW(solo->answer(r), std::runtime_error);
        }
        EXPECT_EQ(ask(request(prompt, 80, 1.0)).tokens, whole);
    }
}

TEST_P(HybridSession, the_next_turn_goes_on_from_where_steps_ahead_ended) {
    std::vector<int32_t> prompt = some_tokens(70, 4);
    std::mt19937 random(9);
    for (int turn = 0; turn < fewer(8, 5); ++turn) {
        const auto length = static_cast<int64_t>(1 + random() % 20);
        Question r = request(prompt, length, turn % 3 == 2 ? 1.0 : 0.0);
        const Answered answer = ask(r);
        if (turn > 0) {
            EXPECT_GT(answer.reused_tokens, 0) << turn;
        }
        if (turn % 4 == 3) prompt.resize(prompt.size() - 2);  // as a template may: from the state kept in the prompt
        else prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
        const std::vector<int32_t> more = some_tokens(1 + random() % 30, static_cast<uint32_t>(turn) + 50);
        prompt.insert(prompt.end(), more.begin(), more.end());
    }
}

/// A drafter takes over behind steps that followed, and leaves the sequence to them again, within an answer (adaptive:
/// where drafts do not pay, steps run ahead) and from turn to turn.
TEST_P(HybridSession, drafts_are_checked_behind_steps_that_followed) {
    std::vector<int32_t> prompt = some_tokens(50, 6);
    for (int turn = 0; turn < fewer(6, 3); ++turn) {
        const Question r = request(prompt, 60, turn % 2 == 0 ? 0.0 : 0.9);
        const Answered expected = steps->answer(r);
        std::vector<int32_t> known = prompt;
        known.insert(known.end(), expected.tokens.begin(), expected.tokens.end());
        SpeculationOptions o;
        o.adaptive = turn >= 4;
        o.width = 5;
        o.tree = turn == 2 ? 12 : 0;
        std::shared_ptr<Drafter> drafter;
        const auto vocab = int64_t{SeededHybrid::kVocab};
        if (turn == 1 || turn == 2)
            drafter = std::make_shared<TestDrafter>(8, oracle(known, vocab, [](int32_t slot) { return slot == 3; }));
        else if (turn >= 3) drafter = std::make_shared<TestDrafter>(8, random_drafts(3, vocab));
        if (drafter) ahead->speculate(drafter, o);
        const Answered seen = ahead->answer(r);
        ahead->speculate(nullptr, o);
        EXPECT_EQ(seen.tokens, expected.tokens) << turn;
        EXPECT_EQ(seen.reused_tokens, expected.reused_tokens) << turn;
        if (turn == 1 || turn == 2) {
            EXPECT_LT(seen.decode_steps, 40) << "drafts were right";
        }
        EXPECT_EQ(ahead->kept(prompt, seen), steps->kept(prompt, expected));
        prompt = known;
        prompt.push_back(static_cast<int32_t>(turn));
    }
}

}  // namespace
}  // namespace riptide::testing
