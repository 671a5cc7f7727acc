// Ops of the prefill family whose weights have copies in e4m3.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "tests/ops/fp8_copies.h"
#include "tests/ops/prefill_parts.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using test::RandomWeight;
using test::WeightKind;

// x = x' + e, |e| <= max(2^-4 |x'|, 2^-10 scale), and so are weights; then as the product of e4m3 values. In sums of
// magnitudes: |x w - x' w'| <= |x| |w - w'| + |x - x'| |w'|.
TEST(PrefillFp8Ops, a_product_is_within_the_bound_of_two_roundings) {
    RT_HOPPER_ONLY();
    const int64_t n = 70, d = 512, rows = 200;
    for (const DType type : {DType::q4_k, DType::q6_k, DType::bf16}) {
        OpContext op(1, int64_t{16} << 20);
        op.ctx.family = Family::prefill;
        const RandomWeight m({type}, rows, d, 3), other({DType::q8_0}, 64, d, 4);
        const Weight w = with_copy(op, m.w), plain = op.weight(other.w);
        const std::vector<float> values = normals(static_cast<size_t>(n * d), 5), exact = m.dequantized(),
                                 rounded = values_of_copy(op, w);
        const Tensor x = op.tensor(values, {n, d});
        const Weight* const group[] = {&plain, &w};
        const std::vector<Tensor> y = ops::matmul_group(op.ctx, group, x);
        const std::vector<float> got = values_of(y[1]), beside = values_of(y[0]);
        expect_same_bits(beside, values_of(ops::matmul(op.ctx, plain, x)), "a matrix without a copy");
        BoundCheck check;
        double sum_error = 0, sum_value = 0;
        for (int64_t r = 0; r < n; ++r)
            for (int64_t c = 0; c < rows; ++c) {
                double value = 0, off = 0, magnitude = 0;
                for (int64_t i = 0; i < d; ++i) {
                    const double a = values[static_cast<size_t>(r * d + i)], b = exact[static_cast<size_t>(c * d + i)],
                                 rb = rounded[static_cast<size_t>(c * d + i)];
                    // 2^-10 of the scale is at most 2^-17 of the largest, which is below 6 here.
                    const double ea = std::max(0x1p-4 * std::abs(a), 6 * 0x1p-17);
                    value += a * b;
                    off += std::abs(a) * std::abs(b - rb) + ea * std::abs(rb);
                    magnitude += (std::abs(a) + ea) * std::abs(rb);
                }
                check.add(got[static_cast<size_t>(r * rows + c)], value,
                          off + (4 * 33 * 0x1p-13 + 4 * 0x1p-23) * magnitude);
                sum_error += std::pow(got[static_cast<size_t>(r * rows + c)] - value, 2);
                sum_value += value * value;
            }
        EXPECT_LE(check.worst(), 1.0) << dtype_name(type);
        // Both roundings are even over +-2^-4 at most: about 2^-4 / sqrt(3) / sqrt(2) of a value each on average.
        EXPECT_LT(std::sqrt(sum_error / sum_value), 0.05) << dtype_name(type);
        EXPECT_GT(std::sqrt(sum_error / sum_value), 0.005) << "nothing was rounded";
    }
}

/// A sparse layer whose weights have copies.
struct CopiedLayer {
    static constexpr int64_t kHidden = 256, kWidth = 384, kExperts = 12, kTopK = 3;
    std::vector<RandomWeight> owned;
    ops::ExpertWeights placed;
    RandomWeight router{{DType::f32}, kExperts, kHidden, 91};
    Weight placed_router, shared[3];
    std::span<const float> norm;

    explicit CopiedLayer(OpContext& op) {
        const auto make = [&](bool down, uint64_t seed) {
            owned.emplace_back(WeightKind{DType::q8_0}, down ? kHidden : kWidth, down ? kWidth : kHidden, seed);
            return owned.back().w;
        };
        std::vector<Weight> all[3];
        for (uint64_t i = 0; i < 3 * kExperts; ++i) all[i % 3].push_back(make(i % 3 == 2, i));
        placed = {op.experts(all[0]), op.experts(all[1]), op.experts(all[2])};
        for (auto* stack : {&placed.gate, &placed.up, &placed.down}) add_copies(op, *stack);
        for (int i = 0; i < 3; ++i) shared[i] = with_copy(op, make(i == 2, 92 + static_cast<uint64_t>(i)));
        placed_router = op.weight(router.w);
        norm = op.floats(normals(kHidden, 95));
    }
    ops::SharedExpert shared_expert() const { return {&shared[0], &shared[1], &shared[2]}; }
    ops::MoeResult operator()(OpContext& op, Tensor& x) const {
        return ops::moe_add(op.ctx, x, {norm, 1e-6f}, {&placed_router, {}, kTopK, 2.5f, true}, placed, shared_expert());
    }
};

TEST(PrefillFp8Ops, a_feed_forward_layer_equals_its_products) {
    RT_HOPPER_ONLY();
    const int64_t n = 150;
    OpContext op(1, int64_t{64} << 20);
    op.ctx.family = Family::prefill;
    const CopiedLayer layer(op);
    const Tensor x = op.tensor(test::random_rows(n, CopiedLayer::kHidden, 96), {n, CopiedLayer::kHidden});
    const Tensor y = ops::swiglu_ffn(op.ctx, x, layer.shared[0], layer.shared[1], layer.shared[2]);
    const Tensor act =
        ops::swiglu(op.ctx, ops::matmul(op.ctx, layer.shared[0], x), ops::matmul(op.ctx, layer.shared[1], x));
    expect_same_bits(values_of(y), values_of(ops::matmul(op.ctx, layer.shared[2], act)), "swiglu_ffn");
}

TEST(PrefillFp8Ops, a_sparse_layer_equals_its_experts) {
    RT_HOPPER_ONLY();
    const int64_t n = 40, d = CopiedLayer::kHidden, k = CopiedLayer::kTopK;
    OpContext op(1, int64_t{64} << 20);
    op.ctx.family = Family::prefill;
    const CopiedLayer layer(op);
    Tensor x = op.tensor(test::random_rows(n, d, 96), {n, d});
    const Tensor before = op.tensor(values_of(x), {n, d});
    const ops::MoeResult result = layer(op, x);
    const Tensor h = ops::rms_norm(op.ctx, before, layer.norm, 1e-6f);
    std::vector<std::vector<float>> each;
    for (size_t e = 0; e < CopiedLayer::kExperts; ++e)
        each.push_back(
            values_of(ops::swiglu_ffn(op.ctx, h, layer.placed.gate[e], layer.placed.up[e], layer.placed.down[e])));
    const std::vector<float> of_shared =
        values_of(ops::swiglu_ffn(op.ctx, h, layer.shared[0], layer.shared[1], layer.shared[2]));
    const auto experts = values_of<int32_t>(result.routing.experts);
    const std::vector<float> weights = values_of(result.routing.weights), got = values_of(result.y);
    for (int64_t r = 0; r < n; ++r)
        for (int64_t c = 0; c < d; ++c) {
            float sum = 0;
            for (int64_t i = 0; i < k; ++i) {
                const auto at = static_cast<size_t>(r * k + i);
                const float term =
                    weights[at] * test::rounded(each[static_cast<size_t>(experts[at])][static_cast<size_t>(r * d + c)]);
                sum = i == 0 ? term : sum + term;
            }
            sum += test::rounded(of_shared[static_cast<size_t>(r * d + c)]);
            ASSERT_EQ(got[static_cast<size_t>(r * d + c)], sum) << r << " " << c;
        }
    expect_same_bits(values_of(ops::moe_swiglu(op.ctx, h, result.routing, layer.placed, layer.shared_expert())), got,
                     "moe_swiglu");
}

TEST(PrefillFp8Ops, chunks_do_not_change_a_bit) {
    RT_HOPPER_ONLY();
    const int64_t n = fewer(700, 200);
    const std::vector<float> values = test::random_rows(n, CopiedLayer::kHidden, 96);
    OpContext op(1, int64_t{128} << 20);
    op.ctx.family = Family::prefill;
    const CopiedLayer layer(op);
    Tensor x = op.tensor(values, {n, CopiedLayer::kHidden});
    const std::vector<float> y = values_of(layer(op, x).y), after = values_of(x);
    for (const int64_t chunk : brief<int64_t>({1, 7, 64, 500, 129}, 2))
        for (int64_t begin = 0; begin < n; begin += std::max<int64_t>(chunk, 173)) {
            const int64_t count = std::min(chunk, n - begin), size = count * CopiedLayer::kHidden;
            const ArenaScope scope(*op.ctx.arena);
            const auto* rows = values.data() + begin * CopiedLayer::kHidden;
            Tensor part = op.tensor({rows, rows + size}, {count, CopiedLayer::kHidden});
            const std::vector<float> some = values_of(layer(op, part).y);
            ASSERT_TRUE(same_bits(some.data(), y.data() + begin * CopiedLayer::kHidden, some.size()))
                << chunk << " " << begin;
            ASSERT_TRUE(same_bits(values_of(part).data(), after.data() + begin * CopiedLayer::kHidden, some.size()));
        }
}

}  // namespace
}  // namespace riptide
