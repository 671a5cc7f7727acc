// Random weights without a file: what `riptide bench --random-weights` opens is a model that runs.
#include "apps/synth/random_checkpoint.h"

#include "apps/bench/bench_draft.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "base/error.h"
#include "engine/session/session.h"
#include "tests/test_device.h"

namespace riptide::apps {
namespace {

std::vector<float> logits_of(std::unique_ptr<Checkpoint> checkpoint) {
    SessionOptions o;
    o.threads = 2;
    o.context = 64;
    if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
    Session session(std::move(checkpoint), o);
    std::vector<int32_t> tokens(20);
    std::iota(tokens.begin(), tokens.end(), 300);
    const std::span<const float> logits = session.prefill(tokens);
    return {logits.begin(), logits.end()};
}

TEST(RandomCheckpoint, every_layout_is_a_model_that_runs) {
    for (const char* type : {"bf16", "fp8", "q4_k_m"}) {
        const std::vector<float> logits = logits_of(random_checkpoint(std::string("laguna-tiny:") + type, 2));
        ASSERT_FALSE(logits.empty());
        float least = logits[0], most = logits[0];
        for (const float v : logits) {
            ASSERT_TRUE(std::isfinite(v)) << type;
            least = std::min(least, v);
            most = std::max(most, v);
        }
        EXPECT_LT(least, most) << type;
        EXPECT_LT(most - least, 1000) << type;
    }
}

TEST(RandomCheckpoint, a_hybrid_of_real_sizes_decodes_ahead_what_it_decodes_step_by_step) {
    RT_GPU_ONLY();
    SessionOptions o;
    o.context = 512;
    o.gpu = test_gpu()->options();
    const auto session = [&] { return Session(random_checkpoint("qwen3.5-0.8b:bf16", 2), o); };
    Session ahead = session(), steps = session();
    std::vector<int32_t> prompt(5);
    std::iota(prompt.begin(), prompt.end(), 300);
    ahead.prefill(prompt);
    steps.prefill(prompt);
    int32_t token = 7;
    // The answer ends where somebody says so, at odd and even numbers of steps, with steps under way behind it.
    for (const int64_t answer : {1, 2, 3, 4, 7, 20, 90}) {
        std::vector<int32_t> seen, expected;
        ahead.decode_ahead(token, answer == 4 ? answer : 300, [&](int32_t next) {
            seen.push_back(next);
            return std::ssize(seen) < answer;
        });
        for (int32_t next = token; std::ssize(expected) < answer;) {
            const std::span<const float> logits = steps.decode(next);
            next = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
            expected.push_back(next);
        }
        ASSERT_EQ(seen, expected) << answer;
        const std::span<const float> a = ahead.decode(seen.back()), b = steps.decode(seen.back());
        ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0) << answer;
        token = static_cast<int32_t>(1000 + answer);
    }
}

TEST(RandomCheckpoint, a_hybrid_of_real_sizes_has_the_same_bits_row_by_row_and_with_rows_together) {
    RT_GPU_ONLY();
    const auto checkpoint = random_checkpoint("qwen3.5-0.8b:bf16", 2);
    ModelOptions options;
    options.gpu = test_gpu();
    const auto model = load_model(*checkpoint, options);
    struct World {
        KvCache cache;
        Runner runner;
        SequenceState sequence;

        explicit World(const Model& m)
            : cache(m.state_specs(), cache_options(), test_gpu()), runner(m, cache, nullptr), sequence(cache) {}
        static KvCacheOptions cache_options() {
            KvCacheOptions o;
            o.k_dtype = o.v_dtype = DType::q8_0;
            o.page_rows = 16;
            o.pages = 8;
            o.max_sequences = 1;
            o.max_step_rows = 16;
            return o;
        }
        std::vector<float> step(std::span<const int32_t> tokens) {
            const StepItem item{&sequence, tokens, {}, StepRows::Logits::all, {}};
            const Tensor logits = runner.step(std::span(&item, 1));
            std::vector<float> host(static_cast<size_t>(logits.elements()));
            test_gpu()->to_host(host.data(), logits.data, logits.elements() * int64_t{sizeof(float)});
            sequence.commit_prefix(std::ssize(tokens));
            return host;
        }
    };
    World alone(*model), together(*model);
    for (int32_t first = 300; first < 340; first += 4) {
        const int32_t tokens[] = {first, 7 * first, first + 2, 5 * first};
        const std::vector<float> rows = together.step(tokens);
        const float* row = rows.data();
        for (const int32_t& token : tokens) {
            const std::vector<float> seen = alone.step(std::span(&token, 1));
            ASSERT_EQ(std::memcmp(seen.data(), row, seen.size() * sizeof(float)), 0) << alone.sequence.length();
            row += seen.size();
        }
    }
    EXPECT_EQ(alone.sequence.save().bytes(), together.sequence.save().bytes());
}

TEST(RandomCheckpoint, tensors_begin_in_places_of_their_own_and_fp8_has_block_scales) {
    const auto checkpoint = random_checkpoint("laguna-tiny:fp8", 2);
    std::set<const std::byte*> places;
    for (const TensorInfo& t : checkpoint->tensors()) {
        EXPECT_TRUE(places.insert(t.bytes.data()).second) << t.name;  // a device keeps them apart
        EXPECT_EQ(reinterpret_cast<uintptr_t>(t.bytes.data()) % 16, 0u) << t.name;
        EXPECT_EQ(checkpoint->find(t.name), &t);
    }
    const TensorInfo* stack = checkpoint->find("blk.1.ffn_down_exps.weight");
    const TensorInfo* scale = checkpoint->find("blk.1.ffn_down_exps.weight_scale");
    ASSERT_TRUE(stack && scale);
    EXPECT_EQ(stack->dtype, DType::f8_e4m3);
    EXPECT_EQ(scale->shape[0], stack->shape[0]);
    EXPECT_EQ(scale->shape[1], (stack->shape[1] + 127) / 128);
    EXPECT_EQ(scale->shape[2], (stack->shape[2] + 127) / 128);
    EXPECT_EQ(checkpoint->find("blk.1.attn_q.weight")->dtype, DType::bf16);
    EXPECT_EQ(checkpoint->find("nothing"), nullptr);
}

TEST(RandomCheckpoint, skewed_routers_prefer_other_experts_in_each_layer) {
    const auto bias = [](const Checkpoint& checkpoint, const char* name) {
        const TensorInfo* t = checkpoint.find(name);
        std::vector<float> values(t->bytes.size() / sizeof(float));
        std::memcpy(values.data(), t->bytes.data(), t->bytes.size());
        return values;
    };
    const auto skewed = random_checkpoint("laguna-xs.2:q4_k_m", 2, RandomRouting::skewed),
               even = random_checkpoint("laguna-tiny", 2);
    for (const float v : bias(*even, "blk.1.exp_probs_b.bias")) EXPECT_EQ(v, 0);
    const std::vector<float> one = bias(*skewed, "blk.1.exp_probs_b.bias"),
                             two = bias(*skewed, "blk.2.exp_probs_b.bias");
    EXPECT_NE(one, two);
    // Exponentially distributed, mean 0.05: of 256 the mean is within four standard errors.
    for (const std::vector<float>& b : {one, two}) {
        ASSERT_EQ(b.size(), 256u);
        EXPECT_NEAR(std::accumulate(b.begin(), b.end(), 0.0) / 256, 0.05, 4 * 0.05 / 16);
        EXPECT_GE(*std::min_element(b.begin(), b.end()), 0);
        EXPECT_GT(*std::max_element(b.begin(), b.end()), 0.15);
    }
    EXPECT_THROW(random_checkpoint("qwen3-0.6b:q8_0", 1, RandomRouting::skewed), Error);
}

/// A drafter's pass beside a model of SHAPE, whose drafter is a random one, at two depths.
void expect_rounds_are_timed(const std::string& shape) {
    SCOPED_TRACE(shape);
    SessionOptions o;
    o.threads = 2;
    o.context = 512;
    if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
    Session session(random_checkpoint(shape + ":q8_0", 2), o);
    const BenchOptions few{.gen = 3, .repeat = 2, .profile = true};
    const DraftBench bench =
        bench_draft(session, few, open_drafter("random", shape + ":q8_0", 2), {40, 9}, {1, 4, 8, 100});
    EXPECT_EQ(bench.block, 8);
    ASSERT_EQ(bench.rows.size(), 4u);  // 4 and 8 rows at 9 and 40: 1 is no draft, a block has no more than 8
    for (size_t i = 0; i < 4; ++i) {
        const DraftRow& row = bench.rows[i];
        EXPECT_EQ(row.depth, i < 2 ? 9 : 40);
        EXPECT_EQ(row.rows, i % 2 == 0 ? 4 : 8);
        EXPECT_EQ(row.with.size(), 2u);
        EXPECT_EQ(row.without.size(), 2u);
        EXPECT_GT(row.without.front(), 0);
        int64_t attentions = 0;
        for (const OpProfile::Line& line : row.ops)
            if (line.op.find("attention") != std::string::npos) attentions += line.calls;
        EXPECT_EQ(attentions, 2);  // two layers
    }
    EXPECT_THROW(bench_draft(session, few, random_drafter("laguna-xs.2:q8_0", 2), {9}, {8}), Error);
    EXPECT_THROW(bench_draft(session, few, random_drafter(shape, 2), {500}, {8}), Error);
}

TEST(RandomCheckpoint, a_drafter_fits_its_model_and_its_pass_is_timed) {
    expect_rounds_are_timed("laguna-tiny");
    expect_rounds_are_timed("qwen3.5-tiny");
    EXPECT_THROW(random_drafter("nothing:q8_0", 1), Error);
}

TEST(RandomCheckpoint, unknown_shapes_and_types_are_refused) {
    EXPECT_THROW(random_checkpoint("nothing:bf16", 1), Error);
    EXPECT_THROW(random_checkpoint("laguna-tiny:q9", 1), Error);
}

}  // namespace
}  // namespace riptide::apps
