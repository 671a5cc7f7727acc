// Scales and minima of 256 weights in plain C++, for dot/baseline.cpp and dot/avx2.cpp. In an unnamed namespace, and
// calling nothing that another file might share: see quant/dot/span.h.
#pragma once

#include <cstdint>

#include "quant/dot/span.h"
#include "tensor/half.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace riptide {
namespace {

/// s and m of eight groups: [half][group]. Formats without halves use half 0 only.
struct SpanScales {
    float s[2][8];
    float m[2][8];
};

float half_at(const uint8_t* p) {
    const auto bits = static_cast<uint16_t>(p[0] | p[1] << 8);
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    return f16_to_f32(bits);
#endif
}

/// Half of an E8M0 scale, because E2M1 codes are doubled: 2^(e - 128).
float e8m0_halved(uint8_t e) {
    return __builtin_bit_cast(float, e >= 2 ? static_cast<uint32_t>(e - 1) << 23 : uint32_t{0x00200000} << e);
}

/// Half of an unsigned E4M3 scale; the NaN code stands for zero.
float ue4m3_halved(uint8_t v) {
    const uint32_t bits = v & 0x7Fu, exponent = bits >> 3, mantissa = bits & 7u;
    if (bits == 0x7Fu) return 0.0f;
    if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10f;
    return __builtin_bit_cast(float, (exponent + 119) << 23 | mantissa << 20);
}

template <DType T>
void superblock_scales(const uint8_t* p, SpanScales& out) {
    if constexpr (T == DType::q4_k || T == DType::q5_k) {
        const float d = half_at(p), dmin = half_at(p + 2);
        const uint8_t* packed = p + 4;
        for (int j = 0; j < 8; ++j) {
            const int s = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
            const int m = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
            out.s[0][j] = d * static_cast<float>(s);
            out.m[0][j] = dmin * static_cast<float>(m);
        }
    } else if constexpr (T == DType::q6_k) {
        const float d = half_at(p + 208);
        for (int i = 0; i < 16; ++i) out.s[i % 2][i / 2] = d * static_cast<float>(static_cast<int8_t>(p[192 + i]));
    } else if constexpr (T == DType::q2_k) {
        const float d = half_at(p + 80), dmin = half_at(p + 82);
        for (int i = 0; i < 16; ++i) {
            out.s[i % 2][i / 2] = d * static_cast<float>(p[i] & 15);
            out.m[i % 2][i / 2] = dmin * static_cast<float>(p[i] >> 4);
        }
    } else if constexpr (T == DType::q3_k) {
        const float d = half_at(p + 108);
        const uint8_t* packed = p + 96;
        for (int i = 0; i < 16; ++i) {
            const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
            const int high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
            out.s[i % 2][i / 2] = d * static_cast<float>((low | high << 4) - 32);
        }
    } else if constexpr (T == DType::int8_16 || T == DType::int8_32) {
        float s[16 / (T == DType::int8_32 ? 2 : 1)];
        __builtin_memcpy(s, p + 256, sizeof s);
        for (int j = 0; j < 8; ++j)
            for (int h = 0; h < kSpan<T>.halves; ++h) out.s[h][j] = s[kSpan<T>.halves * j + h];
    } else {
        static_assert(T == DType::iq4_xs);
        const float d = half_at(p);
        for (int j = 0; j < 8; ++j) {
            const int scale = (p[4 + j / 2] >> (j % 2 * 4) & 15) | ((p[2] | p[3] << 8) >> (2 * j) & 3) << 4;
            out.s[0][j] = d * static_cast<float>(scale - 32);
        }
    }
}

/// The scales of `groups` <= 8 groups at p; those of the others are zero.
template <DType T>
void span_scales(const uint8_t* p, int64_t groups, SpanScales& out) {
    constexpr int64_t kSize = kSpan<T>.bytes32;
    if constexpr (kSize == 0) {
        superblock_scales<T>(p, out);
    } else {
        for (int64_t j = 0; j < 8; ++j) {
            const bool there = j < groups;
            if constexpr (T == DType::nvfp4) {  // a block of 64 begins with its four scales
                const uint8_t* d = p + j / 2 * 36 + j % 2 * 2;
                for (int h = 0; h < 2; ++h) out.s[h][j] = there ? ue4m3_halved(d[h]) : 0.0f;
            } else if constexpr (T == DType::mxfp4) {
                out.s[0][j] = there ? e8m0_halved(p[kSize * j]) : 0.0f;
            } else {
                out.s[0][j] = there ? half_at(p + kSize * j) : 0.0f;
                if constexpr (kSpan<T>.mins) out.m[0][j] = there ? -half_at(p + kSize * j + 2) : 0.0f;
            }
        }
    }
}

}  // namespace
}  // namespace riptide
