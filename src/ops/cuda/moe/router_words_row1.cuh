// The router of one row of Laguna XS.2 where the product before it has not left its words
// (kquant_i8.cu, planes_i8_sm90.cu in ../linear/gemv): the same words, in one set. The kernel of gate and up chooses.
#pragma once

#include "ops/cuda/linear/shared/linear.h"
#include "ops/cuda/moe/choose_words.cuh"
#include "ops/moe.h"

namespace riptide::ops::cuda::decode {

namespace {

struct RouterWordsArgs {
    const char* router;  // bf16 [kRow1Experts, kRow1Hidden]
    const float* x;
    const float* norm;
    RouterWords* words;
};

/// Two experts a CTA, four warps each: a lane has eight columns at a time, half a group.
__global__ void __launch_bounds__(kThreads, 3) router_words_row1_kernel(const __grid_constant__ RouterWordsArgs a) {
    __shared__ uint64_t sums[kWarps];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, expert = 2 * blockIdx.x + warp / 4;
    uint4 raw[2];
    float norm[2][8];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        const int c = (warp % 4 + 4 * s) * 32 + lane;
        raw[s] = load_weights_once(a.router + (expert * kRow1Hidden + 8 * c) * 2);
        row1_weights8(a.norm, c, norm[s]);
    }
    pdl_wait();
    begin_choice(*a.words, 1);
    float x[2][8];
#pragma unroll
    for (int s = 0; s < 2; ++s) row1_load8(a.x, (warp % 4 + 4 * s) * 32 + lane, x[s]);
    uint64_t sum = 0;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        const uint32_t words[4] = {raw[s].x, raw[s].y, raw[s].z, raw[s].w};
        float half = 0.0f, squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float* const v = x[s] + 4 * i;
            const float* const w = norm[s] + 4 * i;
            half = fma4(
                decode4(DType::bf16, words, i),
                make_float4(__fmul_rn(w[0], v[0]), __fmul_rn(w[1], v[1]), __fmul_rn(w[2], v[2]), __fmul_rn(w[3], v[3])),
                half);
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) squares = __fmaf_rn(x[s][k], x[s][k], squares);
        sum += word_of(__fadd_rn(half, __shfl_xor_sync(~0u, half, 1)));
        squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, 1));
        const int group = (warp % 4 + 4 * s) * 16 + lane / 2;
        if (warp < 4 && group == static_cast<int>(blockIdx.x)) a.words->squares[0][group] = squares;
    }
#pragma unroll
    for (int mask = 16; mask > 1; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (lane != 0 || warp % 4 != 0) return;
    a.words->sums[0][expert] = sums[warp] + sums[warp + 1] + sums[warp + 2] + sums[warp + 3];
}

/// Leaves the words of one row for choose_by_words().
inline void launch_router_words(Context& ctx, const Weight& router, const WordChoice& choice) {
    const RouterWordsArgs r{static_cast<const char*>(router.data), choice.x, choice.norm, choice.words};
    open_words(*ctx.gpu);
    allow_shared(reinterpret_cast<const void*>(router_words_row1_kernel), kRow1Small);
    launch(*ctx.gpu, router_words_row1_kernel, kRow1Experts / 2, kThreads, kRow1Small, r);
}

}  // namespace

}  // namespace riptide::ops::cuda::decode
