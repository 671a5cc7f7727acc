#include "ops/moe.h"

#include <gtest/gtest.h>

#include <numeric>

#include "ops/elementwise.h"
#include "ops/norm.h"
#include "tests/ops/op_fixture.h"
#include "tests/ops/prefill_parts.h"
#include "tests/ops/product_bound.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using test::RandomWeight;
using test::WeightKind;

// ---- routing -------------------------------------------------------------------------------------

Routed sigmoid_route(const std::vector<float>& logits, int64_t n, const std::vector<float>& bias, int64_t k,
                     float scale = 1, bool normalize = true) {
    OpContext op;
    const auto num_experts = static_cast<int64_t>(logits.size()) / n;
    const ops::Routing r =
        ops::route_sigmoid(op.ctx, op.tensor(logits, {n, num_experts}), op.floats(bias), k, scale, normalize);
    EXPECT_EQ(r.top_k, k);
    return {values_of<int32_t>(r.experts), values_of(r.weights)};
}

TEST(RouteSigmoid, chooses_the_largest_and_orders_by_rank) {
    const Routed r = sigmoid_route({0.0f, 3.0f, -1.0f, 2.0f}, 1, {}, 3);
    EXPECT_EQ(r.experts, (std::vector<int32_t>{1, 3, 0}));
    EXPECT_NEAR(std::accumulate(r.weights.begin(), r.weights.end(), 0.0f), 1.0f, 1e-6f);
    EXPECT_GT(r.weights[0], r.weights[1]);
}

TEST(RouteSigmoid, ties_go_to_the_lower_index) {
    EXPECT_EQ(sigmoid_route({1, 2, 2, 1, 2, 1}, 1, {}, 5).experts, (std::vector<int32_t>{1, 2, 4, 0, 3}));
    EXPECT_EQ(sigmoid_route(std::vector<float>(16, 0.5f), 1, {}, 4).experts, (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(RouteSigmoid, the_bias_selects_but_does_not_weigh) {
    const Routed r = sigmoid_route({0.0f, 1.0f, -2.0f}, 1, {0.0f, -5.0f, 5.0f}, 2, 2.5f, false);
    EXPECT_EQ(r.experts, (std::vector<int32_t>{2, 0}));
    EXPECT_NEAR(r.weights[0], 2.5 / (1 + std::exp(2.0)), 1e-6);
    EXPECT_NEAR(r.weights[1], 1.25, 1e-6);
}

TEST(RouteSigmoid, nan_is_chosen_last) {
    EXPECT_EQ(sigmoid_route({NAN, -100.0f, NAN, 1.0f}, 1, {}, 3, 1, false).experts, (std::vector<int32_t>{3, 1, 0}));
}

TEST(RouteSigmoid, is_within_rounding_of_the_double_reference_on_every_row) {
    const int64_t n = 200, num_experts = 256, k = 8;
    const std::vector<float> logits = normals(n * num_experts, 3), bias = normals(num_experts, 4, 0.1f);
    const Routed r = sigmoid_route(logits, n, bias, k, 2.5f);
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

TEST(RouteSigmoid, any_number_of_experts_up_to_a_thousand) {
    for (const int64_t num_experts : {1, 2, 31, 33, 64, 255, 257, 1024})
        for (const int64_t k : {1, 2, 8, 32}) {
            if (k > num_experts) continue;
            const int64_t n = 5;
            std::vector<float> logits;  // far apart, in random order: no rounding decides
            for (int64_t r = 0; r < n; ++r) {
                std::vector<float> row(static_cast<size_t>(num_experts));
                for (size_t e = 0; e < row.size(); ++e) row[e] = static_cast<float>(e) * 0.01f - 5.0f;
                std::shuffle(row.begin(), row.end(), std::mt19937_64(static_cast<uint64_t>(num_experts * n + r)));
                logits.insert(logits.end(), row.begin(), row.end());
            }
            const Routed routed = sigmoid_route(logits, n, {}, k, 1.5f, k % 2 == 0);
            for (int64_t r = 0; r < n; ++r) {
                std::vector<int32_t> experts(static_cast<size_t>(k));
                std::vector<double> weights(static_cast<size_t>(k));
                ops::route_sigmoid_ref<double>(logits.data() + r * num_experts, nullptr, num_experts, k, 1.5f,
                                               k % 2 == 0, experts.data(), weights.data());
                for (size_t j = 0; j < experts.size(); ++j) {
                    const size_t at = static_cast<size_t>(r * k) + j;
                    ASSERT_EQ(routed.experts[at], experts[j]) << num_experts << " experts, rank " << j;
                    ASSERT_NEAR(routed.weights[at], weights[j], (16 + static_cast<double>(k)) * 0x1p-24 * weights[j]);
                }
            }
        }
}

TEST(RouteSigmoid, absurd_counts_are_refused) {
    EXPECT_THROW(sigmoid_route({1, 2, 3}, 1, {}, 4), Error);
    EXPECT_THROW(sigmoid_route({1, 2, 3}, 1, {}, 0), Error);
    EXPECT_THROW(sigmoid_route({1, 2, 3}, 1, {1, 2}, 1), Error);
}

// ---- experts -------------------------------------------------------------------------------------

struct SmallExperts {
    std::vector<RandomWeight> owned;  // gate, up, down of each expert

    SmallExperts(const WeightKind& gate, const WeightKind& down, int64_t count, int64_t hidden, int64_t width) {
        owned.reserve(static_cast<size_t>(3 * count));
        for (int64_t e = 0; e < count; ++e) {
            const auto seed = static_cast<uint64_t>(100 * e);
            owned.emplace_back(gate, width, hidden, seed + 1);
            owned.emplace_back(gate, width, hidden, seed + 2);
            owned.emplace_back(down, hidden, width, seed + 3);
        }
    }
    const Weight& host(size_t expert, size_t which) const { return owned[3 * expert + which].w; }

    ops::ExpertWeights placed(OpContext& op) const {
        std::vector<Weight> all[3];
        for (size_t i = 0; i < owned.size(); ++i) all[i % 3].push_back(owned[i].w);
        return {op.experts(all[0]), op.experts(all[1]), op.experts(all[2])};
    }
};

/// Random weights for chosen experts, on both sides.
struct ChosenExperts {
    int64_t k;
    std::vector<int32_t> experts;
    std::vector<float> weights;

    ChosenExperts(const std::vector<int32_t>& experts_, int64_t k_, uint64_t seed)
        : k(k_), experts(experts_), weights(normals(experts_.size(), seed)) {}
    int64_t rows() const { return static_cast<int64_t>(experts.size()) / k; }
    ops::Routing routing(OpContext& op) const {
        return {k, op.int_tensor(experts, {rows(), k}), op.tensor(weights, {rows(), k})};
    }
};

/// The definition, row by row and expert by expert, from the ops that it names.
std::vector<float> composition(OpContext& op, const Tensor& x, const ChosenExperts& chosen,
                               const ops::ExpertWeights& w) {
    std::vector<float> y;
    for (int64_t i = 0; i < x.rows(); ++i) {
        const ArenaScope scope(*op.ctx.arena);
        const Tensor row(x.row(i), DType::f32, {1, x.shape[1]});
        std::vector<float> sum;
        for (int64_t j = 0; j < chosen.k; ++j) {
            const auto at = static_cast<size_t>(i * chosen.k + j), e = static_cast<size_t>(chosen.experts[at]);
            const Tensor z =
                ops::swiglu(op.ctx, ops::matmul(op.ctx, w.gate[e], row), ops::matmul(op.ctx, w.up[e], row));
            const std::vector<float> d = values_of(ops::matmul(op.ctx, w.down[e], z));
            if (j == 0) sum.assign(d.size(), 0.0f);
            for (size_t c = 0; c < d.size(); ++c) {
                const float term = chosen.weights[at] * d[c];
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

// The decode family: prefill applies a shorter exponential in front of bf16; see the bound below.
void expect_composition(const SmallExperts& experts, int64_t hidden, const ChosenExperts& chosen, int threads) {
    OpContext op(threads);
    if (chosen.rows() > most_rows(op.ctx)) return;
    const ops::ExpertWeights weights = experts.placed(op);
    const Tensor x = op.tensor(test::random_rows(chosen.rows(), hidden, 9), {chosen.rows(), hidden});
    const std::vector<float> y = values_of(ops::moe_swiglu(op.ctx, x, chosen.routing(op), weights));
    const std::string what = fmt::format("{} {}, {} rows", dtype_name(experts.host(0, 0).dtype),
                                         dtype_name(experts.host(0, 2).dtype), chosen.rows());
    expect_same_bits(y, composition(op, x, chosen, weights), what.c_str());
}

struct MoeCase {
    WeightKind gate, down;
    int64_t hidden, width;
};

const MoeCase kMoeCases[] = {{{DType::q4_k}, {DType::q6_k}, 256, 512},
                             {{DType::iq3_s}, {DType::q2_k}, 512, 256},
                             {{DType::q3_k}, {DType::iq2_xs}, 256, 512},
                             {{DType::bf16}, {DType::bf16}, 48, 40},
                             {{DType::f32}, {DType::f32}, 24, 97},
                             {{DType::bf16}, {DType::f32}, 36, 40},
                             {{DType::f32}, {DType::bf16}, 33, 64},
                             {{DType::q8_0}, {DType::q5_0}, 96, 160},
                             {{DType::f16}, {DType::q8_0}, 40, 96},
                             {{DType::q8_0}, {DType::f32}, 64, 33},
                             {{DType::i4_pack, DType::bf16, 1, 32}, {DType::f8_e4m3, DType::bf16, 128, 128}, 64, 48}};

TEST(MoeSwiglu, equals_the_composition_bit_for_bit) {
    for (const MoeCase& c : kMoeCases) {
        const SmallExperts experts(c.gate, c.down, 7, c.hidden, c.width);
        for (const int64_t n : brief<int64_t>({1, 5, 2, 9, 40}, 1))
            for (const int threads : {1, 3})
                if (threads == 1 || test_gpu() == nullptr)
                    expect_composition(experts, c.hidden, {random_experts(n, 3, 7, 5), 3, 10}, threads);
    }
}

TEST(MoeSwiglu, shows_what_each_matrix_multiplies_and_keeps_its_bits) {
    if (test_gpu() != nullptr) GTEST_SKIP() << "on_input sees the CPU";
    const int64_t k = 3, hidden = 64, width = 96;
    const SmallExperts experts({DType::q8_0}, {DType::q5_0}, 7, hidden, width);
    const RandomWeight gate({DType::q8_0}, 32, hidden, 11), up({DType::q8_0}, 32, hidden, 12),
        down({DType::q8_0}, hidden, 32, 13);
    for (const int64_t n : {2, 40}) {
        OpContext op;
        const ops::ExpertWeights weights = experts.placed(op);
        const ChosenExperts chosen(random_experts(n, k, 7, 5), k, 10);
        const Tensor x = op.tensor(test::random_rows(n, hidden, 9), {n, hidden});
        const ops::SharedExpert shared{&gate.w, &up.w, &down.w};
        const std::vector<float> quiet = values_of(ops::moe_swiglu(op.ctx, x, chosen.routing(op), weights, shared));
        std::map<const void*, std::vector<float>> seen;
        op.ctx.on_input = [&](const Weight& w, const Tensor& rows) {
            EXPECT_EQ(rows.shape[1], w.cols);
            EXPECT_TRUE(seen.emplace(w.data, values_of(rows)).second) << "shown twice";
        };
        expect_same_bits(values_of(ops::moe_swiglu(op.ctx, x, chosen.routing(op), weights, shared)), quiet, "y");
        op.ctx.on_input = nullptr;
        size_t used = 3;
        EXPECT_EQ(seen[gate.w.data], values_of(x));
        EXPECT_EQ(seen[down.w.data].size(), static_cast<size_t>(n * 32));
        for (size_t e = 0; e < 7; ++e) {
            std::vector<float> rows;
            for (int64_t i = 0; i < n * k; ++i)
                if (chosen.experts[static_cast<size_t>(i)] == static_cast<int32_t>(e))
                    rows.insert(rows.end(), x.row(i / k), x.row(i / k) + hidden);
            if (rows.empty()) continue;
            used += 3;
            EXPECT_EQ(seen[weights.gate[e].data], rows);
            EXPECT_EQ(seen[weights.up[e].data], rows);
            const Tensor input(rows.data(), DType::f32, {std::ssize(rows) / hidden, hidden});
            expect_same_bits(seen[weights.down[e].data],
                             values_of(ops::swiglu(op.ctx, ops::matmul(op.ctx, weights.gate[e], input),
                                                   ops::matmul(op.ctx, weights.up[e], input))),
                             "hidden rows");
        }
        EXPECT_EQ(seen.size(), used);
    }
}

TEST(MoeSwiglu, is_within_the_derived_bound) {
    const int64_t n = 5, k = 3;
    for (const MoeCase& c : kMoeCases)
        for (const Family family : test_families()) {
            const SmallExperts experts(c.gate, c.down, 7, c.hidden, c.width);
            const ChosenExperts chosen(random_experts(n, k, 7, 5), k, 10);
            OpContext op;
            op.ctx.family = family;
            const ops::ExpertWeights placed = experts.placed(op);
            const std::vector<float> x = normals(static_cast<size_t>(n * c.hidden), 9, 0.3f);
            const std::vector<float> y =
                values_of(ops::moe_swiglu(op.ctx, op.tensor(x, {n, c.hidden}), chosen.routing(op), placed));
            for (int64_t r = 0; r < n; ++r) {
                const std::vector<Near> in = exactly(x.data() + r * c.hidden, c.hidden);
                std::vector<Near> sum(static_cast<size_t>(c.hidden));
                for (int64_t j = 0; j < k; ++j) {
                    const auto at = static_cast<size_t>(r * k + j), e = static_cast<size_t>(chosen.experts[at]);
                    const std::vector<Near> gate = ProductBound(op.ctx, experts.host(e, 0), placed.gate[e])(in),
                                            up = ProductBound(op.ctx, experts.host(e, 1), placed.up[e])(in);
                    std::vector<Near> z;
                    for (size_t i = 0; i < gate.size(); ++i) z.push_back(swiglu_near(gate[i], up[i]));
                    const std::vector<Near> d = ProductBound(op.ctx, experts.host(e, 2), placed.down[e])(z);
                    const double w = chosen.weights[at];
                    // A GPU's prompts keep an expert's results in bf16.
                    const double kept = op.ctx.gpu != nullptr && family == Family::prefill ? 0x1p-8 : 0;
                    for (size_t i = 0; i < d.size(); ++i) {
                        sum[i].value += w * d[i].value;  // each term rounded once, each sum of them once
                        sum[i].error +=
                            std::abs(w) * (d[i].error + (kept + (1 + k) * kUnitF32 * (1 + kept)) * d[i].most());
                    }
                }
                expect_near(y.data() + r * c.hidden, sum,
                            fmt::format("{} {} {}, row {}", family_name(family), dtype_name(c.gate.type),
                                        dtype_name(c.down.type), r));
            }
        }
}

TEST(MoeSwiglu, all_rows_may_use_one_expert_and_others_none) {
    const SmallExperts experts({DType::q4_k}, {DType::q4_k}, 5, 256, 256);
    expect_composition(experts, 256, {std::vector<int32_t>(30, 2), 10, 10}, 3);  // 30 pairs of 3 rows
    if (!brief_counts()) expect_composition(experts, 256, {std::vector<int32_t>(30, 2), 10, 10}, 16);
    expect_composition(experts, 256, {std::vector<int32_t>(600, 3), 1, 10}, 3);
    expect_composition(experts, 256, {std::vector<int32_t>(fewer(200, 5), 1), 1, 10}, 3);
    expect_composition(experts, 256, {std::vector<int32_t>(7, 4), 1, 10}, 2);
}

TEST(MoeSwiglu, an_expert_may_come_twice_in_one_row) {
    const SmallExperts experts({DType::q8_0}, {DType::q8_0}, 3, 64, 64);
    expect_composition(experts, 64, {{1, 1, 2, 0, 0, 0}, 3, 10}, 2);
}

TEST(MoeSwiglu, a_row_does_not_depend_on_its_company) {
    const SmallExperts experts({DType::q4_k}, {DType::q6_k}, 16, 256, 256);
    const int64_t n = fewer(100, 20), k = 4;
    const ChosenExperts chosen(random_experts(n, k, 16, 6), k, 10);
    for (const Family family : test_families()) {
        OpContext op(3);
        op.ctx.family = family;
        const ops::ExpertWeights weights = experts.placed(op);
        const Tensor x = op.tensor(test::random_rows(n, 256, 9), {n, 256});
        const ops::Routing r = chosen.routing(op);
        const std::vector<float> all = values_of(ops::moe_swiglu(op.ctx, x, r, weights));
        for (const int64_t first : fewer<std::vector<int64_t>>({0, 1, 50, 84}, {0, 4}))
            for (const int64_t count : brief<int64_t>({1, 2, 3, 5, 7, 16}, 3)) {
                const Tensor part(x.row(first), DType::f32, {count, 256});
                const ops::Routing some{k, Tensor(r.experts.row<int32_t>(first), DType::i32, {count, k}),
                                        Tensor(r.weights.row(first), DType::f32, {count, k})};
                const std::vector<float> y = values_of(ops::moe_swiglu(op.ctx, part, some, weights));
                EXPECT_TRUE(same_bits(y.data(), all.data() + first * 256, y.size()))
                    << family_name(family) << " " << first << " " << count;
            }
    }
}

/// A shared expert of 256 hidden values, on the device.
struct Shared {
    RandomWeight gate, up, down;
    Weight placed_gate, placed_up, placed_down;

    Shared(OpContext& op, int64_t width)
        : gate({DType::q4_k}, width, 256, 1), up({DType::q4_k}, width, 256, 2), down({DType::q5_k}, 256, width, 3) {
        placed_gate = op.weight(gate.w);
        placed_up = op.weight(up.w);
        placed_down = op.weight(down.w);
    }
    ops::SharedExpert pointers() const { return {&placed_gate, &placed_up, &placed_down}; }
};

TEST(MoeSwiglu, a_shared_expert_equals_adding_its_ffn) {
    const SmallExperts experts({DType::q4_k}, {DType::q6_k}, 7, 256, 512);
    for (const Family family : test_families())
        for (const int64_t width : {512, 768})
            for (const int64_t n : fewer<std::vector<int64_t>>({1, 2, 40, 256, 300}, {1, 18})) {
                if (brief_counts() && (n == 1) != (width == 768)) continue;
                OpContext op(3);
                op.ctx.family = family;
                if (n > most_rows(op.ctx)) continue;
                const ops::ExpertWeights weights = experts.placed(op);
                const Shared shared(op, width);
                const Tensor x = op.tensor(test::random_rows(n, 256, 9), {n, 256});
                const ops::Routing r = ChosenExperts(random_experts(n, 3, 7, 5), 3, 10).routing(op);
                Tensor expected = ops::moe_swiglu(op.ctx, x, r, weights);
                Tensor ffn = ops::swiglu_ffn(op.ctx, x, shared.placed_gate, shared.placed_up, shared.placed_down);
                // A GPU's prompts keep the results of experts in bf16, and the shared one's if it is of their width.
                if (test_gpu() != nullptr && family == Family::prefill && width == 512) {
                    ffn = op.tensor(test::rounded(values_of(ffn)), {n, 256});
                }
                ops::add(op.ctx, expected, ffn);
                const Tensor y = ops::moe_swiglu(op.ctx, x, r, weights, shared.pointers());
                expect_same_bits(values_of(y), values_of(expected),
                                 fmt::format("{} {} {}", family_name(family), width, n).c_str());
            }
}

/// The logits of a GPU's prefill family against the double reference: d fused multiply-adds, each of which rounds a sum
/// that is at most sum |w h|.
void expect_f32_logits(const Tensor& logits, const RandomWeight& router, const Tensor& h, const std::string& what) {
    const std::vector<float> got = values_of(logits), w = router.dequantized(), x = values_of(h);
    const int64_t n = h.rows(), d = h.shape[1], experts = router.w.rows;
    ASSERT_EQ(std::ssize(got), n * experts) << what;
    BoundCheck check;
    for (int64_t r = 0; r < n; ++r)
        for (int64_t e = 0; e < experts; ++e) {
            double value = 0, magnitude = 0;
            for (int64_t c = 0; c < d; ++c) {
                const double product = double{w[static_cast<size_t>(e * d + c)]} * x[static_cast<size_t>(r * d + c)];
                value += product;
                magnitude += std::abs(product);
            }
            check.add(got[static_cast<size_t>(r * experts + e)], value, static_cast<double>(d) * kUnitF32 * magnitude);
        }
    EXPECT_LE(check.worst(), 1.0) << what;
}

TEST(MoeAdd, equals_norm_router_experts_and_add) {
    const SmallExperts experts({DType::q4_k}, {DType::q6_k}, 24, 256, 512);
    const RandomWeight router({DType::f32}, 24, 256, 5);
    const std::vector<float> bias = normals(24, 7, 0.1f), norm_weight = normals(256, 8, 0.1f);
    for (const Family family : test_families())
        for (const bool with_shared : {true, false})
            for (const int64_t n : fewer<std::vector<int64_t>>({1, 2, 3, 9, 40, 256, 300}, {1, 18})) {
                if (brief_counts() && n > 1 && !with_shared) continue;
                OpContext op(3);
                op.ctx.family = family;
                if (n > most_rows(op.ctx)) continue;
                const ops::ExpertWeights weights = experts.placed(op);
                const Shared owned(op, 512);
                const ops::SharedExpert shared = with_shared ? owned.pointers() : ops::SharedExpert{};
                const Weight w = op.weight(router.w);
                const ops::Router how{&w, op.floats(bias), fewer(8, 3), 2.5f, true};
                const ops::Norm norm{op.floats(norm_weight), 1e-6f};
                const std::vector<float> values = test::random_rows(n, 256, 9);
                Tensor x = op.tensor(values, {n, 256}), expected = op.tensor(values, {n, 256});
                const ops::MoeResult result = ops::moe_add(op.ctx, x, norm, how, weights, shared);

                const Tensor h = ops::rms_norm(op.ctx, expected, norm.weight, norm.eps);
                // Prefill on a GPU: matmul's logits are rounded to bf16, moe_add's are not. The rest follows from them.
                const bool own_logits = family == Family::prefill;
                const Tensor logits = own_logits ? result.logits : ops::matmul(op.ctx, w, h);
                const ops::Routing r =
                    ops::route_sigmoid(op.ctx, logits, how.bias, how.top_k, how.scale, how.normalize);
                const Tensor y = ops::moe_swiglu(op.ctx, h, r, weights, shared);
                ops::add(op.ctx, expected, y);
                const std::string what = fmt::format("{} {} rows", family_name(family), n);
                if (own_logits) expect_f32_logits(result.logits, router, h, what + ": logits");
                else expect_same_bits(values_of(result.logits), values_of(logits), (what + ": logits").c_str());
                EXPECT_EQ(values_of<int32_t>(result.routing.experts), values_of<int32_t>(r.experts)) << what;
                expect_same_bits(values_of(result.routing.weights), values_of(r.weights), (what + ": weights").c_str());
                expect_same_bits(values_of(result.y), values_of(y), (what + ": y").c_str());
                expect_same_bits(values_of(x), values_of(expected), (what + ": x").c_str());
            }
}

/// Qwen3.5's layers: experts by softmax, a shared expert that counts the sigmoid of its own logit. A GPU's prompts have
/// that logit in f32, where matmul rounds to bf16: then the sum is bounded.
TEST(MoeAdd, equals_its_parts_with_softmax_and_a_share_of_the_shared_expert) {
    const SmallExperts experts({DType::q4_k}, {DType::q6_k}, 24, 256, 512);
    const RandomWeight router({DType::f32}, 24, 256, 5), share({DType::bf16}, 1, 256, 6);
    const std::vector<float> norm_weight = normals(256, 8, 0.1f);
    for (const Family family : test_families())
        for (const int64_t width : {512, 768})
            for (const int64_t n : fewer<std::vector<int64_t>>({1, 2, 3, 9, 40, 256, 300}, {1, 18})) {
                if (brief_counts() && n > 1 && width != 512) continue;
                OpContext op(3);
                op.ctx.family = family;
                if (n > most_rows(op.ctx)) continue;
                const ops::ExpertWeights weights = experts.placed(op);
                const Shared owned(op, width);
                const Weight w = op.weight(router.w), share_w = op.weight(share.w);
                ops::SharedExpert shared = owned.pointers();
                shared.share = &share_w;
                const ops::Router how{.w = &w, .bias = {}, .top_k = fewer(8, 3), .softmax = true};
                const ops::Norm norm{op.floats(norm_weight), 1e-6f};
                const std::vector<float> values = test::random_rows(n, 256, 9);
                Tensor x = op.tensor(values, {n, 256}), expected = op.tensor(values, {n, 256});
                const ops::MoeResult result = ops::moe_add(op.ctx, x, norm, how, weights, shared);

                const Tensor h = ops::rms_norm(op.ctx, expected, norm.weight, norm.eps);
                const bool own_logits = family == Family::prefill;
                const Tensor logits = own_logits ? result.logits : ops::matmul(op.ctx, w, h);
                const ops::Routing r = ops::route_softmax(op.ctx, logits, how.top_k);
                const std::string what = fmt::format("{}, width {}, {} rows", family_name(family), width, n);
                if (own_logits) expect_f32_logits(result.logits, router, h, what + ": logits");
                else expect_same_bits(values_of(result.logits), values_of(logits), (what + ": logits").c_str());
                EXPECT_EQ(values_of<int32_t>(result.routing.experts), values_of<int32_t>(r.experts)) << what;
                expect_same_bits(values_of(result.routing.weights), values_of(r.weights), (what + ": weights").c_str());
                if (test_gpu() == nullptr || family != Family::prefill) {
                    const Tensor y = ops::moe_swiglu(op.ctx, h, r, weights, shared);
                    ops::add(op.ctx, expected, y);
                    expect_same_bits(values_of(result.y), values_of(y), (what + ": y").c_str());
                    expect_same_bits(values_of(x), values_of(expected), (what + ": x").c_str());
                    continue;
                }
                const std::vector<float> sum = values_of(ops::moe_swiglu(op.ctx, h, r, weights)), rows = values_of(h);
                std::vector<float> ffn = values_of(ops::swiglu_ffn(op.ctx, h, *shared.gate, *shared.up, *shared.down));
                if (width == 512) ffn = test::rounded(ffn);
                const std::vector<float> y = values_of(result.y), gate = share.dequantized();
                BoundCheck check;
                for (int64_t i = 0; i < n; ++i) {
                    double logit = 0, magnitude = 0;
                    for (int64_t c = 0; c < 256; ++c) {
                        const double product =
                            double{gate[static_cast<size_t>(c)]} * rows[static_cast<size_t>(i * 256 + c)];
                        logit += product;
                        magnitude += std::abs(product);
                    }
                    const double part = 1 / (1 + std::exp(-logit));
                    for (int64_t c = 0; c < 256; ++c) {
                        const auto at = static_cast<size_t>(i * 256 + c);
                        const double term = part * ffn[at];
                        check.add(y[at], sum[at] + term,
                                  kUnitF32 * ((256 * magnitude + 8) * std::abs(term) + 2 * std::abs(sum[at] + term)));
                    }
                }
                EXPECT_LE(check.worst(), 1.0) << what;
            }
}

// silu(g) * u of 1e5 * 1e5 is far outside f16, as in late layers of real models.
TEST(MoeSwiglu, the_intermediate_may_leave_the_range_of_f16) {
    const SmallExperts experts({DType::q8_0}, {DType::q8_0}, 2, 64, 64);
    std::vector<float> x = test::random_rows(2, 64, 9);
    for (float& v : x) v *= 1e5f;
    for (const Family family : test_families()) {
        OpContext op;
        op.ctx.family = family;
        const ops::ExpertWeights weights = experts.placed(op);
        const ops::Routing r = ChosenExperts({0, 1, 1, 0}, 2, 10).routing(op);
        for (float v : values_of(ops::moe_swiglu(op.ctx, op.tensor(x, {2, 64}), r, weights)))
            EXPECT_TRUE(std::isfinite(v));
    }
}

TEST(MoeSwiglu, shapes_that_do_not_fit_are_refused) {
    const SmallExperts experts({DType::q8_0}, {DType::q8_0}, 2, 64, 96);
    OpContext op;
    ops::ExpertWeights weights = experts.placed(op);
    const ops::Routing r = ChosenExperts({0, 1}, 2, 10).routing(op);
    EXPECT_THROW(ops::moe_swiglu(op.ctx, op.tensor(std::vector<float>(32), {1, 32}), r, weights), Error);
    weights.up[1].rows = 64;
    EXPECT_THROW(ops::moe_swiglu(op.ctx, op.tensor(std::vector<float>(64), {1, 64}), r, weights), Error);
}

}  // namespace
}  // namespace riptide
