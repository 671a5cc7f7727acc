// What the codec*.cpp files share. Not for other folders.
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor/dtype.h"
#include "tensor/half.h"

namespace riptide::codec {

/// Decoders of whole blocks, by family. False: not a type of this family.
bool decode_simple(DType type, const void* src, float* dst, int64_t n);  // blocks of 32 and 64
bool decode_super(DType type, const void* src, float* dst, int64_t n);   // blocks of 256
bool decode_iq(DType type, const void* src, float* dst, int64_t n);      // blocks of 256 with an Int8Block

/// Encoders of whole blocks of finite values, by family; importance as in quantize(). False: not a type of this family.
bool encode_simple(DType type, const float* src, const float* importance, void* dst, int64_t n);  // blocks of 32
bool encode_super(DType type, const float* src, const float* importance, void* dst, int64_t n);   // scales and minima
bool encode_scaled(DType type, const float* src, const float* importance, void* dst, int64_t n);  // scales alone
bool encode_grids(DType type, const float* src, const float* importance, void* dst, int64_t n);   // IQ1, IQ2, IQ3

constexpr float kMaxHalf = 65504.0f;

/// The f16 nearest to x, saturating instead of overflowing to infinity.
inline uint16_t to_half(float x) { return f32_to_f16(x > kMaxHalf ? kMaxHalf : x < -kMaxHalf ? -kMaxHalf : x); }

/// Whether all values are finite.
inline bool all_finite(const float* x, int64_t n) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; ++i) bad |= (std::bit_cast<uint32_t>(x[i]) & 0x7F800000u) == 0x7F800000u ? 1u : 0u;
    return bad == 0;
}

inline float max_magnitude(const float* x, int n) {
    float most = 0;
    for (int i = 0; i < n; ++i) {
        const float a = x[i] < 0 ? -x[i] : x[i];
        most = a > most ? a : most;
    }
    return most;
}

/// x to the nearest integer, ties to even, for |x| < 2^22: the low bits of x + 1.5 * 2^23 are the integer.
inline int nearest(float x) { return static_cast<int32_t>(std::bit_cast<uint32_t>(x + 12582912.0f)) - 0x4B400000; }

/// nearest() after clamping to [low, high]; branch-free.
inline int nearest_within(float x, float low, float high) {
    x = x < low ? low : x;
    return nearest(x > high ? high : x);
}

/// Four-bit codes of 32 elements as Q4_0 stores them: element j low, element j + 16 high.
inline void pack_nibbles(const uint8_t* codes, uint8_t* qs) {
    for (int j = 0; j < 16; ++j) qs[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}

/// Two-bit codes of 256 elements in the order that Q2_K and Q3_K share.
inline void pack_two_bits(const uint8_t* codes, uint8_t* qs) {
    for (int h = 0; h < 2; ++h)
        for (int l = 0; l < 32; ++l) {
            const uint8_t* q = codes + 128 * h + l;
            qs[32 * h + l] = static_cast<uint8_t>(q[0] | q[32] << 2 | q[64] << 4 | q[96] << 6);
        }
}

/// Bit i of the little-endian word qh is bit 4 of code i.
inline void pack_fifth_bits(const uint8_t* codes, uint8_t* qh) {
    uint32_t word = 0;
    for (int j = 0; j < 32; ++j) word |= static_cast<uint32_t>(codes[j] >> 4 & 1) << j;
    for (int j = 0; j < 4; ++j) qh[j] = static_cast<uint8_t>(word >> (8 * j));
}

}  // namespace riptide::codec
