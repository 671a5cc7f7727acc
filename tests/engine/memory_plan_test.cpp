#include "engine/execution/memory_plan.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace riptide {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

/// Laguna XS.2: 10 full layers, 30 with a window of 512.
std::vector<StateSpec> laguna_specs() {
    std::vector<StateSpec> specs;
    for (int l = 0; l < 40; ++l)
        specs.push_back({.kind = l % 4 == 0 ? StateSpec::Kind::paged : StateSpec::Kind::window,
                         .num_kv_heads = 8,
                         .head_dim = 128,
                         .window = l % 4 == 0 ? 0 : 512});
    return specs;
}

struct LagunaMemory {
    std::vector<StateSpec> specs = laguna_specs();
    MemoryRequest request;
    explicit LagunaMemory(int64_t available) {
        request.max_context = 131072;
        request.available = available;
        request.weights = 19 * kGiB;
        request.specs = specs;
        request.workspace = {.fixed = 768 << 20, .per_row = 200000, .per_token = 4096};
    }
};

int64_t bytes(const MemoryPlan& plan) { return plan.kv + plan.workspace; }

TEST(MemoryPlan, a_drafter_takes_its_share) {
    LagunaMemory world(100 * kGiB);
    const MemoryPlan without = plan_gpu_memory(world.request);
    add_drafter(world.request, {.fixed = 2 * kGiB, .per_token = 20480, .per_row = 40960});
    const MemoryPlan with = plan_gpu_memory(world.request);
    EXPECT_EQ(with.drafter, 2 * kGiB);
    EXPECT_EQ(with.kv, without.kv + 20480 * with.context);
    EXPECT_EQ(with.per_token, without.per_token + 20480);
    EXPECT_EQ(with.workspace, without.workspace + 40960 * with.chunk_rows);
    EXPECT_EQ(bytes(with) + with.drafter + with.spare, 100 * kGiB);
    EXPECT_NE(describe(with, DType::f16, DType::f16).find("drafter 2.00 GiB"), std::string::npos);
    EXPECT_EQ(describe(without, DType::f16, DType::f16).find("drafter"), std::string::npos);
}

TEST(MemoryPlan, gives_the_whole_context_and_the_largest_chunk_where_memory_is_plenty) {
    const LagunaMemory world(100 * kGiB);
    const MemoryPlan plan = plan_gpu_memory(world.request);
    EXPECT_EQ(plan.context, 131072);
    EXPECT_EQ(plan.chunk_rows, 8192);
    // 10 layers x 2 x 8 heads x 256 bytes a token, and 30 rings of 511 + 8192 rows, rounded up to 64.
    EXPECT_EQ(plan.kv, int64_t{131072} * 40960 + int64_t{8704} * 30 * 4096);
    EXPECT_EQ(bytes(plan) + plan.spare, 100 * kGiB);
}

TEST(MemoryPlan, windows_in_all_layers_take_no_more_for_a_longer_context) {
    LagunaMemory world(100 * kGiB);
    for (StateSpec& spec : world.specs)
        if (spec.window == 0) spec = StateSpec::attention(8, 128, 4096);
    const MemoryPlan plan = plan_gpu_memory(world.request);
    EXPECT_EQ(plan.context, 131072);
    EXPECT_EQ(plan.per_token, 0);
    // 10 rings of 4095 + 8192 rows and 30 of 511 + 8192, rounded up to 64; 2 x 8 heads x 256 bytes a token.
    EXPECT_EQ(plan.kv, (int64_t{12288} * 10 + int64_t{8704} * 30) * 4096);
    world.request.context = 1024;
    EXPECT_EQ(plan_gpu_memory(world.request).kv, plan.kv);
}

TEST(MemoryPlan, never_plans_more_than_there_is) {
    for (int64_t mib = 1500; mib < 12000; mib += 137)
        for (const DType type : {DType::f16, DType::f8_e4m3, DType::q4_0, DType::tq3_0}) {
            LagunaMemory world(mib << 20);
            world.request.k_dtype = world.request.v_dtype = type;
            const MemoryPlan plan = plan_gpu_memory(world.request);
            EXPECT_LE(bytes(plan), world.request.available);
            EXPECT_GE(plan.spare, 0);
            EXPECT_GE(plan.context, 256);
            EXPECT_TRUE(plan.context == 131072 || plan.context % 64 == 0) << plan.context;
        }
}

TEST(MemoryPlan, prefers_a_longer_context_to_a_larger_chunk) {
    LagunaMemory world(7 * kGiB);
    const MemoryPlan plan = plan_gpu_memory(world.request);
    EXPECT_EQ(plan.context, 131072);
    EXPECT_LT(plan.chunk_rows, 8192);
}

TEST(MemoryPlan, keeps_to_what_was_asked_for) {
    LagunaMemory world(100 * kGiB);
    world.request.context = 5000;
    world.request.chunk_rows = 700;
    const MemoryPlan plan = plan_gpu_memory(world.request);
    EXPECT_EQ(plan.context, 5000);
    EXPECT_EQ(plan.chunk_rows, 700);
}

TEST(MemoryPlan, an_impossible_request_says_what_would_fit) {
    LagunaMemory world(3 * kGiB);
    world.request.context = 131072;
    try {
        plan_gpu_memory(world.request);
        FAIL() << "planned";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::unavailable);
        const std::string text = error.what();
        EXPECT_NE(text.find("3.0 GiB"), std::string::npos) << text;
        const size_t at = text.find("--ctx ");
        ASSERT_NE(at, std::string::npos) << text;
        world.request.context = std::stoll(text.substr(at + 6));
        EXPECT_GE(plan_gpu_memory(world.request).spare, 0);  // and it does fit
    }
}

TEST(MemoryPlan, far_too_little_memory_is_an_error_not_a_tiny_context) {
    LagunaMemory world(100 << 20);
    EXPECT_THROW(plan_gpu_memory(world.request), Error);
}

TEST(MemoryPlan, describes_itself_with_units) {
    const LagunaMemory world(100 * kGiB);
    const std::string text = describe(plan_gpu_memory(world.request), DType::f16, DType::q8_0);
    EXPECT_NE(text.find("weights 19.00 GiB"), std::string::npos) << text;
    EXPECT_NE(text.find("131072 tokens, f16/q8_0"), std::string::npos) << text;
}

}  // namespace
}  // namespace riptide
