#include "ops/moe.h"

#include <gtest/gtest.h>

#include <numeric>

#include "ops/elementwise.h"
#include "tests/ops/op_fixture.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using test::RandomWeight;
using test::WeightKind;

// ---- routing -------------------------------------------------------------------------------------

struct Routed {
    std::vector<int32_t> experts;
    std::vector<float> weights;
};
Routed route(const std::vector<float>& logits, int64_t n, const std::vector<float>& bias, int64_t k, float scale = 1,
             bool normalize = true) {
    OpContext op;
    const auto num_experts = static_cast<int64_t>(logits.size()) / n;
    const ops::Routing r = ops::route_sigmoid(op.ctx, op.tensor(logits, {n, num_experts}), bias, k, scale, normalize);
    EXPECT_EQ(r.top_k, k);
    const auto* experts = r.experts.row<int32_t>(0);
    return {{experts, experts + n * k}, values_of(r.weights)};
}

TEST(RouteSigmoid, chooses_the_largest_and_orders_by_rank) {
    const Routed r = route({0.0f, 3.0f, -1.0f, 2.0f}, 1, {}, 3);
    EXPECT_EQ(r.experts, (std::vector<int32_t>{1, 3, 0}));
    EXPECT_NEAR(std::accumulate(r.weights.begin(), r.weights.end(), 0.0f), 1.0f, 1e-6f);
    EXPECT_GT(r.weights[0], r.weights[1]);
}

TEST(RouteSigmoid, ties_go_to_the_lower_index) {
    EXPECT_EQ(route({1, 2, 2, 1, 2, 1}, 1, {}, 5).experts, (std::vector<int32_t>{1, 2, 4, 0, 3}));
    EXPECT_EQ(route(std::vector<float>(16, 0.5f), 1, {}, 4).experts, (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(RouteSigmoid, the_bias_selects_but_does_not_weigh) {
    const Routed r = route({0.0f, 1.0f, -2.0f}, 1, {0.0f, -5.0f, 5.0f}, 2, 2.5f, false);
    EXPECT_EQ(r.experts, (std::vector<int32_t>{2, 0}));
    EXPECT_NEAR(r.weights[0], 2.5 / (1 + std::exp(2.0)), 1e-6);
    EXPECT_NEAR(r.weights[1], 1.25, 1e-6);
}

TEST(RouteSigmoid, nan_is_chosen_last) {
    EXPECT_EQ(route({NAN, -100.0f, NAN, 1.0f}, 1, {}, 3, 1, false).experts, (std::vector<int32_t>{3, 1, 0}));
}

TEST(RouteSigmoid, is_within_rounding_of_the_double_reference_on_every_row) {
    const int64_t n = 200, num_experts = 256, k = 8;
    const std::vector<float> logits = normals(n * num_experts, 3), bias = normals(num_experts, 4, 0.1f);
    const Routed r = route(logits, n, bias, k, 2.5f);
    for (int64_t i = 0; i < n; ++i) {
        std::vector<int32_t> experts(k);
        std::vector<double> weights(k);
        ops::route_sigmoid_ref<double>(logits.data() + i * num_experts, bias.data(), num_experts, k, 2.5f, true,
                                       experts.data(), weights.data());
        for (int64_t j = 0; j < k; ++j) {
            ASSERT_EQ(r.experts[static_cast<size_t>(i * k + j)], experts[static_cast<size_t>(j)]);
            // exp, 1 + e, 1 / ., k sums, division, product: fewer than 16 roundings, and exp doubles the relative error
            // at most.
            const double w = weights[static_cast<size_t>(j)];
            ASSERT_NEAR(r.weights[static_cast<size_t>(i * k + j)], w, 16 * 0x1p-24 * w);
        }
    }
}

TEST(RouteSigmoid, absurd_counts_are_refused) {
    EXPECT_THROW(route({1, 2, 3}, 1, {}, 4), Error);
    EXPECT_THROW(route({1, 2, 3}, 1, {}, 0), Error);
    EXPECT_THROW(route({1, 2, 3}, 1, {1, 2}, 1), Error);
}

// ---- experts -------------------------------------------------------------------------------------

struct Experts {
    std::vector<RandomWeight> owned;
    ops::ExpertWeights weights;

    Experts(const WeightKind& gate, const WeightKind& down, int64_t count, int64_t hidden, int64_t width) {
        owned.reserve(static_cast<size_t>(3 * count));
        for (int64_t e = 0; e < count; ++e) {
            const auto seed = static_cast<uint64_t>(100 * e);
            owned.emplace_back(gate, width, hidden, seed + 1);
            weights.gate.push_back(owned.back().w);
            owned.emplace_back(gate, width, hidden, seed + 2);
            weights.up.push_back(owned.back().w);
            owned.emplace_back(down, hidden, width, seed + 3);
            weights.down.push_back(owned.back().w);
        }
    }
};

ops::Routing make_routing(OpContext& op, const std::vector<int32_t>& experts, int64_t k, uint64_t seed) {
    const auto n = static_cast<int64_t>(experts.size()) / k;
    ops::Routing r{k, op.ctx.alloc(DType::i32, {n, k}), op.tensor(normals(experts.size(), seed), {n, k})};
    std::copy(experts.begin(), experts.end(), r.experts.row<int32_t>(0));
    return r;
}

/// The definition, row by row and expert by expert, from the ops that it names.
std::vector<float> composition(OpContext& op, const Tensor& x, const ops::Routing& r, const ops::ExpertWeights& w) {
    std::vector<float> y;
    for (int64_t i = 0; i < x.rows(); ++i) {
        const Tensor row(x.row(i), DType::f32, {1, x.shape[1]});
        std::vector<float> sum;
        for (int64_t j = 0; j < r.top_k; ++j) {
            const auto e = static_cast<size_t>(r.experts.row<int32_t>(i)[j]);
            const Tensor z =
                ops::swiglu(op.ctx, ops::matmul(op.ctx, w.gate[e], row), ops::matmul(op.ctx, w.up[e], row));
            const std::vector<float> d = values_of(ops::matmul(op.ctx, w.down[e], z));
            const float weight = r.weights.row(i)[j];
            if (j == 0) sum.assign(d.size(), 0.0f);
            for (size_t c = 0; c < d.size(); ++c) {
                const float term = weight * d[c];
                sum[c] = j == 0 ? term : sum[c] + term;
            }
        }
        y.insert(y.end(), sum.begin(), sum.end());
    }
    return y;
}

std::vector<int32_t> random_experts(int64_t n, int64_t k, int64_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<int32_t> result, all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t i = 0; i < n; ++i) {
        std::shuffle(all.begin(), all.end(), random);
        result.insert(result.end(), all.begin(), all.begin() + k);
    }
    return result;
}

void expect_composition(const Experts& experts, int64_t hidden, const std::vector<int32_t>& chosen, int64_t k,
                        int threads) {
    OpContext op(threads);
    const auto n = static_cast<int64_t>(chosen.size()) / k;
    const Tensor x = op.tensor(test::random_rows(n, hidden, 9), {n, hidden});
    const ops::Routing r = make_routing(op, chosen, k, 10);
    const std::vector<float> y = values_of(ops::moe_swiglu(op.ctx, x, r, experts.weights));
    expect_same_bits(y, composition(op, x, r, experts.weights), "moe");
}

TEST(MoeSwiglu, equals_the_composition_bit_for_bit) {
    struct Case {
        WeightKind gate, down;
        int64_t hidden, width;
    };
    for (const Case& c :
         {Case{{DType::q4_k}, {DType::q6_k}, 256, 512}, Case{{DType::bf16}, {DType::bf16}, 48, 40},
          Case{{DType::f32}, {DType::f32}, 24, 97}, Case{{DType::q8_0}, {DType::q5_0}, 96, 160},
          Case{{DType::f16}, {DType::q8_0}, 40, 96}, Case{{DType::q8_0}, {DType::f32}, 64, 33},
          Case{{DType::i4_pack, DType::bf16, 1, 32}, {DType::f8_e4m3, DType::bf16, 128, 128}, 64, 48}}) {
        const Experts experts(c.gate, c.down, 7, c.hidden, c.width);
        for (int64_t n : {1, 2, 9, 40})
            for (int threads : {1, 3}) expect_composition(experts, c.hidden, random_experts(n, 3, 7, 5), 3, threads);
    }
}

TEST(MoeSwiglu, all_rows_may_use_one_expert_and_others_none) {
    const Experts experts({DType::q4_k}, {DType::q4_k}, 5, 256, 256);
    expect_composition(experts, 256, std::vector<int32_t>(600, 3), 1, 3);
    expect_composition(experts, 256, std::vector<int32_t>(7, 4), 1, 2);
}

TEST(MoeSwiglu, an_expert_may_come_twice_in_one_row) {
    const Experts experts({DType::q8_0}, {DType::q8_0}, 3, 64, 64);
    expect_composition(experts, 64, {1, 1, 2, 0, 0, 0}, 3, 2);
}

TEST(MoeSwiglu, a_row_does_not_depend_on_its_company) {
    const Experts experts({DType::q4_k}, {DType::q6_k}, 16, 256, 256);
    const int64_t n = 100, k = 4;
    const std::vector<int32_t> chosen = random_experts(n, k, 16, 6);
    OpContext op(3);
    const Tensor x = op.tensor(test::random_rows(n, 256, 9), {n, 256});
    const ops::Routing r = make_routing(op, chosen, k, 10);
    const std::vector<float> all = values_of(ops::moe_swiglu(op.ctx, x, r, experts.weights));
    for (int64_t first : {0, 1, 50, 93})
        for (int64_t count : {1, 2, 7}) {
            const Tensor part(x.row(first), DType::f32, {count, 256});
            const ops::Routing some{k, Tensor(r.experts.row<int32_t>(first), DType::i32, {count, k}),
                                    Tensor(r.weights.row(first), DType::f32, {count, k})};
            const std::vector<float> y = values_of(ops::moe_swiglu(op.ctx, part, some, experts.weights));
            EXPECT_TRUE(same_bits(y.data(), all.data() + first * 256, y.size())) << first << " " << count;
        }
}

TEST(MoeSwiglu, a_shared_expert_equals_adding_its_ffn) {
    const Experts experts({DType::q4_k}, {DType::q6_k}, 7, 256, 512);
    for (int64_t width : {512, 768})
        for (int64_t n : {1, 2, 40, 300}) {
            const RandomWeight gate({DType::q4_k}, width, 256, 1), up({DType::q4_k}, width, 256, 2),
                down({DType::q5_k}, 256, width, 3);
            OpContext op(3);
            const Tensor x = op.tensor(test::random_rows(n, 256, 9), {n, 256});
            const ops::Routing r = make_routing(op, random_experts(n, 3, 7, 5), 3, 10);
            Tensor expected = ops::moe_swiglu(op.ctx, x, r, experts.weights);
            ops::add(op.ctx, expected, ops::swiglu_ffn(op.ctx, x, gate.w, up.w, down.w));
            const Tensor y = ops::moe_swiglu(op.ctx, x, r, experts.weights, {&gate.w, &up.w, &down.w});
            expect_same_bits(values_of(y), values_of(expected), "shared expert");
        }
}

// silu(g) * u of 1e5 * 1e5 is far outside f16, as in late layers of real models.
TEST(MoeSwiglu, the_intermediate_may_leave_the_range_of_f16) {
    const Experts experts({DType::q8_0}, {DType::q8_0}, 2, 64, 64);
    OpContext op;
    std::vector<float> x = test::random_rows(2, 64, 9);
    for (float& v : x) v *= 1e5f;
    const Tensor input = op.tensor(x, {2, 64});
    const ops::Routing r = make_routing(op, {0, 1, 1, 0}, 2, 10);
    for (float v : values_of(ops::moe_swiglu(op.ctx, input, r, experts.weights))) EXPECT_TRUE(std::isfinite(v));
}

TEST(MoeSwiglu, shapes_that_do_not_fit_are_refused) {
    Experts experts({DType::q8_0}, {DType::q8_0}, 2, 64, 96);
    OpContext op;
    const ops::Routing r = make_routing(op, {0, 1}, 2, 10);
    EXPECT_THROW(ops::moe_swiglu(op.ctx, op.tensor(std::vector<float>(32), {1, 32}), r, experts.weights), Error);
    experts.weights.up[1].rows = 64;
    EXPECT_THROW(ops::moe_swiglu(op.ctx, op.tensor(std::vector<float>(64), {1, 64}), r, experts.weights), Error);
}

}  // namespace
}  // namespace riptide
