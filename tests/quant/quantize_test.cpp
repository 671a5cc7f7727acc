// Laws of the quantisers that need no reference data.
#include <gtest/gtest.h>

#include <array>
#include <cfloat>
#include <functional>

#include "base/error.h"
#include "quant/codec.h"
#include "quant_data.h"
#include "tensor/half.h"

namespace riptide {

namespace {

const std::vector<DType> kBlockTypes = {DType::q8_0,    DType::q4_0,  DType::q4_1,    DType::q5_0,   DType::q5_1,
                                        DType::q2_k,    DType::q3_k,  DType::q4_k,    DType::q5_k,   DType::q6_k,
                                        DType::iq1_s,   DType::iq1_m, DType::iq2_xxs, DType::iq2_xs, DType::iq2_s,
                                        DType::iq3_xxs, DType::iq3_s, DType::iq4_nl,  DType::iq4_xs, DType::mxfp4,
                                        DType::tq1_0,   DType::tq2_0, DType::tq3_0};

std::vector<uint8_t> encode(DType type, const std::vector<float>& values) {
    const auto n = static_cast<int64_t>(values.size());
    std::vector<uint8_t> bytes(static_cast<size_t>(row_bytes(type, n)));
    quantize(type, values.data(), bytes.data(), n);
    return bytes;
}

std::vector<float> quantized_round_trip(DType type, const std::vector<float>& values) {
    const std::vector<uint8_t> bytes = encode(type, values);
    std::vector<float> back(values.size(), NAN);
    dequantize(type, bytes.data(), back.data(), static_cast<int64_t>(values.size()));
    return back;
}

/// Mean squared error of the best uniform quantiser of a unit Gaussian with this many levels (Max 1960, table II).
double uniform_max_error(int levels) {
    switch (levels) {
        case 16:
            return 0.01154;
        case 32:
            return 0.00349;
        default:
            return 0.00104;  // 64
    }
}

/// The same of any levels (his table I).
double best_levels_error(int levels) {
    switch (levels) {
        case 2:
            return 0.3634;
        case 3:
            return 0.1902;
        case 4:
            return 0.1175;
        default:
            return 0.03454;  // 8
    }
}

/// How many of 256 signs a type may change: one of each eight where an even number of them is negative.
int most_wrong_signs(DType type) {
    return type == DType::iq3_xxs || type == DType::iq2_xs || type == DType::iq2_xxs ? 32 : 0;
}

}  // namespace

TEST(Quantize, can_quantize_lists_what_quantize_takes) {
    const std::vector<float> values = test::gaussian(256, 3);
    for (int t = 0; t < static_cast<int>(DType::count); ++t) {
        const auto type = static_cast<DType>(t);
        std::vector<uint8_t> bytes(4096);
        if (can_quantize(type)) {
            EXPECT_NO_THROW(quantize(type, values.data(), bytes.data(), 256)) << dtype_name(type);
        } else {
            EXPECT_THROW(quantize(type, values.data(), bytes.data(), 256), Error) << dtype_name(type);
        }
        EXPECT_EQ(can_quantize(type),
                  (", " + quantize_names() + ",").find(std::string(" ") + dtype_name(type) + ",") != std::string::npos)
            << dtype_name(type);
    }
}

TEST(Quantize, float_types_round_to_nearest) {
    const std::vector<float> values = {1.0f, -0.3f, 1e-30f, 70000.0f, 449.0f, -1e9f, 0.0f, 0.1f};
    EXPECT_EQ(quantized_round_trip(DType::f32, values), values);
    const std::vector<float> f8 = quantized_round_trip(DType::f8_e4m3, values),
                             bf = quantized_round_trip(DType::bf16, values);
    EXPECT_EQ(f8[4], 448.0f);
    EXPECT_EQ(f8[5], -448.0f);
    EXPECT_EQ(f8[1], -0.3125f);
    EXPECT_EQ(quantized_round_trip(DType::f16, values)[3], INFINITY);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(bf[i], values[i], std::fabs(values[i]) / 256);
}

TEST(Quantize, gaussian_error_is_below_that_of_the_best_fixed_uniform_quantiser) {
    // A scale of its own for each group adapts to the group, so a fit beats the best grid for the whole distribution.
    const std::vector<float> values = test::gaussian(64 * 256, 17, 0.02f);
    const std::pair<DType, int> levels[] = {{DType::q4_0, 16}, {DType::q4_1, 16}, {DType::q4_k, 16}, {DType::q5_0, 32},
                                            {DType::q5_1, 32}, {DType::q5_k, 32}, {DType::q6_k, 64}};
    for (const auto& [type, count] : levels) {
        const double error = test::rms_error(quantized_round_trip(type, values), values) / 0.02;
        EXPECT_LT(error * error, uniform_max_error(count)) << dtype_name(type);
    }
}

TEST(Quantize, gaussian_error_of_small_types_is_below_that_of_the_best_fixed_levels) {
    // Levels that need fewer bits than the type has, by 0.06 (IQ3_XXS, IQ2_XXS) to 1.25 (MXFP4).
    const std::vector<float> values = test::gaussian(64 * 256, 18, 0.02f);
    const std::pair<DType, int> levels[] = {
        {DType::iq3_xxs, 8}, {DType::iq2_xs, 4}, {DType::iq2_xxs, 4}, {DType::iq1_m, 3},
        {DType::iq1_s, 2},   {DType::tq1_0, 3},  {DType::tq2_0, 3},   {DType::mxfp4, 8},
    };
    for (const auto& [type, count] : levels) {
        const double error = test::rms_error(quantized_round_trip(type, values), values) / 0.02;
        EXPECT_LT(error * error, best_levels_error(count)) << dtype_name(type);
    }
}

TEST(Quantize, what_was_stored_is_stored_again) {
    const std::vector<float> values = test::gaussian(64 * 256, 19, 0.02f);
    for (DType type : kBlockTypes) {
        const std::vector<float> once = quantized_round_trip(type, values), twice = quantized_round_trip(type, once);
        const double again = test::rms_error(twice, once) / test::rms_error(once, values);
        const bool finer = type == DType::q4_k || type == DType::q5_k || type == DType::q6_k;  // scales of 6 and 8 bits
        EXPECT_LT(again * again, finer ? 0.05 : 0.001) << dtype_name(type);
    }
}

TEST(Quantize, three_levels_survive_in_ternary_types) {
    std::vector<float> values;
    for (int i = 0; i < 256; ++i) values.push_back(0.25f * static_cast<float>(i * 7 % 3 - 1));
    for (DType type : {DType::tq1_0, DType::tq2_0}) EXPECT_EQ(quantized_round_trip(type, values), values);
}

TEST(Quantize, mxfp4_takes_the_best_of_all_exponents) {
    const std::vector<float> values = test::gaussian(64 * 32, 20, 0.02f);
    const std::vector<float> back = quantized_round_trip(DType::mxfp4, values);
    for (size_t block = 0; block < 64; ++block) {
        double ours = 0, best = INFINITY;
        for (size_t i = 32 * block; i < 32 * block + 32; ++i) ours += std::pow(double{values[i]} - back[i], 2.0);
        for (int e = -20; e < 5; ++e) {
            double sum = 0;
            for (size_t i = 32 * block; i < 32 * block + 32; ++i) {
                double least = INFINITY;
                for (double level : {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0})
                    least = std::min(least, std::fabs(std::fabs(values[i]) - std::ldexp(level, e)));
                sum += least * least;
            }
            best = std::min(best, sum);
        }
        EXPECT_LE(ours, best * 1.00001) << block;
    }
}

TEST(Quantize, values_on_the_grid_survive) {
    // Q4_0 holds -8..7 and Q4_1 holds 0..15 times a power of two; Q4_K rounds the scale to 1/63 of the largest, here
    // exactly.
    std::vector<float> symmetric, affine;
    for (int i = 0; i < 256; ++i) {
        symmetric.push_back(0.25f * static_cast<float>(i % 16 - 8));
        affine.push_back(0.25f * static_cast<float>(i % 16) - 1.0f);
    }
    EXPECT_EQ(quantized_round_trip(DType::q4_0, symmetric), symmetric);
    EXPECT_EQ(quantized_round_trip(DType::q4_1, affine), affine);
    for (DType type : {DType::q4_k, DType::q5_k})
        EXPECT_LT(test::rms_error(quantized_round_trip(type, affine), affine), 1e-3) << dtype_name(type);
}

TEST(Quantize, zero_blocks_become_zero) {
    const std::vector<float> zeros(256, 0.0f);
    for (DType type : kBlockTypes)
        for (float v : quantized_round_trip(type, zeros)) EXPECT_EQ(v, 0.0f) << dtype_name(type);
}

TEST(Quantize, constant_blocks_are_kept) {
    for (float value : {1.0f, -1.0f, 0.037f, -300.0f})
        for (DType type : kBlockTypes) {
            const std::vector<float> constant(256, value);
            // Two f16 roundings, 2^-11 each or 2^-25 of a subnormal scale, which q6_k multiplies by up to 32 * 128.
            float bound = std::fabs(value) * 0x1p-10f + 0x1p-25f * 32 * 128;
            if (type == DType::mxfp4) bound = std::fabs(value) / 5;  // 1.25 between 1 and 1.5, times a power of two
            for (float v : quantized_round_trip(type, constant)) ASSERT_NEAR(v, value, bound) << dtype_name(type);
        }
}

TEST(Quantize, extreme_magnitudes_stay_finite) {
    const std::array<float, 12> magnitudes = {FLT_MAX, 1e38f, 1e30f,  1e10f,  1e5f,         1e-3f,
                                              1e-6f,   1e-8f, 1e-20f, 1e-38f, FLT_TRUE_MIN, 1e-41f};
    for (DType type : kBlockTypes)
        for (float magnitude : magnitudes)
            for (int kind = 0; kind < 4; ++kind) {
                std::vector<float> values = test::gaussian(256, 23);
                for (size_t i = 0; i < values.size(); ++i) {
                    values[i] = std::clamp(values[i] / 6, -1.0f, 1.0f) * magnitude;
                    if (kind == 1) values[i] = i == 70 ? magnitude : 0.0f;
                    if (kind == 2) values[i] = i % 2 == 0 ? magnitude : -magnitude;
                    if (kind == 3 && i >= 32)
                        values[i] = std::fabs(values[i]) * 1e-25f;  // far apart within a super-block
                }
                for (float v : quantized_round_trip(type, values)) {
                    ASSERT_TRUE(std::isfinite(v)) << dtype_name(type) << " at " << magnitude << " kind " << kind;
                    ASSERT_LE(std::fabs(v), std::max(magnitude * 1.35f, 1e-3f)) << dtype_name(type) << " kind " << kind;
                }
            }
}

TEST(Quantize, blocks_too_large_for_an_f16_scale_saturate) {
    for (DType type : kBlockTypes)
        for (float magnitude : {1e8f, 1e15f, 1e25f, FLT_MAX}) {
            std::vector<float> values(256);
            for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 0 ? magnitude : -magnitude;
            const std::vector<float> back = quantized_round_trip(type, values);
            int wrong = 0;
            for (size_t i = 0; i < values.size(); ++i) {
                wrong += std::signbit(back[i]) != std::signbit(values[i]) ? 1 : 0;
                ASSERT_GE(std::fabs(back[i]), 65504 * 0.19f)
                    << dtype_name(type) << " at " << magnitude;  // TQ3_0's top level
            }
            EXPECT_LE(wrong, most_wrong_signs(type)) << dtype_name(type) << " at " << magnitude;
        }
}

TEST(Quantize, error_scales_with_the_values) {
    // Multiplying by a power of two that stays inside f16's normal range multiplies everything exactly.
    const std::vector<float> values = test::gaussian(256, 29);
    for (DType type : kBlockTypes) {
        std::vector<float> scaled = values;
        for (float& v : scaled) v *= 64.0f;
        const std::vector<float> small = quantized_round_trip(type, values), large = quantized_round_trip(type, scaled);
        if (type == DType::q4_k || type == DType::q5_k || type == DType::q6_k) {  // d is an f16 subnormal at sigma 1
            EXPECT_LE(test::rms_error(large, scaled), 64 * test::rms_error(small, values) * 1.001) << dtype_name(type);
            continue;
        }
        for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(large[i], 64.0f * small[i]) << dtype_name(type);
    }
}

TEST(Quantize, each_block_depends_on_itself_alone) {
    const std::vector<float> values = test::gaussian(4 * 256, 31);
    for (DType type : kBlockTypes) {
        const std::vector<uint8_t> all = encode(type, values);
        const size_t quarter = all.size() / 4;
        for (size_t i = 0; i < 4; ++i) {
            const auto begin = values.begin() + static_cast<std::ptrdiff_t>(256 * i);
            const std::vector<uint8_t> part = encode(type, std::vector<float>(begin, begin + 256));
            EXPECT_EQ(0, std::memcmp(part.data(), all.data() + i * quarter, quarter))
                << dtype_name(type) << " part " << i;
        }
    }
}

TEST(Quantize, every_code_of_q4_0_is_the_nearest) {
    const std::vector<float> values = test::gaussian(32 * 64, 37);
    const std::vector<uint8_t> bytes = encode(DType::q4_0, values);
    const std::vector<float> back = quantized_round_trip(DType::q4_0, values);
    for (size_t i = 0; i < values.size(); ++i) {
        uint16_t half;
        std::memcpy(&half, bytes.data() + i / 32 * 18, 2);
        const float d = std::fabs(f16_to_f32(half));
        const bool clipped = back[i] == 7 * f16_to_f32(half) || back[i] == -8 * f16_to_f32(half);
        EXPECT_TRUE(clipped || std::fabs(back[i] - values[i]) <= d * 0.5001f) << i;
    }
}

TEST(Quantize, non_finite_values_are_named) {
    for (float bad : {NAN, INFINITY, -INFINITY})
        for (DType type : kBlockTypes) {
            std::vector<float> values = test::gaussian(512, 41);
            values[300] = bad;
            std::vector<uint8_t> bytes(4096);
            try {
                quantize(type, values.data(), bytes.data(), 512);
                FAIL() << dtype_name(type) << " took " << bad;
            } catch (const Error& error) {
                EXPECT_NE(std::string(error.what()).find("value 300 of 512"), std::string::npos) << error.what();
            }
        }
}

}  // namespace riptide
