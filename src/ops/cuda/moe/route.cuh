// Choosing experts inside a kernel: ops/moe.h route_sigmoid and route_softmax by 256 threads of a CTA.
#pragma once

#include "ops/cuda/device/int8_rows.cuh"
#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/moe/experts_any.cuh"
#include "ops/moe.h"

namespace riptide::ops::cuda::decode {

constexpr int kMostExperts = 1024;

struct RouteArgs {
    const float* bias = nullptr;  // [experts] or null
    int32_t experts = 0, top_k = 0;
    float scale = 1;
    bool normalize = true;
    bool softmax = false;
    int32_t* chosen = nullptr;  // [n, top_k]
    float* weights = nullptr;
    const char* share = nullptr;    // [1, cols] bf16: who normalises the rows multiplies them with it, too, if it is
    float* share_logits = nullptr;  // [n]: given; the shared expert counts their sigmoid; null: whole
};
inline RouteArgs route_args(const Router& router, const Routing& to) {
    RouteArgs a;
    a.bias = router.bias.empty() ? nullptr : router.bias.data();
    a.experts = static_cast<int32_t>(router.w->rows);
    a.top_k = static_cast<int32_t>(router.top_k);
    a.scale = router.scale;
    a.normalize = router.normalize;
    a.softmax = router.softmax;
    a.chosen = to.experts.row<int32_t>(0);
    a.weights = to.weights.row(0);
    return a;
}

#ifdef __CUDACC__

/// Ordered like x; -0 counts as 0, a NaN as -infinity. Never 0.
__device__ __forceinline__ uint32_t route_key(float x) {
    const uint32_t bits = __float_as_uint(x != x ? -INFINITY : __fadd_rn(x, 0.0f));
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// What experts are chosen by, but for the bias.
__device__ __forceinline__ float route_score(bool softmax, float logit) { return softmax ? logit : sigmoid(logit); }
/// What the score of a chosen expert counts; first: that of the first.
__device__ __forceinline__ float score_part(bool softmax, float score, float first) {
    return softmax ? expf(__fsub_rn(score, first)) : score;
}
/// The weight of the expert of rank `rank`; score_of(k): of rank k.
template <class ScoreOf>
__device__ __forceinline__ float route_weight(const RouteArgs& a, int rank, const ScoreOf& score_of) {
    const float first = a.softmax ? score_of(0) : 0.0f;
    float weight = score_part(a.softmax, score_of(rank), first), sum = 0.0f;
#pragma unroll 1
    for (int k = 0; k < a.top_k; ++k) sum = __fadd_rn(sum, score_part(a.softmax, score_of(k), first));
    if (a.normalize) weight = __fdiv_rn(weight, sum);
    return __fmul_rn(weight, a.scale);
}
/// The same by lanes, each of which has the score of one rank and gets its weight. The first of `Width` has rank 0.
template <int Width>
__device__ __forceinline__ float route_weights(const RouteArgs& a, float score) {
    const float part = score_part(a.softmax, score, __shfl_sync(~0u, score, 0, Width));
    float sum = 0.0f, weight = part;
#pragma unroll 1
    for (int k = 0; k < a.top_k; ++k) sum = __fadd_rn(sum, __shfl_sync(~0u, part, k, Width));
    if (a.normalize) weight = __fdiv_rn(weight, sum);
    return __fmul_rn(weight, a.scale);
}

struct alignas(16) RouteMemory {
    float s[kMostExperts];
    uint32_t key[kMostExperts];  // 0: no expert
    uint32_t best_key[8 * kWarps];
    int32_t best[8 * kWarps];
    int32_t chosen[kMostTopK];
};

// Choosing is three steps of kThreads threads, all other threads of the CTA meanwhile free for something else. Behind
// each the whole CTA synchronises: route_scores(), rank_first(), rank_last().

/// The scores and keys of one row, whose logits lie at `logits` (device memory, perhaps just written by other CTAs).
__device__ __forceinline__ void route_scores(const RouteArgs& a, const float* logits, RouteMemory& m) {
    for (int e = threadIdx.x; e < (a.experts <= kThreads ? kThreads : a.experts); e += kThreads) {
        uint32_t key = 0;
        if (e < a.experts) {
            const float s = route_score(a.softmax, load_shared_f32(logits + e));
            m.s[e] = s;
            key = route_key(a.bias == nullptr ? s : __fadd_rn(s, a.bias[e]));
        }
        m.key[e] = key;
    }
}

/// Up to 256 experts and top_k <= 8: each warp ranks its 32 experts among themselves, then (rank_last) 64 candidates
/// are ranked, each by four threads: an expert's rank is the number of those before it. 64 comparisons a thread instead
/// of eight rounds.
__device__ __forceinline__ bool ranks_at_once(const RouteArgs& a) { return a.experts <= kThreads && a.top_k <= 8; }

__device__ __forceinline__ void rank_in_warps(RouteMemory& m) {
    const int t = threadIdx.x, warp = t / 32;
    const uint32_t key = m.key[t];
    int rank = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint4 other = reinterpret_cast<const uint4*>(m.key + 32 * warp)[i];
        const uint32_t keys[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) rank += keys[k] > key || (keys[k] == key && 4 * i + k < t % 32) ? 1 : 0;
    }
    if (rank < 8) {
        m.best_key[8 * warp + rank] = key;
        m.best[8 * warp + rank] = t;
    }
}

/// Any number of experts: warp 0 takes the best, top_k times.
__device__ __forceinline__ void rank_any(RouteMemory& m, int experts, int top_k) {
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x;
    for (int rank = 0; rank < top_k; ++rank) {
        uint32_t key = 0;
        int best = 0;
        for (int e = lane; e < experts; e += 32)
            if (m.key[e] > key) key = m.key[e], best = e;
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) {
            const uint32_t other = __shfl_xor_sync(~0u, key, o);
            const int index = __shfl_xor_sync(~0u, best, o);
            if (other > key || (other == key && index < best)) key = other, best = index;
        }
        __syncwarp();  // all have read m.key
        if (lane == 0) {
            m.chosen[rank] = best;
            m.key[best] = 0;
        }
        __syncwarp();
    }
}

__device__ __forceinline__ void rank_first(const RouteArgs& a, RouteMemory& m) {
    if (ranks_at_once(a)) rank_in_warps(m);
    else rank_any(m, a.experts, a.top_k);
}
/// m.chosen and m.s are complete behind the barrier that follows.
__device__ __forceinline__ void rank_last(const RouteArgs& a, RouteMemory& m) {
    if (!ranks_at_once(a)) return;
    const int candidate = threadIdx.x / 4, quarter = threadIdx.x % 4, mine = m.best[candidate];
    const uint32_t my_key = m.best_key[candidate];
    int rank = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint4 other = reinterpret_cast<const uint4*>(m.best_key + 16 * quarter)[i];
        const int4 index = reinterpret_cast<const int4*>(m.best + 16 * quarter)[i];
        const uint32_t keys[4] = {other.x, other.y, other.z, other.w};
        const int indices[4] = {index.x, index.y, index.z, index.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) rank += keys[k] > my_key || (keys[k] == my_key && indices[k] < mine) ? 1 : 0;
    }
    rank += __shfl_xor_sync(~0u, rank, 1);
    rank += __shfl_xor_sync(~0u, rank, 2);
    if (quarter == 0 && rank < a.top_k) m.chosen[rank] = mine;
}

/// The weight of rank `rank`, behind rank_last() and a barrier.
__device__ __forceinline__ float route_weight(const RouteArgs& a, const RouteMemory& m, int rank) {
    return route_weight(a, rank, [&](int k) { return m.s[m.chosen[k]]; });
}

/// Experts and weights of row `row`. The whole CTA.
__device__ __forceinline__ void route_row(const RouteArgs& a, const float* logits, int row, RouteMemory& m) {
    route_scores(a, logits, m);
    __syncthreads();
    rank_first(a, m);
    __syncthreads();
    rank_last(a, m);
    __syncthreads();
    const int rank = threadIdx.x;
    if (rank >= a.top_k) return;
    a.chosen[static_cast<int64_t>(row) * a.top_k + rank] = m.chosen[rank];
    a.weights[static_cast<int64_t>(row) * a.top_k + rank] = route_weight(a, m, rank);
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
