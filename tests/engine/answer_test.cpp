// Answers: what ends them, what is reused, what a user is told.

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "base/json.h"
#include "tests/engine/solo.h"
#include "tests/models/fake_checkpoint.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

class AnswerTest : public ::testing::Test {
  protected:
    Fixture fixture{"laguna_xs2"};
    const std::vector<int32_t>& prompt = fixture.prompts.back().tokens;
    const std::vector<int32_t>& greedy = fixture.prompts.back().greedy;
    std::unique_ptr<Solo> engine = open(fixture.options());

    std::unique_ptr<Solo> open(const SessionOptions& options, const Checkpoint* text = nullptr) const {
        return std::make_unique<Solo>(open_checkpoint(fixture.model_path()), options, text);
    }

    Question request(int64_t max_tokens = 8) const { return greedily(prompt, max_tokens); }
    std::vector<int32_t> first(size_t n) const { return {greedy.begin(), greedy.begin() + static_cast<ptrdiff_t>(n)}; }
};

template <class F>
void expect_usage_error(const F& action, const std::string& message) {
    try {
        action();
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_EQ(std::string(error.what()), message);
    }
}

TEST_F(AnswerTest, max_tokens_ends_an_answer) {
    const Answered result = engine->answer(request(8));
    EXPECT_EQ(result.tokens, first(8));
    EXPECT_EQ(result.reason, FinishReason::length);
    EXPECT_EQ(result.prompt_tokens, std::ssize(prompt));
    EXPECT_EQ(result.decode_steps, 7);  // the last token is not fed
    EXPECT_EQ(result.reused_tokens, 0);
    EXPECT_TRUE(result.logprobs.empty());
}

TEST_F(AnswerTest, a_stop_id_ends_an_answer_and_is_not_part_of_it) {
    const size_t at = 5;
    ASSERT_EQ(std::find(greedy.begin(), greedy.begin() + at, greedy[at]), greedy.begin() + at);
    Question r = request(20);
    r.sampling.stop_ids = {greedy[at]};
    Answered result = engine->answer(r);
    EXPECT_EQ(result.tokens, first(at));
    EXPECT_EQ(result.reason, FinishReason::stop_id);
    EXPECT_EQ(result.stop_token, greedy[at]);
    // Before min_tokens another token is drawn in its place.
    r.sampling.min_tokens = static_cast<int64_t>(at) + 1;
    result = engine->answer(r);
    EXPECT_GT(result.tokens.size(), at);
    EXPECT_NE(result.tokens[at], greedy[at]);
}

TEST_F(AnswerTest, a_full_context_ends_an_answer) {
    SessionOptions options = fixture.options();
    options.context = std::ssize(prompt) + 3;
    engine = open(options);
    const Answered result = engine->answer(request(-1));
    EXPECT_EQ(result.reason, FinishReason::context);
    EXPECT_EQ(result.tokens, first(3));
    options.context = std::ssize(prompt);
    engine = open(options);
    expect_usage_error([&] { engine->answer(request()); },
                       fmt::format("the prompt has {} tokens, and the context holds {}: no room for an answer",
                                   prompt.size(), prompt.size()));
}

TEST_F(AnswerTest, bad_prompts_and_options_are_errors) {
    Question r = request();
    r.prompt = {};
    expect_usage_error([&] { engine->answer(r); }, "the prompt is empty: it needs at least one token");
    const std::vector<int32_t> outside = {1, 2, 128}, negative = {-1};
    r.prompt = outside;
    expect_usage_error([&] { engine->answer(r); }, "token 2 of the prompt is 128, expected 0 to 127");
    r.prompt = negative;
    expect_usage_error([&] { engine->answer(r); }, "token 0 of the prompt is -1, expected 0 to 127");
    r = request();
    r.sampling.top_p = 0;
    expect_usage_error([&] { engine->answer(r); }, "top_p is 0, expected more than 0 and at most 1");
    r = request();
    r.sampling.stop_strings = {"x"};
    expect_usage_error([&] { engine->answer(r); }, "stop strings need a tokenizer, and this model has none");
    EXPECT_EQ(engine->answer(request()).tokens, first(8));  // a good request still works
}

TEST_F(AnswerTest, the_next_turn_is_computed_only_from_where_it_differs) {
    std::vector<int32_t> turn = prompt;
    const Answered one = engine->answer(request(8));
    turn.insert(turn.end(), one.tokens.begin(), one.tokens.end());
    turn.insert(turn.end(), {3, 4, 5});
    Question r = request(8);
    r.prompt = turn;
    const Answered warm = engine->answer(r);
    EXPECT_EQ(warm.reused_tokens, std::ssize(prompt) + 7);  // the eighth token was drawn but not fed
    engine->forget();
    const Answered cold = engine->answer(r);
    EXPECT_EQ(cold.reused_tokens, 0);
    if (test_gpu() != nullptr) return;  // there, K/V of the answer came from decoding the first time, from prefill now
    EXPECT_EQ(warm.tokens, cold.tokens);
    EXPECT_EQ(warm.logits_hash, cold.logits_hash);
}

TEST_F(AnswerTest, going_back_gives_what_a_fresh_start_gives) {
    engine->answer(request(8));
    for (const size_t keep : {prompt.size() - 1, prompt.size() - 30, size_t{100}, size_t{40}, size_t{1}}) {
        std::vector<int32_t> other(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(keep));
        other.push_back((prompt[keep] + 1) % 128);
        Question r = request(8);
        r.prompt = other;
        const Answered warm = engine->answer(r);
        const Answered cold = open(fixture.options())->answer(r);
        EXPECT_EQ(warm.tokens, cold.tokens) << keep;
        EXPECT_EQ(warm.logits_hash, cold.logits_hash) << keep;
        EXPECT_LE(warm.reused_tokens, static_cast<int64_t>(keep));
        engine->answer(request(8));
    }
    const Answered again = engine->answer(request(8));  // the very same prompt: at least its last token is computed
    EXPECT_EQ(again.tokens, first(8));
    EXPECT_LT(again.reused_tokens, std::ssize(prompt));
}

TEST_F(AnswerTest, cancelling_stops_between_steps) {
    std::atomic<bool> cancel = false;
    Question r = request(50);
    r.cancel = &cancel;
    r.on_token = [&, n = 0](const Sampled&) mutable { cancel = ++n == 5; };
    Answered result = engine->answer(r);
    EXPECT_EQ(result.reason, FinishReason::cancelled);
    EXPECT_EQ(result.tokens, first(5));
    engine->forget();
    int64_t done = 0;
    r.on_prefill = [&](int64_t at, int64_t) { done = at, cancel = true; };
    cancel = false;
    result = engine->answer(r);
    EXPECT_EQ(result.reason, FinishReason::cancelled);
    EXPECT_TRUE(result.tokens.empty());
    EXPECT_EQ(done, 64);                                     // one chunk
    EXPECT_EQ(engine->answer(request(8)).tokens, first(8));  // and what was computed is of use
}

TEST_F(AnswerTest, progress_and_tokens_are_reported_as_they_come) {
    std::vector<int64_t> progress;
    std::vector<int32_t> tokens;
    Question r = request(6);
    r.sampling.logprobs = 2;
    r.on_prefill = [&](int64_t done, int64_t total) {
        EXPECT_EQ(total, std::ssize(prompt));
        progress.push_back(done);
    };
    r.on_token = [&](const Sampled& s) { tokens.push_back(s.token); };
    const Answered result = engine->answer(r);
    EXPECT_EQ(progress.back(), std::ssize(prompt));
    EXPECT_EQ(std::ssize(progress), (std::ssize(prompt) + 63) / 64);
    EXPECT_EQ(tokens, result.tokens);
    ASSERT_EQ(result.logprobs.size(), 6u);
    for (const Sampled& s : result.logprobs) {
        EXPECT_EQ(s.top.size(), 2u);
        EXPECT_EQ(s.top[0].token, s.token);  // greedy
        EXPECT_EQ(s.top[0].logprob, s.logprob);
    }
}

TEST_F(AnswerTest, seeded_answers_repeat_and_do_not_depend_on_chunks_or_threads) {
    Question r = request(40);
    r.sampling.temperature = 1.2;
    r.sampling.seed = 5;
    const Answered one = engine->answer(r);
    SessionOptions options = fixture.options(7);
    options.threads = 1;
    const Answered two = open(options)->answer(r);
    EXPECT_EQ(one.tokens, two.tokens);
    EXPECT_EQ(one.logits_hash, two.logits_hash);
    r.sampling.seed = 6;
    EXPECT_NE(engine->answer(r).tokens, one.tokens);
}

TEST_F(AnswerTest, the_logits_hash_covers_every_produced_step) {
    RT_CPU_ONLY("a GPU's logits stay there: no hash");
    const uint64_t eight = engine->answer(request(8)).logits_hash;
    EXPECT_NE(engine->answer(request(9)).logits_hash, eight);
    EXPECT_EQ(draw_greedily(*fixture.session(), prompt, 8).logits_hash, eight);
}

// Whole answers follow the model's distribution: every drawn token's randomised probability integral transform is
// uniform. Finds a first token taken by argmax, greedy tokens strewn in, noise used twice. 19,200 draws notice 1 greedy
// token in 16.
TEST_F(AnswerTest, sampled_answers_follow_the_distribution) {
    RT_CPU_ONLY("scoring and decoding round differently; gpu_session_test.cpp and sample_cuda_test.cpp compare draws");
    constexpr int kAnswers = 600, kLength = 32, kBins = 64;
    const auto session = fixture.session();
    Question r = request(kLength);
    const std::vector<int32_t> start(prompt.begin(), prompt.begin() + 7);
    r.prompt = start;
    r.sampling.temperature = 2;
    r.sampling.top_p = 0.95;
    std::vector<int> pooled(kBins), firsts(kBins);
    std::mt19937_64 random(1);
    for (int answer = 0; answer < kAnswers; ++answer) {
        r.sampling.seed = static_cast<uint64_t>(answer);
        const std::vector<int32_t> tokens = engine->answer(r).tokens;
        std::vector<int32_t> all = start;
        all.insert(all.end(), tokens.begin(), tokens.end());
        const std::vector<float> logits = all_logits(*session, all);
        Sampler sampler(r.sampling, 128);
        for (size_t i = 0; i < tokens.size(); ++i) {
            auto p = sampler.distribution(std::span(logits).subspan((start.size() - 1 + i) * 128, 128));
            std::stable_sort(p.begin(), p.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
            double below = 0, own = 0;
            for (const auto& [token, probability] : p) {
                if (token == tokens[i]) own = probability;
                if (own > 0) break;
                below += probability;
            }
            ASSERT_GT(own, 0);
            const double v = static_cast<double>(random() >> 11) * 0x1p-53;
            const auto bin = static_cast<size_t>(std::min(below + v * own, 1 - 1e-12) * kBins);
            ++pooled[bin];
            if (i == 0) ++firsts[bin / 8];
        }
    }
    const auto chi2 = [](std::span<const int> bins, double expected) {
        double sum = 0;
        for (const int n : bins) sum += (n - expected) * (n - expected) / expected;
        return sum;
    };
    EXPECT_LT(chi2(pooled, kAnswers * kLength / double{kBins}), 114.1);  // 63 degrees of freedom, alpha 1e-4
    EXPECT_LT(chi2(std::span(firsts).first(8), kAnswers / 8.0), 29.9);   // 7 degrees of freedom, alpha 1e-4
}

// ---- text
// ---------------------------------------------------------------------------------------------------------------------

class TextTest : public AnswerTest {
  protected:
    void SetUp() override {
        json::array tokens, types;
        for (int i = 0; i < 128; ++i) {
            tokens.push_back(i < 94 ? json::string(1, static_cast<char>('!' + i))
                                    : json::string(fmt::format("[{}]", i)));
            types.push_back(1);
        }
        json::object& keys = text.metadata();  // a vocabulary of 128 single printable bytes and pairs
        keys["tokenizer.ggml.model"] = "gpt2";
        keys["tokenizer.ggml.pre"] = "gpt-2";
        keys["tokenizer.ggml.tokens"] = tokens;
        keys["tokenizer.ggml.token_type"] = types;
        keys["tokenizer.ggml.merges"] = json::array();
        keys["tokenizer.ggml.eos_token_id"] = greedy[5];
        engine = open(fixture.options(), &text);
    }
    FakeCheckpoint text{Checkpoint::Format::gguf};
    std::string text_of(std::span<const int32_t> tokens) const { return engine->text().tokenizer()->decode(tokens); }
};

TEST_F(TextTest, the_models_own_stop_ids_end_an_answer_unless_they_are_to_be_ignored) {
    Question r = request(20);
    r.eos = true;
    const Answered result = engine->answer(r);
    EXPECT_EQ(result.tokens, first(5));
    EXPECT_EQ(result.stop_token, greedy[5]);
    r.sampling.ignore_eos = true;
    EXPECT_EQ(engine->answer(r).tokens, first(20));
}

TEST_F(TextTest, text_arrives_as_it_is_produced) {
    std::string seen;
    Question r = request(20);
    r.on_text = [&](std::string_view part) { seen += part; };
    const Answered result = engine->answer(r);
    EXPECT_EQ(seen, text_of(result.tokens));
    EXPECT_EQ(result.text, seen);
}

TEST_F(TextTest, a_stop_string_over_several_tokens_ends_the_answer_before_it) {
    const std::string whole = text_of(first(20));
    const std::string before = text_of(first(6)), stop = text_of(std::span(greedy).subspan(6, 3));
    ASSERT_EQ(whole.find(stop), before.size());
    std::string seen;
    Question r = request(20);
    r.sampling.stop_strings = {"never", stop};
    r.on_text = [&](std::string_view part) { seen += part; };
    Answered result = engine->answer(r);
    EXPECT_EQ(result.reason, FinishReason::stop_string);
    EXPECT_EQ(result.stop_string, stop);
    EXPECT_EQ(seen, before);
    EXPECT_EQ(result.text, before);
    EXPECT_EQ(result.tokens, first(9));
    // Cut short inside what might have become the stop string: the text is delivered after all.
    r.sampling.max_tokens = 8;
    result = engine->answer(r);
    EXPECT_EQ(result.reason, FinishReason::length);
    EXPECT_EQ(result.text, text_of(first(8)));
    // Before min_tokens it does not count.
    r.sampling.max_tokens = 20;
    r.sampling.min_tokens = 15;
    EXPECT_GE(engine->answer(r).tokens.size(), 15u);
}

}  // namespace
}  // namespace riptide::testing
