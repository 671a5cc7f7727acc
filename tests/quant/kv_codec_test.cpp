// Error bounds of KV rows, and the laws of the rotation.
#include "quant/kv_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cfloat>

#include "quant/codec.h"
#include "quant/kv_levels.h"
#include "quant_data.h"

namespace riptide {

namespace {

const std::vector<DType> kTypes = {DType::f32,  DType::f16,  DType::bf16, DType::f8_e4m3,
                                   DType::q8_0, DType::q4_0, DType::tq3_0};

std::vector<float> kv_round_trip(DType type, const std::vector<float>& row, float scale = 1.0f) {
    const auto n = static_cast<int64_t>(row.size());
    std::vector<uint8_t> bytes(static_cast<size_t>(row_bytes(type, n)));
    std::vector<float> back(row.size(), NAN);
    encode_kv_row(type, row.data(), bytes.data(), n, scale);
    decode_kv_row(type, bytes.data(), back.data(), n, scale);
    return back;
}

/// Gaussian rows of every size, some with an outlier, some with one sign, some subnormal.
std::vector<std::vector<float>> rows_of_all_kinds() {
    std::vector<std::vector<float>> rows;
    for (uint32_t seed = 0; seed < 60; ++seed) {
        const float sigma = std::ldexp(1.0f, static_cast<int>(seed) - 30);
        std::vector<float> row = test::gaussian(128, seed, sigma);
        if (seed % 4 == 1) row[seed] *= 100;
        if (seed % 4 == 2)
            for (float& v : row) v = std::fabs(v);
        rows.push_back(row);
    }
    rows.push_back(test::gaussian(128, 77, 1e-41f));
    return rows;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
    return sum;
}

std::vector<float> rotated(std::vector<float> row) {
    kv_rotate(row.data(), static_cast<int64_t>(row.size()));
    return row;
}

/// The least squared error of 32 values on the TQ3_0 levels, over scales in steps of 0.2 %.
double best_tq3_error(const float* x) {
    double most = 0, least = INFINITY;
    for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(double{x[i]}));
    for (double d = most * 3; d < most * 12; d *= 1.002) {
        double sum = 0;
        for (int i = 0; i < 32; ++i) {
            double nearest = INFINITY;
            for (float level : kTQ3Values) nearest = std::min(nearest, std::fabs(x[i] - d * level));
            sum += nearest * nearest;
        }
        least = std::min(least, sum);
    }
    return least;
}

}  // namespace

TEST(KvCodec, float_rows_round_to_nearest) {
    for (const auto& row : rows_of_all_kinds()) {
        EXPECT_EQ(kv_round_trip(DType::f32, row), row);
        const auto f16 = kv_round_trip(DType::f16, row), bf16 = kv_round_trip(DType::bf16, row),
                   f8 = kv_round_trip(DType::f8_e4m3, row);
        for (size_t i = 0; i < row.size(); ++i) {
            const float x = std::fabs(row[i]);
            if (x < 65504) {
                EXPECT_LE(std::fabs(f16[i] - row[i]), std::max(x * 0x1p-11f, 0x1p-25f));
            }
            EXPECT_LE(std::fabs(bf16[i] - row[i]), std::max(x * 0x1p-8f, 0x1p-134f));
            if (x <= 448) {
                EXPECT_LE(std::fabs(f8[i] - row[i]), std::max(x * 0x1p-4f, 0x1p-10f));
            } else {
                EXPECT_EQ(std::fabs(f8[i]), 448.0f);
            }
        }
    }
}

TEST(KvCodec, f8_divides_by_its_scale) {
    const std::vector<float> row = {896.0f, -2.0f, 1000.0f, 0.5f};
    EXPECT_EQ(kv_round_trip(DType::f8_e4m3, row, 2.0f), (std::vector<float>{896.0f, -2.0f, 896.0f, 0.5f}));
    EXPECT_EQ(kv_round_trip(DType::f8_e4m3, row), (std::vector<float>{448.0f, -2.0f, 448.0f, 0.5f}));
}

TEST(KvCodec, q8_0_error_is_half_a_step) {
    for (const auto& row : rows_of_all_kinds()) {
        const auto back = kv_round_trip(DType::q8_0, row);
        for (size_t block = 0; block < row.size(); block += 32) {
            float most = 0;
            for (size_t i = block; i < block + 32; ++i) most = std::max(most, std::fabs(row[i]));
            if (most > 127 * 65504.0f) continue;  // saturates, see below
            // d differs from max/127 by f16 rounding: relative 2^-11, or 2^-25 below the normal range, 127 steps of it
            // at most.
            const float bound = most / 254 * (1 + 0x1p-10f) + 127 * 0x1p-25f;
            for (size_t i = block; i < block + 32; ++i) EXPECT_LE(std::fabs(back[i] - row[i]), bound) << most;
        }
    }
}

TEST(KvCodec, q4_0_error_is_half_a_step_or_a_clip) {
    for (const auto& row : rows_of_all_kinds()) {
        const auto back = kv_round_trip(DType::q4_0, row);
        for (size_t block = 0; block < row.size(); block += 32) {
            float extreme = 0;
            for (size_t i = block; i < block + 32; ++i)
                if (std::fabs(row[i]) > std::fabs(extreme)) extreme = row[i];
            const float most = std::fabs(extreme);
            if (most > 8 * 65504.0f) continue;
            const float rounding = most * 0x1p-11f + 8 * 0x1p-25f;  // eight steps of d's rounding
            for (size_t i = block; i < block + 32; ++i) {
                const bool same_sign = row[i] * extreme >= 0;
                EXPECT_LE(std::fabs(back[i] - row[i]), (same_sign ? most / 16 : most / 8) + rounding)
                    << row[i] << " of " << most;
            }
        }
    }
}

TEST(KvCodec, tq3_0_error_on_gaussian_rows_is_below_lloyd_max_and_near_the_best_scale) {
    const std::vector<float> row = test::gaussian(128 * 128, 9, 3.0f);
    const double error = test::rms_error(kv_round_trip(DType::tq3_0, row), row) / 3.0;
    double best = 0;
    for (size_t block = 0; block < row.size(); block += 32) best += best_tq3_error(row.data() + block);
    best /= 9.0 * static_cast<double>(row.size());
    std::printf("tq3_0: relative mean squared error %.5f, best scales %.5f, fixed Lloyd-Max 0.03454\n", error * error,
                best);
    // 0.03454: the eight-level Lloyd-Max quantiser of a Gaussian of known variance (Max 1960). A scale of its own
    // adapts to each block.
    EXPECT_LT(error * error, 0.03454);
    EXPECT_GT(error * error, best * 0.999);
    EXPECT_LT(error * error, best * 1.01);
}

TEST(KvCodec, rotation_makes_outliers_harmless_for_tq3_0) {
    std::vector<float> row = test::gaussian(128, 13);
    row[5] = 60;
    const double norm = std::sqrt(dot(row, row) / 128);
    std::vector<float> back = kv_round_trip(DType::tq3_0, rotated(row));
    kv_unrotate(back.data(), 128);
    EXPECT_LT(test::rms_error(back, row) / norm,
              0.25);  // Gaussian: 0.186; the sign vectors do not make it quite Gaussian
    const double plain = test::rms_error(kv_round_trip(DType::tq3_0, row), row);
    EXPECT_GT(plain, test::rms_error(back, row) * 0.5) << "the comparison itself must not be vacuous";
}

TEST(KvCodec, zero_rows_decode_to_zero) {
    for (DType type : kTypes)
        for (float v : kv_round_trip(type, std::vector<float>(128, 0.0f))) EXPECT_EQ(v, 0.0f) << dtype_name(type);
}

TEST(KvCodec, finite_rows_never_decode_to_nan) {
    for (DType type : kTypes)
        for (float magnitude : {FLT_MAX, 1e30f, 1e7f, 1e-7f, 1e-30f, FLT_TRUE_MIN}) {
            std::vector<float> row(128, 0.0f);
            for (size_t i = 0; i < row.size(); i += 3) row[i] = i % 2 == 0 ? magnitude : -magnitude;
            for (float v : kv_round_trip(type, row))
                EXPECT_FALSE(std::isnan(v)) << dtype_name(type) << " at " << magnitude;
        }
}

TEST(KvCodec, a_block_with_a_non_finite_value_decodes_to_nan) {
    for (DType type : {DType::q8_0, DType::q4_0, DType::tq3_0})
        for (float bad : {NAN, INFINITY}) {
            std::vector<float> row = test::gaussian(128, 15);
            row[40] = bad;
            const auto back = kv_round_trip(type, row);
            for (size_t i = 0; i < row.size(); ++i)
                EXPECT_EQ(std::isnan(back[i]), i / 32 == 1) << dtype_name(type) << " value " << i;
        }
}

TEST(KvCodec, a_row_does_not_depend_on_its_neighbours) {
    const std::vector<float> rows = test::gaussian(4 * 128, 19);
    for (DType type : kTypes) {
        const int64_t bytes = row_bytes(type, 128);
        std::vector<uint8_t> all(static_cast<size_t>(4 * bytes)), one(static_cast<size_t>(bytes + 1));
        for (int64_t r = 0; r < 4; ++r) encode_kv_row(type, rows.data() + r * 128, all.data() + r * bytes, 128);
        for (int64_t r = 0; r < 4; ++r) {
            encode_kv_row(type, rows.data() + r * 128, one.data() + 1, 128);  // an unaligned place, too
            EXPECT_EQ(0, std::memcmp(one.data() + 1, all.data() + r * bytes, static_cast<size_t>(bytes)))
                << dtype_name(type);
        }
    }
}

TEST(KvRotation, is_inverted_by_unrotate) {
    for (int64_t n : {1, 2, 32, 64, 96, 128, 160, 256, 384, 100}) {
        const std::vector<float> row = test::gaussian(n, static_cast<uint32_t>(n));
        std::vector<float> back = rotated(row);
        kv_unrotate(back.data(), n);
        for (size_t i = 0; i < row.size(); ++i)
            EXPECT_NEAR(back[i], row[i], 4e-6f) << n;  // 15 additions of values below ~16
        std::vector<float> other = row;
        kv_unrotate(other.data(), n);
        kv_rotate(other.data(), n);
        for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(other[i], row[i], 4e-6f) << n;
    }
}

TEST(KvRotation, preserves_dot_products) {
    for (int64_t n : {32, 64, 96, 128, 256}) {
        const std::vector<float> q = test::gaussian(n, 1), k = test::gaussian(n, 2);
        const double bound = 1e-6 * std::sqrt(dot(q, q) * dot(k, k));
        EXPECT_NEAR(dot(rotated(q), rotated(k)), dot(q, k), bound) << n;
        EXPECT_NEAR(dot(rotated(q), rotated(q)), dot(q, q), bound) << n;
    }
}

TEST(KvRotation, matrix_is_orthonormal_with_entries_of_one_magnitude) {
    std::vector<std::vector<float>> columns;
    for (size_t i = 0; i < 128; ++i) {
        std::vector<float> unit(128, 0.0f);
        unit[i] = 1;
        columns.push_back(rotated(unit));
        for (float v : columns.back()) EXPECT_NEAR(std::fabs(v), 1 / std::sqrt(128.0f), 1e-7f);
    }
    for (size_t i = 0; i < 128; ++i)
        for (size_t j = 0; j < 128; ++j)
            EXPECT_NEAR(dot(columns[i], columns[j]), i == j ? 1 : 0, 1e-6) << i << ", " << j;
}

TEST(KvRotation, groups_of_128_are_rotated_apart) {
    const std::vector<float> row = test::gaussian(256, 4);
    const std::vector<float> second(row.begin() + 128, row.end());
    const std::vector<float> both = rotated(row), alone = rotated(second);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), both.begin() + 128));
}

TEST(KvRotation, signs_never_change) {
    // Stored caches depend on them. R e_0 = S2 H S1 e_0 / sqrt(128): column 0 of H is all ones, so these are the signs
    // of S2 times S1[0].
    std::vector<float> unit(128, 0.0f);
    unit[0] = 1;
    kv_rotate(unit.data(), 128);
    uint64_t bits = 0, state = 0x5249505449444521u;
    uint64_t expected = 0;
    bool first = false;
    for (int i = 0; i < 64; ++i) {
        uint64_t z = (state += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        if (i == 0) first = z & 1;
        bits |= static_cast<uint64_t>(unit[static_cast<size_t>(i)] < 0) << i;
        expected |= static_cast<uint64_t>(((z >> 1 & 1) != 0) != first) << i;
    }
    EXPECT_EQ(bits, expected);
}

TEST(KvRotation, only_tq3_0_is_stored_rotated) {
    for (int t = 0; t < static_cast<int>(DType::count); ++t) {
        const auto type = static_cast<DType>(t);
        EXPECT_EQ(kv_rotated(type), type == DType::tq3_0);
        EXPECT_EQ(can_hold_kv(type), std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end()) << dtype_name(type);
    }
}

}  // namespace riptide
