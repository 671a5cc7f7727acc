// Choosing the experts of one row of a sparse layer inside a kernel, of kRow1Experts experts: the choice of
// route.cuh in fewer instructions.
#pragma once

#include "ops/cuda/moe/route.cuh"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

constexpr int kRow1Experts = kThreads, kRow1Chosen = 8;

/// A word for a kernel that may have started already and asks for it with await_id().
__device__ __forceinline__ void post_id(int32_t* p, int32_t id) {
    asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(id) : "memory");
}
/// The word, once it is not negative.
__device__ __forceinline__ int32_t await_id(const int32_t* p) {
    int32_t id;
    do {
        asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(id) : "l"(p) : "memory");
    } while (id < 0);
    return id;
}

struct Row1Route {
    uint32_t key[kWarps][64];  // of a warp's experts, then the same plus one
    alignas(16) uint32_t best_key[8 * kWarps];
    int32_t best[8 * kWarps];
    int32_t chosen[kRow1Chosen];
};

/// The choice of route_row() of kRow1Experts experts, by the first kThreads threads, in two parts: each warp ranks its
/// 32 among themselves; then, when the CTA has synchronised, 64 candidates are ranked. It synchronises again before it
/// reads `m`. An expert comes before those with smaller keys, and before those with its key and a larger index.
__device__ __forceinline__ void row1_rank_own(uint32_t key, Row1Route& m) {
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    m.key[warp][lane] = key;
    m.key[warp][32 + lane] = key + 1;  // to the lanes behind: there an equal key counts, too
    __syncwarp();
    int rank = 0;
#pragma unroll
    for (int i = 1; i < 32; ++i) rank += m.key[warp][lane + i] > key ? 1 : 0;
    if (rank < 8) {
        m.best_key[8 * warp + rank] = key;
        m.best[8 * warp + rank] = t;
    }
}
__device__ __forceinline__ void row1_rank_best(int top_k, Row1Route& m) {
    const int t = threadIdx.x, candidate = t / 4, quarter = t % 4, own = candidate / 8;
    const uint32_t key = m.best_key[candidate];
    int rank = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int list = 2 * quarter + i;
        const uint4 a = *reinterpret_cast<const uint4*>(m.best_key + 8 * list),
                    b = *reinterpret_cast<const uint4*>(m.best_key + 8 * list + 4);
        const uint32_t keys[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        const uint32_t least = list < own ? key - 1 : key;
        int count = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) count += keys[k] > least ? 1 : 0;
        rank += list == own ? candidate % 8 : count;
    }
    rank += __shfl_xor_sync(~0u, rank, 1);
    rank += __shfl_xor_sync(~0u, rank, 2);
    if (quarter == 0 && rank < top_k) m.chosen[rank] = m.best[candidate];
}

/// The weight of rank t, by the first top_k threads, when the experts are chosen. s: scores in device memory.
__device__ __forceinline__ float row1_weight(const RouteArgs& a, const Row1Route& m, const float* s) {
    return route_weight(a, static_cast<int>(threadIdx.x), [&](int k) { return load_shared_f32(s + m.chosen[k]); });
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
