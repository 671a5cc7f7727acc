// The memory layouts of quantised blocks, as GGUF files hold them. Source: the type table of the ggml project.
//
// Every struct has alignment 1: data in a mapped file is aligned to nothing better than its block size. `uint16_t`
// fields named d, m or dmin are binary16 bit patterns (see tensor/half.h); read them by value. Multi-byte fields are
// little-endian. "Element i" counts the consecutive values of a row that a block holds, from 0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace riptide {

constexpr int kBlock = 32;        // values of a simple block
constexpr int kSuperBlock = 256;  // values of a K, TQ1_0, TQ2_0 or IQ block (but for IQ4_NL)

#define RT_PACKED __attribute__((packed))

/// x = d * q.
struct RT_PACKED BlockQ8_0 {
    uint16_t d;
    int8_t qs[32];
};

/// x = d * (q - 8), q in 0..15. qs[j]: low nibble element j, high nibble element j + 16.
struct RT_PACKED BlockQ4_0 {
    uint16_t d;
    uint8_t qs[16];
};

/// x = d * q + m. Nibbles as in Q4_0.
struct RT_PACKED BlockQ4_1 {
    uint16_t d;
    uint16_t m;
    uint8_t qs[16];
};

/// x = d * (q - 16), q in 0..31. qs holds the low four bits as in Q4_0; bit i of the word qh is bit 4 of element i.
struct RT_PACKED BlockQ5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
};

/// x = d * q + m, q in 0..31. Bits as in Q5_0.
struct RT_PACKED BlockQ5_1 {
    uint16_t d;
    uint16_t m;
    uint8_t qh[4];
    uint8_t qs[16];
};

/// 16 groups of 16: x = (d * (scales[g] & 15)) * q - dmin * (scales[g] >> 4), q in 0..3.
/// Element 128 h + 32 s + l (l < 32) is bits 2s, 2s+1 of qs[32 h + l]; its group is element / 16.
struct RT_PACKED BlockQ2K {
    uint8_t scales[16];
    uint8_t qs[64];
    uint16_t d;
    uint16_t dmin;
};

/// 16 groups of 16: x = d * (s[g] - 32) * (q - 4), q in 0..7. Low two bits of q as in Q2_K; bit (element / 32) of
/// hmask[element % 32] is bit 2 of q. s[g], six bits: low nibbles of s[0..7] and s[8..15] are the low and high nibbles
/// of scales[0..7]; the high two bits of s[4 k + j] are bits 2k, 2k+1 of scales[8 + j].
struct RT_PACKED BlockQ3K {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint16_t d;
};

/// 8 groups of 32: x = (d * s[g]) * q - dmin * m[g], q in 0..15.
/// Element 64 p + l (l < 32) is the low nibble of qs[32 p + l], element 64 p + 32 + l its high nibble.
/// s and m are six bits each. g < 4: s[g] = scales[g] & 63, m[g] = scales[4 + g] & 63. g >= 4: the low nibbles of s[g]
/// and m[g] are the low and the high nibble of scales[4 + g], their high two bits the top bits of scales[g - 4] and
/// scales[g].
struct RT_PACKED BlockQ4K {
    uint16_t d;
    uint16_t dmin;
    uint8_t scales[12];
    uint8_t qs[128];
};

/// As Q4_K with q in 0..31: bit g of qh[element % 32] is bit 4 of an element of group g.
struct RT_PACKED BlockQ5K {
    uint16_t d;
    uint16_t dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
};

/// 16 groups of 16: x = d * scales[g] * (q - 32), q in 0..63. In each half h (128 elements) element 128 h + 32 s + l
/// has its low four bits in ql[64 h + 32 (s & 1) + l] (low nibble for s < 2, else high) and its high two in bits 2s,
/// 2s+1 of qh[32 h + l].
struct RT_PACKED BlockQ6K {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
};

/// x = d * kIQ4Values[q]. Nibbles as in Q4_0.
struct RT_PACKED BlockIQ4NL {
    uint16_t d;
    uint8_t qs[16];
};

/// 8 groups of 32: x = d * (s[g] - 32) * kIQ4Values[q]. Low nibble of s[g]: nibble g of scales_l; high two bits: bits
/// 2g, 2g+1 of scales_h. Group g holds its nibbles in qs[16 g ..] as Q4_0 does.
struct RT_PACKED BlockIQ4XS {
    uint16_t d;
    uint16_t scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
};

/// x = 2^(e - 127) * e2m1(q). Nibbles as in Q4_0. Source: OCP microscaling formats 1.0.
struct RT_PACKED BlockMxfp4 {
    uint8_t e;
    uint8_t qs[16];
};

/// 4 groups of 16: x = ue4m3(d[g]) * e2m1(q). qs[8 g + j] holds elements 16 g + j (low nibble) and 16 g + 8 + j (high).
struct RT_PACKED BlockNvfp4 {
    uint8_t d[4];
    uint8_t qs[32];
};

/// x = d * (q - 1), q in 0..2. Bits as in Q2_K's qs.
struct RT_PACKED BlockTQ2_0 {
    uint8_t qs[64];
    uint16_t d;
};

/// x = d * (q - 1), q in 0..2, base 3: digit n of byte b is floor(3 (b 3^n mod 256) / 256). Digit n of qs[32 h + m]:
/// element 160 h + m + (h == 0 ? 32 : 16) n, m below 32 for h = 0, below 16 for h = 1; of qh[m]: element 240 + 4 n + m.
struct RT_PACKED BlockTQ1_0 {
    uint8_t qs[48];
    uint8_t qh[4];
    uint16_t d;
};

// IQ2 and IQ3: x = sign * db * magnitude. Eight magnitudes are an entry of a grid of eight, or two of four
// (iq_grids.h). Seven bits of signs have an eighth that makes the number of minus signs even; a set bit j is a minus at
// element j.

/// 8 groups of 32, of which qs[8 g ..] are two words: four grid codes; then signs (7 bits each) and, on top, s:
/// db = d * (0.5 + s) * 0.25.
struct RT_PACKED BlockIQ2XXS {
    uint16_t d;
    uint8_t qs[64];
};

/// Eights: 9 bits of grid code, 7 of signs. s: a nibble for each 16 elements; db as in IQ2_XXS.
struct RT_PACKED BlockIQ2XS {
    uint16_t d;
    uint16_t qs[32];
    uint8_t scales[8];
};

/// Eights: a grid code of qs and two bits of qh (2 l of qh[g], l the eight's place in its 32), a byte of signs. s as
/// there.
struct RT_PACKED BlockIQ2S {
    uint16_t d;
    uint8_t qs[32];
    uint8_t signs[32];
    uint8_t qh[8];
    uint8_t scales[8];
};

/// Fours have a grid code each. gas[4 g ..]: signs and s of 32, as in IQ2_XXS's second word: db = d * (0.5 + s) * 0.5.
struct RT_PACKED BlockIQ3XXS {
    uint16_t d;
    uint8_t qs[64];
    uint8_t gas[32];
};

/// Fours: a grid code of qs and a bit of qh (bit i of qh[g], i the four's place in its 32); eights: a byte of signs.
/// s: a nibble for each 32 elements; db = d * (1 + 2 s).
struct RT_PACKED BlockIQ3S {
    uint16_t d;
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t signs[32];
    uint8_t scales[4];
};

/// x = d * (2 s + 1) * (q + delta), q in -1..1, delta = +-0.125. 8 groups of 32: qs[4 g + l] and bits 3 l of qh[g] are
/// a grid code of eight; bits 12 to 14 are s, bit 15 is delta's sign.
struct RT_PACKED BlockIQ1S {
    uint16_t d;
    uint8_t qs[32];
    uint16_t qh[8];
};

/// As IQ1_S, with a nibble of qh for each eight (three bits of the code, delta's sign) and s for each 16 elements:
/// three bits of the words in `scales`, four a word, whose top nibbles are d.
struct RT_PACKED BlockIQ1M {
    uint8_t qs[32];
    uint8_t qh[16];
    uint16_t scales[4];
};

/// KV rows only (see kv_codec.h): x = d * kTQ3Values[q], in the rotated domain.
/// Low two bits of q of element i: qs[i / 4] >> 2 (i % 4); bit 2: bit i % 8 of qh[i / 8].
struct RT_PACKED BlockTQ3_0 {
    uint16_t d;
    uint8_t qs[8];
    uint8_t qh[4];
};

#undef RT_PACKED

/// What the sixteen codes of four bits of a format stand for.
enum class LevelSet : uint8_t { iq4, e2m1, iq1_iq2, iq3_xxs, iq3_s };
inline constexpr int8_t kLevels[5][16] = {
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
    {-43, -25, -9, -8, -7, -1, 1, 7, 8, 9, 25, 43},  // eight times q + delta of IQ1; IQ2's signed magnitudes
    {-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62},
    {-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15}};
/// The 16 levels of IQ4_NL and IQ4_XS.
inline constexpr const int8_t (&kIQ4Values)[16] = kLevels[0];
/// E2M1 (sign, two exponent bits, one mantissa bit) as twice its value, an integer. Source: OCP microscaling 1.0.
inline constexpr const int8_t (&kE2M1Doubled)[16] = kLevels[1];

/// The six-bit scales s[0..7] and minima m[0..7] of a Q4_K or Q5_K block, unpacked.
struct KScales {
    uint8_t s[8];
    uint8_t m[8];
};
inline KScales unpack_k_scales(const uint8_t* packed) {
    KScales out;
    for (int g = 0; g < 4; ++g) {
        out.s[g] = packed[g] & 63;
        out.m[g] = packed[4 + g] & 63;
        out.s[4 + g] = static_cast<uint8_t>((packed[8 + g] & 15) | ((packed[g] >> 6) << 4));
        out.m[4 + g] = static_cast<uint8_t>((packed[8 + g] >> 4) | ((packed[4 + g] >> 6) << 4));
    }
    return out;
}

/// The sixteen six-bit scales of a Q3_K block, unpacked, 32 already subtracted.
inline void unpack_q3k_scales(const uint8_t* packed, int8_t* out) {
    for (int g = 0; g < 16; ++g) {
        const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
        const int high = (packed[8 + g % 4] >> (2 * (g / 4))) & 3;
        out[g] = static_cast<int8_t>((low | (high << 4)) - 32);
    }
}

static_assert(sizeof(BlockQ8_0) == 34 && alignof(BlockQ8_0) == 1);
static_assert(sizeof(BlockQ4_0) == 18 && alignof(BlockQ4_0) == 1);
static_assert(sizeof(BlockQ4_1) == 20 && alignof(BlockQ4_1) == 1);
static_assert(sizeof(BlockQ5_0) == 22 && alignof(BlockQ5_0) == 1);
static_assert(sizeof(BlockQ5_1) == 24 && alignof(BlockQ5_1) == 1);
static_assert(sizeof(BlockQ2K) == 84 && alignof(BlockQ2K) == 1);
static_assert(sizeof(BlockQ3K) == 110 && alignof(BlockQ3K) == 1);
static_assert(sizeof(BlockQ4K) == 144 && alignof(BlockQ4K) == 1);
static_assert(sizeof(BlockQ5K) == 176 && alignof(BlockQ5K) == 1);
static_assert(sizeof(BlockQ6K) == 210 && alignof(BlockQ6K) == 1);
static_assert(sizeof(BlockIQ4NL) == 18 && alignof(BlockIQ4NL) == 1);
static_assert(sizeof(BlockIQ4XS) == 136 && alignof(BlockIQ4XS) == 1);
static_assert(sizeof(BlockMxfp4) == 17 && alignof(BlockMxfp4) == 1);
static_assert(sizeof(BlockNvfp4) == 36 && alignof(BlockNvfp4) == 1);
static_assert(sizeof(BlockTQ2_0) == 66 && alignof(BlockTQ2_0) == 1);
static_assert(sizeof(BlockTQ1_0) == 54 && alignof(BlockTQ1_0) == 1);
static_assert(sizeof(BlockIQ2XXS) == 66 && alignof(BlockIQ2XXS) == 1);
static_assert(sizeof(BlockIQ2XS) == 74 && alignof(BlockIQ2XS) == 1);
static_assert(sizeof(BlockIQ2S) == 82 && alignof(BlockIQ2S) == 1);
static_assert(sizeof(BlockIQ3XXS) == 98 && alignof(BlockIQ3XXS) == 1);
static_assert(sizeof(BlockIQ3S) == 110 && alignof(BlockIQ3S) == 1);
static_assert(sizeof(BlockIQ1S) == 50 && alignof(BlockIQ1S) == 1);
static_assert(sizeof(BlockIQ1M) == 56 && alignof(BlockIQ1M) == 1);
static_assert(sizeof(BlockTQ3_0) == 14 && alignof(BlockTQ3_0) == 1);

}  // namespace riptide
