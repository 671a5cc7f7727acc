// Hybrids whose steps follow each other on the device, ahead of the host (ops::DeltaMode::follow), leave what steps one
// by one leave: tokens, logits, K/V and recurrent state, bit for bit, whatever comes next.
#include <set>

#include "tests/engine/ahead_world.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/state_hash.h"

namespace riptide::testing {
namespace {

class HybridAhead : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        if (GetParam() == "wide") RT_GPU_ONLY();  // on the CPU wide_hybrid_test.cpp says the same sooner
    }
};
INSTANTIATE_TEST_SUITE_P(All, HybridAhead, ::testing::Values("bf16", "q4_k_m", "wide"),
                         [](const auto& test) { return test.param; });

TEST_P(HybridAhead, steps_that_follow_leave_what_steps_one_by_one_leave) {
    AheadWorld ahead(GetParam()), steps(GetParam());
    ASSERT_TRUE(ahead.follows());
    SequenceState a(ahead.cache()), b(steps.cache());
    const std::vector<int32_t> prompt = some_tokens(37, 1);
    ahead.prefill(a, prompt);
    steps.prefill(b, prompt);
    std::set<int32_t> different;
    int32_t token = 7;
    for (const int64_t answer : fewer<std::vector<int64_t>>({1, 2, 3, 4, 1, 7, 20, 90}, {1, 2}))
        for (const bool dropped : {false, true}) {
            const std::vector<int32_t> drawn = ahead.ahead(a, token, answer, dropped);
            std::vector<int32_t> expected;
            for (int32_t next = token; std::ssize(expected) < answer;) {
                next = largest(steps.feed(b, next));
                expected.push_back(next);
            }
            ASSERT_EQ(drawn, expected) << answer << (dropped ? ", and one step dropped" : "");
            ASSERT_EQ(state_hash(a), state_hash(b)) << answer << (dropped ? ", and one step dropped" : "");
            different.insert(drawn.begin(), drawn.end());
            ASSERT_EQ(ahead.feed(a, drawn.back()), steps.feed(b, drawn.back())) << "logits behind " << answer;
            token = static_cast<int32_t>((answer * 37 + dropped) % SeededHybrid::kVocab);
        }
    EXPECT_GE(different.size(), fewer<size_t>(20, 2)) << "a model that always says the same shows nothing";
}

/// Sequences by turns: steps that follow, of one; steps of one row each of all that are there; drafts that are
/// checked, in chains and trees; prompts. Each sequence is what it is when it is fed alone, token by token.
TEST_P(HybridAhead, company_that_comes_and_goes_and_drafts_change_nothing) {
    AheadWorld world(GetParam()), lone(GetParam());
    ASSERT_TRUE(world.follows());
    struct Answer {
        SequenceState state, alone;
        int32_t token;  // to be fed next
    };
    std::vector<Answer> answers;
    std::mt19937 random(5);
    const auto any = [&](size_t n) { return static_cast<size_t>(random()) % n; };
    // Feeds a token to the judge, and says what comes behind it.
    const auto judge = [&](Answer& answer) { return largest(lone.feed(answer.alone, answer.token)); };
    int followed = 0, together = 0, checked = 0;
    for (int turn = 0; turn < fewer(kThreadSanitizer ? 60 : 200, 12); ++turn) {
        if (answers.size() < 2 || (answers.size() < 3 && any(8) == 0)) {
            answers.push_back(
                {SequenceState(world.cache()), SequenceState(lone.cache()), static_cast<int32_t>(any(512))});
            const auto seed = random();
            const std::vector<int32_t> prompt = some_tokens(1 + any(40), seed);
            world.prefill(answers.back().state, prompt);
            lone.prefill(answers.back().alone, prompt);
        }
        Answer& one = answers[any(answers.size())];
        const size_t kind = any(4);
        if (kind <= 1) {
            const auto kept = static_cast<int64_t>(1 + any(5));
            const std::vector<int32_t> drawn = world.ahead(one.state, one.token, kept, any(2) == 0);
            for (const int32_t token : drawn) {
                one.token = judge(one);
                ASSERT_EQ(token, one.token) << "turn " << turn;
            }
            ++followed;
        } else if (kind == 2) {  // a step of all
            std::vector<StepItem> items;
            for (Answer& answer : answers) items.push_back({&answer.state, std::span(&answer.token, 1)});
            const std::vector<float> logits = world.step(items);
            for (size_t i = 0; i < answers.size(); ++i) {
                answers[i].state.commit_prefix(1);
                const int32_t drawn =
                    largest(std::span(logits).subspan(i * SeededHybrid::kVocab, SeededHybrid::kVocab));
                answers[i].token = judge(answers[i]);
                ASSERT_EQ(drawn, answers[i].token) << "turn " << turn << ", sequence " << i;
            }
            ++together;
        } else {  // the token, a right draft or two below it, wrong ones beside them
            std::vector<int32_t> tokens = {one.token}, parents = {-1}, path = {0};
            const size_t right = any(3);
            for (size_t i = 0; i < right; ++i) {
                one.token = judge(one);
                tokens.push_back((one.token + 1) % SeededHybrid::kVocab);
                parents.push_back(path.back());
                tokens.push_back(one.token);
                parents.push_back(path.back());
                path.push_back(static_cast<int32_t>(std::ssize(tokens)) - 1);
            }
            const bool chain = right == 0 || any(2) == 0;
            if (chain) {  // what is wrong comes last
                const std::vector<int32_t> all = tokens;
                tokens.clear();
                for (const int32_t row : path) tokens.push_back(all[static_cast<size_t>(row)]);
                tokens.push_back((one.token + 3) % SeededHybrid::kVocab);
                for (size_t i = 0; i < path.size(); ++i) path[i] = static_cast<int32_t>(i);
            }
            const StepItem item{&one.state, tokens, chain ? std::span<const int32_t>() : parents,
                                StepRows::Logits::all};
            const std::vector<float> logits = world.step(std::span(&item, 1));
            one.state.commit(path);
            const auto last = static_cast<size_t>(path.back());
            const int32_t drawn = largest(std::span(logits).subspan(last * SeededHybrid::kVocab, SeededHybrid::kVocab));
            one.token = judge(one);
            ASSERT_EQ(drawn, one.token) << "turn " << turn;
            ++checked;
        }
        for (const Answer& answer : answers) ASSERT_EQ(state_hash(answer.state), state_hash(answer.alone)) << turn;
        if (answers.size() > 1 && any(10) == 0) answers.erase(answers.begin() + static_cast<ptrdiff_t>(any(2)));
    }
    EXPECT_GT(std::min({followed, together, checked}), fewer(8, 1));
}

Request asks(std::vector<int32_t> prompt, int64_t tokens, uint64_t seed) {
    Request r = continuation(std::move(prompt), tokens);
    r.sampling.temperature = seed % 2 == 0 ? 0 : 1;
    r.sampling.seed = seed;
    r.deterministic = test_gpu() != nullptr;  // prefill rounds otherwise there
    return r;
}

EngineOptions engine_options() {
    EngineOptions o = demo_options();
    o.choose_kv = false;
    o.k_dtype = o.v_dtype = DType::q8_0;
    o.checkpoint_every = 64;
    o.max_running = 3;
    return o;
}

/// An engine's answers run in company that comes and goes, some are cancelled, some are next turns of others, with and
/// without drafts: the tokens are those of lone requests.
TEST_P(HybridAhead, answers_of_an_engine_are_those_of_lone_requests) {
    std::mt19937 random(8);
    std::vector<Request> all;
    const std::vector<int32_t> shared = some_tokens(150, 7);
    for (uint64_t i = 0; i < fewer<uint64_t>(kThreadSanitizer ? 8 : 16, 4); ++i) {
        std::vector<int32_t> prompt(shared.begin(), shared.begin() + static_cast<ptrdiff_t>(random() % shared.size()));
        const std::vector<int32_t> own = some_tokens(1 + random() % 20, static_cast<uint32_t>(i) + 100);
        prompt.insert(prompt.end(), own.begin(), own.end());
        all.push_back(asks(prompt, static_cast<int64_t>(1 + random() % 40), i));
    }
    std::vector<std::vector<int32_t>> expected;
    {
        EngineOptions o = engine_options();
        o.prefix_cache = false;
        o.max_running = 1;
        Engine engine(SeededHybrid::open(GetParam()), o);
        const auto alone = [&](size_t i) { return ask(engine, all[i]).tokens; };
        for (size_t i = 0, first = all.size(); i < first; ++i) expected.push_back(alone(i));
        for (size_t i = 0; i < 4; ++i) {  // next turns
            std::vector<int32_t> prompt = std::get<TokenPrompt>(all[i].prompt);
            prompt.insert(prompt.end(), expected[i].begin(), expected[i].end());
            prompt.push_back(static_cast<int32_t>(i));
            all.push_back(asks(prompt, 20, i + 1));
            expected.push_back(alone(all.size() - 1));
        }
    }
    for (const char* drafter : {"", "ngram"}) {
        EngineOptions o = engine_options();
        o.speculation.drafter = drafter;
        Engine engine(SeededHybrid::open(GetParam()), o);
        Listener listener;
        std::vector<RequestId> ids;
        for (size_t i = 0; i < all.size(); ++i) {
            if (i + 4 == all.size()) engine.drain(), engine.resume();  // the first turns are over and kept
            ids.push_back(engine.submit(all[i], listener.sink(static_cast<int>(i))));
            if (i % 5 == 4) engine.cancel(ids.back());
        }
        int64_t done = 0;
        for (size_t i = 0; i < all.size(); ++i) {
            const Heard heard = listener.answer(static_cast<int>(i));
            ASSERT_TRUE(heard.done) << (heard.failed ? heard.failed->message : "");
            if (heard.done->reason == FinishReason::cancelled) continue;
            EXPECT_EQ(heard.tokens, expected[i]) << "request " << i << (*drafter != 0 ? ", drafts" : "");
            ++done;
        }
        EXPECT_GE(done, std::ssize(all) - std::ssize(all) / 5);
        engine.drain();
        EXPECT_GT(engine.stats().cached_tokens, 0);
    }
}

}  // namespace
}  // namespace riptide::testing
