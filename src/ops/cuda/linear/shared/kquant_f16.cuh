// Q4_K and Q6_K weights times rows of x on half-precision tensor cores: formats, and a tile of sixteen weight rows and
// 256 columns.
//
// Arithmetic. A block of 256 columns of a row of x (times the norm's weights, if there is a norm) is scaled by a power
// of two, so that its largest magnitude is in [2^8, 2^9), and rounded to f16. The integer u s of a Q4_K weight (4 bits
// times 6) is exact in f16, so mma.m16n8k16 sums u s x over the sub-blocks of a block without a look at them; of Q6_K
// (u - 32) s is rounded to f16 where it is odd and above 2,048. Q4_K's minimums take one more mma: m_j times the sum of
// sub-block j's rounded x, as two halves, hi and lo. Then
//   c = fma(scale, fma(-dmin, minimums, d * (A + B)), c)
// in one of eight chains, block b mod 8, where A are the sums over first halves of sub-blocks and B those over second
// ones; a product is ((c0 + c4) + (c1 + c5)) + ((c2 + c6) + (c3 + c7)), times 1 / rms of the row if it is normalised.
// None of it depends on how many rows of x there are.
//
// A lane of m16n8k16 (g = lane / 4, t = lane % 4) has four columns of rows g and g + 8, and of x's row g. Which columns
// is free as long as weights and x agree: lane t has sub-blocks 2 t and 2 t + 1, so that it needs two scales a row, and
// takes word w of sub-block 2 t + i in step 4 i + w: columns 4 w + {0, 2, 1, 3} by one mma and those sixteen further on
// by another. x lies in that order (unit 4 (4 i + w) + t: the eight halves of both).
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/device/int8_rows.cuh"
#include "ops/cuda/linear/shared/shapes.h"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

__device__ __forceinline__ uint32_t half_word(__half2 v) { return *reinterpret_cast<const uint32_t*>(&v); }
__device__ __forceinline__ __half2 word_half(uint32_t v) { return *reinterpret_cast<const __half2*>(&v); }

/// Where the halves of a row of a block go: two words for lane t of a step, of its first mma or its second.
struct RowUnits {
    char* units;
    bool odd;  // a row that is

    __device__ __forceinline__ void put(int step, int second, int t, uint32_t low, uint32_t high) const {
        *reinterpret_cast<uint2*>(units + (4 * (odd ? step ^ 1 : step) + t) * 16 + second * 8) = {low, high};
    }
};
/// The same as wgmma wants `columns` rows of x: of each mma the low words of all rows, in pieces of eight rows x 16
/// bytes, and behind them the high ones.
struct PieceUnits {
    char* units;  // of the row: in the first piece of its eight
    int columns;

    __device__ __forceinline__ void put(int step, int second, int t, uint32_t low, uint32_t high) const {
        char* const to = units + (2 * step + second) * 32 * columns + 4 * t;
        *reinterpret_cast<uint32_t*>(to) = low;
        *reinterpret_cast<uint32_t*>(to + 16 * columns) = high;
    }
};

/// Columns 8 lane .. + 7 of a block, by a whole warp: to its units and sums and its scale.
template <class Units>
__device__ __forceinline__ void put_f16_block(const Units& units, char* sums_to, float* scale, const float (&v)[8]) {
    const int lane = threadIdx.x % 32;
    uint32_t largest = 0;  // ordered like the magnitudes, NaN above infinity
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(v[i]) & 0x7FFFFFFFu);
#if __CUDA_ARCH__ >= 800  // nobody calls it elsewhere
    largest = __reduce_max_sync(~0u, largest);
#endif
    const bool finite = largest < 0x7F800000u, zero = largest < 0x0D800000u;  // 2^-100
    const uint32_t exponent = largest & 0x7F800000u;
    const float by = finite && !zero ? __uint_as_float((262u << 23) - exponent) : 0.0f;  // 2^8 at the largest
    __half h[8];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        h[i] = __float2half_rn(finite ? __fmul_rn(v[i], by) : 0.0f);
        sum = __fadd_rn(sum, __half2float(h[i]));
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    const int j = lane / 4, t = j / 2, i = j % 2, q = lane % 4;
    const int step = 4 * i + q % 2 * 2;
    units.put(step, q / 2, t, half_word(__halves2half2(h[0], h[2])), half_word(__halves2half2(h[1], h[3])));
    units.put(step + 1, q / 2, t, half_word(__halves2half2(h[4], h[6])), half_word(__halves2half2(h[5], h[7])));
    if (q == 0) {
        auto* const sums = reinterpret_cast<__half*>(sums_to + 8 * t);
        const __half hi = __float2half_rn(sum);
        sums[i] = hi;
        sums[2 + i] = __float2half_rn(__fsub_rn(sum, __half2float(hi)));
    }
    if (lane == 0)
        *scale = !finite ? __uint_as_float(0x7FC00000u) : zero ? 0.0f : __uint_as_float(exponent - (8u << 23));
}

/// d += A (16 x 16) B (16 x 8), f16.
__device__ __forceinline__ void mma_half(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

/// (a & mask) | c, in one instruction.
template <uint32_t Mask>
__device__ __forceinline__ uint32_t masked_or(uint32_t a, uint32_t c) {
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(v) : "r"(a), "n"(Mask), "r"(c));
    return v;
}

constexpr uint32_t kF16Cols1024 = 0x64006400u;  // 1024 + an integer below 1024 in the last bits

/// Two numbers of six bits, of sub-blocks 2 t and 2 t + 1: low four bits in byte t of `low`, the high two of both in
/// the last four bits of `high`. spread: two_bytes(t). The second one stands sixteen times as high.
__device__ __forceinline__ __half2 scale_pair(uint32_t low, uint32_t high, uint32_t spread) {
    uint32_t v = masked_or<0x00F0000Fu>(__byte_perm(low, 0, spread), kF16Cols1024);
    v = masked_or<0x03000030u>((high & 15) * 0x00400010u, v);
    return __hfma2(word_half(v), __floats2half2_rn(1.0f, 0.0625f), __floats2half2_rn(-1024.0f, -64.0f));
}
/// Selects byte t of a word for both halves of another.
__device__ __forceinline__ uint32_t two_bytes(int t) { return 0x4040u | 0x0101u * static_cast<uint32_t>(t); }

/// What eight nibbles of a row become: those that lie low times 2^-24 s, those that lie high times 2^-20 s. Nibbles
/// stay where they are: f16 takes them for small numbers. s is a multiple of 2^10, so that products are none of those,
/// which tensor cores would align in another way.
__device__ __forceinline__ void decode_q4(uint32_t v, __half2 s, uint32_t (&to)[4]) {
    const uint32_t w = v >> 8;
    to[0] = half_word(__hmul2(word_half(v & 0x000F000Fu), s));
    to[1] = half_word(__hmul2(word_half(w & 0x000F000Fu), s));
    to[2] = half_word(__hmul2(word_half(v & 0x00F000F0u), s));
    to[3] = half_word(__hmul2(word_half(w & 0x00F000F0u), s));
}

/// What sixteen weights of Q6_K are multiplied by: s times 2^8, and what 32 of them make, -2^-9 s.
struct Q6Scale {
    __half2 s, less;

    /// s: byte i of `bytes`, with a sign.
    __device__ __forceinline__ void set(uint32_t bytes, int i) {
        const __half2 value = __hsub2(word_half(__byte_perm(bytes ^ 0x80808080u, 0x64646464u, 0x4040u + 0x0101u * i)),
                                      __float2half2_rn(1152.0f));
        s = __hmul2(value, __float2half2_rn(256.0f));
        less = __hmul2(value, __float2half2_rn(-0x1p-9f));
    }
};

/// Word w of a sub-block of Q6_K, its high bits, and the scales of its halves: 2^-14 (u - 32) s. A byte has four times
/// u, which f16 takes for 2^-22 u.
__device__ __forceinline__ void decode_q6(uint32_t v, uint2 high, int w, const Q6Scale (&s)[2], uint32_t (&to)[4]) {
    const auto bits = [w](uint32_t h) { return h << (6 - 2 * w); };
    const uint32_t low = masked_or<0xC0C0C0C0u>(bits(high.x), (v & 0x0F0F0F0Fu) << 2),
                   up = masked_or<0xC0C0C0C0u>(bits(high.y), (v >> 2) & 0x3C3C3C3Cu);
    const auto value = [&](uint32_t bytes, uint32_t order, const Q6Scale& by) {
        return half_word(__hfma2(word_half(__byte_perm(bytes, 0, order)), by.s, by.less));
    };
    to[0] = value(low, 0x4240, s[0]), to[1] = value(low, 0x4341, s[0]);
    to[2] = value(up, 0x4240, s[1]), to[3] = value(up, 0x4341, s[1]);
}

/// A lane's places in a tile: of rows g (h = 0) and g + 8 (h = 1).
struct F16Tile {
    const char* data[2][2];  // [h][i]: sixteen bytes of sub-block 2 t + i
    const char* high[2];     // Q6_K: sixteen bytes, of both sub-blocks
    uint4 head[2];           // KHeader, or sixteen scales
    uint32_t d[2];           // Q6_K: f16 in the low bits
};

/// A lane's halves of a block of x: of the only row; of rows 8 nt + g.
struct F16RowX {
    const char* at;

    __device__ __forceinline__ const char* unit(int, int j) const { return at + (4 * j + threadIdx.x % 4) * 16; }
    __device__ __forceinline__ const char* sums(int) const { return at + kF16Units + 8 * (threadIdx.x % 4); }
};
struct F16RowsX {
    const char *even, *odd, *sum;  // of even j, of odd ones

    __device__ __forceinline__ F16RowsX(const char* units, const char* sums) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        even = units + kF16Units * g + 16 * t + g % 2 * 64, odd = units + kF16Units * g + 16 * t - g % 2 * 64;
        sum = sums + kF16Sums * g + 8 * t;
    }
    /// So many blocks of a row further.
    __device__ __forceinline__ void go(int rows) {
        even += kF16Units * rows, odd += kF16Units * rows, sum += kF16Sums * rows;
    }
    __device__ __forceinline__ const char* unit(int nt, int j) const {
        return (j % 2 == 0 ? even : odd) + 8 * kF16Units * nt + 64 * j;
    }
    __device__ __forceinline__ const char* sums(int nt) const { return sum + 8 * kF16Sums * nt; }
};

/// A lane's words of a tile.
template <bool Q6>
struct F16Words {
    uint4 data[2][2];  // [i][h]
    uint2 high[2][2];

    /// Those of sub-block 2 t + i.
    __device__ __forceinline__ void load(const F16Tile& w, int i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            data[i][h] = *reinterpret_cast<const uint4*>(w.data[h][i]);
            if constexpr (Q6) high[i][h] = *reinterpret_cast<const uint2*>(w.high[h] + 8 * i);
        }
    }
    /// Bits that are not there before all loads have ended.
    __device__ __forceinline__ uint32_t of_each_load() const {
        uint32_t any = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) any |= data[i / 2][i % 2].w | (Q6 ? high[i / 2][i % 2].y : 0);
        return any;
    }
};

/// What a lane's weights of a tile are multiplied by before they are.
template <bool Q6>
struct TileScales {
    __half2 pair[2];  // Q4_K: of sub-blocks 2 t and 2 t + 1

    __device__ __forceinline__ TileScales(const F16Tile& w, int t) {
        if constexpr (!Q6)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                pair[h] =
                    __hmul2(scale_pair(w.head[h].x, w.head[h].z >> (4 * t), two_bytes(t)), __float2half2_rn(1024.0f));
    }
};
/// Those of sub-block 2 t + i.
template <bool Q6>
struct SubScales {
    __half2 q4[2];
    Q6Scale q6[2][2];

    __device__ __forceinline__ SubScales(const TileScales<Q6>& scales, const F16Tile& w, int i, int t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if constexpr (Q6) {
                // Scales 4 t + 2 i, + 1 are bytes of word t.
                const uint32_t four = t == 0 ? w.head[h].x : t == 1 ? w.head[h].y : t == 2 ? w.head[h].z : w.head[h].w;
#pragma unroll
                for (int k = 0; k < 2; ++k) q6[h][k].set(four, 2 * i + k);
            } else {
                q4[h] = i == 0 ? __low2half2(scales.pair[h]) : __high2half2(scales.pair[h]);
            }
        }
    }
    /// Word k of row h's.
    __device__ __forceinline__ void decode(const F16Words<Q6>& words, int i, int k, int h, uint32_t (&to)[4]) const {
        const uint4 four = words.data[i][h];
        const uint32_t word = k == 0 ? four.x : k == 1 ? four.y : k == 2 ? four.z : four.w;
        if constexpr (Q6) decode_q6(word, words.high[i][h], k, q6[h], to);
        else decode_q4(word, q4[h], to);
    }
};
/// What the sums over a tile become.
template <bool Q6>
struct TileEnd {
    float d[2], dmin[2];
    uint32_t m[2];

    __device__ __forceinline__ TileEnd(const F16Tile& w, int t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if constexpr (Q6) {
                d[h] = __half2float(__ushort_as_half(static_cast<unsigned short>(w.d[h]))) * 0x1p14f;
            } else {
                const float2 both = __half22float2(word_half(w.head[h].w));
                d[h] = both.x * 0x1p14f, dmin[h] = -both.y;
                m[h] = half_word(scale_pair(w.head[h].y, w.head[h].z >> (16 + 4 * t), two_bytes(t)));
            }
        }
    }
    /// Q4_K: the minimums times eight rows of x, whose sums lie at sums_at.
    __device__ __forceinline__ void minimums(float (&to)[4], const char* sums_at) const {
#pragma unroll
        for (int e = 0; e < 4; ++e) to[e] = 0.0f;
        if constexpr (!Q6) {
            const uint2 sums = *reinterpret_cast<const uint2*>(sums_at);
            mma_half(to, m[0], m[1], m[0], m[1], sums.x, sums.y);
        }
    }
    /// Of sums over first halves of sub-blocks and over second ones.
    __device__ __forceinline__ float value(int e, float first, float second, float minimum) const {
        constexpr float kUp = Q6 ? 1.0f : 0.0625f;  // the second ones' nibbles lie sixteen times as high
        const float v = __fmul_rn(d[e / 2], __fmaf_rn(second, kUp, first));
        return Q6 ? v : __fmaf_rn(dmin[e / 2], minimum, v);
    }
};

/// The tile times rows 8 nt + g of x but for x's scales, as mma.m16n8k16 has products: put(nt, e, value). AtOnce: all
/// of the tile is loaded before anything else; then comes loaded(bits), with bits of all that was loaded.
template <bool Q6, int NT, bool AtOnce, class X, class Loaded, class Put>
__device__ __forceinline__ void multiply_tile(const F16Tile& w, const X& x, const Loaded& loaded, const Put& put) {
    const int t = threadIdx.x % 4;
    F16Words<Q6> words;
    if constexpr (AtOnce) words.load(w, 0), words.load(w, 1);
    float first[NT][4] = {}, second[NT][4] = {};
    const TileScales<Q6> scales(w, t);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if constexpr (!AtOnce) words.load(w, i);
        const SubScales<Q6> sub(scales, w, i, t);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            uint32_t a[2][4];
#pragma unroll
            for (int h = 0; h < 2; ++h) sub.decode(words, i, k, h, a[h]);
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
                const uint4 b = *reinterpret_cast<const uint4*>(x.unit(nt, 4 * i + k));
                mma_half(first[nt], a[0][0], a[1][0], a[0][1], a[1][1], b.x, b.y);
                mma_half(second[nt], a[0][2], a[1][2], a[0][3], a[1][3], b.z, b.w);
            }
            if constexpr (AtOnce)
                if (i == 0 && k == 0) loaded(words.of_each_load() | w.head[0].w | w.head[1].w);
        }
    }
    const TileEnd<Q6> end(w, t);
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
        float minimums[4];
        end.minimums(minimums, x.sums(nt));
#pragma unroll
        for (int e = 0; e < 4; ++e) put(nt, e, end.value(e, first[nt][e], second[nt][e], minimums[e]));
    }
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
