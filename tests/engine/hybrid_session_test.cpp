// Sessions whose steps follow each other on the device (hybrid_ahead_test.cpp): however an answer ends, and whoever
// decodes next.
#include <atomic>
#include <functional>
#include <set>

#include "tests/engine/ahead_world.h"
#include "tests/engine/state_hash.h"
#include "tests/engine/test_drafters.h"

namespace riptide::testing {
namespace {

/// Two sessions: one as it is, one that is watched, so that it takes its steps one by one, kernel by kernel.
class HybridSession : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        if (test_gpu() == nullptr) GTEST_SKIP() << "a Session decodes ahead of the host on a GPU only";
        ahead = session();
        steps = session();
        steps->runner().context().tap = [this](std::string_view, int, const Tensor&) { ++watched; };
        ASSERT_GT(ahead->cache().delta().follow_rows(), 0);
    }
    static std::unique_ptr<Session> session() {
        SessionOptions o;
        o.threads = 1;
        o.context = 1024;
        o.k_dtype = o.v_dtype = DType::q8_0;
        o.chunk_rows = 64;
        o.page_rows = 16;
        if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
        auto opened = std::make_unique<Session>(SeededHybrid::open(GetParam()), o);
        if (opened->gpu() != nullptr) limit_multiprocessors(*opened->gpu());
        return opened;
    }
    /// What both say; they must agree on it, and on all that they hold then.
    GenerationResult ask(const GenerateRequest& request, const std::function<void()>& prepare = {}) {
        const int64_t before = watched;
        if (prepare) prepare();
        const GenerationResult expected = steps->generate(request);
        if (prepare) prepare();
        const GenerationResult seen = ahead->generate(request);
        EXPECT_GT(watched, before);
        EXPECT_EQ(seen.tokens, expected.tokens);
        EXPECT_EQ(seen.reason, expected.reason);
        EXPECT_EQ(seen.stop_token, expected.stop_token);
        EXPECT_EQ(seen.reused_tokens, expected.reused_tokens);
        expect_alike();
        return seen;
    }
    void expect_alike() {
        EXPECT_TRUE(std::ranges::equal(ahead->tokens(), steps->tokens()));
        EXPECT_EQ(state_hash(ahead->sequence()), state_hash(steps->sequence()));
    }
    static GenerateRequest request(std::span<const int32_t> prompt, int64_t tokens, double temperature) {
        GenerateRequest r;
        r.prompt = prompt;
        r.sampling.temperature = temperature;
        r.sampling.seed = 11;
        r.sampling.max_tokens = tokens;
        return r;
    }
    std::unique_ptr<Session> ahead, steps;
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
            const GenerationResult cut = ask(request(prompt, tokens, temperature));
            EXPECT_EQ(cut.reason, FinishReason::length);
            EXPECT_TRUE(std::equal(cut.tokens.begin(), cut.tokens.end(), whole.begin())) << tokens;
        }
        for (const size_t at : brief<size_t>({1, 2, 3, 7, 66}, 2)) {  // a stop id, where it comes for the first time
            GenerateRequest r = request(prompt, most, temperature);
            r.sampling.stop_ids = {whole[at]};
            const auto first = std::find(whole.begin(), whole.end(), whole[at]) - whole.begin();
            const GenerationResult stopped = ask(r);
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
        GenerateRequest r = request(prompt, 80, 1.0);
        r.cancel = &cancel;
        r.on_token = [&](const Sampled&) { cancel = ++seen == told; };
        const auto prepare = [&] {
            cancel = false;
            seen = 0;
        };
        const GenerationResult cut = ask(r, prepare);
        EXPECT_EQ(cut.reason, FinishReason::cancelled);
        EXPECT_EQ(std::ssize(cut.tokens), told);
        for (Session* session : {steps.get(), ahead.get()}) {
            prepare();
            r.on_token = [&](const Sampled&) {
                if (++seen == told) throw std::runtime_error("the listener has gone");
            };
            EXPECT_THROW(session->generate(r), std::runtime_error);
        }
        expect_alike();
        EXPECT_EQ(ask(request(prompt, 80, 1.0)).tokens, whole);
    }
}

TEST_P(HybridSession, the_next_turn_goes_on_from_where_steps_ahead_ended) {
    std::vector<int32_t> prompt = some_tokens(70, 4);
    std::mt19937 random(9);
    for (int turn = 0; turn < fewer(8, 5); ++turn) {
        const auto length = static_cast<int64_t>(1 + random() % 20);
        GenerateRequest r = request(prompt, length, turn % 3 == 2 ? 1.0 : 0.0);
        const GenerationResult answer = ask(r);
        if (turn > 0) {
            EXPECT_GT(answer.reused_tokens, 0) << turn;
        }
        if (turn % 4 == 3) prompt.resize(prompt.size() - 2);  // as a template may: from the state kept in the prompt
        else prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
        const std::vector<int32_t> more = some_tokens(1 + random() % 30, static_cast<uint32_t>(turn) + 50);
        prompt.insert(prompt.end(), more.begin(), more.end());
    }
}

/// Answers of a given form wait for each token, because what may come next depends on it.
TEST_P(HybridSession, steps_that_wait_and_steps_that_follow_take_turns) {
    const std::vector<int32_t> prompt = some_tokens(20, 5);
    for (Session* session : {steps.get(), ahead.get()}) session->prefill(prompt);
    int32_t token = 3;
    for (int turn = 0; turn < fewer(12, 4); ++turn) {
        const int64_t answer = 1 + turn * 5 % 7;
        ops::SampleStart start;
        start.params.seed = static_cast<uint64_t>(turn);
        std::function<AllowedSet()> allowed;
        if (turn % 2 != 0) allowed = [] { return AllowedSet(); };
        std::vector<int32_t> seen[2];
        for (const auto& [session, to] : {std::pair{steps.get(), &seen[0]}, std::pair{ahead.get(), &seen[1]}})
            session->decode_ahead(
                token, 300,
                [&, to = to](int32_t next) {
                    to->push_back(next);
                    return std::ssize(*to) < answer;
                },
                &start, {}, allowed);
        ASSERT_EQ(seen[1], seen[0]) << turn;
        token = seen[0].back();
        expect_alike();
    }
}

/// A drafter takes over behind steps that followed, and leaves the sequence to them again, within an answer (adaptive:
/// where drafts do not pay, decode_ahead) and from turn to turn.
TEST_P(HybridSession, drafts_are_checked_behind_steps_that_followed) {
    std::vector<int32_t> prompt = some_tokens(50, 6);
    for (int turn = 0; turn < fewer(6, 3); ++turn) {
        const GenerateRequest r = request(prompt, 60, turn % 2 == 0 ? 0.0 : 0.9);
        const GenerationResult expected = steps->generate(r);
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
        const GenerationResult seen = ahead->generate(r);
        ahead->speculate(std::shared_ptr<Drafter>(), o);
        EXPECT_EQ(seen.tokens, expected.tokens) << turn;
        EXPECT_EQ(seen.reused_tokens, expected.reused_tokens) << turn;
        if (turn == 1 || turn == 2) {
            EXPECT_LT(seen.decode_steps, 40) << "drafts were right";
        }
        expect_alike();
        prompt = known;
        prompt.push_back(static_cast<int32_t>(turn));
    }
}

}  // namespace
}  // namespace riptide::testing
