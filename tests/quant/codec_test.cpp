// Decoders on blocks made by hand, with every bit field in a known place.
#include "quant/codec.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"
#include "quant/blocks.h"
#include "quant/kv_levels.h"
#include "quant_data.h"
#include "tensor/half.h"

namespace riptide {

namespace {

template <class Block>
std::vector<float> decode(DType type, const Block& block) {
    std::vector<float> values(static_cast<size_t>(dtype_info(type).block_elements), NAN);
    dequantize(type, &block, values.data(), static_cast<int64_t>(values.size()));
    return values;
}

/// Codes that differ between neighbours and between the bit planes of every format.
int code_at(int i, int levels) { return (i * 7 + i / 16 * 3 + 1) % levels; }

template <class Block>
void set_nibbles(Block& b) {
    for (int i = 0; i < 32; ++i) b.qs[i % 16] = static_cast<uint8_t>(b.qs[i % 16] | code_at(i, 16) << (4 * (i / 16)));
}

template <class Block>
void set_five_bits(Block& b) {
    for (int i = 0; i < 32; ++i) {
        const int q = code_at(i, 32);
        b.qs[i % 16] = static_cast<uint8_t>(b.qs[i % 16] | (q & 15) << (4 * (i / 16)));
        b.qh[i / 8] = static_cast<uint8_t>(b.qh[i / 8] | (q >> 4) << (i % 8));
    }
}

void set_two_bits(uint8_t* qs, int i, int q) {
    const int h = i / 128, s = i % 128 / 32, l = i % 32;
    qs[32 * h + l] = static_cast<uint8_t>(qs[32 * h + l] | q << (2 * s));
}

constexpr float kD = 0.375f, kM = -1.25f;  // exact in f16

}  // namespace

TEST(Codec, block_sizes_are_those_of_the_dtype_table) {
    const auto bytes = [](DType type) { return static_cast<size_t>(dtype_info(type).block_bytes); };
    EXPECT_EQ(sizeof(BlockQ8_0), bytes(DType::q8_0));
    EXPECT_EQ(sizeof(BlockQ4_0), bytes(DType::q4_0));
    EXPECT_EQ(sizeof(BlockQ4_1), bytes(DType::q4_1));
    EXPECT_EQ(sizeof(BlockQ5_0), bytes(DType::q5_0));
    EXPECT_EQ(sizeof(BlockQ5_1), bytes(DType::q5_1));
    EXPECT_EQ(sizeof(BlockQ2K), bytes(DType::q2_k));
    EXPECT_EQ(sizeof(BlockQ3K), bytes(DType::q3_k));
    EXPECT_EQ(sizeof(BlockQ4K), bytes(DType::q4_k));
    EXPECT_EQ(sizeof(BlockQ5K), bytes(DType::q5_k));
    EXPECT_EQ(sizeof(BlockQ6K), bytes(DType::q6_k));
    EXPECT_EQ(sizeof(BlockIQ4NL), bytes(DType::iq4_nl));
    EXPECT_EQ(sizeof(BlockIQ4XS), bytes(DType::iq4_xs));
    EXPECT_EQ(sizeof(BlockMxfp4), bytes(DType::mxfp4));
    EXPECT_EQ(sizeof(BlockNvfp4), bytes(DType::nvfp4));
    EXPECT_EQ(sizeof(BlockTQ2_0), bytes(DType::tq2_0));
    EXPECT_EQ(sizeof(BlockTQ3_0), bytes(DType::tq3_0));
}

TEST(Codec, simple_blocks_made_by_hand) {
    BlockQ8_0 q8{f32_to_f16(kD), {}};
    for (int i = 0; i < 32; ++i) q8.qs[i] = static_cast<int8_t>(i * 8 - 128);
    BlockQ4_0 q40{f32_to_f16(kD), {}};
    BlockQ4_1 q41{f32_to_f16(kD), f32_to_f16(kM), {}};
    BlockQ5_0 q50{f32_to_f16(kD), {}, {}};
    BlockQ5_1 q51{f32_to_f16(kD), f32_to_f16(kM), {}, {}};
    BlockIQ4NL nl{f32_to_f16(kD), {}};
    BlockMxfp4 mx{124, {}};  // 2^-3
    set_nibbles(q40), set_nibbles(q41), set_nibbles(nl), set_nibbles(mx);
    set_five_bits(q50), set_five_bits(q51);
    const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    for (int i = 0; i < 32; ++i) {
        const auto at = static_cast<size_t>(i);
        const int four = code_at(i, 16), five = code_at(i, 32);
        EXPECT_EQ(decode(DType::q8_0, q8)[at], kD * static_cast<float>(i * 8 - 128));
        EXPECT_EQ(decode(DType::q4_0, q40)[at], kD * static_cast<float>(four - 8));
        EXPECT_EQ(decode(DType::q4_1, q41)[at], kD * static_cast<float>(four) + kM);
        EXPECT_EQ(decode(DType::q5_0, q50)[at], kD * static_cast<float>(five - 16));
        EXPECT_EQ(decode(DType::q5_1, q51)[at], kD * static_cast<float>(five) + kM);
        EXPECT_EQ(decode(DType::iq4_nl, nl)[at], kD * static_cast<float>(kIQ4Values[four]));
        EXPECT_EQ(decode(DType::mxfp4, mx)[at], 0.125f * e2m1[four]);
    }
}

TEST(Codec, mxfp4_exponents_are_exact_down_to_the_subnormals) {
    for (int e = 0; e < 255; ++e) {
        BlockMxfp4 b{static_cast<uint8_t>(e), {}};
        b.qs[0] = 0x91;  // element 0: 0.5, element 16: -0.5
        const std::vector<float> values = decode(DType::mxfp4, b);
        EXPECT_EQ(double{values[0]}, std::ldexp(0.5, e - 127)) << e;
        EXPECT_EQ(double{values[16]}, -std::ldexp(0.5, e - 127)) << e;
    }
}

TEST(Codec, nvfp4_block_made_by_hand) {
    BlockNvfp4 b{};
    const float scales[4] = {1.0f, 0.5f, 448.0f, 0x1p-9f};
    for (int g = 0; g < 4; ++g) b.d[g] = f32_to_f8_e4m3(scales[g]);
    for (int i = 0; i < 64; ++i) {
        const int g = i / 16, j = i % 8, high = i % 16 / 8;
        b.qs[8 * g + j] = static_cast<uint8_t>(b.qs[8 * g + j] | code_at(i, 16) << (4 * high));
    }
    const std::vector<float> values = decode(DType::nvfp4, b);
    for (int i = 0; i < 64; ++i)
        EXPECT_EQ(values[static_cast<size_t>(i)], scales[i / 16] * 0.5f * kE2M1Doubled[code_at(i, 16)]) << i;
}

TEST(Codec, nvfp4_scales_have_no_sign_and_no_nan) {
    BlockNvfp4 b{};
    std::memset(b.qs, 0x22, sizeof b.qs);  // all 1.0
    b.d[0] = 0x38, b.d[1] = 0xB8, b.d[2] = 0x7F, b.d[3] = 0xFF;
    const std::vector<float> values = decode(DType::nvfp4, b);
    EXPECT_EQ(values[0], 1.0f);
    EXPECT_EQ(values[16], 1.0f);
    EXPECT_EQ(values[32], 0.0f);
    EXPECT_EQ(values[48], 0.0f);
}

TEST(Codec, k_blocks_made_by_hand) {
    BlockQ2K q2{};
    BlockQ3K q3{};
    BlockTQ2_0 tq2{};
    BlockQ6K q6{};
    q2.d = q3.d = q6.d = tq2.d = f32_to_f16(kD);
    q2.dmin = f32_to_f16(0.5f);
    const auto scale4 = [](int g) { return (g * 5 + 2) % 16; };
    const auto min4 = [](int g) { return (g * 3 + 1) % 16; };
    const auto scale6 = [](int g) { return (g * 23 + 5) % 64; };
    for (int g = 0; g < 16; ++g) {
        q2.scales[g] = static_cast<uint8_t>(scale4(g) | min4(g) << 4);
        q3.scales[g % 8] = static_cast<uint8_t>(q3.scales[g % 8] | (scale6(g) & 15) << (g < 8 ? 0 : 4));
        q3.scales[8 + g % 4] = static_cast<uint8_t>(q3.scales[8 + g % 4] | (scale6(g) >> 4) << (2 * (g / 4)));
        q6.scales[g] = static_cast<int8_t>(g * 17 - 128);
    }
    for (int i = 0; i < 256; ++i) {
        set_two_bits(q2.qs, i, code_at(i, 4));
        set_two_bits(tq2.qs, i, code_at(i, 3));
        set_two_bits(q3.qs, i, code_at(i, 8) & 3);
        q3.hmask[i % 32] = static_cast<uint8_t>(q3.hmask[i % 32] | (code_at(i, 8) >> 2) << (i / 32));
        const int q = code_at(i, 64), h = i / 128, s = i % 128 / 32, l = i % 32;
        q6.ql[64 * h + 32 * (s % 2) + l] =
            static_cast<uint8_t>(q6.ql[64 * h + 32 * (s % 2) + l] | (q & 15) << (s < 2 ? 0 : 4));
        q6.qh[32 * h + l] = static_cast<uint8_t>(q6.qh[32 * h + l] | (q >> 4) << (2 * s));
    }
    const auto y2 = decode(DType::q2_k, q2), y3 = decode(DType::q3_k, q3), y6 = decode(DType::q6_k, q6);
    const auto t2 = decode(DType::tq2_0, tq2);
    for (int i = 0; i < 256; ++i) {
        const auto at = static_cast<size_t>(i);
        const int g = i / 16;
        EXPECT_EQ(y2[at], kD * static_cast<float>(scale4(g) * code_at(i, 4)) - 0.5f * static_cast<float>(min4(g))) << i;
        EXPECT_EQ(y3[at], kD * static_cast<float>((scale6(g) - 32) * (code_at(i, 8) - 4))) << i;
        EXPECT_EQ(y6[at], kD * static_cast<float>((g * 17 - 128) * (code_at(i, 64) - 32))) << i;
        EXPECT_EQ(t2[at], kD * static_cast<float>(code_at(i, 3) - 1)) << i;
    }
}

TEST(Codec, q4_k_q5_k_and_iq4_xs_made_by_hand) {
    BlockQ4K q4{};
    BlockQ5K q5{};
    BlockIQ4XS xs{};
    q4.d = q5.d = xs.d = f32_to_f16(kD);
    q4.dmin = q5.dmin = f32_to_f16(0.5f);
    const auto scale = [](int g) { return (g * 23 + 5) % 64; };
    const auto low = [](int g) { return (g * 31 + 17) % 64; };
    for (int g = 0; g < 8; ++g) {
        if (g < 4) {
            q4.scales[g] = static_cast<uint8_t>(q4.scales[g] | scale(g));
            q4.scales[4 + g] = static_cast<uint8_t>(q4.scales[4 + g] | low(g));
        } else {
            q4.scales[4 + g] = static_cast<uint8_t>((scale(g) & 15) | (low(g) & 15) << 4);
            q4.scales[g - 4] = static_cast<uint8_t>(q4.scales[g - 4] | (scale(g) >> 4) << 6);
            q4.scales[g] = static_cast<uint8_t>(q4.scales[g] | (low(g) >> 4) << 6);
        }
        xs.scales_l[g / 2] = static_cast<uint8_t>(xs.scales_l[g / 2] | (scale(g) & 15) << (4 * (g % 2)));
        xs.scales_h = static_cast<uint16_t>(xs.scales_h | (scale(g) >> 4) << (2 * g));
    }
    std::memcpy(q5.scales, q4.scales, sizeof q5.scales);
    for (int i = 0; i < 256; ++i) {
        const int at = 32 * (i / 64) + i % 32, shift = i % 64 / 32 * 4, five = code_at(i, 32);
        q4.qs[at] = static_cast<uint8_t>(q4.qs[at] | code_at(i, 16) << shift);
        q5.qs[at] = static_cast<uint8_t>(q5.qs[at] | (five & 15) << shift);
        q5.qh[i % 32] = static_cast<uint8_t>(q5.qh[i % 32] | (five >> 4) << (i / 32));
        const int xs_at = 16 * (i / 32) + i % 16, xs_shift = i % 32 / 16 * 4;
        xs.qs[xs_at] = static_cast<uint8_t>(xs.qs[xs_at] | code_at(i, 16) << xs_shift);
    }
    const auto y4 = decode(DType::q4_k, q4), y5 = decode(DType::q5_k, q5), yx = decode(DType::iq4_xs, xs);
    for (int i = 0; i < 256; ++i) {
        const auto at = static_cast<size_t>(i);
        const int g = i / 32;
        const float m = 0.5f * static_cast<float>(low(g));
        EXPECT_EQ(y4[at], kD * static_cast<float>(scale(g) * code_at(i, 16)) - m) << i;
        EXPECT_EQ(y5[at], kD * static_cast<float>(scale(g) * code_at(i, 32)) - m) << i;
        EXPECT_EQ(yx[at], kD * static_cast<float>((scale(g) - 32) * kIQ4Values[code_at(i, 16)])) << i;
    }
}

TEST(Codec, tq3_0_block_made_by_hand) {
    BlockTQ3_0 b{f32_to_f16(2.0f), {}, {}};
    for (int i = 0; i < 32; ++i) {
        const int q = code_at(i, 8);
        b.qs[i / 4] = static_cast<uint8_t>(b.qs[i / 4] | (q & 3) << (2 * (i % 4)));
        b.qh[i / 8] = static_cast<uint8_t>(b.qh[i / 8] | (q >> 2) << (i % 8));
    }
    const auto values = decode(DType::tq3_0, b);
    for (int i = 0; i < 32; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], 2.0f * kTQ3Values[code_at(i, 8)]) << i;
}

TEST(Codec, any_bytes_decode_within_bounds) {
    std::mt19937 engine(5);
    for (DType type : test::reference_types())
        for (int round = 0; round < 200; ++round) {
            std::vector<uint8_t> bytes(static_cast<size_t>(dtype_info(type).block_bytes));
            for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(engine());
            std::vector<float> values(static_cast<size_t>(dtype_info(type).block_elements) + 2, 77.0f);
            dequantize(type, bytes.data(), values.data() + 1, dtype_info(type).block_elements);
            EXPECT_EQ(values.front(), 77.0f) << dtype_name(type);
            EXPECT_EQ(values.back(), 77.0f) << dtype_name(type);
        }
}

TEST(Codec, wrong_lengths_and_types_are_errors) {
    float values[256] = {};
    uint8_t bytes[1024] = {};
    EXPECT_THROW(dequantize(DType::q4_k, bytes, values, 128), Error);
    EXPECT_THROW(dequantize(DType::q8_0, bytes, values, 33), Error);
    EXPECT_THROW(dequantize(DType::i32, bytes, values, 4), Error);
    EXPECT_THROW(dequantize(DType::f64, bytes, values, 4), Error);
    EXPECT_THROW(quantize(DType::q4_k, values, bytes, 128), Error);
    try {
        quantize(DType::nvfp4, values, bytes, 256);
        FAIL() << "nvfp4 has no quantiser";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("q4_k"), std::string::npos) << error.what();
    }
}

}  // namespace riptide
