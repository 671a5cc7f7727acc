// Few float rows of a group whose other matrices have tiles (96 rows of beta and alpha of Gated DeltaNet, 2 MB): done
// by CTAs of the kernel of the tiles when they have no tile left, instead of by a kernel of their own with six CTAs,
// which took about 12 us of a layer at 8 rows of x. Order of sums: dot.cuh.
#pragma once

#include "ops/cuda/linear/shared/float.cuh"
#include "ops/cuda/linear/shared/float.h"

namespace riptide::ops::cuda::decode {

constexpr int kFloatPair = 2, kFloatX = 4;  // rows of weights and of x that four warps multiply

struct WideFloats {
    FloatMatrix m[kMostFloats];      // first: the first pair of rows of each; no scales
    int32_t matrices, pairs, bytes;  // bytes: of a row of x in its layout, at the end of the row

    /// y = w x too. REQUIRES a plain float matrix, and room.
    void add(const Weight& w, float* y) {
        RT_ASSERT(!is_planes(w.dtype) && w.scales == nullptr && w.rows > 0 && matrices < kMostFloats);
        FloatMatrix& added = m[matrices++] = float_matrix_of(matrix_of(w));
        added.y = y;
        added.first = pairs;
        pairs += (added.rows + kFloatPair - 1) / kFloatPair;
    }
};

#ifdef __CUDACC__

/// Float row `unit` of all.
struct FloatRow {
    const char* from;
    uint32_t bytes;

    __device__ __forceinline__ FloatRow(const WideFloats& f, int unit) {
        const int pair = unit / kFloatPair;
        int k = 0;
        while (k + 1 < f.matrices && pair >= f.m[k + 1].first) ++k;
        const FloatMatrix& m = f.m[k];
        const int row = min(kFloatPair * (pair - m.first) + unit % kFloatPair, m.rows - 1);
        from = m.data + static_cast<int64_t>(row) * m.row_bytes;
        bytes = static_cast<uint32_t>(m.row_bytes);
    }
    /// In pieces of sixteen bytes.
    __device__ __forceinline__ bool whole() const {
        return (reinterpret_cast<uintptr_t>(from) & 15) == 0 && bytes % 16 == 0 && bytes > 0;
    }
};

/// So that float row `unit` of all lies in the L2 cache. One thread; may stand above pdl_wait().
__device__ __forceinline__ void prefetch_float_row(const WideFloats& f, int unit) {
#if __CUDA_ARCH__ >= 900
    const FloatRow row(f, unit);
    const uint32_t bytes = row.bytes & ~15u;
    if ((reinterpret_cast<uintptr_t>(row.from) & 15) == 0 && bytes > 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row.from), "r"(bytes) : "memory");
#endif
}

/// Rows row0 .. row0 + count - 1 of x (staged, in shared or device memory) times all matrices, by quads `first`, first
/// + step, ... of all: four warps that have kPair rows of weights and kX rows of x at a time, each warp an accumulator
/// of the canonical order. results: of this quad, 8 kPair kX floats of shared memory, by turns; barrier: a named one of
/// its own. here: the weights of the first quad (kPair = 1) in shared memory, or null. Of f32 weights the loads of
/// kUnroll steps go out together.
template <int kPair, int kX, int kUnroll>
__device__ __forceinline__ void multiply_float_units(const WideFloats& f, const ActSource& x, int begin, int step,
                                                     int row0, int count, float* results, int barrier,
                                                     const char* here = nullptr) {
    constexpr int kSums = kPair * kX, kLanes = 32 / kSums, kParts = kFloatPair / kPair;
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % 4;
    const int units = f.pairs * kParts, all = units * ((count + kX - 1) / kX);
    const char* const x0 = x.rows + row0 * x.stride + (x.stride - f.bytes);
#pragma unroll 1
    for (int unit = begin, other = 0; unit < all; unit += step, other ^= 4 * kSums) {
        const int pair = unit % units / kParts, first = unit / units * kX;
        int k = 0;
        while (k + 1 < f.matrices && pair >= f.m[k + 1].first) ++k;
        const FloatMatrix& m = f.m[k];
        const int row = min(kFloatPair * (pair - m.first) + unit % kParts * kPair, m.rows - 1);
        const char* const from = m.data + static_cast<int64_t>(row) * m.row_bytes;
        const bool local = kPair == 1 && here != nullptr && unit == begin;
        const StagedRows staged{x0 + first * x.stride, static_cast<int>(x.stride), min(kX, count - first)};
        float acc[kPair][kX] = {};
        const auto weights = [&](int i, int c) {
            return local ? *reinterpret_cast<const uint4*>(here + 16 * c)
                         : load_weights(from + (min(row + i, m.rows - 1) - row) * m.row_bytes + 16 * c);
        };
        if (m.type == DType::f32) {
#pragma unroll 1
            for (int c0 = 32 * part + lane; c0 - lane < m.pieces; c0 += kUnroll * kWindowPieces) {
                uint4 w[kUnroll][kPair];
                float4 v[kUnroll][kX];
#pragma unroll
                for (int u = 0; u < kUnroll; ++u) {
                    const int c = min(c0 + u * kWindowPieces, m.pieces - 1);
#pragma unroll
                    for (int i = 0; i < kPair; ++i) w[u][i] = weights(i, c);
#pragma unroll
                    for (int p = 0; p < kX; ++p)
                        v[u][p] = reinterpret_cast<const float4*>(staged.data + (p < staged.count ? p : 0) *
                                                                                    staged.stride)[float_piece(c)];
                }
#pragma unroll
                for (int u = 0; u < kUnroll; ++u)
#pragma unroll
                    for (int i = 0; i < kPair; ++i) {
                        const uint32_t raw[4] = {w[u][i].x, w[u][i].y, w[u][i].z, w[u][i].w};
#pragma unroll
                        for (int p = 0; p < kX; ++p)
                            if (c0 + u * kWindowPieces < m.pieces)
                                acc[i][p] = fma4(decode4(DType::f32, raw, 0), v[u][p], acc[i][p]);
                    }
            }
        } else {
#pragma unroll 1
            for (int c = 32 * part + lane; c - lane < m.pieces; c += kWindowPieces) {
                uint32_t raw[kPair][4] = {};
                if (c < m.pieces)
#pragma unroll
                    for (int i = 0; i < kPair; ++i) put_words(raw[i], 0, weights(i, c));
                dot_float_rows<PlainFloats>(m, c < m.pieces, c, 0, raw, 0, 0, staged, acc);
            }
        }
        float v[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) v[i] = acc[i / kX][i % kX];
        const float sum = reduce_lanes<kSums>(v, lane);
        if (lane % kLanes == 0) results[other + lane / kLanes * 4 + part] = sum;
        asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
        const int i = threadIdx.x % 128, p = i % kX;
        if (i < kSums && p < staged.count && row + i / kX < m.rows)
            m.y[static_cast<int64_t>(row0 + first + p) * m.rows + row + i / kX] =
                __fmul_rn(float_sum(results + other, i), m.scale);
    }
}

/// The same by `ctas` CTAs of 128 kOf threads, of which this is number `cta`; x in device memory.
template <int kOf = kQuads>
__device__ __forceinline__ void multiply_floats(const WideFloats& f, const ActSource& x, int cta, int ctas, int row0,
                                                int count, float (&results)[2 * kFloatPair * kFloatX * 4]) {
    const int quad = threadIdx.x / 128;
    multiply_float_units<kFloatPair, kFloatX, 2>(f, x, quad * ctas + cta, ctas * kOf, row0, count, results, 2 + quad);
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
