// Few float rows of a group whose other matrices have tiles (96 rows of beta and alpha of Gated DeltaNet, 2 MB): done
// by CTAs of the kernel of the tiles when they have no tile left, instead of by a kernel of their own with six CTAs,
// which took about 12 us of a layer at 8 rows of x. Order of sums: decode_dot.cuh.
#pragma once

#include "ops/decode_float.cuh"
#include "ops/decode_float.h"

namespace riptide::ops::cuda::decode {

constexpr int kMostFloats = 4;              // matrices
constexpr int kFloatPair = 2, kFloatX = 4;  // rows of weights and of x that four warps multiply

struct DenseFloats {
    FloatMatrix m[kMostFloats];      // first: the first pair of rows of each; no scales
    int32_t matrices, pairs, bytes;  // bytes: of a row of x in its layout, at the end of the row

    /// y = w x too. False: w is no plain float matrix, or there is no room.
    bool add(const Weight& w, float* y) {
        const bool plain = (w.dtype == DType::f32 || w.dtype == DType::f16 || w.dtype == DType::bf16) &&
                           w.scales == nullptr && w.rows > 0;
        if (!plain || matrices == kMostFloats) return false;
        FloatMatrix& added = m[matrices++] = float_matrix_of(matrix_of(w));
        added.y = y;
        added.first = pairs;
        pairs += (added.rows + kFloatPair - 1) / kFloatPair;
        return true;
    }
};

#ifdef __CUDACC__

/// So that the rows of one such walk lie in the L2 cache. One thread; before pdl_wait().
__device__ __forceinline__ void prefetch_floats(const DenseFloats& f, int cta, int ctas) {
#if __CUDA_ARCH__ >= 900
    for (int pair = cta; pair < f.pairs; pair += ctas) {
        int k = 0;
        while (k + 1 < f.matrices && pair >= f.m[k + 1].first) ++k;
        const FloatMatrix& m = f.m[k];
        const int row = kFloatPair * (pair - m.first), rows = min(kFloatPair, m.rows - row);
        const char* const from = m.data + static_cast<int64_t>(row) * m.row_bytes;
        const uint32_t bytes = static_cast<uint32_t>(rows * m.row_bytes) & ~15u;
        if ((reinterpret_cast<uintptr_t>(from) & 15) == 0 && bytes > 0)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
    }
#endif
}

/// Rows row0 .. row0 + count - 1 of x (staged, in device memory, read from the L2 cache) times all matrices, by `ctas`
/// CTAs of 128 kOf threads, of which this is number `cta`. Four warps, a quad, have two rows of weights and four
/// rows of x at a time, each warp an accumulator of the canonical order. results: of this quad, in shared memory.
template <int kOf = kQuads>
__device__ __forceinline__ void multiply_floats(const DenseFloats& f, const ActSource& x, int cta, int ctas, int row0,
                                                int count, float (&results)[kFloatPair * kFloatX * 4]) {
    constexpr int kSums = kFloatPair * kFloatX, kLanes = 32 / kSums;
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % 4, quad = threadIdx.x / 128;
    const int all = f.pairs * ((count + kFloatX - 1) / kFloatX);
    const char* const x0 = x.rows + row0 * x.stride + (x.stride - f.bytes);
#pragma unroll 1
    for (int unit = quad * ctas + cta; unit < all; unit += ctas * kOf) {
        const int pair = unit % f.pairs, first = unit / f.pairs * kFloatX;
        int k = 0;
        while (k + 1 < f.matrices && pair >= f.m[k + 1].first) ++k;
        const FloatMatrix& m = f.m[k];
        const int row = kFloatPair * (pair - m.first), second = min(row + 1, m.rows - 1) - row;
        const char* const from = m.data + static_cast<int64_t>(row) * m.row_bytes;
        const StagedRows staged{x0 + first * x.stride, static_cast<int>(x.stride), min(kFloatX, count - first)};
        float acc[kFloatPair][kFloatX] = {};
#pragma unroll 2
        for (int c = 32 * part + lane; c - lane < m.pieces; c += kWindowPieces) {
            uint32_t raw[kFloatPair][4] = {};
            if (c < m.pieces) {
                put_words(raw[0], 0, load_weights(from + 16 * c));
                put_words(raw[1], 0, load_weights(from + second * m.row_bytes + 16 * c));
            }
            dot_float_rows<PlainFloats>(m, c < m.pieces, c, 0, raw, 0, 0, staged, acc);
        }
        float v[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) v[i] = acc[i / kFloatX][i % kFloatX];
        const float sum = reduce_lanes<kSums>(v, lane);
        if (lane % kLanes == 0) results[lane / kLanes * 4 + part] = sum;
        asm volatile("bar.sync %0, 128;" ::"r"(2 + quad) : "memory");
        const int i = threadIdx.x % 128, p = i % kFloatX;
        if (i < kSums && p < staged.count && row + i / kFloatX < m.rows)
            m.y[static_cast<int64_t>(row0 + first + p) * m.rows + row + i / kFloatX] =
                __fmul_rn(float_sum(results, i), m.scale);
        asm volatile("bar.sync %0, 128;" ::"r"(2 + quad) : "memory");
    }
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
