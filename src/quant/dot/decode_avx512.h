// Decoding of 256 weights in AVX-512 registers. Included by dot/*avx512.cpp only.
#pragma once

#include "quant/dot/intrinsics_avx512.h"
#include "quant/dot/loads.h"
#include "quant/dot/span.h"

namespace riptide {
namespace {

/// Eight groups of 32. u: codes in natural order. f[0]: s of the eight groups and m of the eight groups; or, for
/// formats with half groups, s of the eight first halves and s of the eight second halves, with the m likewise in f[1].
struct Decoded {
    __m512i u[4];
    __m512 f[2];
};

/// Where the parts of an Int8Row are, in bytes.
struct RowLayout {
    int64_t d, sum32, sum16;
    explicit RowLayout(int64_t padded) : d(padded), sum32(padded / 8 * 9), sum16(padded / 4 * 5) {}
};

RT_INLINE const float* floats(const uint8_t* p) { return reinterpret_cast<const float*>(p); }

/// [l0 + l4 + ...]: the fixed order of quant/dot.h.
RT_INLINE float add_lanes(__m256 l) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(l), _mm256_extractf128_ps(l, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

RT_INLINE __m256 low(__m512 v) { return _mm512_castps512_ps256(v); }
RT_INLINE __m256 high(__m512 v) { return _mm512_extractf32x8_ps(v, 1); }

RT_INLINE __m512i bytes(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
RT_INLINE __m512i twice(const uint8_t* p) { return _mm512_broadcast_i64x4(load32(p)); }

/// Fetches the block of `Bytes` bytes that lies kAhead behind p: hardware does not follow a stream into the next page.
/// 16 threads of a Xeon on 4 KiB pages read 83 GB/s as two streams each, 90 with this (4 KiB ahead: 87).
template <int64_t Bytes>
RT_INLINE void prefetch_ahead(const uint8_t* p) {
    constexpr int64_t kAhead = 1024;
    RT_UNROLL
    for (int64_t i = 0; i < Bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + i), _MM_HINT_T0);
}

RT_INLINE __m512 halves(__m256 first, __m256 second) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);
}
RT_INLINE __m512i table(const int8_t* values, int zero) {
    return _mm512_broadcast_i32x4(_mm_add_epi8(load16(values), _mm_set1_epi8(static_cast<char>(zero))));
}
RT_INLINE float half_at(const uint8_t* p) {
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    return _cvtsh_ss(h);
}

/// Eight binary16 values, `stride` bytes apart.
RT_INLINE __m256 eight_halves(const uint8_t* p, int64_t stride) {
    uint16_t h[8];
    for (int j = 0; j < 8; ++j) __builtin_memcpy(h + j, p + stride * j, 2);
    return _mm256_cvtph_ps(_mm_setr_epi16(static_cast<short>(h[0]), static_cast<short>(h[1]), static_cast<short>(h[2]),
                                          static_cast<short>(h[3]), static_cast<short>(h[4]), static_cast<short>(h[5]),
                                          static_cast<short>(h[6]), static_cast<short>(h[7])));
}

/// Sixteen values of interleaved half groups (0 first, 0 second, 1 first ...) to first halves, then second halves.
RT_INLINE __m512 split_halves(__m512 v) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), v);
}

/// Two sixteen-byte nibble groups (low nibbles first) as 64 codes.
RT_INLINE __m512i two_nibble_groups(const uint8_t* first, const uint8_t* second) {
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_broadcastsi128_si256(load16(first))),
                                            _mm256_broadcastsi128_si256(load16(second)), 1);
    return _mm512_and_si512(_mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)), bytes(15));
}

/// Blocks of 32 with the codes at byte `at` of each block of `size` bytes; fifth bits, if any, four bytes before them.
template <bool Fifth>
RT_INLINE void nibble_blocks(const uint8_t* p, int size, int at, __m512i* u) {
    RT_UNROLL
    for (int k = 0; k < 4; ++k) {
        const uint8_t* first = p + 2 * k * size + at;
        u[k] = two_nibble_groups(first, first + size);
        if constexpr (Fifth) {
            const uint64_t bits = uint64_t{load_u32(first - 4)} | uint64_t{load_u32(first + size - 4)} << 32;
            u[k] = _mm512_mask_add_epi8(u[k], bits, u[k], bytes(16));
        }
    }
}

/// 2^(e - 128) of eight E8M0 bytes, `stride` bytes apart: doubled codes need half the scale.
RT_INLINE __m256 eight_exponents(const uint8_t* p, int64_t stride) {
    const __m256i e = _mm256_setr_epi32(p[0], p[stride], p[2 * stride], p[3 * stride], p[4 * stride], p[5 * stride],
                                        p[6 * stride], p[7 * stride]);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(
        _mm256_mask_blend_epi32(_mm256_cmpgt_epi32_mask(e, _mm256_set1_epi32(1)), subnormal, normal));
}

/// Half of sixteen unsigned E4M3 values; 0x7F counts as zero.
RT_INLINE __m512 sixteen_ue4m3(__m128i v) {
    v = _mm_and_si128(v, _mm_set1_epi8(0x7F));
    const __m256i wide = _mm256_cvtepu8_epi16(v);
    // Shifted by 7 the bits are a binary16 of 2^-8 the value, subnormals included.
    const __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(wide, 7)), _mm512_set1_ps(128.0f));
    return _mm512_maskz_mov_ps(_mm_cmpneq_epi8_mask(v, _mm_set1_epi8(0x7F)), value);
}

/// Six-bit scales and minima of Q4_K and Q5_K, times d and dmin.
RT_INLINE __m512 k_scales(const uint8_t* p) {
    const uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12);
    const uint64_t s = (a & 0x3F3F3F3Fu) | uint64_t{(c & 0x0F0F0F0Fu) | (a >> 2 & 0x30303030u)} << 32;
    const uint64_t m = (b & 0x3F3F3F3Fu) | uint64_t{(c >> 4 & 0x0F0F0F0Fu) | (b >> 2 & 0x30303030u)} << 32;
    const __m128i packed = _mm_set_epi64x(static_cast<int64_t>(m), static_cast<int64_t>(s));
    const __m512 integers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(packed));
    const __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(load_u32(p))));
    const __m512i which = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    return _mm512_mul_ps(integers, _mm512_permutexvar_ps(which, _mm512_castps128_ps512(d)));
}

/// Q3_K's sixteen scales times d.
RT_INLINE __m512 q3_scales(const uint8_t* packed, float d) {
    const uint64_t low = load_u64(packed);
    const uint32_t high = load_u32(packed + 8);
    const uint64_t top0 = (high & 0x03030303u) | uint64_t{high >> 2 & 0x03030303u} << 32;
    const uint64_t top1 = (high >> 4 & 0x03030303u) | uint64_t{high >> 6 & 0x03030303u} << 32;
    const uint64_t s0 = (low & 0x0F0F0F0F0F0F0F0Full) | top0 << 4, s1 = (low >> 4 & 0x0F0F0F0F0F0F0F0Full) | top1 << 4;
    const __m512i six = _mm512_cvtepu8_epi32(_mm_set_epi64x(static_cast<int64_t>(s1), static_cast<int64_t>(s0)));
    return split_halves(
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(six, _mm512_set1_epi32(32))), _mm512_set1_ps(d)));
}

/// Counts to shift the lower half of a vector by `low` and the upper half by `high`.
RT_INLINE __m512i counts(int64_t low, int64_t high) {
    return _mm512_setr_epi64(low, low, low, low, high, high, high, high);
}

template <DType T>
RT_INLINE Decoded decode_superblock(const uint8_t* p) {
    Decoded w;
    if constexpr (T == DType::q4_k || T == DType::q5_k) {
        w.f[0] = k_scales(p);
        RT_UNROLL
        for (int k = 0; k < 4; ++k) {
            const uint8_t* q = p + (T == DType::q4_k ? 16 : 48) + 32 * k;
            w.u[k] = _mm512_and_si512(_mm512_srlv_epi64(twice(q), counts(0, 4)), bytes(15));
            if constexpr (T == DType::q5_k) {  // bit g of each byte to bit 4
                const __m512i high = _mm512_rolv_epi64(twice(p + 16), counts((68 - 2 * k) % 64, (67 - 2 * k) % 64));
                w.u[k] = _mm512_ternarylogic_epi64(w.u[k], high, bytes(16), 0xF8);  // u | (high & 16)
            }
        }
    } else if constexpr (T == DType::q6_k) {
        const __m512 d = _mm512_set1_ps(half_at(p + 208));
        w.f[0] = split_halves(_mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(p + 192)))));
        RT_UNROLL
        for (int h = 0; h < 2; ++h) {
            const __m512i ql = _mm512_loadu_si512(p + 64 * h), qh = twice(p + 128 + 32 * h);
            const __m512i top0 = _mm512_rolv_epi64(qh, counts(4, 2)), top1 = _mm512_rolv_epi64(qh, counts(0, 62));
            w.u[2 * h] = _mm512_ternarylogic_epi64(_mm512_and_si512(ql, bytes(15)), top0, bytes(48), 0xF8);
            w.u[2 * h + 1] =
                _mm512_ternarylogic_epi64(_mm512_and_si512(_mm512_srli_epi16(ql, 4), bytes(15)), top1, bytes(48), 0xF8);
        }
    } else if constexpr (T == DType::q2_k || T == DType::q3_k) {
        RT_UNROLL
        for (int k = 0; k < 4; ++k) {
            const __m512i q = twice(p + (T == DType::q2_k ? 16 : 32) + k / 2 * 32);
            w.u[k] = _mm512_and_si512(_mm512_srlv_epi64(q, counts(k % 2 * 4, k % 2 * 4 + 2)), bytes(3));
            if constexpr (T == DType::q3_k) {  // bit g of each byte to bit 2
                const __m512i high = _mm512_rolv_epi64(twice(p), counts((66 - 2 * k) % 64, (65 - 2 * k) % 64));
                w.u[k] = _mm512_ternarylogic_epi64(w.u[k], high, bytes(4), 0xF8);
            }
        }
        if constexpr (T == DType::q2_k) {
            const __m512i packed = _mm512_cvtepu8_epi32(load16(p));
            const __m512 s = _mm512_cvtepi32_ps(_mm512_and_si512(packed, _mm512_set1_epi32(15)));
            const __m512 m = _mm512_cvtepi32_ps(_mm512_srli_epi32(packed, 4));
            w.f[0] = split_halves(_mm512_mul_ps(_mm512_set1_ps(half_at(p + 80)), s));
            w.f[1] = split_halves(_mm512_mul_ps(_mm512_set1_ps(half_at(p + 82)), m));
        } else {
            w.f[0] = q3_scales(p + 96, half_at(p + 108));
        }
    } else {
        static_assert(T == DType::iq4_xs);
        nibble_blocks<false>(p + 8, 16, 0, w.u);
        RT_UNROLL
        for (__m512i& u : w.u) u = _mm512_shuffle_epi8(table(kIQ4Values, 128), u);
        const __m256i low = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(load_u32(p + 4))),
                                                               _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
                                             _mm256_set1_epi32(15));
        const __m256i high = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(load_u32(p) >> 16)),
                                                                _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
                                              _mm256_set1_epi32(3));
        const __m256i six = _mm256_or_si256(low, _mm256_slli_epi32(high, 4));
        const __m256 s = _mm256_cvtepi32_ps(_mm256_sub_epi32(six, _mm256_set1_epi32(32)));
        w.f[0] = _mm512_castps256_ps512(_mm256_mul_ps(_mm256_set1_ps(half_at(p)), s));
    }
    return w;
}

/// Decodes the 256 values at p, which are span_bytes<T>() bytes.
template <DType T>
RT_INLINE Decoded decode(const uint8_t* p) {
    constexpr int kSize = static_cast<int>(kSpan<T>.bytes32);
    if constexpr (kSize == 0) return decode_superblock<T>(p);
    Decoded w;
    if constexpr (T == DType::mxfp4) {
        w.f[0] = _mm512_castps256_ps512(eight_exponents(p, kSize));
        nibble_blocks<false>(p, kSize, 1, w.u);
        RT_UNROLL
        for (__m512i& u : w.u) u = _mm512_shuffle_epi8(table(kE2M1Doubled, 16), u);
    } else if constexpr (T == DType::nvfp4) {
        w.f[0] = split_halves(
            sixteen_ue4m3(_mm_setr_epi32(static_cast<int>(load_u32(p)), static_cast<int>(load_u32(p + 36)),
                                         static_cast<int>(load_u32(p + 72)), static_cast<int>(load_u32(p + 108)))));
        RT_UNROLL
        for (int k = 0; k < 4; ++k) {
            const __m512i pairs =
                _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), twice(p + 36 * k + 4));
            const __m512i codes =
                _mm512_and_si512(_mm512_srlv_epi64(pairs, _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4)), bytes(15));
            w.u[k] = _mm512_shuffle_epi8(table(kE2M1Doubled, 16), codes);
        }
    } else {
        const __m256 s = eight_halves(p, kSize);
        w.f[0] = _mm512_castps256_ps512(s);
        if constexpr (T == DType::q8_0) RT_UNROLL
        for (int k = 0; k < 4; ++k) {
            const auto* first = reinterpret_cast<const __m256i*>(p + 2 * k * kSize + 2);
            const auto* second = reinterpret_cast<const __m256i*>(p + (2 * k + 1) * kSize + 2);
            w.u[k] = _mm512_xor_si512(
                _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(first)), _mm256_loadu_si256(second), 1),
                bytes(0x80));
        }
        if constexpr (T == DType::q4_0 || T == DType::iq4_nl) nibble_blocks<false>(p, kSize, 2, w.u);
        if constexpr (T == DType::q4_1) nibble_blocks<false>(p, kSize, 4, w.u);
        if constexpr (T == DType::q5_0) nibble_blocks<true>(p, kSize, 6, w.u);
        if constexpr (T == DType::q5_1) nibble_blocks<true>(p, kSize, 8, w.u);
        if constexpr (T == DType::iq4_nl) RT_UNROLL
        for (__m512i& u : w.u) u = _mm512_shuffle_epi8(table(kIQ4Values, 128), u);
        if constexpr (T == DType::q4_1 || T == DType::q5_1)
            w.f[0] = halves(s, _mm256_xor_ps(eight_halves(p + 2, kSize), _mm256_set1_ps(-0.0f)));
    }
    return w;
}

/// Decodes fewer than eight groups at the end of a row: the others become zeros.
template <DType T>
RT_INLINE Decoded decode_tail(const uint8_t* p, int64_t groups) {
    alignas(64) uint8_t copy[320] = {};
    static_assert(span_bytes<T>() <= 320);
    __builtin_memcpy(copy, p, static_cast<size_t>(groups * kSpan<T>.bytes32));
    return decode<T>(copy);
}

}  // namespace
}  // namespace riptide
