// The router of one row of Laguna XS.2 with float experts, which the next kernel chooses from the keys: see
// experts_float.cu.
#pragma once

#include "ops/cuda/linear/gemv/kquant_i8.cuh"
#include "ops/cuda/linear/shared/linear.h"
#include "ops/cuda/moe/route_row1.cuh"
#include "ops/moe.h"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kRouterThreads = kThreads + 32;

/// What the router leaves, in device memory aligned to 16 bytes.
struct Row1Scores {
    uint32_t* key;  // [kRow1Experts], route_key of score and bias
    float* s;       // [kRow1Experts], scores
    char* x;        // the normalised row, staged
};

struct Row1RouterArgs {
    const char* router;  // bf16 [kRow1Experts, kRow1Hidden]
    const float* x;
    const float* norm;
    const float* bias;  // or null
    bool softmax;
    float eps;
    float* logits;
    int32_t* chosen;  // [top_k], set to -1
    int32_t top_k;
    Row1Scores scores;
};

/// Four warps have an expert, as in router_kernel: the same products in the same order. A ninth warp of the first CTAs
/// stages 32 columns of the normalised row.
__global__ void __launch_bounds__(kRouterThreads, 3) router_row1_kernel(const __grid_constant__ Row1RouterArgs a) {
    __shared__ alignas(16) float row[kRow1Hidden];
    __shared__ float partial[kWarps], sums[kWarps];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, expert = 2 * blockIdx.x + warp / 4;
    const bool stages = warp == kWarps;
    uint4 raw[2];
    float norm[2][8];
    float bias = 0.0f;
    if (!stages) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            const int c = (warp % 4 + 4 * s) * 32 + lane;
            raw[s] = load_weights_once(a.router + (expert * kRow1Hidden + 8 * c) * 2);
            row1_weights8(a.norm, c, norm[s]);
        }
        if (threadIdx.x < 2 && a.bias != nullptr)
            bias = __uint_as_float(load_weight32(a.bias + 2 * blockIdx.x + threadIdx.x));
    } else if (blockIdx.x < kRow1Hidden / 32) {
        row1_weights8(a.norm, 4 * blockIdx.x + lane % 4, norm[0]);
    }
    pdl_wait();
    if (blockIdx.x == 0 && threadIdx.x < a.top_k) a.chosen[threadIdx.x] = -1;
    auto* quads = reinterpret_cast<float4*>(row);
    if (!stages) {
        float mine[8];
        row1_load8(a.x, threadIdx.x, mine);
        const float sum = warp_sum(add_squares(mine, 0.0f));
        quads[2 * threadIdx.x] = make_float4(mine[0], mine[1], mine[2], mine[3]);
        quads[2 * threadIdx.x + 1] = make_float4(mine[4], mine[5], mine[6], mine[7]);
        if (lane == 0) partial[warp] = sum;
    }
    __syncthreads();
    const float scale = row_scale(partial, kRow1Hidden, a.eps);
    if (stages) {
        if (blockIdx.x >= kRow1Hidden / 32 || lane >= 4) return;
        const int c = 4 * blockIdx.x + lane % 4;
        const float4 low = quads[2 * c], high = quads[2 * c + 1];
        float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int k = 0; k < 8; ++k) v[k] = rms_value(v[k], scale, norm[0][k]);
        put8({kRow1Hidden, 0, 0, 4 * kRow1Hidden}, a.scores.x, c, v);
        return;
    }
    float acc = 0.0f;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        const int c = (warp % 4 + 4 * s) * 32 + lane;
        const uint32_t words[4] = {raw[s].x, raw[s].y, raw[s].z, raw[s].w};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float4 x = quads[2 * c + i];
            acc =
                fma4(decode4(DType::bf16, words, i),
                     make_float4(rms_value(x.x, scale, norm[s][4 * i]), rms_value(x.y, scale, norm[s][4 * i + 1]),
                                 rms_value(x.z, scale, norm[s][4 * i + 2]), rms_value(x.w, scale, norm[s][4 * i + 3])),
                     acc);
        }
    }
    acc = warp_sum(acc);
    if (lane == 0) sums[warp] = acc;
    __syncthreads();
    if (threadIdx.x < 2) {
        const float* four = sums + 4 * threadIdx.x;
        const float logit = (four[0] + four[1]) + (four[2] + four[3]), s = route_score(a.softmax, logit);
        const int e = 2 * blockIdx.x + threadIdx.x;
        a.logits[e] = logit;
        a.scores.s[e] = s;
        a.scores.key[e] = route_key(a.bias == nullptr ? s : __fadd_rn(s, bias));
    }
}

/// x: a row of floats that is to be normalised. Leaves `scores`, the logits of `result`, and -1 as ids of experts.
inline void launch_row1_router(Context& ctx, const float* x, const float* norm, float eps, const Router& router,
                               MoeResult& result, const Row1Scores& scores) {
    Row1RouterArgs r = {};
    r.router = static_cast<const char*>(router.w->data);
    r.x = x;
    r.norm = norm;
    r.bias = router.bias.empty() ? nullptr : router.bias.data();
    r.softmax = router.softmax;
    r.eps = eps;
    r.logits = result.logits.row(0);
    r.chosen = result.routing.experts.row<int32_t>(0);
    r.top_k = static_cast<int32_t>(router.top_k);
    r.scores = scores;
    allow_shared(reinterpret_cast<const void*>(router_row1_kernel), kRow1Small);
    launch(*ctx.gpu, router_row1_kernel, kRow1Experts / 2, kRouterThreads, kRow1Small, r);
}

}  // namespace

}  // namespace riptide::ops::cuda::decode
