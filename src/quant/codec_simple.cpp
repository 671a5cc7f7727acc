// Decoders of the formats with blocks of 32 or 64 values.
#include "quant/blocks.h"
#include "quant/codec_internal.h"
#include "quant/kv_levels.h"

namespace riptide::codec {

namespace {

void decode(const BlockQ8_0& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(b.qs[j]);
}

void decode(const BlockQ4_0& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * static_cast<float>((b.qs[j] & 15) - 8);
        y[j + 16] = d * static_cast<float>((b.qs[j] >> 4) - 8);
    }
}

void decode(const BlockQ4_1& b, float* __restrict y) {
    const float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * static_cast<float>(b.qs[j] & 15) + m;
        y[j + 16] = d * static_cast<float>(b.qs[j] >> 4) + m;
    }
}

/// The 32 five-bit codes of a Q5_0 or Q5_1 block.
template <class Block>
void five_bit_codes(const Block& b, int* __restrict q) {
    uint32_t high;
    std::memcpy(&high, b.qh, 4);
    for (int j = 0; j < 16; ++j) {
        q[j] = (b.qs[j] & 15) | static_cast<int>((high >> j & 1) << 4);
        q[j + 16] = (b.qs[j] >> 4) | static_cast<int>((high >> (j + 16) & 1) << 4);
    }
}

void decode(const BlockQ5_0& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    int q[32];
    five_bit_codes(b, q);
    for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(q[j] - 16);
}

void decode(const BlockQ5_1& b, float* __restrict y) {
    const float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
    int q[32];
    five_bit_codes(b, q);
    for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(q[j]) + m;
}

void decode(const BlockIQ4NL& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * static_cast<float>(kIQ4Values[b.qs[j] & 15]);
        y[j + 16] = d * static_cast<float>(kIQ4Values[b.qs[j] >> 4]);
    }
}

/// 2^(e - 128), exact down to the subnormals: E2M1 is stored doubled.
float e8m0_halved(uint8_t e) {
    return std::bit_cast<float>(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}

void decode(const BlockMxfp4& b, float* __restrict y) {
    const float d = e8m0_halved(b.e);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * static_cast<float>(kE2M1Doubled[b.qs[j] & 15]);
        y[j + 16] = d * static_cast<float>(kE2M1Doubled[b.qs[j] >> 4]);
    }
}

/// Half the value of an unsigned E4M3 scale; its NaN code stands for zero, and the sign bit is not used.
float ue4m3_halved(uint8_t v) {
    v &= 0x7F;
    return v == 0x7F ? 0.0f : 0.5f * f8_e4m3_to_f32(v);
}

void decode(const BlockNvfp4& b, float* __restrict y) {
    for (int g = 0; g < 4; ++g) {
        const float d = ue4m3_halved(b.d[g]);
        for (int j = 0; j < 8; ++j) {
            y[16 * g + j] = d * static_cast<float>(kE2M1Doubled[b.qs[8 * g + j] & 15]);
            y[16 * g + 8 + j] = d * static_cast<float>(kE2M1Doubled[b.qs[8 * g + j] >> 4]);
        }
    }
}

void decode(const BlockTQ3_0& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    for (int j = 0; j < 32; ++j) {
        const int q = (b.qs[j / 4] >> (2 * (j % 4)) & 3) | (b.qh[j / 8] >> (j % 8) & 1) << 2;
        y[j] = d * kTQ3Values[q];
    }
}

template <class Block, int kValues = kBlock>
bool decode_all(const void* src, float* dst, int64_t n) {
    const auto* blocks = static_cast<const Block*>(src);
    for (int64_t i = 0; i < n / kValues; ++i) decode(blocks[i], dst + i * kValues);
    return true;
}

}  // namespace

bool decode_simple(DType type, const void* src, float* dst, int64_t n) {
    switch (type) {
        case DType::q8_0:
            return decode_all<BlockQ8_0>(src, dst, n);
        case DType::q4_0:
            return decode_all<BlockQ4_0>(src, dst, n);
        case DType::q4_1:
            return decode_all<BlockQ4_1>(src, dst, n);
        case DType::q5_0:
            return decode_all<BlockQ5_0>(src, dst, n);
        case DType::q5_1:
            return decode_all<BlockQ5_1>(src, dst, n);
        case DType::iq4_nl:
            return decode_all<BlockIQ4NL>(src, dst, n);
        case DType::mxfp4:
            return decode_all<BlockMxfp4>(src, dst, n);
        case DType::nvfp4:
            return decode_all<BlockNvfp4, 64>(src, dst, n);
        case DType::tq3_0:
            return decode_all<BlockTQ3_0>(src, dst, n);
        default:
            return false;
    }
}

}  // namespace riptide::codec
