// Sixteen weight rows of Q4_K or Q6_K times up to 32 rows of x, 2,048 columns at a time: what kquant_i8_narrow_sm90.cu
// is made of. The arithmetic is that of tile.cuh, the bits are those of dot.cuh.
#pragma once

#include "ops/cuda/linear/shared/kquant_i8_wide_tile.cuh"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

/// Scales of sub-blocks as a warp leaves them for itself: scale, - minimum (Q6_K: second scale).
__device__ __forceinline__ void put_scales(float2& to, float2 v, bool q6) { to = make_float2(v.x, q6 ? v.y : -v.y); }
/// {scale, what takes kMagic out of a product with it, - minimum or second scale}
__device__ __forceinline__ float3 get_scales(const float2& from) {
    const float2 v = from;
    return make_float3(v.x, -__fmul_rn(v.x, kMagic), v.y);
}

/// The scales of sub-block `low` of block `block` of a row of a stage.
template <class T>
__device__ __forceinline__ float2 scales_of(const char* stage, int row, int block, int low, const KShifts& at) {
    const char* const head = stage + T::kHeads + row * T::kHeadStride + 16 * block;
    if constexpr (T::kQ6)
        return q6_scales(*reinterpret_cast<const uint16_t*>(head + 2 * low),
                         *reinterpret_cast<const uint16_t*>(stage + T::kD + 2 * (row * T::kBlocks + block)));
    else return q4_scales<false>(load_shared16(head), at);
}

/// A of mma.m16n8k32 from the nibbles of rows g and g + 8 and the high bits of sub-block j of these rows, the first of
/// which is row `row`. Q6_K: - 32, which spares the sums of x.
template <class T>
__device__ __forceinline__ void make_a(const char* stage, const uint32_t* w, int row, int j, int t, uint32_t (&a)[4]) {
    constexpr uint32_t kNibble = 0x0F0F0F0Fu, kTwo = 0x03030303u, kOne = 0x01010101u;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        a[h] = w[h] & kNibble;
        a[2 + h] = (w[h] >> 4) & kNibble;
        const char* const high = stage + T::kHigh + (row + 8 * h) * T::kHighStride;
        if constexpr (T::kQ6) {
            const uint2 bits = *reinterpret_cast<const uint2*>(high + 8 * j);
            // Byte by byte: + 96, then the highest bit the other way round.
            a[h] = ((a[h] | ((bits.x >> (2 * t) & kTwo) << 4)) + 0x60606060u) ^ 0x80808080u;
            a[2 + h] = ((a[2 + h] | ((bits.y >> (2 * t) & kTwo) << 4)) + 0x60606060u) ^ 0x80808080u;
        } else if constexpr (T::kQ5) {
            const uint32_t bits = *reinterpret_cast<const uint32_t*>(high + 4 * j);
            a[h] |= (bits >> t & kOne) << 4;
            a[2 + h] |= (bits >> (4 + t) & kOne) << 4;
        }
    }
}

/// acc + a sub-block's products. by: of rows g, g + 8; d, total: of columns 2 t, 2 t + 1 of x.
template <bool Q6>
__device__ __forceinline__ void add_products(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const float3 (&by)[2],
                                             const float (&d)[2], const float (&total)[2], float (&acc)[4]) {
    if constexpr (Q6) {
        int c[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits},
            e[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
        mma_k16(c, a[0], a[1], b0);
        mma_k16(e, a[2], a[3], b1);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float v = fmaf(by[i / 2].x, __int_as_float(c[i]), by[i / 2].y);
            v = fmaf(by[i / 2].z, __fsub_rn(__int_as_float(e[i]), kMagic), v);
            acc[i] = fmaf(v, d[i % 2], acc[i]);
        }
    } else {
        int c[4] = {};
        mma_k32(c, a, b0, b1, kMagicBits);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float v = fmaf(by[i / 2].x, __int_as_float(c[i]), by[i / 2].y);
            v = fmaf(by[i / 2].z, total[i % 2], v);
            acc[i] = fmaf(v, d[i % 2], acc[i]);
        }
    }
}

/// This warp's part of the products of a stage: sum[nt] as mma has them, over its sub-blocks (low bits `low`) of all
/// blocks. scales: this warp's, 16 for each block. xb, pairs: of this lane.
template <DType Type, int NT, int C, int B>
__device__ __forceinline__ void narrow_tile(const char* stage, float2* scales, const char* xb, const char* pairs,
                                            int low, int lane, float (&sum)[NT][4]) {
    const KShifts at(low);
    using S = NarrowShape<NT, C, B>;
    using T = Tile<Type, 2048>;
    const int g = lane / 4, row = lane % 16, second = lane / 16;
#pragma unroll
    for (int k = 0; k < B / 2; ++k) {
        const int b = S::block(k, 0) + second * (S::block(k, 1) - S::block(k, 0));
        put_scales(scales[32 * k + lane], scales_of<T>(stage, row, b, low, at), T::kQ6);
    }
    __syncwarp();
    float chain[NT][4], other[NT][4];
#pragma unroll
    for (int k = 0; k < B / 2; ++k) {
        const int j0 = 8 * S::block(k, 0), step = 8 * (S::block(k, 1) - S::block(k, 0));
        uint32_t w[4], xs[NT][4];
        load_matrices(w, stage + row * T::kDataStride + 16 * (j0 + second * step + low));
        if constexpr (NT == 1) load_matrices(xs[0], xb + 16 * (j0 + second * step));
        if (C == 1 || k == 0)
#pragma unroll
            for (int i = 0; i < 4 * NT; ++i) chain[i / 4][i % 4] = 0.0f;
#pragma unroll
        for (int u = 0; u < 2; ++u) {
            const int j = j0 + u * step;
            if constexpr (NT > 1)
#pragma unroll
                for (int p = 0; p < NT / 2; ++p) load_matrices(xs[p], xb + 16 * p * kNarrowXStride + 16 * j);
            const float2* const of = scales + 32 * k + 16 * u + g;
            const float3 by[2] = {get_scales(of[0]), get_scales(of[8])};
            uint32_t a[4];
            make_a<T>(stage, w + 2 * u, g, j + low, lane % 4, a);
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
                const float4 pair = *reinterpret_cast<const float4*>(pairs + 64 * (NT * j + nt));
                const uint32_t* const b = NT == 1 ? xs[0] + 2 * u : xs[nt / 2] + nt % 2 * 2;
                const float d[2] = {pair.x, pair.z}, total[2] = {pair.y, pair.w};
                add_products<T::kQ6>(a, b[0], b[1], by, d, total, chain[nt]);
            }
        }
        // C == 1: chains 0 and 2, 1 and 3 (xor 16), then those two sums (xor 8).
#pragma unroll
        for (int i = 0; i < (C == 1 ? 4 * NT : 0); ++i) {
            float &x = chain[i / 4][i % 4], &y = sum[i / 4][i % 4], &z = other[i / 4][i % 4];
            if (k == 0) y = x;
            else if (k == 1) y = __fadd_rn(y, x);
            else if (k == 2) z = x;
            else y = __fadd_rn(y, __fadd_rn(z, x));
        }
    }
    if constexpr (C != 1)
#pragma unroll
        for (int i = 0; i < 4 * NT; ++i) sum[i / 4][i % 4] = chain[i / 4][i % 4];
}

/// l(0), ..., l(7) added as warps are: xor 4, 2, 1.
template <class F>
__device__ __forceinline__ float add_eight(const F& l) {
    const auto four = [&](int i) { return __fadd_rn(l(i), l(i + 4)); };
    return __fadd_rn(__fadd_rn(four(0), four(2)), __fadd_rn(four(1), four(3)));
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
