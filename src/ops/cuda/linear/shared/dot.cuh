// Weight rows times staged activation rows, one warp a row: what every matrix kernel of the decode family is made of.
//
// Plane types: the canonical dot product of quant/act_rows.h. Lane l of 32 takes sub-blocks l, l + 32, ... in order.
//   S, S0, S1 = sum of u a over the sub-block and its halves (exact); z, s, m from the format;
//   v = s (S - z A), or s0 (S0 - z A0), then fma(s1, S1 - z A1, v); v = fma(-m, A, v), or fma(-m0, A0, v), then
//   fma(-m1, A1, v); acc = fma(v, d, acc);
//   then butterfly xor 16, 8, 4, 2, 1; last times Weight::scale.
// Float types: the row in pieces of sixteen bytes; lane l takes pieces l, l + 32, ...; piece c adds to accumulator
//   (c / 32) % 4 of its lane, column after column, acc = fma(w, x, acc) (with a scale plane: acc = fma(plane, sum of
//   the piece, acc)); each accumulator goes through the butterfly; y = ((a0 + a1) + (a2 + a3)) * Weight::scale.
//
// Loading and computing are apart, so that loads can be issued before pdl_wait(): a unit (a sub-block, a float piece)
// is a few 32-bit words in registers. `Set` says which types a kernel is compiled for.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "ops/cuda/device/int8_rows.cuh"
#include "ops/cuda/device/weight_loads.cuh"
#include "quant/decode.cuh"
#include "quant/planes.h"
#include "tensor/launch.cuh"
#include "tensor/tensor.h"

namespace riptide::ops::cuda::decode {

/// A Weight as kernels see it, or equal Weights of experts: those of expert e lie e strides behind.
struct Matrix {
    const char* data = nullptr;
    const char* high = nullptr;
    const char* scales = nullptr;
    int64_t row_bytes = 0;
    int64_t data_stride = 0, high_stride = 0, scale_stride = 0;
    float* y = nullptr;  // where products go, if the kernel asks
    int32_t rows = 0;
    int32_t first_row = 0;  // in the row list of a kernel with several matrices
    int32_t cols = 0;
    int32_t scale_rows = 1, scale_cols = 1, scales_per_row = 0;
    float scale = 1;
    DType type = DType::f32;
    DType scale_type = DType::f32;
    uint8_t levels = 0;
};

// Sets of types: how many words a sub-block takes, and what is among them.
struct KQuants {  // the formats of Q4_K_M files
    static constexpr int kWords = 8;
    static constexpr bool has(DType t) { return t == DType::planes_q4_k || t == DType::planes_q6_k; }
};
struct AllPlanes {
    static constexpr int kWords = 10;
    static constexpr bool has(DType) { return true; }
};
// Sets of float types: 8-bit ones have scale planes.
struct PlainFloats {
    static constexpr bool kF8 = false;
};
struct AllFloats {
    static constexpr bool kF8 = true;
};
template <DType Type>
struct OneFloat {
    static constexpr bool kF8 = Type == DType::f8_e4m3;
    static constexpr DType kType = Type;
};

#ifdef __CUDACC__

__device__ __forceinline__ float half_bits(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ __forceinline__ float scale_bits(DType type, uint32_t bits) {
    return type == DType::f16 ? half_bits(bits) : __uint_as_float(type == DType::bf16 ? bits << 16 : bits);
}
__device__ __forceinline__ uint32_t load_scale(const Matrix& m, int64_t e, int64_t index) {
    const char* plane = m.scales + e * m.scale_stride;
    return m.scale_type == DType::f32 ? load_weight32(plane + 4 * index) : load_weight16(plane + 2 * index);
}

template <int W>
__device__ __forceinline__ void put_words(uint32_t (&raw)[W], int at, uint4 v) {
    raw[at] = v.x, raw[at + 1] = v.y, raw[at + 2] = v.z, raw[at + 3] = v.w;
}

/// Sub-block j of `row` of expert e. Words: nibbles or int8; header; high bits; scales.
template <class Set>
__device__ __forceinline__ void load_plane(DType type, const Matrix& m, int64_t e, int row, int j,
                                           uint32_t (&raw)[Set::kWords]) {
    const char* data = m.data + e * m.data_stride + row * m.row_bytes;
    const int groups = m.cols / 32;
    const auto block = static_cast<int64_t>(row) * (groups / 8) + j / 8;
    if (type == DType::planes_q4_k) {
        put_words(raw, 0, load_weights(data + 16 * j));
        put_words(raw, 4, load_weights(m.scales + e * m.scale_stride + 16 * block));
        return;
    }
    if (type == DType::planes_q6_k) {
        put_words(raw, 0, load_weights(data + 16 * j));
        const uint2 high = load_weight64(m.high + e * m.high_stride + (static_cast<int64_t>(row) * groups + j) * 8);
        raw[4] = high.x, raw[5] = high.y;
        const char* scales = m.scales + e * m.scale_stride;
        raw[6] = load_weight16(scales + 16 * block + 2 * (j % 8));
        raw[7] = load_weight16(scales + static_cast<int64_t>(m.rows) * (groups / 8) * 16 + 2 * block);
        return;
    }
    if constexpr (Set::has(DType::planes_q5_k)) {
        if (type == DType::planes_q5_k) {
            put_words(raw, 0, load_weights(data + 16 * j));
            put_words(raw, 4, load_weights(m.scales + e * m.scale_stride + 16 * block));
            raw[8] = load_weight32(m.high + e * m.high_stride + (static_cast<int64_t>(row) * groups + j) * 4);
            return;
        }
        if (type == DType::planes_q2_k) {
            const uint2 codes = load_weight64(data + 8 * j);
            const char* scales = m.scales + e * m.scale_stride;
            raw[0] = codes.x, raw[1] = codes.y, raw[2] = raw[3] = 0;
            raw[8] = load_weight16(scales + 16 * block + 2 * (j % 8));
            raw[9] = load_weight32(scales + static_cast<int64_t>(m.rows) * (groups / 8) * 16 + 4 * block);
            return;
        }
        if (type == DType::planes_int8) {
            put_words(raw, 0, load_weights(data + 32 * j));
            put_words(raw, 4, load_weights(data + 32 * j + 16));
        } else {
            put_words(raw, 0, load_weights(data + 16 * j));
        }
        const int64_t first = static_cast<int64_t>(row / m.scale_rows) * m.scales_per_row;
        raw[8] = load_scale(m, e, first + 32 * j / m.scale_cols);
        if (m.scale_cols == 16) raw[9] = load_scale(m, e, first + 2 * j + 1);
    }
}

// ---- Sub-blocks.

__device__ __forceinline__ int dot4(const uint32_t (&u)[4], uint4 a) {
    int s = __dp4a(static_cast<int>(u[0]), static_cast<int>(a.x), 0);
    s = __dp4a(static_cast<int>(u[1]), static_cast<int>(a.y), s);
    s = __dp4a(static_cast<int>(u[2]), static_cast<int>(a.z), s);
    return __dp4a(static_cast<int>(u[3]), static_cast<int>(a.w), s);
}

/// The integers of a sub-block as bytes, the first sixteen columns in lo.
template <class Set>
__device__ __forceinline__ void unpack_plane(DType type, uint8_t levels, const uint32_t (&raw)[Set::kWords],
                                             uint32_t (&lo)[4], uint32_t (&hi)[4]) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        lo[t] = raw[t] & 0x0F0F0F0Fu;
        hi[t] = (raw[t] >> 4) & 0x0F0F0F0Fu;
    }
    if (type == DType::planes_q6_k) {
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            lo[t] |= ((raw[4] >> (2 * t)) & 0x03030303u) << 4;
            hi[t] |= ((raw[5] >> (2 * t)) & 0x03030303u) << 4;
        }
    }
    if constexpr (Set::has(DType::planes_q5_k)) {
        if (type == DType::planes_q5_k) {
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                lo[t] |= ((raw[8] >> t) & 0x01010101u) << 4;
                hi[t] |= ((raw[8] >> (4 + t)) & 0x01010101u) << 4;
            }
        } else if (type == DType::planes_int8) {
#pragma unroll
            for (int t = 0; t < 4; ++t) lo[t] = raw[t], hi[t] = raw[4 + t];
        } else if (type == DType::planes_q2_k) {
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                lo[t] = (raw[0] >> (2 * t)) & 0x03030303u;
                hi[t] = (raw[1] >> (2 * t)) & 0x03030303u;
            }
        } else if (type == DType::planes_levels) {
            const LevelTable table = level_table(levels);
#pragma unroll
            for (int t = 0; t < 4; ++t) look_up(raw[t], table, lo[t], hi[t]);
        }
    }
}

/// s0, s1, m, z of a sub-block and whether its halves have scales of their own; q2_k's have minima of their own, too.
struct PlaneScales {
    float s0, s1, m, z;
    bool halves;
    float m1 = 0.0f;
};
template <class Set>
__device__ __forceinline__ PlaneScales plane_scales(DType type, const Matrix& m, const uint32_t (&raw)[Set::kWords],
                                                    int j) {
    if (type == DType::planes_q6_k) {
        const float d = half_bits(raw[7]);
        const auto low = static_cast<int8_t>(raw[6]), high = static_cast<int8_t>(raw[6] >> 8);
        return {d * static_cast<float>(low), d * static_cast<float>(high), 0.0f, 32.0f, true};
    }
    if constexpr (Set::has(DType::planes_q5_k)) {
        if (type == DType::planes_q2_k) {
            const float d = half_bits(raw[9] & 0xFFFFu), dmin = half_bits(raw[9] >> 16);
            const auto part = [&](int shift) { return static_cast<float>(raw[8] >> shift & 15u); };
            return {d * part(0), d * part(8), dmin * part(4), 0.0f, true, dmin * part(12)};
        }
        if (type != DType::planes_q4_k && type != DType::planes_q5_k) {
            const bool halves = m.scale_cols == 16;
            const float s0 = scale_bits(m.scale_type, raw[8]), s1 = halves ? scale_bits(m.scale_type, raw[9]) : s0;
            return {s0, s1, 0.0f, type == DType::planes_int4 ? 8.0f : 0.0f, halves};
        }
    }
    const float s = half_bits(raw[7] & 0xFFFFu) * static_cast<float>(k_scale(raw[4], raw[6], j % 8));
    const float min = half_bits(raw[7] >> 16) * static_cast<float>(k_scale(raw[5], raw[6] >> 16, j % 8));
    return {s, s, min, 0.0f, false};
}

/// acc[p] += the product of sub-block j with row p of P staged rows, `stride` bytes apart, as far as `rows` goes.
template <class Set, int P>
__device__ __forceinline__ void dot_plane(DType type, const Matrix& m, const uint32_t (&raw)[Set::kWords], int j,
                                          int groups, const char* staged, int stride, int rows, float (&acc)[P]) {
    uint32_t lo[4], hi[4];
    unpack_plane<Set>(type, m.levels, raw, lo, hi);
    const PlaneScales w = plane_scales<Set>(type, m, raw, j);
#pragma unroll
    for (int p = 0; p < P; ++p) {
        const char* row = staged + (P == 1 || p < rows ? p : 0) * stride;
        const int s0 = dot4(lo, *reinterpret_cast<const uint4*>(row + 16 * j));
        const int s1 = dot4(hi, *reinterpret_cast<const uint4*>(row + 16 * (groups + j)));
        const float2 d = *reinterpret_cast<const float2*>(row + 32 * groups + 8 * j);
        float v;
        if (w.halves) {
            const float a0 = *reinterpret_cast<const float*>(row + 40 * groups + 4 * j);
            v = __fmul_rn(w.s0, fmaf(-w.z, a0, static_cast<float>(s0)));
            v = fmaf(w.s1, fmaf(-w.z, d.y - a0, static_cast<float>(s1)), v);
            if (Set::has(DType::planes_q5_k) && type == DType::planes_q2_k)
                v = fmaf(-w.m1, d.y - a0, fmaf(-w.m, a0, v));
        } else {
            v = __fmul_rn(w.s0, fmaf(-w.z, d.y, static_cast<float>(s0 + s1)));
            v = fmaf(-w.m, d.y, v);
        }
        acc[p] = fmaf(v, d.x, acc[p]);
    }
}

// ---- Float pieces.

__host__ __device__ constexpr int piece_columns(DType type) {
    return type == DType::f32 ? 4 : type == DType::f8_e4m3 ? 16 : 8;
}
__device__ __forceinline__ int pieces_of(const Matrix& m) {
    const int columns = piece_columns(m.type);
    return (m.cols + columns - 1) / columns;
}

__device__ __forceinline__ void load_piece(const Matrix& m, int64_t e, int row, int c, uint32_t (&raw)[4]) {
    put_words(raw, 0, load_weights(m.data + e * m.data_stride + row * m.row_bytes + 16 * c));
}

/// Whether there is a scale plane of which a piece has one entry. (If a piece has several: see odd_scales.)
__device__ __forceinline__ bool piece_scaled(const Matrix& m) {
    return m.scales != nullptr && (m.scale_cols % 16 == 0 || m.scale_cols >= m.cols);
}
__device__ __forceinline__ uint32_t load_piece_scale(const Matrix& m, int64_t e, int row, int c) {
    return load_scale(
        m, e, static_cast<int64_t>(row / m.scale_rows) * m.scales_per_row + c * piece_columns(m.type) / m.scale_cols);
}

/// How a row's pieces are scaled.
struct PiecePlane {
    bool scaled = false;        // each piece by one entry
    const char* odd = nullptr;  // else: the row's entries, for each column to look up its own
    DType type = DType::f32;
    int scale_cols = 1, cols = 0;
};
/// expert(): of the row.
template <class Set, class Expert>
__device__ __forceinline__ PiecePlane piece_plane(const Matrix& m, const Expert& expert, int row) {
    PiecePlane p;
    if (!Set::kF8 || m.scales == nullptr) return p;
    p.scaled = piece_scaled(m);
    p.type = m.scale_type;
    if (!p.scaled) {
        p.odd = m.scales + expert() * m.scale_stride +
                static_cast<int64_t>(row / m.scale_rows) * m.scales_per_row * (m.scale_type == DType::f32 ? 4 : 2);
        p.scale_cols = m.scale_cols;
        p.cols = m.cols;
    }
    return p;
}
/// Of four columns from `col` on. Rare, and kept out of the way.
static __device__ __noinline__ float4 odd_scales(const char* entries, DType type, int scale_cols, int cols, int col) {
    float s[4];
    for (int i = 0; i < 4; ++i) {
        const int at = min(col + i, cols - 1) / scale_cols;
        s[i] = scale_bits(type, type == DType::f32 ? load_weight32(entries + 4 * at) : load_weight16(entries + 2 * at));
    }
    return make_float4(s[0], s[1], s[2], s[3]);
}

/// The e4m3 value in the low byte of `bits`, on chips that cannot convert it: the toolkit's own substitute takes ten
/// times the code, and a product that has it inline minutes to compile.
__device__ __forceinline__ float e4m3_value(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7Fu, sign = (bits & 0x80u) << 24;
    // Exponent and mantissa in their places in an f32 whose bias is larger by 120; subnormals come out right, too.
    const float value = __fmul_rn(__uint_as_float(magnitude << 20), 0x1p120f);
    return __uint_as_float((magnitude == 0x7Fu ? 0x7FC00000u : __float_as_uint(value)) | sign);
}

/// Four columns, number t of the piece.
__device__ __forceinline__ float4 decode4(DType type, const uint32_t (&raw)[4], int t) {
    if (type == DType::f32)
        return make_float4(__uint_as_float(raw[0]), __uint_as_float(raw[1]), __uint_as_float(raw[2]),
                           __uint_as_float(raw[3]));
    if (type == DType::f8_e4m3) {
        const uint32_t word = t == 0 ? raw[0] : t == 1 ? raw[1] : t == 2 ? raw[2] : raw[3];
#if __CUDA_ARCH__ < 890
        return make_float4(e4m3_value(word), e4m3_value(word >> 8), e4m3_value(word >> 16), e4m3_value(word >> 24));
#else
        // Halves of a word by name: a shift less than with the toolkit's functions.
        __half2 low, high;
        asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}"
            : "=r"(reinterpret_cast<uint32_t&>(low)), "=r"(reinterpret_cast<uint32_t&>(high))
            : "r"(word));
        const float2 a = __half22float2(low), b = __half22float2(high);
        return make_float4(a.x, a.y, b.x, b.y);
#endif
    }
    const uint32_t first = t == 0 ? raw[0] : raw[2], second = t == 0 ? raw[1] : raw[3];
    if (type == DType::bf16)
        return make_float4(__uint_as_float(first << 16), __uint_as_float(first & 0xFFFF0000u),
                           __uint_as_float(second << 16), __uint_as_float(second & 0xFFFF0000u));
    return make_float4(half_bits(first & 0xFFFFu), half_bits(first >> 16), half_bits(second & 0xFFFFu),
                       half_bits(second >> 16));
}

__device__ __forceinline__ float fma4(float4 w, float4 x, float sum) {
    return fmaf(w.w, x.w, fmaf(w.z, x.z, fmaf(w.y, x.y, fmaf(w.x, x.x, sum))));
}

/// acc[p] += piece `c` of a weight row times columns x_first + .. (in pieces of four) of the staged rows. `scale`: the
/// bits of the piece's entry, if it has one.
template <int P, class Type>
__device__ __forceinline__ void dot_piece(Type, int c, int x_first, const uint32_t (&raw)[4], const PiecePlane& plane,
                                          uint32_t scale, const char* staged, int stride, int rows, float (&acc)[P]) {
    constexpr DType kType = Type::value;
    constexpr int kQuads = piece_columns(kType) / 4;
    const bool scaled = kType == DType::f8_e4m3 && plane.scaled;
    float sum[P];
#pragma unroll
    for (int p = 0; p < P; ++p) sum[p] = scaled ? 0.0f : acc[p];
#pragma unroll
    for (int t = 0; t < kQuads; ++t) {
        float4 w = decode4(kType, raw, t);
        if (kType == DType::f8_e4m3 && plane.odd != nullptr) {
            const float4 s = odd_scales(plane.odd, plane.type, plane.scale_cols, plane.cols, 4 * (c * kQuads + t));
            w = make_float4(__fmul_rn(w.x, s.x), __fmul_rn(w.y, s.y), __fmul_rn(w.z, s.z), __fmul_rn(w.w, s.w));
        }
        const int at = float_piece(x_first + c * kQuads + t);
#pragma unroll
        for (int p = 0; p < P; ++p) {
            const auto* x = reinterpret_cast<const float4*>(staged + (P == 1 || p < rows ? p : 0) * stride);
            sum[p] = fma4(w, x[at], sum[p]);
        }
    }
    const float s = scaled ? scale_bits(plane.type, scale) : 1.0f;
#pragma unroll
    for (int p = 0; p < P; ++p) acc[p] = scaled ? fmaf(s, sum[p], acc[p]) : sum[p];
}

// ---- Reduction.

__host__ __device__ constexpr int pow2_ceil(int x) {
    int p = 1;
    while (p < x) p *= 2;
    return p;
}
__host__ __device__ constexpr int log2_floor(int x) {
    int l = 0;
    while ((2 << l) <= x) ++l;
    return l;
}

template <int N, int Offset, int V>
__device__ __forceinline__ void fold_lanes(float (&v)[V], int lane) {
    if constexpr (N > 1) {
        const bool up = (lane & Offset) != 0;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            const float send = up ? v[i] : v[i + N / 2], keep = up ? v[i + N / 2] : v[i];
            v[i] = keep + __shfl_xor_sync(~0u, send, Offset);
        }
        fold_lanes<N / 2, Offset / 2>(v, lane);
    } else if constexpr (Offset > 0) {
        v[0] += __shfl_xor_sync(~0u, v[0], Offset);
        fold_lanes<1, Offset / 2>(v, lane);
    }
}
/// V sums at once over groups of `Width` lanes (32 or 16), V a power of two up to Width: each with the bits of a
/// butterfly xor Width / 2, ..., 2, 1. Lane l returns the sum of v[l % Width >> (log2 Width - log2 V)].
template <int V, int Width = 32>
__device__ __forceinline__ float reduce_lanes(float (&v)[V], int lane) {
    fold_lanes<V, Width / 2>(v, lane);
    return v[0];
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
