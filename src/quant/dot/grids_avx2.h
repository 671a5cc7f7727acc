// Decoding of 256 weights of grids (IQ1, IQ2, IQ3) or of three values (TQ1_0, TQ2_0) with AVX2. Included by
// dot/avx2.cpp only. Entries of grids come by scalar loads: gathers are no faster on most CPUs without AVX-512.
#pragma once

#include "quant/dot/loads.h"
#include "quant/dot/scales.h"
#include "quant/iq_grids.h"

namespace riptide {
namespace {

RT_INLINE __m256i all(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
/// (v >> shift) & mask in every byte.
RT_INLINE __m256i field(__m256i v, int shift, int mask) {
    return _mm256_and_si256(_mm256_srl_epi16(v, _mm_cvtsi32_si128(shift)), all(mask));
}
/// 255 in byte i where bit i of the word is set.
RT_INLINE __m256i bits_to_bytes(uint32_t word) {
    const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(word)), which);
    const __m256i mask = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, mask), mask);
}

/// Bytes of seven signs and, on top, one that makes their number even.
RT_INLINE __m256i with_eighth(__m256i seven) {
    const __m256i nibble = _mm256_and_si256(_mm256_xor_si256(seven, _mm256_srli_epi16(seven, 4)), all(15));
    const char odd = static_cast<char>(0x80);
    const __m128i parity = _mm_setr_epi8(0, odd, odd, 0, odd, 0, 0, odd, odd, 0, 0, odd, 0, odd, odd, 0);
    return _mm256_or_si256(seven, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(parity), nibble));
}

/// IQ2_XXS and IQ3_XXS: a word for each group, four times seven signs and, on top, s.
template <DType T>
RT_INLINE __m256i signs_and_scales(const uint8_t* p) {
    if constexpr (T == DType::iq3_xxs) return load32(p + 66);
    const __m256 odd = _mm256_shuffle_ps(_mm256_castsi256_ps(load32(p + 2)), _mm256_castsi256_ps(load32(p + 34)), 0xDD);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(odd), 0xD8);
}

/// 32 bytes: the signs of all eights in turn.
template <DType T>
RT_INLINE __m256i sign_bytes(const uint8_t* p) {
    if constexpr (T == DType::iq2_s || T == DType::iq3_s) {
        return load32(p + (T == DType::iq2_s ? 34 : 74));
    } else if constexpr (T == DType::iq2_xs) {
        const __m256i pairs =
            _mm256_packus_epi16(_mm256_srli_epi16(load32(p + 2), 9), _mm256_srli_epi16(load32(p + 34), 9));
        return with_eighth(_mm256_permute4x64_epi64(pairs, 0xD8));
    } else {
        const auto spread = [](__m256i x, int low, int high, int shift) {
            return _mm256_or_si256(_mm256_and_si256(x, _mm256_set1_epi32(low)),
                                   _mm256_slli_epi32(_mm256_and_si256(x, _mm256_set1_epi32(high)), shift));
        };
        return with_eighth(spread(spread(signs_and_scales<T>(p), 0x3FFF, 0xFFFC000, 2), 0x7F007F, 0x3F803F80, 1));
    }
}

/// The entries of group g.
template <DType T>
RT_INLINE __m256i group_entries(const uint8_t* p, int g) {
    if constexpr (T == DType::iq3_xxs || T == DType::iq3_s) {
        const auto entry = [&](int i) {
            const uint32_t low = p[2 + 8 * g + i];
            if constexpr (T == DType::iq3_xxs) return static_cast<int>(kGridBytes.iq3_xxs[low]);
            return static_cast<int>(kGridBytes.iq3_s[low | (uint32_t{p[66 + g]} << (8 - i) & 256)]);
        };
        return _mm256_setr_epi32(entry(0), entry(1), entry(2), entry(3), entry(4), entry(5), entry(6), entry(7));
    } else {
        const auto entry = [&](int l) {
            uint64_t e;
            if constexpr (T == DType::iq2_xxs) e = kGridBytes.iq2_xxs[p[2 + 8 * g + l]];
            if constexpr (T == DType::iq2_xs) e = kGridBytes.iq2_xs[load_u16(p + 2 + 8 * g + 2 * l) & 511];
            if constexpr (T == DType::iq2_s)
                e = kGridBytes.iq2_s[p[2 + 4 * g + l] | (uint32_t{p[66 + g]} << (8 - 2 * l) & 0x300)];
            if constexpr (T == DType::iq1_s)
                e = kGridBytes.iq1_s[p[2 + 4 * g + l] | (load_u16(p + 34 + 2 * g) << 8 >> 3 * l & 0x700)];
            if constexpr (T == DType::iq1_m)
                e = kGridBytes.iq1_s[p[4 * g + l] | (load_u16(p + 32 + 2 * g) << 8 >> 4 * l & 0x700)];
            return static_cast<int64_t>(e);
        };
        return _mm256_setr_epi64x(entry(0), entry(1), entry(2), entry(3));
    }
}

/// Bytes modulo 256.
template <typename V>
RT_INLINE V triple(V v) {
    if constexpr (sizeof(V) == 32) return _mm256_add_epi8(v, _mm256_add_epi8(v, v));
    else return _mm_add_epi8(v, _mm_add_epi8(v, v));
}

/// Digit n of bytes 0 to 31 is group n; of bytes 32 to 47 half a group, from 160 + 16 n on; of 48 to 51 four elements,
/// from 240 + 4 n on.
RT_INLINE void tq1_codes(const uint8_t* p, __m256i* u) {
    u[0] = load32(p);
    RT_UNROLL
    for (int g = 1; g < 5; ++g) u[g] = triple(u[g - 1]);
    const __m128i half = load16(p + 32), four = _mm_cvtsi32_si128(static_cast<int>(load_u32(p + 48)));
    u[5] = _mm256_set_m128i(triple(half), half);
    u[6] = triple(triple(u[5]));
    const __m128i two = _mm_unpacklo_epi32(four, triple(four));
    u[7] = _mm256_set_m128i(_mm_unpacklo_epi64(two, triple(triple(two))), triple(triple(_mm256_castsi256_si128(u[6]))));
    RT_UNROLL
    for (int g = 0; g < 8; ++g)  // floor(3 b / 256)
        u[g] = _mm256_add_epi8(_mm256_min_epu8(_mm256_subs_epu8(u[g], all(85)), all(1)),
                               _mm256_min_epu8(_mm256_subs_epu8(u[g], all(170)), all(1)));
}

/// Codes as superblock_codes() makes them.
template <DType T>
RT_INLINE void grid_codes(const uint8_t* p, __m256i* u) {
    if constexpr (T == DType::tq1_0) {
        tq1_codes(p, u);
    } else if constexpr (T == DType::tq2_0) {
        RT_UNROLL
        for (int g = 0; g < 8; ++g) u[g] = field(load32(p + g / 4 * 32), g % 4 * 2, 3);
    } else if constexpr (T == DType::iq1_s || T == DType::iq1_m) {
        constexpr bool kM = T == DType::iq1_m;
        const __m256i minus = kM ? _mm256_setr_epi64x(8, 0x80, 0x800, 0x8000) : _mm256_set1_epi64x(0x8000);
        RT_UNROLL
        for (int g = 0; g < 8; ++g) {
            const __m256i h = _mm256_set1_epi64x(load_u16(p + (kM ? 32 : 34) + 2 * g));
            const __m256i negative = _mm256_cmpeq_epi64(_mm256_and_si256(h, minus), minus);
            const __m256i zero = _mm256_sub_epi8(all(128), _mm256_and_si256(negative, all(-2)));
            u[g] = _mm256_sub_epi8(group_entries<T>(p, g), zero);
        }
    } else {
        alignas(32) uint32_t signs[8];
        _mm256_store_si256(reinterpret_cast<__m256i*>(signs), sign_bytes<T>(p));
        RT_UNROLL
        for (int g = 0; g < 8; ++g) {
            const __m256i minus = bits_to_bytes(signs[g]);
            const __m256i magnitude = _mm256_sub_epi8(group_entries<T>(p, g), all(128));
            u[g] = _mm256_sub_epi8(_mm256_xor_si256(magnitude, minus), minus);
        }
    }
}

/// d * (2 s + 1), 2 s being the bits of `mask` in `twice`. The formats' halves and quarters are in d: exact.
RT_INLINE void put_odd_scales(__m256i twice, int mask, float d, float* out) {
    const __m256i odd = _mm256_or_si256(_mm256_and_si256(twice, _mm256_set1_epi32(mask)), _mm256_set1_epi32(1));
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(odd)));
}

template <DType T>
RT_INLINE void grid_scales(const uint8_t* p, SpanScales& out) {
    if constexpr (T == DType::tq1_0 || T == DType::tq2_0) {
        _mm256_storeu_ps(out.s[0], _mm256_set1_ps(half_at(p + (T == DType::tq1_0 ? 52 : 64))));
    } else if constexpr (T == DType::iq2_xxs || T == DType::iq3_xxs) {
        const float d = half_at(p) * (T == DType::iq2_xxs ? 0.125f : 0.25f);
        put_odd_scales(_mm256_srli_epi32(signs_and_scales<T>(p), 27), 30, d, out.s[0]);
    } else if constexpr (T == DType::iq2_xs || T == DType::iq2_s) {
        const float d = half_at(p) * 0.125f;
        const __m256i s = _mm256_cvtepu8_epi32(load8(p + (T == DType::iq2_xs ? 66 : 74)));
        put_odd_scales(_mm256_slli_epi32(s, 1), 30, d, out.s[0]);
        put_odd_scales(_mm256_srli_epi32(s, 3), 30, d, out.s[1]);
    } else if constexpr (T == DType::iq3_s) {
        const __m256i s = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(load_u32(p + 106))),
                                            _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        put_odd_scales(_mm256_slli_epi32(s, 1), 30, half_at(p), out.s[0]);
    } else if constexpr (T == DType::iq1_s) {
        const __m256i h = _mm256_cvtepu16_epi32(load16(p + 34));
        put_odd_scales(_mm256_srli_epi32(h, 11), 14, half_at(p) * 0.125f, out.s[0]);
    } else {
        static_assert(T == DType::iq1_m);
        uint8_t bits[2];
        bits[0] = static_cast<uint8_t>(p[49] >> 4 | (p[51] & 0xF0));
        bits[1] = static_cast<uint8_t>(p[53] >> 4 | (p[55] & 0xF0));
        const float d = half_at(bits) * 0.125f;
        const __m256i words = _mm256_castsi128_si256(_mm_cvtepu16_epi32(load8(p + 48)));
        const __m256i s =
            _mm256_slli_epi32(_mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)), 1);
        put_odd_scales(_mm256_srlv_epi32(s, _mm256_setr_epi32(0, 6, 0, 6, 0, 6, 0, 6)), 14, d, out.s[0]);
        put_odd_scales(_mm256_srlv_epi32(s, _mm256_setr_epi32(3, 9, 3, 9, 3, 9, 3, 9)), 14, d, out.s[1]);
    }
}

}  // namespace
}  // namespace riptide
