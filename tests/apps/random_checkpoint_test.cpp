// Random weights without a file: what `riptide bench --random-weights` opens is a model that runs.
#include "apps/random_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "base/error.h"
#include "engine/session.h"
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
    o.model.decode = DecodeKind::chain;
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

TEST(RandomCheckpoint, unknown_shapes_and_types_are_refused) {
    EXPECT_THROW(random_checkpoint("nothing:bf16", 1), Error);
    EXPECT_THROW(random_checkpoint("laguna-tiny:q9", 1), Error);
}

}  // namespace
}  // namespace riptide::apps
