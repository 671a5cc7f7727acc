// Decoders of the formats with super-blocks of 256 values.
#include "quant/blocks.h"
#include "quant/codec_internal.h"

namespace riptide::codec {

namespace {

/// The two-bit codes of 256 elements in the order that Q2_K, Q3_K and TQ2_0 share.
inline void two_bit_codes(const uint8_t* qs, uint8_t* __restrict q) {
    for (int h = 0; h < 2; ++h)
        for (int s = 0; s < 4; ++s)
            for (int l = 0; l < 32; ++l) q[128 * h + 32 * s + l] = qs[32 * h + l] >> (2 * s) & 3;
}

void decode_block(const BlockQ2K& b, float* __restrict y) {
    const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    uint8_t q[kSuperBlock];
    two_bit_codes(b.qs, q);
    for (int g = 0; g < 16; ++g) {
        const float scale = d * static_cast<float>(b.scales[g] & 15), low = dmin * static_cast<float>(b.scales[g] >> 4);
        for (int l = 0; l < 16; ++l) y[16 * g + l] = scale * static_cast<float>(q[16 * g + l]) - low;
    }
}

void decode_block(const BlockQ3K& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    uint8_t q[kSuperBlock];
    int8_t scales[16];
    two_bit_codes(b.qs, q);
    unpack_q3k_scales(b.scales, scales);
    for (int g = 0; g < 16; ++g) {
        const float scale = d * static_cast<float>(scales[g]);
        for (int l = 0; l < 16; ++l) {
            const int element = 16 * g + l;
            const int high = b.hmask[element % 32] >> (element / 32) & 1;
            y[element] = scale * static_cast<float>((q[element] | high << 2) - 4);
        }
    }
}

void decode_block(const BlockQ4K& b, float* __restrict y) {
    const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    const KScales k = unpack_k_scales(b.scales);
    for (int p = 0; p < 4; ++p, y += 64) {
        const float s0 = d * static_cast<float>(k.s[2 * p]), m0 = dmin * static_cast<float>(k.m[2 * p]);
        const float s1 = d * static_cast<float>(k.s[2 * p + 1]), m1 = dmin * static_cast<float>(k.m[2 * p + 1]);
        const uint8_t* qs = b.qs + 32 * p;
        for (int l = 0; l < 32; ++l) y[l] = s0 * static_cast<float>(qs[l] & 15) - m0;
        for (int l = 0; l < 32; ++l) y[32 + l] = s1 * static_cast<float>(qs[l] >> 4) - m1;
    }
}

void decode_block(const BlockQ5K& b, float* __restrict y) {
    const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    const KScales k = unpack_k_scales(b.scales);
    for (int g = 0; g < 8; ++g, y += 32) {
        const float s = d * static_cast<float>(k.s[g]), m = dmin * static_cast<float>(k.m[g]);
        const uint8_t* qs = b.qs + 32 * (g / 2);
        const int shift = 4 * (g % 2);
        for (int l = 0; l < 32; ++l) {
            const int q = (qs[l] >> shift & 15) | (b.qh[l] >> g & 1) << 4;
            y[l] = s * static_cast<float>(q) - m;
        }
    }
}

void decode_block(const BlockQ6K& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    for (int g = 0; g < 16; ++g, y += 16) {
        const float scale = d * static_cast<float>(b.scales[g]);
        const int h = g / 8, s = g / 2 % 4, first = 16 * (g % 2);
        const uint8_t* ql = b.ql + 64 * h + 32 * (s & 1) + first;
        const uint8_t* qh = b.qh + 32 * h + first;
        const int low_shift = s < 2 ? 0 : 4, high_shift = 2 * s;
        for (int l = 0; l < 16; ++l) {
            const int q = (ql[l] >> low_shift & 15) | (qh[l] >> high_shift & 3) << 4;
            y[l] = scale * static_cast<float>(q - 32);
        }
    }
}

void decode_block(const BlockIQ4XS& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    for (int g = 0; g < 8; ++g, y += 32) {
        const int low = b.scales_l[g / 2] >> (4 * (g % 2)) & 15, high = b.scales_h >> (2 * g) & 3;
        const float scale = d * static_cast<float>((low | high << 4) - 32);
        for (int j = 0; j < 16; ++j) {
            y[j] = scale * static_cast<float>(kIQ4Values[b.qs[16 * g + j] & 15]);
            y[j + 16] = scale * static_cast<float>(kIQ4Values[b.qs[16 * g + j] >> 4]);
        }
    }
}

template <class Block>
bool decode_all_super(const void* src, float* dst, int64_t n) {
    const auto* blocks = static_cast<const Block*>(src);
    for (int64_t i = 0; i < n / kSuperBlock; ++i) decode_block(blocks[i], dst + i * kSuperBlock);
    return true;
}

}  // namespace

bool decode_super(DType type, const void* src, float* dst, int64_t n) {
    switch (type) {
        case DType::q2_k:
            return decode_all_super<BlockQ2K>(src, dst, n);
        case DType::q3_k:
            return decode_all_super<BlockQ3K>(src, dst, n);
        case DType::q4_k:
            return decode_all_super<BlockQ4K>(src, dst, n);
        case DType::q5_k:
            return decode_all_super<BlockQ5K>(src, dst, n);
        case DType::q6_k:
            return decode_all_super<BlockQ6K>(src, dst, n);
        case DType::iq4_xs:
            return decode_all_super<BlockIQ4XS>(src, dst, n);
        default:
            return false;
    }
}

}  // namespace riptide::codec
