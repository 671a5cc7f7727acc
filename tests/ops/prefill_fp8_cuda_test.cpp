// The FP8 path's parts, each against its definition (ops/cuda/linear/gemm/fp8_sm90.h, quant/fp8_copy.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/cuda/linear/gemm/fp8_sm90.h"
#include "ops/cuda/moe/moe_prefill.h"
#include "ops/norm.h"
#include "tests/ops/fp8_copies.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using namespace ops::cuda::prefill;
using test::RandomWeight;
using test::WeightKind;

TEST(Fp8Scale, brings_the_largest_value_into_the_upper_half) {
    for (float amax : {1e-30f, 0x1p-60f, 1e-6f, 0.99f, 1.0f, 1.75f, 1.7500001f, 447.0f, 448.0f, 449.0f, 1e30f}) {
        const float scale = fp8_scale(amax);
        int exponent = 0;
        EXPECT_EQ(std::frexp(scale, &exponent), 0.5f) << amax;
        EXPECT_LE(amax / scale, 448.0f) << amax;
        if (amax > 0x1p-59f) {
            EXPECT_GT(amax / scale, 224.0f) << amax;
        }
    }
    EXPECT_EQ(fp8_scale(0.0f), 0x1p-68f);
    EXPECT_TRUE(std::isnan(fp8_scale(INFINITY)));
    EXPECT_TRUE(std::isnan(fp8_scale(NAN)));
}

/// Rows of e4m3 values with scales: on the host in plain order, on the device as the product reads them.
struct Operand {
    int64_t rows, k;
    std::vector<uint8_t> codes;  // [rows, k]
    std::vector<float> scales;   // [rows / group, k / 128]
    int64_t group;
    Operand(int64_t rows_, int64_t k_, int64_t group_, uint64_t seed, bool whole) : rows(rows_), k(k_), group(group_) {
        std::mt19937_64 random(seed);
        std::normal_distribution<float> normal;
        for (int64_t i = 0; i < rows * k; ++i)
            codes.push_back(
                f32_to_f8_e4m3(whole ? static_cast<float>(static_cast<int>(random() % 5) - 2) : 100 * normal(random)));
        for (int64_t i = 0; i < (rows + group - 1) / group * (k / 128); ++i)
            scales.push_back(std::ldexp(1.0f, static_cast<int>(random() % 3) - 4));
    }
    float code(int64_t r, int64_t c) const { return f8_e4m3_to_f32(codes[static_cast<size_t>(r * k + c)]); }
    float scale(int64_t r, int64_t c) const { return scales[static_cast<size_t>(r / group * (k / 128) + c / 128)]; }
    Fp8Rows rows_on(OpContext& op) const { return {upload(op, codes), upload(op, scales)}; }
    /// Of experts of `each` rows.
    Fp8Matrix matrix_on(OpContext& op, int64_t each) const {
        std::vector<uint8_t> placed(static_cast<size_t>(rows * k));
        for (int64_t r = 0; r < rows; ++r)
            std::copy_n(codes.begin() + r * k, k,
                        placed.begin() + (r / 64 * 64 + fp8_row(static_cast<int>(r % 64))) * k);
        return {upload(op, placed), upload(op, scales), static_cast<int>(each)};
    }
};

struct ScaledDot {
    double value = 0, magnitude = 0;
};
ScaledDot scaled_dot(const Operand& a, int64_t row, const Operand& b, int64_t column) {
    ScaledDot d;
    for (int64_t i = 0; i < a.k; ++i) {
        const double v = double{a.code(row, i)} * b.code(column, i) * a.scale(row, i) * b.scale(column, i);
        d.value += v;
        d.magnitude += std::abs(v);
    }
    return d;
}

// An instruction adds 32 products to a sum with at least 13 bits behind the largest of them: 33 terms, four times for a
// block of columns. The blocks are added in f32.
double allowed(const ScaledDot& d, int64_t k) {
    return (4 * 33 * 0x1p-13 + static_cast<double>(k) / 128 * 0x1p-23) * d.magnitude;
}

constexpr float kUnwritten = -12345.0f;

void expect_product(int rows, std::vector<int64_t> widths, int64_t k, bool whole) {
    SCOPED_TRACE(std::to_string(rows) + " rows, k " + std::to_string(k) + (whole ? ", whole numbers" : ""));
    OpContext op(1, int64_t{256} << 20);
    const Operand a(rows, k, 1, 1, whole);
    std::vector<Operand> b;
    std::vector<Tensor> results;
    Fp8Problem problem;
    problem.a = a.rows_on(op);
    problem.rows = rows;
    problem.k = static_cast<int>(k);
    OutF32 out;
    int begin = 0;
    for (const int64_t width : widths) {
        b.emplace_back(fp8_rows(width), k, 64, static_cast<uint64_t>(width + 2), whole);
        problem.b[problem.matrices++] = b.back().matrix_on(op, b.back().rows);
        results.push_back(
            op.tensor(std::vector<float>(static_cast<size_t>(rows * width + 64), kUnwritten), {rows * width + 64}));
        out.add(results.back().row(0), begin, static_cast<int>(width), width);
        begin += static_cast<int>(round_up(width, 128));
    }
    gemm_fp8(*op.ctx.gpu, problem, out);
    for (size_t i = 0; i < widths.size(); ++i) {
        const std::vector<float> got = values_of(results[i]);
        BoundCheck check;
        for (int r = 0; r < rows; ++r)
            for (int64_t c = 0; c < widths[i]; ++c) {
                const float value = got[static_cast<size_t>(r * widths[i] + c)];
                const ScaledDot d = scaled_dot(a, r, b[i], c);
                if (whole) {
                    ASSERT_EQ(value, d.value) << r << " " << c << " of matrix " << i;
                }
                check.add(value, d.value, allowed(d, k));
            }
        EXPECT_LE(check.worst(), 1.0) << "matrix " << i;
        for (size_t j = static_cast<size_t>(rows * widths[i]); j < got.size(); ++j) ASSERT_EQ(got[j], kUnwritten);
    }
}

TEST(PrefillFp8, equals_the_product_in_double) {
    RT_HOPPER_ONLY();
    for (const bool whole : {true, false}) {  // sums of small whole numbers are exact
        expect_product(1, {64}, 128, whole);
        expect_product(63, {256}, 256, whole);
        expect_product(65, {40, 64, 130, 256}, 2048, whole);
        expect_product(129, {320}, 512, whole);
        expect_product(300, {700, 48}, 384, whole);
        if (!brief_counts()) expect_product(2500, {96}, 640, whole);
    }
}

TEST(PrefillFp8, a_row_does_not_see_the_others) {
    RT_HOPPER_ONLY();
    const int rows = fewer(700, 260);
    const int64_t k = fewer(1152, 384), columns = fewer(4224, 1088);
    OpContext op(1, int64_t{128} << 20);
    const Operand a(rows, k, 1, 1, false), b(columns, k, 64, 2, false);
    Fp8Problem problem;
    problem.a = a.rows_on(op);
    problem.b[0] = b.matrix_on(op, columns);
    problem.matrices = 1;
    problem.rows = rows;
    problem.k = static_cast<int>(k);
    const auto run = [&](int first, int count) {
        Fp8Problem part = problem;
        part.a.values += first * k;
        part.a.scales += first * (k / 128);
        part.rows = count;
        const Tensor y = op.ctx.alloc(DType::f32, {count, columns});
        OutF32 out;
        out.add(y.row(0), 0, static_cast<int>(columns), columns);
        gemm_fp8(*op.ctx.gpu, part, out);
        return values_of(y);
    };
    const std::vector<float> all = run(0, rows);
    EXPECT_EQ(run(0, rows), all) << "the same twice";
    for (const int count : brief<int>({1, 64, 511, 129}, 2))
        for (const int first : brief<int>({37, 0, rows - count}, 1))
            if (first + count <= rows) {
                const std::vector<float> some = run(first, count);
                ASSERT_TRUE(same_bits(some.data(), all.data() + first * columns, some.size())) << first << " " << count;
            }
}

/// Slots of experts, one after the other; the last group is the shared expert's.
struct Fp8Plan {
    std::vector<int32_t> row_first{0}, tile_first{0}, tile_expert;
    explicit Fp8Plan(const std::vector<int>& counts) {
        for (size_t e = 0; e < counts.size(); ++e) {
            row_first.push_back(row_first.back() + counts[e]);
            const int tiles = ceil_div(counts[e], kTileM);
            tile_first.push_back(tile_first.back() + tiles);
            tile_expert.insert(tile_expert.end(), static_cast<size_t>(tiles), static_cast<int32_t>(e));
        }
    }
};

TEST(PrefillFp8, experts_multiply_their_own_slots) {
    RT_HOPPER_ONLY();
    const std::vector<int> counts = {0, 5, 128, 0, 200, 1, 64, 33};
    const int64_t k = 256, ff = 384, width = 320;
    const auto experts = static_cast<int>(counts.size());
    const Fp8Plan plan(counts);
    const int slots = plan.row_first.back();
    OpContext op(1, int64_t{64} << 20);
    const Operand a(slots, k, 1, 1, true), gate((experts - 1) * ff, k, 64, 2, true),
        up((experts - 1) * ff, k, 64, 3, true), down((experts - 1) * width, k, 64, 4, true),
        shared_gate(ff, k, 64, 5, true), shared_up(ff, k, 64, 6, true), shared_down(width, k, 64, 7, true);
    Fp8Problem problem;
    problem.a = a.rows_on(op);
    problem.rows = slots;
    problem.k = static_cast<int>(k);
    problem.plan = {upload(op, plan.row_first), upload(op, plan.tile_first), upload(op, plan.tile_expert), experts - 1};
    problem.experts = experts;
    problem.b[0] = down.matrix_on(op, width), problem.shared[0] = shared_down.matrix_on(op, width);
    problem.matrices = 1;
    const Tensor y = op.ctx.alloc(DType::f32, {slots, width});
    OutF32 out;
    out.add(y.row(0), 0, static_cast<int>(width), width);
    gemm_fp8(*op.ctx.gpu, problem, out);
    problem.b[0] = gate.matrix_on(op, ff), problem.b[1] = up.matrix_on(op, ff);
    problem.shared[0] = shared_gate.matrix_on(op, ff), problem.shared[1] = shared_up.matrix_on(op, ff);
    problem.matrices = 2;
    auto* codes = upload(op, std::vector<uint8_t>(static_cast<size_t>(slots * ff + 64), 0x7F));
    auto* scales = upload(op, std::vector<float>(static_cast<size_t>(slots * (ff / 128) + 64), kUnwritten));
    gemm_fp8(*op.ctx.gpu, problem, OutFp8{{codes, scales}, static_cast<int>(ff)});
    const std::vector<float> got = values_of(y), scale = download(op, scales, slots * (ff / 128) + 64);
    const std::vector<uint8_t> act = download(op, codes, slots * ff + 64);
    for (size_t i = act.size() - 64; i < act.size(); ++i) ASSERT_EQ(act[i], 0x7F);
    BoundCheck check;
    for (int e = 0; e < experts; ++e) {
        const bool shared = e == experts - 1;
        for (int r = plan.row_first[static_cast<size_t>(e)]; r < plan.row_first[static_cast<size_t>(e) + 1]; ++r) {
            for (int64_t c = 0; c < width; ++c)
                ASSERT_EQ(got[static_cast<size_t>(r * width + c)],
                          scaled_dot(a, r, shared ? shared_down : down, shared ? c : e * width + c).value)
                    << r << " " << c;
            for (int64_t begin = 0; begin < ff; begin += 128) {
                const float s = scale[static_cast<size_t>(r * (ff / 128) + begin / 128)];
                double largest = 0;
                for (int64_t c = begin; c < begin + 128; ++c) {
                    const double g = scaled_dot(a, r, shared ? shared_gate : gate, shared ? c : e * ff + c).value,
                                 u = scaled_dot(a, r, shared ? shared_up : up, shared ? c : e * ff + c).value;
                    const double value = g / (1 + std::exp(-g)) * u;
                    largest = std::max(largest, std::abs(value));
                    // exp, sum, quotient and product round less than 16 times; then e4m3: 2^-4, or 2^-10 of the scale.
                    const double off = 16 * kUnitF32 * std::abs(value);
                    check.add(double{f8_e4m3_to_f32(act[static_cast<size_t>(r * ff + c)])} * s, value,
                              off + std::max(0x1p-4 * (std::abs(value) + off), 0x1p-10 * s));
                }
                ASSERT_LE(largest / s, 448.1);
                if (largest > 0x1p-59) {
                    ASSERT_GT(largest / s, 223.9);
                }
            }
        }
    }
    EXPECT_LE(check.worst(), 1.0);
}

class Fp8Copy : public ::testing::TestWithParam<WeightKind> {};

TEST_P(Fp8Copy, rounds_each_value_once) {
    RT_GPU_ONLY();
    const RandomWeight m(GetParam(), 71, 768, 3);
    OpContext op;
    const Weight w = with_copy(op, m.w);
    const std::vector<float> got = values_of_copy(op, w);
    std::vector<float> expected = m.dequantized();
    if (w.dtype == DType::f16 && m.w.dtype != DType::f16)
        for (float& v : expected) v = f16_to_f32(f32_to_f16(v));
    const bool keeps =
        w.dtype == DType::f8_e4m3 && (w.scales == nullptr || (w.scale_rows % 64 == 0 && w.scale_cols % 128 == 0));
    for (int64_t r = 0; r < m.w.rows; ++r)
        for (int64_t c = 0; c < m.w.cols; ++c) {
            float largest = 0;
            for (int64_t i = r / 64 * 64; i < std::min(m.w.rows, r / 64 * 64 + 64); ++i)
                for (int64_t j = c / 128 * 128; j < c / 128 * 128 + 128; ++j)
                    largest = std::max(largest, std::abs(expected[static_cast<size_t>(i * m.w.cols + j)]));
            const auto at = static_cast<size_t>(r * m.w.cols + c);
            const float scale = fp8_scale(largest), v = expected[at];
            if (keeps) {
                ASSERT_LE(std::abs(got[at] - v), 0x1p-22f * std::abs(v));
                continue;
            }
            ASSERT_EQ(got[at], f8_e4m3_to_f32(f32_to_f8_e4m3(v / scale)) * scale) << r << " " << c;
        }
}

INSTANTIATE_TEST_SUITE_P(all, Fp8Copy, ::testing::ValuesIn(test::all_weight_kinds()),
                         [](const auto& kind) { return kind.param.name(); });

TEST(PrefillFp8, rows_are_rounded_in_blocks_of_128_columns) {
    RT_GPU_ONLY();
    const int64_t n = 37;
    for (const int64_t d : {128, 2048, 2176})
        for (const bool normed : {false, true}) {
            OpContext op;
            std::vector<float> values = test::random_rows(n, d, 5);
            values[static_cast<size_t>(3 * d + 5)] = NAN;
            values[static_cast<size_t>(4 * d + 5)] = INFINITY;
            const Tensor x = op.tensor(values, {n, d});
            const std::span<const float> weight = op.floats(normals(static_cast<size_t>(d), 6));
            const std::vector<float> rows = normed ? values_of(ops::rms_norm(op.ctx, x, weight, 1e-6f)) : values;
            auto* codes = upload(op, std::vector<uint8_t>(static_cast<size_t>(n * d), 1));
            auto* scales = upload(op, std::vector<float>(static_cast<size_t>(n * (d / 128)), kUnwritten));
            const Tensor f32 = op.ctx.alloc(DType::f32, {n, d});
            to_fp8(*op.ctx.gpu, x, normed ? weight.data() : nullptr, 1e-6f, {codes, scales}, f32.row(0));
            const std::vector<float> kept = values_of(f32);
            for (size_t i = 0; i < kept.size(); ++i)
                ASSERT_TRUE(same_bits(&kept[i], &rows[i], 1) || (std::isnan(kept[i]) && std::isnan(rows[i]))) << i;
            const auto code = download(op, codes, n * d);
            const auto scale = download(op, scales, n * (d / 128));
            for (int64_t r = 0; r < n; ++r)
                for (int64_t b = 0; b < d / 128; ++b) {
                    const float* row = rows.data() + r * d + b * 128;
                    float largest = 0;
                    bool odd = false;
                    for (int i = 0; i < 128; ++i) {
                        odd = odd || !std::isfinite(row[i]);
                        largest = std::max(largest, std::abs(row[i]));
                    }
                    const float s = scale[static_cast<size_t>(r * (d / 128) + b)];
                    if (odd) {
                        ASSERT_TRUE(std::isnan(s));
                        continue;
                    }
                    ASSERT_EQ(s, fp8_scale(largest));
                    for (int i = 0; i < 128; ++i)
                        ASSERT_EQ(f8_e4m3_to_f32(code[static_cast<size_t>(r * d + b * 128 + i)]),
                                  f8_e4m3_to_f32(f32_to_f8_e4m3(row[i] / s)))
                            << r << " " << b << " " << i;
                }
        }
}

}  // namespace
}  // namespace riptide
