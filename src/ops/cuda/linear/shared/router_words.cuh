// Adding to the words of a router (router_words.h), reading and clearing them, inside kernels.
#pragma once

#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/linear/shared/dot.cuh"
#include "ops/cuda/linear/shared/router_words.h"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

/// Sixteen new columns of a row, in shared memory.
struct WordGroup {
    alignas(16) float x[kWordGroup];
    alignas(16) float h[kWordGroup];  // times the norm's weights

    __device__ __forceinline__ void put(int c, float value, float norm) {
        x[c] = value;
        h[c] = __fmul_rn(norm, value);
    }
};

/// The columns of the router that one of kWordCols / kWordGroup CTAs of 512 threads multiplies: group `blockIdx.x`.
/// Thread t has expert t / 2 and of the sixteen columns the half t % 2.
struct RouterShare {
    uint4 raw;  // weights

    /// router: bf16 [kWordExperts, kWordCols]. Of each row 32 bytes: asked for above pdl_wait(), such loads keep those
    /// of the kernel before it on the same SM waiting, 1.3 us a layer; behind it they arrive while the product is made.
    __device__ __forceinline__ void ask(const char* router) {
        raw = load_weights(router + threadIdx.x / 2 * (2 * kWordCols) + blockIdx.x * (2 * kWordGroup) +
                           threadIdx.x % 2 * 16);
    }
    /// When the whole CTA has synchronised behind groups[p].put() of all rows p.
    __device__ __forceinline__ void add(const WordGroup* groups, int rows, RouterWords& words) const {
        const int half = threadIdx.x % 2 * 8, sets = RouterWords::sets_of(rows), set = blockIdx.x % sets;
        const uint32_t weights[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int p = 0; p < kMostWordRows; ++p) {
            if (p >= rows) break;
            const auto* h = reinterpret_cast<const float4*>(groups[p].h + half);
            float share = fma4(decode4(DType::bf16, weights, 0), h[0], 0.0f);
            share = fma4(decode4(DType::bf16, weights, 1), h[1], share);
            share = __fadd_rn(share, __shfl_xor_sync(~0u, share, 1));
            if (threadIdx.x % 2 == 0)
                asm volatile(
                    "red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(&words.sums[p * sets + set][threadIdx.x / 2]),
                    "l"(word_of(share))
                    : "memory");
        }
        const int p = static_cast<int>(blockDim.x / 32 - 1 - threadIdx.x / 32);  // the last warps: a row each
        if (p >= rows) return;
        const float* const x = groups[p].x + half;
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) squares = __fmaf_rn(x[i], x[i], squares);
        squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, 1));
        if (threadIdx.x % 32 == 0) words.squares[p][blockIdx.x] = squares;
    }
};

/// By CTA 0 of a kernel before the one that chooses, behind its pdl_wait().
__device__ __forceinline__ void begin_choice(RouterWords& words, int rows) {
    if (blockIdx.x != 0) return;
    if (rows == 1 && threadIdx.x < sizeof(words.posted) / sizeof(words.posted[0])) words.posted[threadIdx.x] = -1;
    if (rows > 1 && threadIdx.x < sizeof(words.listed) / sizeof(words.listed[0]))
        words.listed[threadIdx.x] = ~uint64_t{0};
}

/// The sum over the lanes of a warp, neighbours first, in every lane.
__device__ __forceinline__ float pairwise_sum(float v) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, mask));
    return v;
}
/// The same over eight values.
__device__ __forceinline__ float pairwise_sum8(const float* v) {
    return __fadd_rn(__fadd_rn(__fadd_rn(v[0], v[1]), __fadd_rn(v[2], v[3])),
                     __fadd_rn(__fadd_rn(v[4], v[5]), __fadd_rn(v[6], v[7])));
}

/// What a lane has asked for of a row: the complete word of an expert, and what r is made of, whole warps alike. Sets:
/// of a row.
template <int Sets>
struct ReadWords {
    uint64_t sets[Sets];
    float4 squares;

    __device__ __forceinline__ void ask(const RouterWords& words, int row, int expert) {
        const float* const four = words.squares[row] + 4 * (threadIdx.x % 32);
        asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(squares.x), "=f"(squares.y), "=f"(squares.z), "=f"(squares.w)
                     : "l"(four)
                     : "memory");
#pragma unroll
        for (int i = 0; i < Sets; ++i)
            asm volatile("ld.global.u64 %0, [%1];"
                         : "=l"(sets[i])
                         : "l"(&words.sums[Sets * row + i][expert])
                         : "memory");
    }
    __device__ __forceinline__ uint64_t word() const {
        uint64_t sum = 0;
#pragma unroll
        for (int i = 0; i < Sets; ++i) sum += sets[i];
        return sum;
    }
    /// r. All lanes.
    __device__ __forceinline__ float scale(float eps) const {
        const float own = __fadd_rn(__fadd_rn(squares.x, squares.y), __fadd_rn(squares.z, squares.w));
        return ops::rms_scale(pairwise_sum(own), kWordCols, eps);
    }
};

/// By all CTAs of the kernel behind the one that read them, behind its pdl_wait().
__device__ __forceinline__ void clear_words(RouterWords& words, int rows) {
    constexpr int kEach = 16;
    if (threadIdx.x >= kEach) return;
    const int count = rows * RouterWords::sets_of(rows) * kWordExperts;
    for (int i = kEach * blockIdx.x + threadIdx.x; i < count; i += kEach * gridDim.x) words.sums[0][i] = 0;
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
