// Products of the draft family: within their bound of the exact ones, a row's bits the same in any company, fused ops
// with the bits of single ones.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "tests/ops/kquant_f16_world.h"
#include "tests/ops/product_bound.h"
#include "tests/ops/row_alone.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using test::AwkwardRows;
using test::RandomWeight;
using test::WeightKind;

constexpr WeightKind kQ8{DType::q8_0};
constexpr float kEps = 1e-6f;

struct GroupShape {
    std::vector<int64_t> rows;  // of a group's matrices
    int64_t cols;
};

/// One chunk and many, slices of unequal length, fewer units than warps and many more, rows that fill no strip.
std::vector<GroupShape> group_shapes() {
    if (brief_counts()) return {{{20, 5}, 512}, {{40}, 2304}};
    return {{{48}, 256},        {{5}, 512},    {{100, 33, 1}, 1024}, {{2048, 1024, 1024, 64}, 2048},
            {{1003, 64}, 5120}, {{24}, 4096},  {{4101}, 3072},       {{131}, 17408},
            {{40}, 25600},      {{20001}, 768}};
}

struct SameTypeGroup {
    std::vector<RandomWeight> host;
    std::vector<Weight> placed;
    std::vector<const Weight*> pointers;

    SameTypeGroup(OpContext& op, const WeightKind& kind, const GroupShape& shape) {
        for (const int64_t rows : shape.rows) {
            host.emplace_back(kind, rows, shape.cols, static_cast<uint64_t>(rows + shape.cols));
            placed.push_back(op.weight(host.back().w));
        }
        for (const Weight& w : placed) pointers.push_back(&w);
    }
    std::vector<Tensor> times(OpContext& op, const Tensor& x, std::span<const float> norm) const {
        return norm.empty() ? ops::matmul_group(op.ctx, pointers, x)
                            : ops::norm_matmul_group(op.ctx, x, {norm, kEps}, pointers);
    }
};

std::vector<float> first_rows(const std::vector<float>& x, int64_t rows, int64_t cols) {
    return {x.begin(), x.begin() + rows * cols};
}

/// With M = sum |w x|: x is off by 2^-8 as bf16; as f16 by 2^-11, or by 2^-33 of the chunk's largest, or (a chunk that
/// counts as zeros) by 2^-100; all sums by K 2^-23 M, as tensor cores cut off; 1 / rms by 32 u.
struct Judge {
    bool scaled;
    std::vector<double> x, off;
    bool finite = true, normal = true;

    Judge(DType type, std::span<const float> row, std::span<const float> norm) : scaled(type != DType::bf16) {
        double squares = 0;
        for (const float v : row) squares += double{v} * v, finite = finite && std::isfinite(v);
        const auto n = static_cast<double>(row.size());
        const double factor = norm.empty() ? 1.0 : 1.0 / std::sqrt(squares / n + double{kEps});
        normal = norm.empty() || squares < 1e37;
        for (size_t c = 0; c < row.size(); ++c)
            x.push_back(double{row[c]} * (norm.empty() ? 1.0 : double{norm[c]}) * factor);
        for (size_t c = 0; c < x.size(); ++c) {
            double largest = 0;
            for (size_t i = c / 256 * 256; i < c / 256 * 256 + 256; ++i) largest = std::max(largest, std::abs(x[i]));
            const double rounded = scaled ? std::max({0x1p-11 * std::abs(x[c]), 0x1p-33 * largest, 0x1p-100 * factor})
                                          : std::max(0x1p-8 * std::abs(x[c]), 0x1p-133 * factor);
            off.push_back(rounded + 34 * kUnitF32 * std::abs(x[c]));
        }
    }
    Near operator()(const std::vector<float>& w) const {
        Near y;
        double magnitude = 0;
        for (size_t c = 0; c < x.size(); ++c) {
            y.value += w[c] * x[c];
            y.error += std::abs(double{w[c]}) * off[c];
            magnitude += std::abs(w[c] * x[c]) + std::abs(double{w[c]}) * off[c];
        }
        y.error += static_cast<double>(x.size()) * 0x1p-23 * magnitude + 0x1p-120;
        return y;
    }
};

TEST(DraftMatmul, products_stay_within_their_bound) {
    RT_GPU_ONLY();
    const Gpu& gpu = *test_gpu();
    if (!gpu.hopper()) GTEST_SKIP() << "this chip multiplies as the decode family does";
    for (const WeightKind& kind : {kBf16, kF16, kQ8}) {
        double worst = 0;
        for (const GroupShape& shape : group_shapes()) {
            if (shape.cols > 1280 * gpu.info().sm_count) continue;             // left to the decode family
            if (kind.type == DType::q8_0 && shape.cols % 2048 == 0) continue;  // left to q8_i8_sm80.cu: x in int8
            OpContext op(1, int64_t{64} << 20);
            op.ctx.family = Family::draft;
            const SameTypeGroup group(op, kind, shape);
            const AwkwardRows rows(shape.cols, 5);
            const std::vector<float> weights = normals(static_cast<size_t>(shape.cols), 6);
            const std::span<const float> scale = op.floats(weights);
            for (const bool normed : {false, true}) {
                op.poison();
                const Tensor x = op.tensor(rows.x, {rows.count(), shape.cols});
                const std::vector<Tensor> y = group.times(op, x, normed ? scale : std::span<const float>());
                for (int64_t r = 0; r < rows.count(); ++r) {
                    const Judge judge(kind.type, rows.row(r), normed ? weights : std::vector<float>());
                    if (!judge.normal) continue;
                    for (size_t i = 0; i < y.size(); ++i) {
                        const Weight& w = group.host[i].w;
                        const std::vector<float> got = values_of(y[i]);
                        std::vector<float> values(static_cast<size_t>(w.cols));
                        const int64_t step = std::max<int64_t>(1, w.rows / 60);  // of large matrices some rows
                        for (int64_t o = 0; o < w.rows; o += step) {
                            const float value = got[static_cast<size_t>(r * w.rows + o)];
                            if (!judge.finite) {
                                EXPECT_FALSE(std::isfinite(value));
                                continue;
                            }
                            dequantize_row(w, o, values.data());
                            const Near near = judge(values);
                            const double error = std::abs(value - near.value);
                            worst = std::max(worst, error / near.error);
                            ASSERT_LE(error, near.error)
                                << kind.name() << ' ' << w.rows << " x " << w.cols << (normed ? ", norm" : "")
                                << ", row " << r << " (" << rows.names[static_cast<size_t>(r)] << "), output " << o
                                << ": " << value << ", expected " << near.value;
                        }
                    }
                }
            }
        }
        fmt::print("{}: {:.3f} of the bound\n", kind.name(), worst);
        EXPECT_GE(worst, 0.01) << kind.name() << ": the bound is too loose";
    }
}

TEST(DraftMatmul, a_row_has_its_bits_in_any_company) {
    for (const WeightKind& kind : {kBf16, kF16, kQ8})
        for (const GroupShape& shape : group_shapes()) {
            if (test_gpu() == nullptr && shape.cols > 4096) continue;
            OpContext op(2, int64_t{64} << 20);
            op.ctx.family = Family::draft;
            const SameTypeGroup group(op, kind, shape);
            const std::vector<float> all = test::random_rows(30, shape.cols, 9);
            const std::span<const float> norm = op.floats(normals(static_cast<size_t>(shape.cols), 6));
            for (const bool normed : {false, true}) {
                const auto run = [&](int64_t n) {
                    op.poison();
                    std::vector<std::vector<float>> out;
                    for (const Tensor& y : group.times(op, op.tensor(first_rows(all, n, shape.cols), {n, shape.cols}),
                                                       normed ? norm : std::span<const float>()))
                        out.push_back(values_of(y));
                    return out;
                };
                const auto most = run(30);
                for (const int64_t n : fewer<std::vector<int64_t>>({1, 2, 8, 15, 16, 17, 24, 25}, {1, 17}))
                    for (size_t i = 0; i < most.size(); ++i)
                        expect_same_bits(
                            run(n)[i], first_rows(most[i], n, shape.rows[i]),
                            fmt::format("{} {} x {}, {} rows", kind.name(), shape.rows[i], shape.cols, n).c_str());
            }
        }
}

/// Norm, gate, up, silu, down and sum one by one and in one op; replays of both.
TEST(DraftMatmul, feed_forward_layers_have_the_bits_of_their_parts) {
    struct Layer {
        WeightKind up, down;
        int64_t hidden, ff;
    };
    const Layer layers[] = {{kBf16, kBf16, 512, 1024},
                            {kQ8, kQ8, 1280, 768},
                            {kF16, kQ8, 256, 2304},
                            {kQ8, WeightKind{DType::q6_k}, 768, 512},
                            {kBf16, kF16, 5120, 4096}};
    for (const Layer& layer : layers) {
        if ((brief_counts() || test_gpu() == nullptr) && layer.hidden > 1000) continue;
        OpContext op(2, int64_t{64} << 20);
        op.ctx.family = Family::draft;
        const SameTypeGroup both(op, layer.up, {{layer.ff, layer.ff}, layer.hidden}),
            down(op, layer.down, {{layer.hidden}, layer.ff});
        const std::vector<float> values = test::random_rows(24, layer.hidden, 3);
        const std::span<const float> norm = op.floats(normals(static_cast<size_t>(layer.hidden), 4));
        for (const int64_t n : {int64_t{8}, int64_t{16}, int64_t{23}}) {
            op.poison();
            const std::vector<float> rows = first_rows(values, n, layer.hidden);
            Tensor x = op.tensor(rows, {n, layer.hidden}), same = op.tensor(rows, {n, layer.hidden});
            const std::vector<Tensor> parts = ops::norm_matmul_group(op.ctx, x, {norm, kEps}, both.pointers);
            Tensor act = ops::swiglu(op.ctx, parts[0], parts[1]);
            act.int8 = nullptr;
            const Tensor y = ops::matmul_add(op.ctx, down.placed[0], act, x);
            const Tensor in_one =
                ops::swiglu_ffn_add(op.ctx, same, {norm, kEps}, both.placed[0], both.placed[1], down.placed[0]);
            const std::string what = fmt::format("{}, {} rows", layer.up.name(), n);
            expect_same_bits(values_of(in_one), values_of(y), what.c_str());
            expect_same_bits(values_of(same), values_of(x), what.c_str());
        }
    }
}

TEST(DraftMatmul, replays_agree) {
    RT_GPU_ONLY();
    for (const WeightKind& kind : {kBf16, kF16, kQ8}) {
        OpContext op(1, int64_t{64} << 20);
        op.ctx.family = Family::draft;
        const int64_t hidden = fewer(2048, 512), ff = fewer(6400, 768);
        const SameTypeGroup both(op, kind, {{ff, ff}, hidden}), down(op, kind, {{hidden}, ff});
        const std::span<const float> norm = op.floats(normals(static_cast<size_t>(hidden), 4));
        const Tensor x = op.tensor(test::random_rows(16, hidden, 3), {16, hidden});
        Tensor sum = op.ctx.alloc(DType::f32, {16, hidden}), y = op.ctx.alloc(DType::f32, {16, hidden});
        expect_replays_agree(op, kind.name(), {y, sum}, [&] {
            op.ctx.gpu->copy(sum.data, x.data, 16 * hidden * 4);
            const Tensor made =
                ops::swiglu_ffn_add(op.ctx, sum, {norm, kEps}, both.placed[0], both.placed[1], down.placed[0]);
            op.ctx.gpu->copy(y.data, made.data, 16 * hidden * 4);
        });
    }
}

}  // namespace
}  // namespace riptide
