// Weights of planes_q4_k, planes_q5_k and planes_q6_k to bf16 in as few instructions as may be, for the product that
// decodes in its kernel. The bits are those of decode16() rounded to bf16: tests compare them on the CPU.
//
// A code u < 128, as byte 2 of the word 0x3F000000, is the float v = 1 / 2 + u / 256: one byte permutation. With
// s' = 256 s, a value of q6_k is s (u - 32) = s' v - 5/8 s' and one of q4_k is s u - m = s' v - (s' / 2 + m): one fused
// multiply-add that rounds the exact value once, as decode16() does, if what is subtracted is exact. 5/8 s' has 22
// bits. s' / 2 + m is exact if m's unit is not below s's and not too far above it (exact_offset); otherwise
// v - 1 / 2 = u / 256 takes one more instruction.
#pragma once

#include <cmath>

#include "ops/cuda/linear/gemm/gemm.h"
#include "quant/decode.cuh"
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#endif

namespace riptide::ops::cuda::prefill {

struct Words2 {
    uint32_t w[2];
};

/// Offset of a 16-byte piece of a row of 128 bytes, and of 64, as TMA's swizzles of that width place it.
RT_HD uint32_t swizzled128(int row, int piece) { return static_cast<uint32_t>(row * 128 + ((piece ^ (row & 7)) << 4)); }
RT_HD uint32_t swizzled64(int row, int piece) {
    return static_cast<uint32_t>(row * 64 + ((piece ^ (row >> 1 & 3)) << 4));
}

/// Two values as bf16, nearest even.
RT_HD uint32_t rounded_bf16(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#elif defined(__CUDA_ARCH__)
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&v);
#else
    return static_cast<uint32_t>(f32_to_bf16(low)) | static_cast<uint32_t>(f32_to_bf16(high)) << 16;
#endif
}

/// 1 / 2 + u / 256 of byte i of `codes`, each u < 128.
RT_HD float code_value(uint32_t codes, int i) {
#if defined(__CUDA_ARCH__)
    return __uint_as_float(__byte_perm(codes, 0x3F000000u, static_cast<uint32_t>(0x7044 | i << 8)));
#else
    return float_of_bits(0x3F000000u | (codes >> (8 * i) & 255u) << 16);
#endif
}

/// Whether 128 d a + dmin b is a float for all integers a, b in [0, 63]. Let 2^e be the unit of d, 2^(e + g) that of
/// dmin. 128 d a is a multiple of 2^(e + 7) below 2^(e + 24) - 2^(e + 17) in magnitude, dmin b one of 2^(e + g) below
/// 2^(e + g + 17) - 2^(e + g + 11). For g in [0, 14] the sum is below 2^24 units of 2^(e + min(g, 7)).
RT_HD bool exact_offset(uint16_t d, uint16_t dmin) {
    const int e = d >> 10 & 31, m = dmin >> 10 & 31, gap = (m > 1 ? m : 1) - (e > 1 ? e : 1);
    return gap >= 0 && gap <= 14 && e < 31 && m < 31;
}

/// What 256 columns of one row share.
template <DType T>
struct RowScales {
    Words4 header = {};  // KHeader; of q6_k, from load_scales(): the int8 scales
    float d256 = 0;      // 256 d
    float dmin = 0;      // not for q6_k
    bool quick = true;   // the offset is exact: see above
};
/// d: binary16, for q6_k only.
template <DType T>
RT_HD RowScales<T> row_scales(const Words4& header, uint16_t d) {
    RowScales<T> row;
    if constexpr (T == DType::planes_q6_k) {
        row.header = header;
        row.d256 = 256.0f * float_of_f16(d);
    } else {
        const auto low = static_cast<uint16_t>(header.w[3]), high = static_cast<uint16_t>(header.w[3] >> 16);
        row = {header, 256.0f * float_of_f16(low), float_of_f16(high), exact_offset(low, high)};
    }
    return row;
}

/// value = fma(scale, v, -offset), v = code_value() (- 1 / 2 if not quick).
struct Affine {
    float scale, offset;
};
/// Of columns 32 g + 16 half .. + 15. `scales`: of q6_k, the int8 scales of columns 64 (g / 2) .. + 63.
template <DType T>
RT_HD Affine affine_of(const RowScales<T>& row, uint32_t scales, int g, int half, bool quick) {
    if constexpr (T == DType::planes_q6_k) {
        const float s = row.d256 * static_cast<float>(signed_byte_of(scales, (g & 1) * 2 + half));
        return {s, 0.625f * s};
    } else {
        const float s = row.d256 * static_cast<float>(k_scale(row.header.w[0], row.header.w[2], g));
        const float m = row.dmin * static_cast<float>(k_scale(row.header.w[1], row.header.w[2] >> 16, g));
        return {s, quick ? 0.5f * s + m : m};
    }
}

/// Codes of columns 4 t .. 4 t + 3 of one half of a sub-block, a byte each. nibbles: word t of the sub-block; high:
/// its word of the high plane (q5_k), or that of the half (q6_k).
template <DType T>
RT_HD uint32_t half_codes(uint32_t nibbles, uint32_t high, int t, int half) {
    uint32_t codes = nibbles >> (4 * half) & 0x0F0F0F0Fu;
    if constexpr (T == DType::planes_q5_k) codes |= (half == 0 ? high << (4 - t) : high >> t) & 0x10101010u;
    if constexpr (T == DType::planes_q6_k) codes |= (t < 2 ? high << (4 - 2 * t) : high >> (2 * t - 4)) & 0x30303030u;
    return codes;
}

/// The value of byte i of `codes`.
template <bool kQuick>
RT_HD float decoded_value(uint32_t codes, int i, const Affine& f) {
    float x = code_value(codes, i);
    if constexpr (!kQuick) x -= 0.5f;
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(f.scale, x, -f.offset);
#else
    return std::fma(f.scale, x, -f.offset);
#endif
}

/// Eight neighbouring columns, of codes a and then b, as bf16.
template <bool kQuick>
RT_HD Words4 decode8(uint32_t a, uint32_t b, const Affine& f) {
    float v[8];
    for (int j = 0; j < 8; ++j) v[j] = decoded_value<kQuick>(j < 4 ? a : b, j % 4, f);
    return {{rounded_bf16(v[0], v[1]), rounded_bf16(v[2], v[3]), rounded_bf16(v[4], v[5]), rounded_bf16(v[6], v[7])}};
}

/// Rows of weights of a tile.
inline constexpr int kTileRows = 256;

/// One span of 256 columns of the rows of a tile in shared memory, two boxes of half the rows (swiglu: gate, then up):
/// one plane behind the other, each row by row. Behind them the factors that the kernel makes of the scales: an Affine
/// for each group of columns that shares one and each row, [group][row].
template <DType T>
struct Span {
    static constexpr DType kType = T;
    static constexpr bool kSixBits = T == DType::planes_q6_k;
    static constexpr int kRows = kTileRows, kBoxRows = kRows / 2;
    static constexpr int kHighRow = kSixBits ? 64 : T == DType::planes_q5_k ? 32 : 0;
    static constexpr int kGroups = kSixBits ? 16 : 8;
    static constexpr int kData = kRows * 128, kHigh = kRows * kHighRow, kScales = kRows * 16;
    static constexpr int kMostD = kSixBits ? kRows * 16 : 0;  // binary16 d of all spans of the rows: eight
    static constexpr int kAtHigh = kData, kAtScales = kData + kHigh, kAtD = kAtScales + kScales;
    static constexpr int kAtFactors = kAtD + kMostD, kFactorRow = static_cast<int>(sizeof(Affine));
    static constexpr int kBytes = kAtFactors + kGroups * kRows * kFactorRow;
};

// What a thread reads of a span at address `from`. `memory` has read16, read8, read4 and read2.

template <class S, class Memory>
RT_HD RowScales<S::kType> load_scales(Memory& memory, uint32_t from, int row, int span, int spans) {
    const uint32_t scales = from + static_cast<uint32_t>(S::kAtScales + row * 16);
    if constexpr (S::kSixBits)
        return row_scales<S::kType>(memory.read16(scales),
                                    memory.read2(from + S::kAtD + static_cast<uint32_t>(row * spans + span) * 2));
    else return row_scales<S::kType>(memory.read16(scales), 0);
}

// ---- weights as the A operand of wgmma: a thread decodes what its own registers hold of each 64 rows x 16 columns
// ---- Lane 4 g + t of a warp has rows g and g + 8 of sixteen, and of each sixteen columns 2 t, 2 t + 1, 2 t + 8, 2 t
// + 9.

/// How much further on the result of a thread's second row lies than that of its first.
template <RowOrder kOrder>
inline constexpr int kSecondColumn = kOrder == RowOrder::swiglu ? 0 : 8;

/// Where a warp's sixteen rows lie in the boxes (and their columns in the results): rows g and g + 8 at row and row +
/// kSecond; for swiglu a gate and the up of the same column.
template <RowOrder kOrder>
struct FragmentPlace {
    static constexpr bool kPairs = kOrder == RowOrder::swiglu;
    static constexpr int kSecond = kPairs ? kTileRows / 2 : kSecondColumn<kOrder>;
    int row;
    /// thread: of 2 kTileRows.
    RT_HD explicit FragmentPlace(int thread) : row((kPairs ? 8 : 16) * (thread / 32) + thread % 32 / 4) {}
};

/// Bytes of b : a by the four nibbles of `selector`.
RT_HD uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(__CUDA_ARCH__)
    return __byte_perm(a, b, selector);
#else
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(both >> (8 * (selector >> (4 * i) & 7)) & 255u) << (8 * i);
    return out;
#endif
}

/// Quarter t's columns of a sub-block of 32 of one row. Byte i of `nibbles`: column 2 t, 2 t + 1, 2 t + 8, 2 t + 9 in
/// the low nibble, the one 16 further on in the high one.
struct ShareWords {
    uint32_t nibbles;
    uint32_t high[2];  // [half]: bits 4 and 5 of the codes once shifted (share_codes)
};
/// Where such words of row `row` lie, sub-block `sub`, lane t of a quad. Those of a row so many eights of rows further
/// on lie as many rows further on: no instruction, if the compiler knows the number.
struct ShareAt {
    uint32_t nibbles, high;
};
template <class S>
RT_HD ShareAt share_at(uint32_t from, int row, int sub, int t) {
    ShareAt at;
    at.nibbles = from + (swizzled128(row, 0) ^ static_cast<uint32_t>(sub) << 4) + static_cast<uint32_t>(t / 2) * 4;
    at.high =
        from + S::kAtHigh +
        (S::kSixBits ? (swizzled64(row, 0) ^ static_cast<uint32_t>(sub / 2) << 4) + static_cast<uint32_t>(sub % 2) * 8
                     : static_cast<uint32_t>(row * 32 + 4 * sub));
    return at;
}
template <class S, class Memory>
RT_HD ShareWords load_share(Memory& memory, const ShareAt& at, int rows_on, int t) {
    const uint32_t selector = t % 2 == 0 ? 0x5410u : 0x7632u,
                   nibbles = at.nibbles + static_cast<uint32_t>(rows_on * 128),
                   above = at.high + static_cast<uint32_t>(rows_on * S::kHighRow);
    ShareWords words = {};
    words.nibbles = pick_bytes(memory.read4(nibbles), memory.read4(nibbles + 8), selector);
    if constexpr (S::kType == DType::planes_q5_k) {
        const uint32_t high = memory.read4(above);
        words.high[0] = words.high[1] = pick_bytes(high, high >> 2, selector);
    }
    if constexpr (S::kSixBits) {
        const Words2 high = memory.read8(above);
        for (int half = 0; half < 2; ++half) words.high[half] = pick_bytes(high.w[half], high.w[half] >> 4, selector);
    }
    return words;
}
/// The codes of columns 16 half + (2 t, 2 t + 1, 2 t + 8, 2 t + 9), a byte each.
template <DType T>
RT_HD uint32_t share_codes(const ShareWords& words, int t, int half) {
    uint32_t codes = words.nibbles >> (4 * half) & 0x0F0F0F0Fu;
    if constexpr (T == DType::planes_q5_k)
        codes |= (half == 0 ? words.high[0] << (4 - t / 2) : words.high[1] >> (t / 2)) & 0x10101010u;
    if constexpr (T == DType::planes_q6_k) codes |= words.high[half] << (4 - t / 2 * 2) & 0x30303030u;
    return codes;
}
/// As bf16: columns 2 t and 2 t + 1, then 2 t + 8 and 2 t + 9.
template <bool kQuick>
RT_HD Words2 decode4(uint32_t codes, const Affine& f) {
    float v[4];
    for (int j = 0; j < 4; ++j) v[j] = decoded_value<kQuick>(codes, j, f);
    return {{rounded_bf16(v[0], v[1]), rounded_bf16(v[2], v[3])}};
}

}  // namespace riptide::ops::cuda::prefill
