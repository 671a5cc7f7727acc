// Generation on a GPU: what the device draws by itself is what the host would have drawn, and failures stay contained.
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "engine/sampling/device_sampling.h"
#include "tests/engine/solo.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

/// Ways of drawing that change the tokens of the small models.
std::vector<SamplingParams> drawing_settings() {
    const auto make = [](double temperature, int64_t top_k, double top_p, double min_p) {
        SamplingParams p;
        p.temperature = temperature, p.top_k = top_k, p.top_p = top_p, p.min_p = min_p;
        return p;
    };
    std::vector<SamplingParams> all = {make(0, 0, 1, 0),   make(1.5, 0, 1, 0),     make(1.2, 20, 1, 0),
                                       make(2, 0, 0.9, 0), make(1.4, 40, 0.95, 0), make(2, 0, 1, 0.02),
                                       make(0, 0, 1, 0),   make(1.3, 30, 0.9, 0)};
    all[6].repetition_penalty = 1.4, all[6].frequency_penalty = 0.3;
    all[7].presence_penalty = 0.8, all[7].min_tokens = 20, all[7].logit_bias = {{5, 2.5}, {17, -100}};
    for (size_t i = 0; i < all.size(); ++i) all[i].seed = 77 + i;
    return all;
}

class GpuSessionTest : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        RT_GPU_ONLY();
        engine = std::make_unique<Solo>(open_checkpoint(fixture.model_path()), fixture.options());
    }
    Question request(const SamplingParams& sampling, int64_t tokens) const {
        Question r;
        r.prompt = prompt;
        r.sampling = sampling;
        r.sampling.max_tokens = tokens;
        return r;
    }
    Fixture fixture{GetParam()};
    const std::vector<int32_t>& prompt = fixture.prompts.back().tokens;
    std::unique_ptr<Solo> engine;
};
INSTANTIATE_TEST_SUITE_P(All, GpuSessionTest, ::testing::Values("laguna_xs2", "laguna_int4", "qwen3_tied"),
                         fixture_name);

// 200 tokens are four stretches of 64 rows (Scheduler::run_ahead), over graphs that earlier settings recorded.
TEST_P(GpuSessionTest, the_device_draws_what_the_host_draws_from_its_logits) {
    for (const SamplingParams& sampling : drawing_settings()) {
        Question r = request(sampling, 200);
        const std::vector<int32_t> drawn = engine->answer(r).tokens;
        r.sampling.logprobs = 0;  // takes the logits of each step to the host
        const Answered host = engine->answer(r);
        EXPECT_EQ(drawn, host.tokens) << "seed " << sampling.seed;
        EXPECT_EQ(host.logprobs.size(), host.tokens.size());
    }
}

TEST_P(GpuSessionTest, graphs_draw_what_their_kernels_draw) {
    for (const SamplingParams& sampling : drawing_settings()) {
        const Question r = request(sampling, 80);
        const std::vector<int32_t> drawn = engine->answer(r).tokens;
        int64_t seen = 0;
        engine->machine().runner().context().tap = [&](std::string_view, int, const Tensor&) { ++seen; };  // no graphs
        const std::vector<int32_t> eager = engine->answer(r).tokens;
        engine->machine().runner().context().tap = nullptr;
        EXPECT_GT(seen, 80);
        EXPECT_EQ(drawn, eager) << "seed " << sampling.seed;
        EXPECT_EQ(engine->answer(r).tokens, drawn) << "graphs again, behind kernel by kernel";
    }
}

TEST_P(GpuSessionTest, several_sequences_draw_as_each_would_alone) {
    constexpr size_t kSequences = 5;
    constexpr int64_t kSteps = 24;
    const Model& model = engine->machine().model();
    KvCacheOptions options;
    options.k_dtype = options.v_dtype = DType::f16;
    options.page_rows = 16;
    options.pages = 64;
    options.max_sequences = kSequences;
    options.max_step_rows = 32;
    KvCache cache(model.state_specs(), options, engine->machine().gpu()),
        alone_cache(model.state_specs(), options, engine->machine().gpu());
    Runner runner(model, cache, nullptr), alone(model, alone_cache, nullptr);
    alone.context().tap = [](std::string_view, int, const Tensor&) {};  // the judge goes kernel by kernel
    GpuDecoder decoder(model, cache, runner.context(), runner.device_batch(), kSequences);
    const std::vector<SamplingParams> all = drawing_settings();
    for (size_t n = 1; n <= kSequences; ++n)
        for (int round = 0; round < 3; ++round) {
            std::vector<SequenceState> states;
            std::vector<DecodeRow> rows;
            std::vector<std::vector<int32_t>> expected;
            const auto begin = [&](Runner& where, SequenceState& state, std::span<const int32_t> tokens) {
                const StepItem item{&state, tokens};
                where.step(std::span(&item, 1));
                state.commit_prefix(std::ssize(tokens));
            };
            for (size_t s = 0; s < n; ++s) {
                const SamplingParams& p = all[(s + static_cast<size_t>(round) * 3 + n) % all.size()];
                const auto start = std::span(prompt).first(3 + 2 * s);
                const auto first = static_cast<int32_t>(s + 1);
                const std::vector<int32_t> answer = {first};
                Sampler sampler(p, model.info().vocab_size, {}, start);
                sampler.accept(first);
                SequenceState lone(alone_cache);
                begin(alone, lone, start);
                int32_t token = first;
                expected.emplace_back();
                for (int64_t i = 0; i < kSteps; ++i) {
                    const StepItem item{&lone, std::span(&token, 1)};
                    const std::vector<float> logits =
                        host_values(engine->machine().gpu(), alone.step(std::span(&item, 1), Family::decode));
                    lone.commit_prefix(1);
                    token = sampler.sample(logits, lone.length()).token;
                    sampler.accept(token);
                    expected.back().push_back(token);
                }
                states.emplace_back(cache);
                begin(runner, states.back(), start);
                ASSERT_TRUE(states.back().try_reserve(kSteps));
                decoder.start_answer(static_cast<int64_t>(s), sample_start(p, {}, start, answer));
                rows.push_back({nullptr, first});
            }
            for (size_t s = 0; s < n; ++s) rows[s].sequence = &states[s];
            decoder.begin(rows, GpuDecoder::Draw::sampled);
            std::vector<std::vector<int32_t>> drawn(n);
            decoder.launch();
            for (int64_t i = 0; i < kSteps; ++i) {
                if (i + 1 < kSteps) decoder.launch();
                const std::span<const int32_t> tokens = decoder.next();
                ASSERT_EQ(tokens.size(), n);
                for (size_t s = 0; s < n; ++s) drawn[s].push_back(tokens[s]);
            }
            decoder.end();
            EXPECT_EQ(drawn, expected) << n << " sequences, round " << round;
        }
}

TEST_P(GpuSessionTest, damaged_kv_fails_the_request_alone) {
    const std::vector<SamplingParams> all = drawing_settings();
    const std::vector<int32_t> good = engine->answer(request(all[0], 8)).tokens;
    for (const SamplingParams& sampling : {all[0], all[2]}) {
        int64_t told = 0;
        Question r = request(sampling, 200);
        r.on_token = [&](const Sampled&) {
            if (++told != 1) return;
            KvCache& cache = engine->machine().cache();  // NaN in every value of every sequence
            for (const KvView& view : cache.views()) {
                const int64_t slots =
                    view.window > 0 ? view.ring_rows : int64_t{cache.options().pages} * view.page_rows;
                engine->machine().gpu()->fill(view.v, 0xFF, slots * view.v_slot_bytes);
            }
        };
        try {
            engine->answer(r);
            ADD_FAILURE() << "no error";
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("no token can be drawn for position"), std::string::npos)
                << error.what();
        }
        EXPECT_LT(told, 200);
        EXPECT_EQ(engine->answer(request(all[0], 8)).reused_tokens, 0) << "damaged K/V must not be used again";
        EXPECT_EQ(engine->answer(request(all[0], 8)).tokens, good);
    }
}

TEST_P(GpuSessionTest, a_listener_that_throws_ends_its_answer_alone) {
    for (const SamplingParams& sampling : drawing_settings()) {
        Question r = request(sampling, 30);
        const std::vector<int32_t> whole = engine->answer(r).tokens;
        int seen = 0;
        r.on_token = [&](const Sampled&) {
            if (++seen == 7) throw std::runtime_error("the listener has gone");
        };
        EXPECT_THROW(engine->answer(r), std::runtime_error);
        EXPECT_EQ(seen, 7);
        r.on_token = {};
        EXPECT_EQ(engine->answer(r).tokens, whole) << "seed " << sampling.seed;
    }
}

template <class F>
std::string message_of(const F& action, ErrorKind kind) {
    try {
        action();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), kind) << error.what();
        return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
}

TEST(GpuErrors, a_budget_that_holds_too_little_is_refused_with_numbers) {
    RT_GPU_ONLY();
    const Fixture fixture("laguna_xs2");
    SessionOptions options = fixture.options();
    options.gpu->memory_budget = 100000;  // the weights alone are more
    const std::string weights =
        message_of([&] { Session::open(fixture.model_path(), options); }, ErrorKind::unavailable);
    EXPECT_NE(weights.find("of the budget of 100000"), std::string::npos) << weights;
    options.gpu->memory_budget = int64_t{64} << 20;  // the weights fit, the temporaries do not
    const std::string work = message_of([&] { Session::open(fixture.model_path(), options); }, ErrorKind::unavailable);
    EXPECT_NE(work.find("GiB of GPU memory are free after"), std::string::npos) << work;
    options.gpu->memory_budget = 0;
    options.gpu->ordinal = 99;
    const std::string which = message_of([&] { Session::open(fixture.model_path(), options); }, ErrorKind::usage);
    EXPECT_NE(which.find("GPU 99 was asked for"), std::string::npos) << which;
}

TEST(GpuErrors, a_plan_that_leaves_nothing_to_spare_is_kept) {
    RT_GPU_ONLY();
    const std::string folder = source_dir() + "/models/demo/";
    SessionOptions options;
    options.gpu = test_gpu()->options();
    options.context = 2048;
    options.chunk_rows = 512;
    options.speculation.drafter = folder + "laguna-demo-dflash.gguf";
    options.speculation.width = 5;
    options.speculation.adaptive = false;
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < fewer(1900, 40); ++i) prompt.push_back(300 + i * i % 211);
    Question request = greedily(prompt, fewer(100, 12));
    request.sampling = {};
    request.sampling.max_tokens = fewer(100, 12);
    const auto answer = [&](int64_t budget) {
        options.gpu->memory_budget = budget;
        Solo solo(open_checkpoint(folder + "laguna-demo.gguf"), options);
        const std::vector<int32_t> tokens = solo.answer(request).tokens;
        const MemoryPlan& plan = solo.machine().memory_plan();
        return std::pair(tokens, plan.weights + plan.drafter + plan.kv + plan.workspace + kUnplannedBytes);
    };
    const auto plain = answer(0);
    const int64_t planned = plain.second;
    EXPECT_EQ(answer(planned).first, plain.first);
    EXPECT_NE(message_of([&] { answer(planned - (int64_t{4} << 20)); }, ErrorKind::unavailable), "");
}

// 2048 rows of logits of the demo model are 64 MiB: the arena's first block cannot hold them, and the budget not a
// second.
TEST(GpuErrors, memory_that_runs_out_in_a_step_fails_that_step_alone) {
    RT_GPU_ONLY();
    GpuOptions device = test_gpu()->options();
    device.memory_budget = int64_t{192} << 20;
    const auto gpu = Gpu::open(device);
    const auto checkpoint = open_checkpoint(source_dir() + "/models/demo/laguna-demo.gguf");
    ModelOptions model_options;
    model_options.gpu = gpu.get();
    const auto model = load_model(*checkpoint, model_options);
    KvCacheOptions options;
    options.pages = 40;
    options.max_step_rows = 2048;
    KvCache cache(model->state_specs(), options, gpu.get());
    Runner runner(*model, cache, nullptr);
    SequenceState sequence(cache);
    const std::vector<int32_t> few = {1, 2, 3}, many(2048, 5);
    const StepItem item{&sequence, few}, large{&sequence, many, {}, StepRows::Logits::all, {}};
    const std::vector<float> logits = host_values(gpu.get(), runner.step(std::span(&item, 1), Family::prefill));
    sequence.commit_prefix(0);
    const std::string message =
        message_of([&] { runner.step(std::span(&large, 1), Family::prefill); }, ErrorKind::unavailable);
    EXPECT_NE(message.find("of the budget of 201326592 are left"), std::string::npos) << message;
    EXPECT_EQ(sequence.reserved(), 0);
    const std::vector<float> again = host_values(gpu.get(), runner.step(std::span(&item, 1), Family::prefill));
    EXPECT_EQ(again, logits);
}

}  // namespace
}  // namespace riptide::testing
