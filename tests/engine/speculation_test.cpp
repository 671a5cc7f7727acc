// Speculation never changes a token, a log-probability or a logit.
#include "engine/speculation/speculation.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "engine/speculation/ngram_drafter.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/solo.h"
#include "tests/engine/test_drafters.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

constexpr const char* kCode = "〈|EOS|〉def fibonacci(n):\n";

class SpeculationTest : public ::testing::TestWithParam<ModelAndKv> {
  protected:
    std::unique_ptr<Solo> engine = open(std::nullopt);
    std::vector<int32_t> prompt = make_prompt();
    int64_t vocab = engine->info().vocab_size;

    static std::unique_ptr<Solo> open(std::optional<int64_t> context) {
        SessionOptions o;
        o.threads = 1;
        o.context = context.value_or(1024);
        o.k_dtype = o.v_dtype = GetParam().kv;
        o.chunk_rows = 300;
        o.page_rows = 16;
        if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
        const std::string& name = GetParam().model;
        return std::make_unique<Solo>(
            open_checkpoint(name == "demo" ? demo_path() : fixture_path(name) + "/model.safetensors"), o);
    }
    std::vector<int32_t> make_prompt() const {
        if (GetParam().model != "demo") return Fixture(GetParam().model).prompts.back().tokens;
        EncodeOptions encode;
        encode.parse_special = true;
        return engine->text().tokenizer()->encode(kCode, encode);
    }
    Question request(int64_t tokens, double temperature = 0) const {
        Question r;
        r.prompt = prompt;
        r.sampling.temperature = temperature;
        r.sampling.max_tokens = tokens;
        return r;
    }
    /// From scratch: the prompt of two runs is computed alike.
    Answered run(const Question& r) {
        engine->forget();
        last = engine->answer(r);
        last_prompt = r.prompt;
        return last;
    }
    Answered plain(const Question& r) {
        engine->speculate(nullptr, {});
        return run(r);
    }
    static SpeculationOptions fixed(int32_t width, int32_t tree = 0) {
        SpeculationOptions o;
        o.width = width, o.tree = tree, o.adaptive = false;
        return o;
    }
    Answered drafted(const Question& r, TestDrafter::Rule rule, const SpeculationOptions& o) {
        engine->speculate(std::make_unique<TestDrafter>(o.width, std::move(rule)), o);
        return run(r);
    }
    TestDrafter::Rule knowing(const Answered& truth, std::function<int32_t(int32_t)> right) const {
        std::vector<int32_t> whole = prompt;
        whole.insert(whole.end(), truth.tokens.begin(), truth.tokens.end());
        return oracle(whole, vocab, std::move(right));
    }
    static void expect_same(const Answered& a, const Answered& b, const std::string& what) {
        EXPECT_EQ(a.tokens, b.tokens) << what;
        EXPECT_EQ(a.logits_hash, b.logits_hash) << what;
        EXPECT_EQ(a.reason, b.reason) << what;
        EXPECT_EQ(a.stop_token, b.stop_token) << what;
        EXPECT_EQ(a.text, b.text) << what;
        ASSERT_EQ(a.logprobs.size(), b.logprobs.size()) << what;
        for (size_t i = 0; i < a.logprobs.size(); ++i) {
            EXPECT_EQ(a.logprobs[i].logprob, b.logprobs[i].logprob) << what;
            EXPECT_EQ(a.logprobs[i].sampling_logprob, b.logprobs[i].sampling_logprob) << what;
        }
    }
    /// What is kept of the last run: K/V and recurrent state.
    Solo::Kept after() { return engine->kept(last_prompt, last); }
    Answered last;
    std::vector<int32_t> last_prompt;
};

std::vector<ModelAndKv> chain_cases() {
    std::vector<ModelAndKv> all = {{"laguna_xs2", DType::f16},
                                   {"qwen3_tied", DType::f32},
                                   {"qwen35_tied", DType::f32},
                                   {"qwen35_moe", DType::q8_0}};
    // A session of one thread.
    if (!kThreadSanitizer)
        all.insert(all.begin(), {{"demo", DType::f32}, {"demo", DType::q8_0}, {"demo", DType::q4_0}});
    return all;
}
INSTANTIATE_TEST_SUITE_P(All, SpeculationTest, ::testing::ValuesIn(chain_cases()), model_and_kv_name);

TEST_P(SpeculationTest, chains_of_any_width_change_nothing) {
    const Question r = request(61);
    const Answered truth = plain(r);
    const Solo::Kept state = after();
    std::mt19937 random(5);
    for (const int32_t width : {1, 2, 3, 5, 8, 15}) {
        const auto what = fmt::format("width {}", width);
        const Answered all = drafted(r, knowing(truth, [](int32_t) { return 0; }), fixed(width));
        expect_same(truth, all, what + ", always right");
        EXPECT_EQ(after(), state) << what;
        EXPECT_EQ(all.decode_steps, (60 + width) / (width + 1)) << "each step gives width + 1 tokens";
        const Answered none = drafted(r, knowing(truth, [](int32_t) { return 1; }), fixed(width));
        expect_same(truth, none, what + ", never right");
        EXPECT_EQ(after(), state) << what;
        EXPECT_EQ(none.decode_steps, 60);
        EXPECT_EQ(none.speculation.accepted, 0);
        expect_same(truth, drafted(r, knowing(truth, [&](int32_t) { return random() % 4 == 0 ? 1 : 0; }), fixed(width)),
                    what + ", often right");
        EXPECT_EQ(after(), state) << what;
    }
}

TEST_P(SpeculationTest, trees_of_any_budget_change_nothing) {
    const Question r = request(60), shorter = request(16);
    const Answered truth = plain(r);
    const Solo::Kept state = after();
    const Answered short_truth = plain(shorter);
    const Solo::Kept short_state = after();
    std::mt19937 random(6);
    for (const int32_t budget : {1, 2, 4, 7, 16, 33, 64}) {
        const auto what = fmt::format("budget {}", budget);
        const Answered result =
            drafted(r, knowing(truth, [&](int32_t) { return static_cast<int32_t>(random() % 3); }), fixed(7, budget));
        expect_same(truth, result, what);
        EXPECT_EQ(after(), state) << what;
        if (budget >= 16) {
            EXPECT_LT(result.decode_steps, 50) << what << ": the tree holds second choices";
        }
        expect_same(short_truth, drafted(shorter, random_drafts(7, vocab), fixed(5, budget)), what + ", random");
        EXPECT_EQ(after(), short_state) << what;
        expect_same(short_truth, drafted(shorter, repeating(vocab), fixed(5, budget)), what + ", repeating");
    }
}

TEST_P(SpeculationTest, the_same_seed_draws_the_same_tokens) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
        Question r = request(48, 0.7);
        r.sampling.seed = seed, r.sampling.top_k = 20, r.sampling.top_p = 0.95;
        for (int kind = 0; kind < 3; ++kind) {
            if (kind == 1) {
                r.sampling.repetition_penalty = 1.2, r.sampling.frequency_penalty = 0.3;
                r.sampling.presence_penalty = 0.2, r.sampling.min_tokens = 24;
                r.sampling.logit_bias = {{5, 1.5}};
            }
            if (kind == 2) r.sampling.logprobs = 2;
            const Answered truth = plain(r);
            std::mt19937 random(8);
            const auto right = [&](int32_t) { return static_cast<int32_t>(random() % 2); };
            const auto what = fmt::format("seed {}, kind {}", seed, kind);
            expect_same(truth, drafted(r, knowing(truth, right), fixed(6)), what + ", chain");
            expect_same(truth, drafted(r, knowing(truth, right), fixed(6, 20)), what + ", tree");
            expect_same(truth, drafted(r, random_drafts(9, vocab), fixed(4, 12)), what + ", random");
        }
    }
}

TEST_P(SpeculationTest, an_answer_ends_where_it_would_end) {
    const Answered truth = plain(request(64));
    const auto sure = knowing(truth, [](int32_t) { return 0; });
    for (const int64_t tokens : {1, 2, 3, 7, 8, 9}) {
        const Question r = request(tokens);
        const Answered expected = plain(r);
        const Solo::Kept state = after();
        expect_same(expected, drafted(r, sure, fixed(7)), fmt::format("max_tokens {}", tokens));
        EXPECT_EQ(after(), state);
        expect_same(expected, drafted(r, sure, fixed(7, 30)), fmt::format("max_tokens {}, tree", tokens));
        EXPECT_EQ(after(), state);
    }
    for (const size_t at : {3u, 20u, 40u}) {
        Question r = request(64);
        r.sampling.stop_ids = {truth.tokens[at]};
        const Answered expected = plain(r);
        EXPECT_EQ(expected.reason, FinishReason::stop_id);
        const Solo::Kept state = after();
        expect_same(expected, drafted(r, sure, fixed(7)), "stop id");
        EXPECT_EQ(after(), state);
        r.sampling.min_tokens = static_cast<int64_t>(at) + 2;
        expect_same(plain(r), drafted(r, sure, fixed(7, 16)), "stop id and min_tokens");
    }
}

TEST_P(SpeculationTest, drafts_do_not_reach_beyond_the_context) {
    for (int64_t room = 1; room < 12; ++room) {
        engine = open(std::ssize(prompt) + room);
        const Question r = request(-1);
        const Answered truth = plain(r);
        EXPECT_TRUE(truth.reason == FinishReason::context);
        expect_same(truth, drafted(r, knowing(truth, [](int32_t) { return 0; }), fixed(15)), "chain");
        expect_same(truth, drafted(r, knowing(truth, [](int32_t) { return 1; }), fixed(15, 60)), "tree");
    }
}

TEST_P(SpeculationTest, the_n_gram_drafter_and_adaptive_widths_change_nothing) {
    for (const double temperature : {0.0, 0.7}) {
        Question r = request(160, temperature);
        r.sampling.top_k = 20;
        const Answered truth = plain(r);
        for (const int32_t tree : {0, 24}) {
            SpeculationOptions o;
            o.drafter = "ngram", o.tree = tree;
            engine->speculate(make_drafter(o, engine->machine().draft_target()), o);
            const Answered first = run(r);
            expect_same(truth, first, "n-gram");
            EXPECT_EQ(first.speculation.steps, first.decode_steps);
            expect_same(truth, run(r), "a second answer");
            EXPECT_EQ(first.decoded_tokens, std::ssize(first.tokens) - 1);
        }
    }
}

TEST_P(SpeculationTest, what_is_counted_adds_up) {
    const Question r = request(101);
    const Answered truth = plain(r);
    EXPECT_EQ(truth.speculation.steps, 0);
    // The second draft of each step is wrong.
    const Answered half = drafted(r, knowing(truth, [](int32_t slot) { return slot == 1 ? 1 : 0; }), fixed(4));
    const SpeculationStats& s = half.speculation;
    EXPECT_EQ(s.steps, 50);
    EXPECT_EQ(s.accepted, 50);
    EXPECT_DOUBLE_EQ(s.tokens_per_step(), 2);
    ASSERT_EQ(s.slots.size(), 4u);
    EXPECT_EQ(s.slots[0].reached, 50);
    EXPECT_EQ(s.slots[0].accepted, 50);
    EXPECT_EQ(s.slots[1].accepted, 0);
    EXPECT_GE(s.slots[1].reached, 49);
    EXPECT_EQ(s.slots[2].reached, 0);
}

TEST_P(SpeculationTest, a_conversation_goes_on_from_what_was_accepted) {
    const Answered truth = plain(request(40));
    const auto talk = [&] {
        Answered first = engine->answer(request(40));
        std::vector<int32_t> next = prompt;
        next.insert(next.end(), first.tokens.begin(), first.tokens.end());
        next.push_back(3);
        Question r = request(40);
        r.prompt = next;
        return engine->answer(r);
    };
    engine->forget();
    const Answered expected = talk();
    engine->speculate(std::make_unique<TestDrafter>(7, knowing(truth, [](int32_t) { return 0; })), fixed(7, 12));
    engine->forget();
    const Answered again = talk();
    expect_same(expected, again, "second turn");
    EXPECT_EQ(again.reused_tokens, expected.reused_tokens);
}

TEST_P(SpeculationTest, who_throws_leaves_an_engine_that_works) {
    const Question r = request(60);
    const Answered truth = plain(r);
    engine->speculate(std::make_unique<TestDrafter>(7, knowing(truth, [](int32_t) { return 0; })), fixed(7));
    Question failing = r;
    failing.on_token = [seen = 0](const Sampled&) mutable {
        if (++seen == 20) throw std::runtime_error("enough");
    };
    EXPECT_THROW(run(failing), std::runtime_error);
    expect_same(truth, run(r), "after an exception");
    std::atomic<bool> cancel = false;
    Question cut = r;
    cut.cancel = &cancel;
    cut.on_token = [&, seen = 0](const Sampled&) mutable { cancel = ++seen == 20; };
    const Answered part = run(cut);
    EXPECT_EQ(part.reason, FinishReason::cancelled);
    EXPECT_EQ(part.tokens, std::vector<int32_t>(truth.tokens.begin(), truth.tokens.begin() + 20));
}

TEST_P(SpeculationTest, graphs_of_checked_drafts_draw_what_their_kernels_draw) {
    RT_GPU_ONLY();
    const Question r = request(60);
    const Answered truth = plain(r);
    for (const int32_t tree : {0, 12}) {
        const auto sure = knowing(truth, [](int32_t slot) { return slot == 3 ? 1 : 0; });
        const int64_t before = engine->machine().runner().graphs();
        expect_same(truth, drafted(r, sure, fixed(6, tree)), "graphs");
        EXPECT_GT(engine->machine().runner().graphs(), before);
        int64_t seen = 0;
        engine->machine().runner().context().tap = [&](std::string_view, int, const Tensor&) { ++seen; };  // no graphs
        expect_same(truth, drafted(r, sure, fixed(6, tree)), "kernel by kernel");
        engine->machine().runner().context().tap = nullptr;
        EXPECT_GT(seen, 0);
        expect_same(truth, drafted(r, sure, fixed(6, tree)), "graphs again");
    }
}

/// Random prompts, drafters, widths, trees and ways of drawing. With --full a million tokens over all settings.
TEST_P(SpeculationTest, many_answers_equal_those_of_plain_decoding) {
    const int64_t wanted = full_counts() ? 200'000 : 600;
    std::mt19937 random(11);
    const auto any = [&](uint32_t n) { return static_cast<int32_t>(random() % n); };
    int64_t tokens = 0, accepted = 0;
    while (tokens < wanted) {
        const double temperature = any(2) == 0 ? 0.0 : 0.7;
        Question r = request(20 + any(180), temperature);
        std::vector<int32_t> start(prompt.begin(), prompt.end() - any(3));
        for (int32_t i = any(20); i > 0; --i) start.push_back(any(static_cast<uint32_t>(vocab)));
        r.prompt = start;
        r.sampling.seed = random();
        r.sampling.top_k = any(2) * 20;
        if (any(3) == 0) r.sampling.repetition_penalty = 1.1;
        const Answered truth = plain(r);
        std::vector<int32_t> whole = start;
        whole.insert(whole.end(), truth.tokens.begin(), truth.tokens.end());
        const int32_t width = 1 + any(15), with_tree = any(2), tree = with_tree * (1 + any(64)), wrong = 1 + any(6);
        const int kind = any(4);
        const auto right = [&](int32_t) { return any(static_cast<uint32_t>(wrong + 1)) == 0 ? 1 + any(3) : 0; };
        const Answered result = drafted(r,
                                                kind == 0   ? random_drafts(random(), vocab)
                                                : kind == 1 ? repeating(vocab)
                                                            : oracle(whole, vocab, right),
                                                fixed(width, tree));
        expect_same(truth, result, fmt::format("width {}, tree {}, drafter {}, behind {}", width, tree, kind, tokens));
        if (HasFailure()) return;
        tokens += std::ssize(result.tokens);
        accepted += result.speculation.accepted;
    }
    EXPECT_GT(accepted, tokens / 5);
}

TEST(Speculation, options_out_of_range_are_errors) {
    SpeculationOptions o;
    o.drafter = "ngrams";
    EXPECT_THROW(make_drafter(o, {}), Error);
    o.width = 0;
    EXPECT_THROW(check_speculation(o), Error);
    o = {};
    o.tree = 256;
    EXPECT_THROW(check_speculation(o), Error);
    o = {};
    EXPECT_NO_THROW(check_speculation(o));
}

}  // namespace
}  // namespace riptide::testing
