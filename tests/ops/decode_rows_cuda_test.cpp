// A step of many rows on a GPU's decode family: each row has the bits it has alone, whatever kernel serves its step.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "ops/matmul.h"
#include "ops/moe.h"
#include "tests/ops/op_fixture.h"
#include "tests/ops/product_bound.h"
#include "tests/ops/row_alone.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using test::RandomWeight;
using test::WeightKind;

constexpr int64_t kRowCounts[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 64, 128, 256};
constexpr int64_t kFewRowCounts[] = {2, 8, 17};  // each kernel
constexpr int64_t kSources = 23;

/// run(rows) computes rows `rows` of some input; every result must be that of the row alone.
void expect_rows_alone(const std::string& what, const std::function<Results(const std::vector<int64_t>&)>& run) {
    std::vector<Results> alone;
    const int64_t sources = fewer<int64_t>(kSources, 2);
    for (int64_t i = 0; i < sources; ++i) alone.push_back(run({i}));
    for (const Results& r : alone)
        for (const std::vector<float>& values : r)
            for (const float v : values) ASSERT_TRUE(std::isfinite(v)) << what;
    for (const int64_t n : fewer<std::span<const int64_t>>(kRowCounts, kFewRowCounts)) {
        std::vector<int64_t> rows(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) rows[static_cast<size_t>(i)] = (i * 7 + n) % sources;
        const Results all = run(rows);
        for (size_t k = 0; k < all.size(); ++k) {
            const int64_t width = std::ssize(all[k]) / n;
            for (int64_t i = 0; i < n; ++i) {
                const std::vector<float>& expected = alone[static_cast<size_t>(rows[static_cast<size_t>(i)])][k];
                const std::vector<float> row(all[k].begin() + i * width, all[k].begin() + (i + 1) * width);
                expect_same_bits(row, expected, fmt::format("{}: {} rows, row {}, result {}", what, n, i, k).c_str());
                if (::testing::Test::HasFatalFailure()) return;
            }
        }
    }
}

std::vector<float> pick(const std::vector<float>& all, const std::vector<int64_t>& rows, int64_t width) {
    std::vector<float> out;
    for (const int64_t r : rows) out.insert(out.end(), all.begin() + r * width, all.begin() + (r + 1) * width);
    return out;
}

TEST(DecodeRows, matmul_groups_give_each_row_the_bits_it_has_alone) {
    RT_GPU_ONLY();
    const int64_t cols = 2048;
    OpContext op(1, int64_t{16} << 20);
    const Weight q4 = place_random(op, {DType::q4_k}, fewer(515, 67), cols, 1),
                 q6 = place_random(op, {DType::q6_k}, fewer(129, 33), cols, 2),
                 small = place_random(op, {DType::q4_k}, 7, cols, 3), gate = place_random(op, {DType::f32}, 9, cols, 4),
                 q5 = place_random(op, {DType::q5_k}, 33, cols, 5), q8 = place_random(op, {DType::q8_0}, 40, cols, 6);
    const ops::Norm norm = {op.floats(normals(static_cast<size_t>(cols), 7)), 1e-6f};
    const std::vector<float> x = test::random_rows(kSources, cols, 8);
    const std::vector<std::vector<const Weight*>> groups =
        brief<std::vector<const Weight*>>({{&q4},
                                           {&q6},
                                           {&q4, &small, &q6},
                                           {&q4, &q6, &gate},
                                           {&q5, &q4, &q8},
                                           {&small, &small, &q4, &q6, &q6, &q4, &q4, &q6, &small}},
                                          4);
    for (size_t g = 0; g < groups.size(); ++g)
        for (const bool normed : {true, false}) {
            if (brief_counts() && normed != (g % 2 == 0)) continue;
            expect_rows_alone(fmt::format("group {}, norm {}", g, normed), [&](const std::vector<int64_t>& rows) {
                op.poison();
                const Tensor t = op.tensor(pick(x, rows, cols), {std::ssize(rows), cols});
                Results out;
                if (normed) {
                    for (const Tensor& y : ops::norm_matmul_group(op.ctx, t, norm, groups[g]))
                        out.push_back(values_of(y));
                } else {
                    for (const Weight* w : groups[g]) out.push_back(values_of(ops::matmul(op.ctx, *w, t)));
                }
                return out;
            });
        }
}

TEST(DecodeRows, matmul_add_of_long_rows_gives_each_row_the_bits_it_has_alone) {
    RT_GPU_ONLY();
    for (const DType type : {DType::q4_k, DType::q5_k, DType::q6_k})
        for (const int64_t cols : brief<int64_t>({4096, 6144, 8192}, 1)) {
            OpContext op(1, int64_t{32} << 20);
            const int64_t outputs = fewer(101, 40);
            const Weight w = place_random(op, {type}, outputs, cols, 11);
            const std::vector<float> x = test::random_rows(kSources, cols, 12),
                                     residual = normals(static_cast<size_t>(kSources * outputs), 13);
            expect_rows_alone(fmt::format("{} {}", dtype_name(type), cols), [&](const std::vector<int64_t>& rows) {
                op.poison();
                const int64_t n = std::ssize(rows);
                const Tensor t = op.tensor(pick(x, rows, cols), {n, cols});
                Tensor r = op.tensor(pick(residual, rows, outputs), {n, outputs});
                const Tensor y = ops::matmul_add(op.ctx, w, t, r);
                return Results{values_of(y), values_of(r)};
            });
        }
}

/// Sizes of real models, with and without int8 rows that an earlier op left.
TEST(DecodeRows, attention_projections_give_each_row_the_bits_it_has_alone) {
    RT_GPU_ONLY();
    const int64_t outputs = fewer<int64_t>(2048, 128);
    for (const int64_t cols : {6144, 8192}) {
        OpContext op(1, int64_t{96} << 20);
        const Weight w = place_random(op, {DType::q4_k}, outputs, cols, 14);
        const std::vector<float> x = test::random_rows(kSources, cols, 15),
                                 residual = normals(static_cast<size_t>(kSources * outputs), 16);
        expect_rows_alone(fmt::format("{} columns", cols), [&](const std::vector<int64_t>& rows) {
            op.poison();
            const int64_t n = std::ssize(rows);
            const Tensor t = op.tensor(pick(x, rows, cols), {n, cols});
            Tensor r = op.tensor(pick(residual, rows, outputs), {n, outputs});
            const Tensor y = ops::matmul_add(op.ctx, w, t, r);
            return Results{values_of(y), values_of(r)};
        });
    }
}

TEST(DecodeRows, dense_layers_give_each_row_the_bits_it_has_alone) {
    RT_GPU_ONLY();
    const int64_t d = 2048, ff = fewer(4096, 512);
    OpContext op(1, int64_t{48} << 20);
    const Weight gate = place_random(op, {DType::q4_k}, ff, d, 21), up = place_random(op, {DType::q4_k}, ff, d, 22),
                 down = place_random(op, {DType::q6_k}, d, ff, 23);
    const ops::Norm norm = {op.floats(normals(static_cast<size_t>(d), 24)), 1e-6f};
    const std::vector<float> x = test::random_rows(kSources, d, 25);
    expect_rows_alone("dense layer", [&](const std::vector<int64_t>& rows) {
        op.poison();
        Tensor t = op.tensor(pick(x, rows, d), {std::ssize(rows), d});
        const Tensor y = ops::swiglu_ffn_add(op.ctx, t, norm, gate, up, down);
        return Results{values_of(y), values_of(t)};
    });
}

/// Experts of Laguna's sizes, as placed on the device.
struct LagunaExperts {
    OpContext op;
    int64_t top_k = fewer(8, 2), experts;
    std::vector<Weight> gate, up, down;
    Weight shared_gate, shared_up, shared_down, router;

    LagunaExperts(DType kind, DType down_kind, int64_t shared_ff, int64_t all = 24, int64_t outputs = 2048)
        : op(1, int64_t{96} << 20), experts(all) {
        std::vector<RandomWeight> owned;
        owned.reserve(static_cast<size_t>(3 * experts));
        const auto stack = [&](DType type, int64_t rows, int64_t cols, uint64_t seed) {
            std::vector<Weight> host;
            for (int64_t e = 0; e < experts; ++e) {
                owned.emplace_back(WeightKind{type}, rows, cols, seed + static_cast<uint64_t>(e));
                host.push_back(owned.back().w);
            }
            return op.experts(host);
        };
        gate = stack(kind, 512, 2048, 1000);
        up = stack(kind, 512, 2048, 2000);
        down = stack(down_kind, outputs, 512, 3000);
        shared_gate = place_random(op, {kind}, shared_ff, 2048, 31);
        shared_up = place_random(op, {kind}, shared_ff, 2048, 32);
        shared_down = place_random(op, {down_kind}, outputs, shared_ff, 33);
        router = place_random(op, {DType::f32}, experts, 2048, 34);
    }
    ops::ExpertWeights weights() const { return {gate, up, down}; }
    ops::SharedExpert shared() const { return {&shared_gate, &shared_up, &shared_down}; }
};

/// Rank k of source row s.
struct Choice {
    const char* name;
    std::function<int64_t(int64_t s, int64_t k)> expert;
};
const Choice kExpertChoices[] = {
    {"all alike", [](int64_t, int64_t k) { return 23 - k; }},
    {"three clusters", [](int64_t s, int64_t k) { return s % 3 * 8 + (k * 3 + s) % 8; }},
    {"spread", [](int64_t s, int64_t k) { return (s * 7 + k * 5) % 24; }},
    {"one expert common", [](int64_t s, int64_t k) { return k == 0 ? 5 : 6 + (s * 7 + k) % 18; }},
    {"an expert twice", [](int64_t s, int64_t k) { return k == 7 ? s % 24 : (s + k) % 24; }}};

TEST(DecodeRows, experts_give_each_row_the_bits_it_has_alone) {
    RT_GPU_ONLY();
    struct Case {
        DType kind, down;
        int64_t shared_ff;  // 0: no shared expert
    };
    for (const Case& c : brief<Case>({{DType::q4_k, DType::q6_k, 512},
                                      {DType::q4_k, DType::q4_k, 256},
                                      {DType::q6_k, DType::q4_k, 0},
                                      {DType::q5_k, DType::q8_0, 512},
                                      {DType::q5_k, DType::q5_k, 512}},
                                     2)) {
        LagunaExperts world(c.kind, c.down, std::max<int64_t>(c.shared_ff, 256));
        OpContext& op = world.op;
        const std::vector<float> x = test::random_rows(kSources, 2048, 41);
        std::vector<float> weights(static_cast<size_t>(kSources * world.top_k));
        for (size_t i = 0; i < weights.size(); ++i) weights[i] = 0.05f + 0.01f * static_cast<float>(i * 13 % 31);
        for (const Choice& choice :
             brief<Choice>({std::begin(kExpertChoices) + fewer(0, 2), std::end(kExpertChoices)}, 1))
            expect_rows_alone(
                fmt::format("{} {}, shared {}, {}", dtype_name(c.kind), dtype_name(c.down), c.shared_ff, choice.name),
                [&](const std::vector<int64_t>& rows) {
                    op.poison();
                    const int64_t n = std::ssize(rows);
                    std::vector<int32_t> ids;
                    for (const int64_t s : rows)
                        for (int64_t k = 0; k < world.top_k; ++k)
                            ids.push_back(static_cast<int32_t>(choice.expert(s, k)));
                    const Tensor t = op.tensor(pick(x, rows, 2048), {n, 2048});
                    const ops::Routing routing{world.top_k, op.int_tensor(ids, {n, world.top_k}),
                                               op.tensor(pick(weights, rows, world.top_k), {n, world.top_k})};
                    return Results{values_of(ops::moe_swiglu(op.ctx, t, routing, world.weights(),
                                                             c.shared_ff > 0 ? world.shared() : ops::SharedExpert{}))};
                });
    }
}

/// Many experts, each of which one row or two or three chose.
TEST(DecodeRows, experts_of_few_rows_each_give_each_row_the_bits_it_has_alone) {
    RT_GPU_ONLY();
    const int64_t experts = fewer(48, 12), outputs = fewer(4096, 1024);
    for (const DType kind : brief<DType>({DType::q4_k, DType::q5_k, DType::q6_k}, 1)) {
        LagunaExperts world(kind, kind, 512, experts, outputs);
        OpContext& op = world.op;
        const std::vector<float> x = test::random_rows(kSources, 2048, 46);
        std::vector<float> weights(static_cast<size_t>(kSources * world.top_k));
        for (size_t i = 0; i < weights.size(); ++i) weights[i] = 0.05f + 0.01f * static_cast<float>(i * 11 % 31);
        expect_rows_alone(dtype_name(kind), [&](const std::vector<int64_t>& rows) {
            op.poison();
            const int64_t n = std::ssize(rows);
            std::vector<int32_t> ids;
            for (const int64_t s : rows)
                for (int64_t k = 0; k < world.top_k; ++k)
                    ids.push_back(static_cast<int32_t>((s * world.top_k + k) % experts));
            const Tensor t = op.tensor(pick(x, rows, 2048), {n, 2048});
            const ops::Routing routing{world.top_k, op.int_tensor(ids, {n, world.top_k}),
                                       op.tensor(pick(weights, rows, world.top_k), {n, world.top_k})};
            return Results{values_of(ops::moe_swiglu(op.ctx, t, routing, world.weights(), world.shared()))};
        });
    }
}

TEST(DecodeRows, sparse_layers_give_each_row_the_bits_it_has_alone) {
    RT_GPU_ONLY();
    for (const DType down : brief<DType>({DType::q6_k, DType::q4_k}, 1)) {
        LagunaExperts world(DType::q4_k, down, 512);
        OpContext& op = world.op;
        const ops::Norm norm = {op.floats(normals(2048, 51)), 1e-6f};
        const std::vector<float> x = test::random_rows(kSources, 2048, 52);
        const std::span<const float> bias = op.floats(normals(static_cast<size_t>(world.experts), 53, 0.1f));
        expect_rows_alone(
            fmt::format("sparse layer, down {}", dtype_name(down)), [&](const std::vector<int64_t>& rows) {
                op.poison();
                Tensor t = op.tensor(pick(x, rows, 2048), {std::ssize(rows), 2048});
                const ops::Router how{&world.router, bias, world.top_k, 2.5f, true};
                const ops::MoeResult r = ops::moe_add(op.ctx, t, norm, how, world.weights(), world.shared());
                std::vector<float> ids;
                for (const int32_t e : values_of<int32_t>(r.routing.experts)) ids.push_back(static_cast<float>(e));
                return Results{values_of(r.logits), ids, values_of(r.routing.weights), values_of(r.y), values_of(t)};
            });
    }
}

/// Up to 8 rows choose in the kernels that use the choice: ties, NaN and infinities too.
TEST(DecodeRows, a_few_rows_choose_as_route_sigmoid_does) {
    RT_GPU_ONLY();
    constexpr int64_t kCols = 2048;
    for (const int64_t experts : brief<int64_t>({31, 8, 256}, 1)) {
        OpContext op(1, int64_t{96} << 20);
        const auto alike = [&](int64_t rows, int64_t cols) {
            const RandomWeight one({DType::q4_k}, rows, cols, 61);
            const std::vector<Weight> host(static_cast<size_t>(experts), one.w);
            return op.experts(host);
        };
        const std::vector<Weight> gate = alike(512, kCols), down = alike(kCols, 512);
        std::vector<float> w(static_cast<size_t>(experts * kCols), 0.0f), bias(static_cast<size_t>(experts), 0.0f);
        for (size_t e = 0; e < bias.size(); ++e) {
            w[e * kCols] = (static_cast<float>(e * 5 % 7) - 3.0f) / 32.0f;  // ties
            w[e * kCols + 1] = static_cast<float>(e % 3);
            if (e % 3 == 0) bias[e] = 0.125f;
        }
        w[2 * kCols] = NAN;
        w[5 * kCols] = INFINITY;
        Weight host;
        host.data = w.data();
        host.rows = experts;
        host.cols = kCols;
        host.row_bytes = 4 * kCols;
        const Weight router = op.weight(host);
        const std::vector<float> ones(kCols, 1.0f);
        for (const int64_t n : brief<int64_t>({2, 5, 8, 16}, 2))
            for (const int64_t k : brief<int64_t>({3, 8, 1}, 1)) {
                std::vector<float> x(static_cast<size_t>(n * kCols), 0.0f);
                for (size_t row = 0; row < static_cast<size_t>(n); ++row) {
                    x[row * kCols] = 0.25f;
                    x[row * kCols + 1] = 0.003f * static_cast<float>(row % 4);
                }
                Tensor t = op.tensor(x, {n, kCols});
                const ops::Router how{&router, op.floats(bias), k, 1.5f, true};
                const ops::MoeResult result =
                    ops::moe_add(op.ctx, t, {op.floats(ones), 1e-6f}, how, {gate, gate, down});
                const ops::Routing r = ops::route_sigmoid(op.ctx, result.logits, how.bias, k, 1.5f, true);
                const std::string what = fmt::format("{} of {} experts, {} rows", k, experts, n);
                EXPECT_EQ(values_of<int32_t>(result.routing.experts), values_of<int32_t>(r.experts)) << what;
                const std::vector<float> found = values_of(result.routing.weights), expected = values_of(r.weights);
                ASSERT_EQ(found.size(), expected.size());
                EXPECT_EQ(std::memcmp(found.data(), expected.data(), 4 * found.size()), 0) << what;
            }
    }
}

/// The kernels meet in shared memory and start before their predecessors end: the same bits in every replay.
TEST(DecodeRows, replays_of_a_graph_of_layers_agree) {
    RT_GPU_ONLY();
    LagunaExperts world(DType::q4_k, DType::q6_k, 512);
    OpContext& op = world.op;
    const Weight q = place_random(op, {DType::q4_k}, fewer(1040, 40), 2048, 61);
    const int64_t long_row = fewer(6144, 2048);
    const Weight o = place_random(op, {DType::q6_k}, 2048, long_row, 62);
    const ops::Norm norm = {op.floats(normals(2048, 63)), 1e-6f};
    for (const int64_t n : brief<int64_t>({3, 2, 8, 16, 40}, 1)) {
        op.poison();
        const Tensor source = op.tensor(test::random_rows(n, 2048, 64), {n, 2048}),
                     wide = op.tensor(test::random_rows(n, long_row, 65), {n, long_row});
        Tensor x = op.ctx.alloc(DType::f32, {n, 2048});
        std::vector<Tensor> results;
        const auto step = [&] {
            op.ctx.gpu->copy(x.data, source.data, n * 2048 * 4);
            results.clear();
            for (int layer = 0; layer < fewer(3, 1); ++layer) {
                const Weight* const group[] = {&q};
                results.push_back(ops::norm_matmul_group(op.ctx, x, norm, group)[0]);
                ops::matmul_add(op.ctx, o, wide, x);
                const ops::Router how{&world.router, {}, world.top_k, 2.5f, true};
                results.push_back(ops::moe_add(op.ctx, x, norm, how, world.weights(), world.shared()).y);
            }
        };
        expect_replays_agree(op, fmt::format("{} rows", n), results, step);
    }
}

}  // namespace
}  // namespace riptide
