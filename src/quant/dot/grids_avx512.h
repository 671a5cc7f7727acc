// Decoding of weights of grids (IQ1, IQ2, IQ3) and of three values (TQ1_0, TQ2_0) in AVX-512 registers, 256 of two rows
// at a time. Included by dot/*avx512.cpp only.
#pragma once

#include "quant/dot/decode_avx512.h"
#include "quant/iq_grids.h"

namespace riptide {
namespace {

/// Eight groups of 32 of two rows. u[row][k]: codes, quadword g being eight k of group g, elements 32 g + 8 k to + 7:
/// no sum of a group then crosses a quadword. f: s of the eight groups of the first row, then of the second; for
/// formats with half groups f[0] those of first halves, f[1] of second ones.
struct DecodedPair {
    __m512i u[2][4];
    __m512 f[2];
};

/// mask ? a : b, bit by bit.
RT_INLINE __m512i choose(__m512i mask, __m512i a, __m512i b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xCA); }
/// a | (b & mask).
RT_INLINE __m512i pick_or(__m512i a, __m512i b, __m512i mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xF8); }
RT_INLINE __m512i quads(int64_t value) { return _mm512_set1_epi64(value); }
/// Eight quadwords: first + g * step.
RT_INLINE __m512i quads(int64_t first, int64_t step) {
    return _mm512_setr_epi64(first, first + step, first + 2 * step, first + 3 * step, first + 4 * step,
                             first + 5 * step, first + 6 * step, first + 7 * step);
}
/// The same in each 128 bits: first, first + step.
RT_INLINE __m512i two_quads(int64_t first, int64_t step) {
    return _mm512_broadcast_i32x4(_mm_set_epi64x(first + step, first));
}
RT_INLINE __m512i both32(const uint8_t* p0, const uint8_t* p1) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load32(p0)), load32(p1), 1);
}
RT_INLINE __m256i both16(const uint8_t* p0, const uint8_t* p1) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(p0)), load16(p1), 1);
}
RT_INLINE __m128i both8(const uint8_t* p0, const uint8_t* p1) {
    return _mm_set_epi64x(static_cast<int64_t>(load_u64(p1)), static_cast<int64_t>(load_u64(p0)));
}

/// Entries of a grid of eights. Quadword g of `codes` holds the four codes of group g in its words.
RT_INLINE void gather_eights(const uint64_t* grid, __m512i codes, __m512i* u) {
    RT_UNROLL
    for (int k = 0; k < 4; ++k) {
        const __m512i pick = two_quads(static_cast<int64_t>(0x8080808080800100ull) + 0x202 * k, 0x808);
        u[k] = _mm512_i64gather_epi64(_mm512_shuffle_epi8(codes, pick), grid, 8);
    }
}

/// Words of a byte and, of `top`, the bits of `mask`.
RT_INLINE __m512i with_top(__m256i low, __m512i top, int mask) {
    return pick_or(_mm512_cvtepu8_epi16(low), top, _mm512_set1_epi16(static_cast<short>(mask)));
}

/// IQ1: without signs, but for delta's.
template <DType T>
RT_INLINE void iq1_codes(const uint8_t* p, __m512i* u) {
    constexpr bool kM = T == DType::iq1_m;
    // The group's word three times and its upper byte: all bits of codes can then go to their place by left shifts.
    const __m512i high = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load16(p + (kM ? 32 : 34))),
                                             quads(static_cast<int64_t>(0x8001010001000100ull), 0x0002020202020202));
    const __m512i top = _mm512_sllv_epi16(high, quads(kM ? 0x0004000000040008 : 0x0007000200050008));
    gather_eights(kGridBytes.iq1_s, with_top(load32(p + (kM ? 0 : 2)), top, 0x700), u);
    RT_UNROLL
    for (int k = 0; k < 4; ++k) {
        const __mmask8 negative = _mm512_test_epi64_mask(high, quads(kM ? 8 << 4 * k : 0x8000));
        u[k] = _mm512_mask_sub_epi64(u[k], negative, u[k], bytes(2));
    }
}

template <DType T>
RT_INLINE void iq3_codes(const uint8_t* p, __m512i* u) {
    const __m512i v = _mm512_loadu_si512(p + 2);
    __m512i high = {};  // even words: bits of the group's codes; odd words: the same, one down
    if constexpr (T == DType::iq3_s) {
        high = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 66)));
        high = _mm512_or_si512(high, _mm512_slli_epi64(high, 31));
    }
    RT_UNROLL
    for (int k = 0; k < 4; ++k) {
        const __m512i pick = two_quads(static_cast<int64_t>(0x8080800180808000ull) + 0x200000002 * k, 0x800000008);
        __m512i code = _mm512_shuffle_epi8(v, pick);
        if constexpr (T == DType::iq3_s)
            code = pick_or(code, _mm512_slli_epi32(high, 8 - 2 * k), _mm512_set1_epi32(256));
        u[k] = _mm512_i32gather_epi32(code, T == DType::iq3_s ? kGridBytes.iq3_s : kGridBytes.iq3_xxs, 4);
    }
}

/// Digit n of bytes 0 to 31 is group n; of bytes 32 to 47 half a group, from 160 + 16 n on; of 48 to 51 four elements,
/// from 240 + 4 n on.
RT_INLINE void tq1_codes(const uint8_t* p, __m512i* u) {
    const auto twice = [](int power) { return power * 0x10001; };
    const __m512i v = _mm512_maskz_loadu_epi32(0x1FFF, p), even = _mm512_set1_epi16(255);
    RT_UNROLL
    for (int k = 0; k < 4; ++k) {
        const int q = 2 * k, h = 8 + q % 4, l0 = k < 2 ? h : 12, l1 = k < 2 ? h + 1 : 12;
        const __m512i from = _mm512_permutexvar_epi32(
            _mm512_setr_epi32(q, q + 1, q, q + 1, q, q + 1, q, q + 1, q, q + 1, h, h + 1, h, h + 1, l0, l1), v);
        const int p5 = twice(k < 2 ? 1 : 3), p6 = 9 * p5, p7 = twice(k < 2 ? 81 : k == 2 ? 1 : 9);
        const __m512i powers =
            _mm512_setr_epi32(twice(1), twice(1), twice(3), twice(3), twice(9), twice(9), twice(27), twice(27),
                              twice(81), twice(81), p5, p5, p6, p6, p7, k < 2 ? p7 : 3 * p7);
        const __m512i odd = _mm512_mullo_epi16(_mm512_andnot_si512(even, from), powers);
        const __m512i shifted = choose(even, _mm512_mullo_epi16(from, powers), odd);
        // floor(3 b / 256)
        u[k] = _mm512_maskz_mov_epi8(_mm512_cmpge_epu8_mask(shifted, bytes(86)), bytes(1));
        u[k] = _mm512_mask_mov_epi8(u[k], _mm512_cmpge_epu8_mask(shifted, bytes(171)), bytes(2));
    }
}

/// The codes of one row, without signs.
template <DType T>
RT_INLINE void row_codes(const uint8_t* p, __m512i* u) {
    if constexpr (T == DType::iq2_xxs) {
        const __m512i v = _mm512_loadu_si512(p + 2);
        RT_UNROLL
        for (int k = 0; k < 4; ++k) {
            const __m512i pick = two_quads(static_cast<int64_t>(0x8080808080808000ull) + k, 8);
            u[k] = _mm512_i64gather_epi64(_mm512_shuffle_epi8(v, pick), kGridBytes.iq2_xxs, 8);
        }
    } else if constexpr (T == DType::iq2_xs) {
        gather_eights(kGridBytes.iq2_xs, _mm512_and_si512(_mm512_loadu_si512(p + 2), _mm512_set1_epi16(511)), u);
    } else if constexpr (T == DType::iq2_s) {  // qh[g] on top of each word
        const __m512i high = _mm512_shuffle_epi8(_mm512_set1_epi64(static_cast<int64_t>(load_u64(p + 66))),
                                                 quads(0x0080008000800080, 0x0100010001000100));
        const __m512i top = _mm512_srlv_epi16(high, quads(0x0006000400020000));
        gather_eights(kGridBytes.iq2_s, with_top(load32(p + 2), top, 0x300), u);
    } else if constexpr (T == DType::iq1_s || T == DType::iq1_m) {
        iq1_codes<T>(p, u);
    } else if constexpr (T == DType::iq3_xxs || T == DType::iq3_s) {
        iq3_codes<T>(p, u);
    } else if constexpr (T == DType::tq1_0) {
        tq1_codes(p, u);
    } else {
        static_assert(T == DType::tq2_0);
        const __m512i v = _mm512_loadu_si512(p), shift = _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6);
        RT_UNROLL
        for (int k = 0; k < 4; ++k) {
            const __m512i from = _mm512_setr_epi64(k, k, k, k, 4 + k, 4 + k, 4 + k, 4 + k);
            u[k] = _mm512_and_si512(_mm512_srlv_epi64(_mm512_permutexvar_epi64(from, v), shift), bytes(3));
        }
    }
}

/// Bytes of seven signs and, on top, one that makes their number even.
RT_INLINE __m512i with_eighth(__m512i seven) {
    const __m512i nibble = _mm512_and_si512(_mm512_xor_si512(seven, _mm512_srli_epi16(seven, 4)), bytes(15));
    const char odd = static_cast<char>(0x80);
    const __m128i parity = _mm_setr_epi8(0, odd, odd, 0, odd, 0, 0, odd, odd, 0, 0, odd, 0, odd, odd, 0);
    return _mm512_or_si512(seven, _mm512_shuffle_epi8(_mm512_broadcast_i32x4(parity), nibble));
}

/// Four times seven signs, of the low 28 bits of each word.
RT_INLINE __m512i four_sevens(__m512i v) {
    v = choose(_mm512_set1_epi32(0x3FFF), v, _mm512_slli_epi32(v, 2));
    v = choose(_mm512_set1_epi32(0x7F007F), v, _mm512_slli_epi32(v, 1));
    return with_eighth(_mm512_and_si512(v, bytes(127)));
}

/// 128 + magnitude to 128 - magnitude where a bit of `signs` is set: eight bytes for eights k of all groups, by rows.
RT_INLINE void put_signs(__m512i signs, DecodedPair& w) {
    RT_UNROLL
    for (int i = 0; i < 8; ++i) {
        __m512i& u = w.u[i / 4][i % 4];
        u = _mm512_mask_sub_epi8(u, static_cast<__mmask64>(signs[i]), _mm512_setzero_si512(), u);
    }
}

/// Words of four bytes, for a group each, to the order of put_signs().
RT_INLINE __m512i by_eights(__m512i signs) {
    const __m128i turn = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15),
                                    _mm512_shuffle_epi8(signs, _mm512_broadcast_i32x4(turn)));
}

/// d * (2 s + 1), 2 s being the bits of `mask` in `twice`. The formats' halves and quarters are in d: exact.
RT_INLINE __m512 odd_scales(__m512i twice, int mask, __m512 d) {
    const __m512i odd = pick_or(_mm512_set1_epi32(1), twice, _mm512_set1_epi32(mask));
    return _mm512_mul_ps(d, _mm512_cvtepi32_ps(odd));
}

/// unit * d for the eight groups of both rows.
RT_INLINE __m512 both_d(uint32_t d0, uint32_t d1, float unit) {
    const __m128 d = _mm_mul_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(d0 | d1 << 16))), _mm_set1_ps(unit));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                                 _mm512_castps128_ps512(d));
}

RT_INLINE uint32_t iq1_m_d(uint64_t s) {
    return static_cast<uint32_t>((s >> 12 & 15) | (s >> 24 & 0xF0) | (s >> 36 & 0xF00) | (s >> 48 & 0xF000));
}

template <DType T>
RT_INLINE DecodedPair decode_pair(const uint8_t* p0, const uint8_t* p1) {
    DecodedPair w;
    row_codes<T>(p0, w.u[0]);
    row_codes<T>(p1, w.u[1]);
    if constexpr (T == DType::iq2_xxs || T == DType::iq3_xxs) {
        __m512i signs;
        if constexpr (T == DType::iq3_xxs) signs = both32(p0 + 66, p1 + 66);
        else  // odd words
            signs =
                _mm512_permutex2var_epi32(_mm512_loadu_si512(p0 + 2),
                                          _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31),
                                          _mm512_loadu_si512(p1 + 2));
        put_signs(by_eights(four_sevens(signs)), w);
        w.f[0] = odd_scales(_mm512_srli_epi32(signs, 27), 30,
                            both_d(load_u16(p0), load_u16(p1), T == DType::iq3_xxs ? 0.25f : 0.125f));
    } else if constexpr (T == DType::iq2_xs || T == DType::iq2_s) {
        if constexpr (T == DType::iq2_s) {
            put_signs(by_eights(both32(p0 + 34, p1 + 34)), w);
        } else {  // packed, each 128 bits hold eights of two groups of the first row, then of the second
            const __m512i sevens = _mm512_packus_epi16(_mm512_srli_epi16(_mm512_loadu_si512(p0 + 2), 9),
                                                       _mm512_srli_epi16(_mm512_loadu_si512(p1 + 2), 9));
            const __m128i turn = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
            const __m512i turned = _mm512_shuffle_epi8(with_eighth(sevens), _mm512_broadcast_i32x4(turn));
            put_signs(_mm512_permutexvar_epi16(quads(0x0018001000080000, 0x0001000100010001), turned), w);
        }
        constexpr int kAt = T == DType::iq2_xs ? 66 : 74;
        const __m512i s = _mm512_cvtepu8_epi32(both8(p0 + kAt, p1 + kAt));
        const __m512 d = both_d(load_u16(p0), load_u16(p1), 0.125f);
        w.f[0] = odd_scales(_mm512_slli_epi32(s, 1), 30, d);
        w.f[1] = odd_scales(_mm512_srli_epi32(s, 3), 30, d);
    } else if constexpr (T == DType::iq3_s) {
        put_signs(by_eights(both32(p0 + 74, p1 + 74)), w);
        const auto words = [](const uint8_t* p) { return _mm256_set1_epi32(static_cast<int>(load_u32(p + 106))); };
        const __m512i s = _mm512_inserti64x4(_mm512_castsi256_si512(words(p0)), words(p1), 1);
        const __m512i at = _mm512_setr_epi32(31, 3, 7, 11, 15, 19, 23, 27, 31, 3, 7, 11, 15, 19, 23, 27);
        w.f[0] = odd_scales(_mm512_rorv_epi32(s, at), 30, both_d(load_u16(p0), load_u16(p1), 1.0f));
    } else if constexpr (T == DType::iq1_s) {
        const __m512i h = _mm512_cvtepu16_epi32(both16(p0 + 34, p1 + 34));
        w.f[0] = odd_scales(_mm512_srli_epi32(h, 11), 14, both_d(load_u16(p0), load_u16(p1), 0.125f));
    } else if constexpr (T == DType::iq1_m) {
        const __m512i s =
            _mm512_permutexvar_epi16(quads(0, 0x0001000100010001), _mm512_castsi128_si512(both8(p0 + 48, p1 + 48)));
        const __m512 d = both_d(iq1_m_d(load_u64(p0 + 48)), iq1_m_d(load_u64(p1 + 48)), 0.125f);
        w.f[0] = odd_scales(_mm512_rorv_epi32(s, quads(0x500000000 + 31)), 14, d);  // bits 0 and 6 to 1
        w.f[1] = odd_scales(_mm512_rorv_epi32(s, quads(0x800000002)), 14, d);       // bits 3 and 9
    } else {
        constexpr int kAt = T == DType::tq2_0 ? 64 : 52;
        w.f[0] = both_d(load_u16(p0 + kAt), load_u16(p1 + kAt), 1.0f);
    }
    return w;
}

}  // namespace
}  // namespace riptide
