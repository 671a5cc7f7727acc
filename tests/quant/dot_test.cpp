#include "quant/dot.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using test::RandomWeight;
using test::WeightKind;

std::vector<Isa> available_isas() {
    std::vector<Isa> isas;
    for (Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
        if (isa_available(isa)) isas.push_back(isa);
    return isas;
}

/// y[n, rows] by one set of kernels, in pieces of `piece` weight rows. The output is poisoned and has sentinels behind
/// it.
std::vector<float> product(Isa isa, const Weight& w, const std::vector<float>& x, int64_t n, int64_t piece,
                           const std::vector<int32_t>& index = {}) {
    const DotKernels& kernels = dot_kernels(isa);
    const int64_t rows_of_x = static_cast<int64_t>(x.size()) / w.cols, row_bytes = Int8Row::bytes(w.cols);
    std::vector<std::byte> int8(static_cast<size_t>(rows_of_x * row_bytes));
    for (int64_t r = 0; r < rows_of_x; ++r)
        kernels.quantize(x.data() + r * w.cols, 0, w.cols, w.cols, int8.data() + r * row_bytes);
    std::vector<std::byte> scratch(static_cast<size_t>(dot_scratch_bytes(w) + 128), std::byte{0xFF});
    const auto address = reinterpret_cast<uintptr_t>(scratch.data());
    std::vector<float> y(static_cast<size_t>(n * w.rows + 32), std::numeric_limits<float>::quiet_NaN());
    for (size_t i = y.size() - 32; i < y.size(); ++i) y[i] = 12345.0f;
    for (int64_t o = 0; o < w.rows; o += piece) {
        DotTask task;
        task.w = &w;
        task.row_begin = o;
        task.row_end = std::min(w.rows, o + piece);
        const bool use_int8 = uses_int8_activations(w.dtype);
        task.x = use_int8 ? static_cast<const void*>(int8.data()) : x.data();
        task.x_stride = use_int8 ? row_bytes : w.cols * 4;
        task.x_index = index.empty() ? nullptr : index.data();
        task.n = n;
        task.y = y.data() + o;
        task.y_stride = w.rows;
        task.scratch = scratch.data() + (64 - address % 64) % 64;
        kernels.dot(task);
    }
    for (size_t i = y.size() - 32; i < y.size(); ++i) EXPECT_EQ(y[i], 12345.0f) << "written behind the output";
    y.resize(static_cast<size_t>(n * w.rows));
    return y;
}

std::vector<uint32_t> bits(const std::vector<float>& values) {
    std::vector<uint32_t> result(values.size());
    std::memcpy(result.data(), values.data(), values.size() * 4);
    return result;
}

std::vector<int64_t> column_counts(const WeightKind& kind) {
    if (kind.granule() == 256) return {256, 512, 1280};
    if (kind.granule() == 64) return {64, 192, 320, 512};
    if (kind.granule() == 32) return {32, 96, 256, 416, 544};
    return {kind.granule(), 24, 96 + kind.granule(), 128, 200, 512 + 3 * kind.granule()};
}

class DotKinds : public ::testing::TestWithParam<WeightKind> {};

TEST_P(DotKinds, baseline_is_within_the_derived_bound_of_double) {
    for (int64_t cols : column_counts(GetParam())) {
        const RandomWeight m(GetParam(), 5, cols, 11);
        const std::vector<float> rows = m.dequantized(), x = test::random_rows(3, cols, 5);
        const std::vector<float> y = product(Isa::baseline, m.w, x, 3, 2);
        for (int64_t i = 0; i < 3; ++i)
            for (int64_t o = 0; o < 5; ++o) {
                const auto b = test::dot_bound(m.w, rows.data() + o * cols, x.data() + i * cols);
                const float value = y[static_cast<size_t>(i * 5 + o)];
                EXPECT_NEAR(value, b.exact, b.bound) << cols;
                if (uses_int8_activations(m.w.dtype)) {
                    EXPECT_NEAR(value, b.int8_exact, b.int8_bound) << cols;
                }
            }
    }
}

TEST_P(DotKinds, instruction_sets_agree_bit_for_bit) {
    for (int64_t cols : column_counts(GetParam())) {
        const RandomWeight m(GetParam(), 37, cols, 12);
        const std::vector<float> x = test::random_rows(5, cols, 6);
        const auto expected = bits(product(Isa::baseline, m.w, x, 5, 100));
        for (Isa isa : available_isas())
            for (int64_t n : {1, 2, 5}) {
                auto part = expected;
                part.resize(static_cast<size_t>(37 * n));
                EXPECT_EQ(bits(product(isa, m.w, x, n, 100)), part) << dot_kernels(isa).name << " " << cols << " " << n;
            }
    }
}

TEST_P(DotKinds, a_row_does_not_depend_on_its_company) {
    const int64_t cols = column_counts(GetParam()).back(), rows = 33;
    const RandomWeight m(GetParam(), rows, cols, 13);
    const std::vector<float> x = test::random_rows(300, cols, 7);
    for (Isa isa : available_isas()) {
        if (isa == Isa::baseline) continue;  // equal to the others by the test above, and slow
        const auto all = bits(product(isa, m.w, x, 300, 17));
        for (int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64}) {
            std::vector<int32_t> index;
            for (int64_t i = 0; i < n; ++i) index.push_back(static_cast<int32_t>((i * 101 + 7) % 300));
            const auto some = bits(product(isa, m.w, x, n, 16, index));
            for (int64_t i = 0; i < n; ++i)
                for (int64_t o = 0; o < rows; ++o)
                    ASSERT_EQ(some[static_cast<size_t>(i * rows + o)],
                              all[static_cast<size_t>(index[static_cast<size_t>(i)] * rows + o)])
                        << dot_kernels(isa).name << " n " << n << " row " << i << " output " << o;
        }
    }
}

TEST_P(DotKinds, huge_tiny_and_zero_activations_stay_exact_in_scale) {
    const int64_t cols = column_counts(GetParam()).back();
    const RandomWeight m(GetParam(), 4, cols, 14);
    std::vector<float> x = test::random_rows(1, cols, 8), big = x, none(x.size(), 0.0f);
    for (float& v : big) v *= 0x1p60f;
    const std::vector<float> y = product(Isa::baseline, m.w, x, 1, 4);
    for (Isa isa : available_isas()) {
        const std::vector<float> scaled = product(isa, m.w, big, 1, 4), zero = product(isa, m.w, none, 1, 4);
        for (size_t o = 0; o < 4; ++o) {
            EXPECT_EQ(scaled[o], y[o] * 0x1p60f);
            EXPECT_EQ(zero[o], 0.0f);
        }
    }
}

// Bytes that no quantiser writes are still decoded as the codec does: the kernels agree with it on every code.
TEST_P(DotKinds, arbitrary_bytes_decode_alike) {
    const int64_t cols = column_counts(GetParam()).back();
    RandomWeight m(GetParam(), 40, cols, 15);
    std::mt19937_64 random(99);
    for (std::byte& b : m.data) b = static_cast<std::byte>(random() & 255);
    const std::vector<float> x = test::random_rows(3, cols, 9), rows = m.dequantized();
    const std::vector<float> expected = product(Isa::baseline, m.w, x, 3, 40);
    for (Isa isa : available_isas()) {
        const std::vector<float> y = product(isa, m.w, x, 3, 40);
        for (size_t i = 0; i < y.size(); ++i) {
            const bool same = std::isnan(expected[i]) ? std::isnan(y[i]) : y[i] == expected[i];
            EXPECT_TRUE(same) << dot_kernels(isa).name << " " << i << ": " << y[i] << ", expected " << expected[i];
        }
    }
    for (int64_t o = 0; o < 40; ++o) {
        const bool finite = std::all_of(rows.begin() + o * cols, rows.begin() + (o + 1) * cols,
                                        [](float v) { return std::isfinite(v); });
        if (!finite) {
            EXPECT_FALSE(std::isfinite(expected[static_cast<size_t>(o)])) << o;
        }
    }
}

TEST_P(DotKinds, scratch_goes_by_the_columns_alone) {
    const RandomWeight m(GetParam(), 2, 512 * GetParam().granule(), 16);
    const Weight floats{.data = &m, .dtype = DType::f32, .rows = 1, .cols = m.w.cols, .row_bytes = 4 * m.w.cols};
    EXPECT_EQ(dot_scratch_bytes(m.w), dot_scratch_bytes(floats));
}

INSTANTIATE_TEST_SUITE_P(all, DotKinds, ::testing::ValuesIn(test::all_weight_kinds()),
                         [](const auto& kind) { return kind.param.name(); });

// ---- the activation format -----------------------------------------------------------------------

std::vector<std::byte> quantized(Isa isa, const std::vector<float>& x) {
    const auto cols = static_cast<int64_t>(x.size());
    std::vector<std::byte> row(static_cast<size_t>(Int8Row::bytes(cols)), std::byte{0xAA});
    dot_kernels(isa).quantize(x.data(), 0, cols, cols, row.data());
    return row;
}

TEST(Int8Row, instruction_sets_write_the_same_bytes) {
    for (int64_t cols : {1, 24, 32, 97, 256, 300, 2048})
        for (uint64_t seed = 0; seed < 5; ++seed) {
            const std::vector<float> x = test::random_rows(1, cols, seed);
            for (Isa isa : available_isas()) EXPECT_EQ(quantized(isa, x), quantized(Isa::baseline, x)) << cols;
        }
}

TEST(Int8Row, values_lie_within_half_a_step_and_sums_are_exact) {
    const int64_t cols = 600;
    const std::vector<float> x = test::random_rows(1, cols, 3);
    const auto memory = quantized(Isa::baseline, x);
    const Int8Row q = int8_row(memory.data(), cols);
    for (int64_t g = 0; g < Int8Row::padded(cols) / 32; ++g) {
        int sums[2] = {};
        for (int64_t i = 0; i < 32; ++i) {
            const int64_t c = 32 * g + i;
            const float value = c < cols ? x[static_cast<size_t>(c)] : 0.0f;
            EXPECT_LE(std::abs(double{value} - double{q.d[g]} * q.a[c]), q.d[g] * (0.5 + 0x1p-14));
            EXPECT_GE(q.a[c], -127);
            sums[i / 16] += q.a[c];
        }
        EXPECT_EQ(q.sum32[g], static_cast<float>(sums[0] + sums[1]));
        for (int h = 0; h < 2; ++h) EXPECT_EQ(q.sum16[g / 8 * 16 + 8 * h + g % 8], static_cast<float>(sums[h]));
    }
}

TEST(Int8Row, ties_round_to_even) {
    std::vector<float> x(32, 0.0f);
    for (int i = 0; i < 31; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i) - 15.5f;
    x[31] = 127.0f;
    for (Isa isa : available_isas()) {
        const auto memory = quantized(isa, x);
        const Int8Row q = int8_row(memory.data(), 32);
        for (int i = 0; i < 31; ++i) EXPECT_EQ(q.a[i] % 2, 0) << i;
    }
}

TEST(Int8Row, groups_quantised_one_by_one_equal_the_whole_row) {
    const int64_t cols = 416;
    const std::vector<float> x = test::random_rows(1, cols, 4);
    for (Isa isa : available_isas())
        for (int64_t step : {32, 64, 96}) {
            std::vector<std::byte> row(static_cast<size_t>(Int8Row::bytes(cols)), std::byte{0xAA});
            for (int64_t c = 0; c < cols; c += step)
                dot_kernels(isa).quantize(x.data() + c, c, std::min(cols, c + step), cols, row.data());
            EXPECT_EQ(row, quantized(isa, x));
        }
}

TEST(Int8Row, infinities_and_nan_show_in_the_result_and_nothing_else_changes) {
    const RandomWeight m({DType::q4_k}, 20, 512, 1);
    const std::vector<float> x = test::random_rows(4, 512, 2);
    for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                      std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> spoilt = x;
        spoilt[512 + 77] = bad;
        for (Isa isa : available_isas()) {
            const std::vector<float> y = product(isa, m.w, x, 4, 20), z = product(isa, m.w, spoilt, 4, 20);
            for (size_t i = 0; i < y.size(); ++i) {
                EXPECT_TRUE(i / 20 == 1 ? std::isnan(z[i]) : y[i] == z[i]) << i;
            }
        }
    }
}

TEST(Int8Row, tiny_groups_are_zero) {
    const std::vector<float> x(64, 0x1p-120f);
    for (Isa isa : available_isas()) {
        const auto memory = quantized(isa, x);
        const Int8Row q = int8_row(memory.data(), 64);
        for (int c = 0; c < 64; ++c) EXPECT_EQ(q.a[c], 0);
        EXPECT_EQ(q.d[0], 0.0f);
    }
}

}  // namespace
}  // namespace riptide
