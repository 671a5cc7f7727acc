// The small ops of Qwen3.5: gates beside their heads, sigmoid gates, routing by softmax.
#include <numeric>

#include "ops/elementwise.h"
#include "ops/moe.h"
#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

TEST(split_gates, takes_heads_and_gates_apart_exactly) {
    for (const int64_t d : {1, 3, 4, 256})
        for (const int64_t heads : {1, 2, 5}) {
            OpContext op;
            const int64_t n = 7;
            const std::vector<float> x = normals(static_cast<size_t>(n * heads * 2 * d), 1);
            const ops::HeadsAndGates got = ops::split_gates(op.ctx, op.tensor(x, {n, heads * 2 * d}), heads);
            std::vector<float> values, gates;
            for (int64_t i = 0; i < n * heads; ++i) {
                const auto at = x.begin() + 2 * i * d;
                values.insert(values.end(), at, at + d);
                gates.insert(gates.end(), at + d, at + 2 * d);
            }
            EXPECT_EQ(values_of(got.heads), values);
            EXPECT_EQ(values_of(got.gates), gates);
        }
}

TEST(mul_sigmoid, stays_within_the_bound_of_the_double_reference) {
    for (const int64_t repeat : {1, 24, 768}) {  // each element, a head, a row
        OpContext op;
        const int64_t n = 9, width = 768;
        const std::vector<float> o = normals(static_cast<size_t>(n * width), 5);
        std::vector<float> g = normals(static_cast<size_t>(n * width / repeat), 6, 3.0f);
        const float extremes[] = {0.0f, -0.0f, 1e-30f, 20.0f, -20.0f, 87.0f, -87.0f, 1000.0f, -1000.0f};
        std::copy(std::begin(extremes), std::end(extremes), g.begin());
        Tensor y = op.tensor(o, {n, width});
        ops::mul_sigmoid(op.ctx, y, op.tensor(g, {n, width / repeat}), width / repeat);
        std::vector<double> expected(o.size());
        ops::mul_sigmoid_ref<double>(o.data(), g.data(), n * width, repeat, expected.data());
        const std::vector<float> found = values_of(y);
        BoundCheck check;
        // exp within 2 units, sum, quotient, product; below the normal range of f32 an absolute error remains.
        for (size_t i = 0; i < o.size(); ++i)
            check.add(found[i], expected[i], kUnitF32 * 8 * std::abs(expected[i]) + 0x1p-120);
        EXPECT_LE(check.worst(), 1.0) << repeat;
        EXPECT_GE(check.worst(), 0.02) << "the bound is too loose";
    }
}

TEST(mul_sigmoid, rows_do_not_depend_on_their_company) {
    OpContext op;
    const std::vector<float> o = normals(11 * 50, 7), g = normals(11 * 50, 8);
    Tensor all = op.tensor(o, {11, 50});
    ops::mul_sigmoid(op.ctx, all, op.tensor(g, {11, 50}), 50);
    const std::vector<float> together = values_of(all);
    for (size_t r = 0; r < 11; ++r) {
        const auto row = [&](const std::vector<float>& x) {
            return std::vector<float>(x.begin() + static_cast<ptrdiff_t>(r * 50),
                                      x.begin() + static_cast<ptrdiff_t>(r * 50 + 50));
        };
        Tensor one = op.tensor(row(o), {1, 50});
        ops::mul_sigmoid(op.ctx, one, op.tensor(row(g), {1, 50}), 50);
        EXPECT_EQ(values_of(one), row(together));
    }
}

Routed softmax_route(const std::vector<float>& logits, int64_t n, int64_t k) {
    OpContext op;
    const ops::Routing r =
        ops::route_softmax(op.ctx, op.tensor(logits, {n, static_cast<int64_t>(logits.size()) / n}), k);
    return {values_of<int32_t>(r.experts), values_of(r.weights)};
}

TEST(route_softmax, orders_by_rank_and_ties_go_to_the_lower_index) {
    EXPECT_EQ(softmax_route({0.0f, 3.0f, -1.0f, 2.0f}, 1, 3).experts, (std::vector<int32_t>{1, 3, 0}));
    EXPECT_EQ(softmax_route({1, 2, 2, 1, 2, 1}, 1, 5).experts, (std::vector<int32_t>{1, 2, 4, 0, 3}));
    EXPECT_EQ(softmax_route({NAN, -100.0f, NAN, 1.0f}, 1, 2).experts, (std::vector<int32_t>{3, 1}));
    EXPECT_EQ(softmax_route({30, 31, 32, 33}, 1, 2).experts, (std::vector<int32_t>{3, 2}))
        << "where sigmoids are all one";
}

TEST(route_softmax, weights_are_the_softmax_over_all_divided_by_that_of_the_chosen) {
    const int64_t n = 200, num_experts = 256, k = 8;
    const std::vector<float> logits = normals(n * num_experts, 3, 4.0f);
    const Routed r = softmax_route(logits, n, k);
    for (int64_t i = 0; i < n; ++i) {
        const float* row = logits.data() + i * num_experts;
        std::vector<int32_t> experts(k);
        std::vector<double> weights(k);
        ops::route_softmax_ref<double>(row, num_experts, k, experts.data(), weights.data());
        double all = 0, chosen = 0;
        for (int64_t e = 0; e < num_experts; ++e) all += std::exp(double{row[e]});
        for (const int32_t e : experts) chosen += std::exp(double{row[e]}) / all;
        for (int64_t j = 0; j < k; ++j) {
            const auto at = static_cast<size_t>(i * k + j);
            ASSERT_EQ(r.experts[at], experts[static_cast<size_t>(j)]);
            const double w = std::exp(double{row[r.experts[at]]}) / all / chosen;
            ASSERT_NEAR(weights[static_cast<size_t>(j)], w, 1e-12);
            // The difference of two logits, rounded (at most 16 here: 2^-20 in the exponent), exp, 8 sums, a quotient.
            ASSERT_NEAR(r.weights[at], w, (0x1p-20 + 16 * 0x1p-24) * w);
        }
    }
}

TEST(route_softmax, any_number_of_experts_up_to_a_thousand) {
    for (const int64_t num_experts : {1, 2, 31, 33, 64, 255, 257, 1024})
        for (const int64_t k : {1, 2, 8, 32}) {
            if (k > num_experts) continue;
            const std::vector<float> logits = normals(static_cast<size_t>(3 * num_experts), 5);
            const Routed r = softmax_route(logits, 3, k);
            for (int64_t i = 0; i < 3; ++i) {
                std::vector<int32_t> experts(static_cast<size_t>(k));
                std::vector<double> weights(static_cast<size_t>(k));
                ops::route_softmax_ref<double>(logits.data() + i * num_experts, num_experts, k, experts.data(),
                                               weights.data());
                const auto first = r.experts.begin() + i * k;
                EXPECT_EQ(std::vector<int32_t>(first, first + k), experts) << num_experts << " " << k;
            }
        }
}

}  // namespace
}  // namespace riptide
