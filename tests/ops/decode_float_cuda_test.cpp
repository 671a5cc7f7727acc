// The kernels for one row of float weights: a row alone has the bits it has beside another row, where other kernels
// serve the step.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/matmul.h"
#include "ops/moe.h"
#include "tests/ops/row_alone.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using test::RandomWeight;
using test::WeightKind;

constexpr WeightKind kF32{DType::f32};
constexpr WeightKind kFloat8{DType::f8_e4m3, DType::f32, 0, 0, 0.37f};
constexpr WeightKind kFloat8Blocks{DType::f8_e4m3, DType::bf16, 128, 128};
constexpr WeightKind kFloat8Rows{DType::f8_e4m3, DType::f32, 1, 1 << 20};
constexpr WeightKind kFloat8Odd{DType::f8_e4m3, DType::f32, 3, 48};  // these kernels leave it to others

struct GroupCase {
    std::vector<WeightKind> kinds;  // of the matrices
    std::vector<int64_t> rows;
    int64_t cols;
};

TEST(DecodeFloat, projections_have_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    const std::vector<int64_t> laguna = {8192, 1024, 1024, 64}, odd = {515, 4, 129, 1021};
    const GroupCase cases[] = {
        {{kBf16, kBf16, kBf16, kBf16}, laguna, 2048},
        {{kFloat8Blocks, kFloat8Blocks, kFloat8Blocks, kBf16}, laguna, 2048},
        {{kFloat8, kFloat8, kFloat8, kF16}, odd, 2048},
        {{kFloat8, kFloat8, kFloat8, kFloat8}, odd, 2048},
        {{kF16, kF16, kF16, kF16}, odd, 1000},
        {{kFloat8Rows, kFloat8Rows, kBf16, kF32}, odd, 1616},
        {{kFloat8Blocks, kFloat8Rows, kFloat8, kFloat8Blocks}, odd, 4096},
        {{kFloat8Odd, kFloat8Blocks}, {67, 67}, 512},
        {{kBf16, kF32, kF16}, {7, 5, 33}, 97},
        {{kF32, kF32}, {3, 2}, 20},                                   // fewer than four rows
        {{kBf16, kBf16, kBf16, kBf16, kBf16}, {9, 9, 9, 9, 9}, 256},  // more than four matrices
        {{kBf16, kBf16, kBf16, kBf16}, {6144, 2048, 16, 16}, 1024},
        {{kBf16, kBf16, kF32, kF32}, {6144, 2048, 16, 16}, 1024},
        {{kBf16, kF32, kF32}, {67, 5, 33}, 1032},
        {{kBf16, kBf16, kBf16}, {515, 4, 129}, 1016},
        {{kBf16, kBf16}, {67, 1021}, 8},
        {{kBf16, kBf16}, {3000, 5}, 1032},
        {{kBf16}, {20001}, 1024},  // a head of this width
        {{kBf16}, {40000}, 264},   // more rounds than one
        {{kFloat8}, {70001}, 272},
    };
    for (const GroupCase& c : cases)
        for (const bool normed : {true, false}) {
            if (brief_counts() && (c.rows[0] > 9000 || normed != (c.cols != 1000))) continue;
            OpContext op(1, int64_t{16} << 20);
            std::vector<Weight> weights;
            std::vector<const Weight*> group;
            for (size_t i = 0; i < c.kinds.size(); ++i)
                weights.push_back(
                    place_random(op, c.kinds[i], fewer(c.rows[i], std::min<int64_t>(c.rows[i], 35)), c.cols, 30 + i));
            for (const Weight& w : weights) group.push_back(&w);
            const ops::Norm norm = {op.floats(normals(static_cast<size_t>(c.cols), 5)), 1e-6f};
            expect_alone(
                fmt::format("{} and others, {} columns", c.kinds[0].name(), c.cols), c.cols, [&](const auto& x) {
                    op.poison();
                    const Tensor t = op.tensor(x, {std::ssize(x) / c.cols, c.cols});
                    Results out;
                    for (const Tensor& y :
                         normed ? ops::norm_matmul_group(op.ctx, t, norm, group) : ops::matmul_group(op.ctx, group, t))
                        out.push_back(values_of(y));
                    return out;
                });
        }
}

TEST(DecodeFloat, the_output_projection_has_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    for (const WeightKind& kind : {kBf16, kF16, kFloat8, kFloat8Blocks, kFloat8Rows})
        for (const auto& [rows, cols] : {std::pair{2048, 6144}, {2048, 8192}, {1024, 2048}, {1027, 3584}, {67, 2056}, {7, 4096}, {1027, 4112}, {67, 4112}, {4, 64}}) {
            if (brief_counts() && rows > 100) continue;
            OpContext op(1, int64_t{16} << 20);
            const Weight o = place_random(op, kind, rows, cols, 11);
            const int64_t width = cols, out_rows = rows;
            expect_alone(fmt::format("{}, {} x {}", kind.name(), rows, cols), width, [&](const auto& x) {
                op.poison();
                const int64_t n = std::ssize(x) / width;
                Tensor r = op.tensor(std::vector<float>(static_cast<size_t>(n * out_rows), 0.75f), {n, out_rows});
                const Tensor y = ops::matmul_add(op.ctx, o, op.tensor(x, {n, width}), r);
                return Results{values_of(y), values_of(r)};
            });
        }
}

TEST(DecodeFloat, dense_layers_have_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    for (const WeightKind& kind : {kBf16, kFloat8Blocks, kFloat8, kF32})
        for (const auto& [ff, hidden] : {std::pair{512, 320}, {2050, 320}, {333, 320}, {3584, 1024}, {40, 2040}, {770, 2048}}) {
            if (brief_counts() && ff > 3000) continue;
            const int64_t width = hidden;
            OpContext op(1, int64_t{16} << 20);
            const Weight gate = place_random(op, kind, ff, width, 1), up = place_random(op, kind, ff, width, 2),
                         down = place_random(op, kind, width, ff, 3);
            const ops::Norm norm = {op.floats(normals(static_cast<size_t>(width), 5)), 1e-6f};
            expect_alone(fmt::format("{}, {}", kind.name(), ff), width, [&](const auto& x) {
                op.poison();
                Tensor t = op.tensor(x, {std::ssize(x) / width, width});
                const Tensor y = ops::swiglu_ffn_add(op.ctx, t, norm, gate, up, down);
                return Results{values_of(y), values_of(t)};
            });
        }
}

struct SparseCase {
    WeightKind up, shared_up, down;
    int64_t hidden, experts;
    std::vector<float> scales = {1.0f};  // of the experts in turn
};

TEST(DecodeFloat, sparse_layers_have_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    constexpr int64_t kFf = 512, kDistinct = 8;  // of other widths the kernels leave to others
    const SparseCase cases[] = {
        {kBf16, kBf16, kBf16, 2048, 256},
        {kFloat8Blocks, kFloat8Blocks, kFloat8Blocks, 2048, 256},
        {kFloat8, kFloat8, kFloat8, 2048, 256},
        {kFloat8Blocks, kBf16, kF16, 384, 300},
        {kFloat8, kFloat8, kFloat8, 1040, 40, {1.0f, 0.25f, 3.0f}},  // folded into planes
        {kFloat8Rows, kFloat8Rows, kFloat8Rows, 272, 33},
        {kF16, kF32, kF16, 72, 9},
    };
    for (const SparseCase& c : cases) {
        if (brief_counts() && c.hidden > 400) continue;
        OpContext op(1, int64_t{64} << 20);
        std::vector<RandomWeight> owned;
        owned.reserve(3 * kDistinct);
        const auto stack = [&](const WeightKind& kind, int64_t rows, int64_t cols, uint64_t seed) {
            const auto first = owned.size();
            for (uint64_t e = 0; e < kDistinct; ++e) {
                owned.emplace_back(kind, rows, cols, seed + e);
                owned.back().w.scale *= c.scales[e % c.scales.size()];
            }
            std::vector<Weight> host;
            for (int64_t e = 0; e < c.experts; ++e)
                host.push_back(owned[first + static_cast<size_t>(e * 5 % kDistinct)].w);
            return op.experts(host);
        };
        const std::vector<Weight> gate = stack(c.up, kFf, c.hidden, 100), up = stack(c.up, kFf, c.hidden, 200),
                                  down = stack(c.down, c.hidden, kFf, 300);
        const Weight shared_gate = place_random(op, c.shared_up, kFf, c.hidden, 21),
                     shared_up = place_random(op, c.shared_up, kFf, c.hidden, 22),
                     shared_down = place_random(op, c.down, c.hidden, kFf, 23),
                     router = place_random(op, kBf16, c.experts, c.hidden, 24);
        const ops::Norm norm = {op.floats(normals(static_cast<size_t>(c.hidden), 25)), 1e-6f};
        const std::span<const float> bias = op.floats(normals(static_cast<size_t>(c.experts), 26, 0.1f));
        for (const int64_t top_k : {8, 3, 9})
            for (const bool shared : {true, false}) {
                if (brief_counts() && top_k != (shared ? 8 : 9)) continue;
                const ops::Router how{&router, shared ? bias : std::span<const float>(), top_k, 2.5f, shared};
                const ops::SharedExpert one =
                    shared ? ops::SharedExpert{&shared_gate, &shared_up, &shared_down} : ops::SharedExpert{};
                expect_alone(fmt::format("{}, down {}, top {}, shared {}", c.up.name(), c.down.name(), top_k, shared),
                             c.hidden, [&](const auto& x) {
                                 op.poison();
                                 Tensor t = op.tensor(x, {std::ssize(x) / c.hidden, c.hidden});
                                 const ops::MoeResult r = ops::moe_add(op.ctx, t, norm, how, {gate, up, down}, one);
                                 std::vector<float> ids;
                                 for (const int32_t e : values_of<int32_t>(r.routing.experts))
                                     ids.push_back(static_cast<float>(e));
                                 return Results{values_of(r.logits), ids, values_of(r.routing.weights), values_of(r.y),
                                                values_of(t)};
                             });
            }
    }
}

}  // namespace
}  // namespace riptide
