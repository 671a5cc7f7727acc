// Choosing among 256 experts by 256 threads in two short steps, between which the CTA synchronises: what the kernels of
// one row and of a few have in place of route_row(), with the same result.
#pragma once

#include "ops/decode_route.cuh"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

constexpr int kLeanExperts = kThreads, kLeanChosen = 8;

/// A row's experts, in shared memory.
struct LeanRanks {
    alignas(16) uint32_t key[kLeanExperts];
    alignas(16) uint32_t best_key[8 * kWarps];
    alignas(16) int32_t best[8 * kWarps];
    float s[kLeanExperts];
};

/// By thread t < kThreads, a whole warp's threads together: each warp ranks its 32 experts among themselves.
__device__ __forceinline__ void lean_rank_own(const RouteArgs& a, int t, float logit, float bias, LeanRanks& m) {
    const int warp = t / 32, lane = t % 32;
    const float s = sigmoid(logit);
    const uint32_t key = route_key(a.bias == nullptr ? s : __fadd_rn(s, bias));
    m.s[t] = s;
    m.key[t] = key;
    __syncwarp();
    int rank = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint4 other = reinterpret_cast<const uint4*>(m.key + 32 * warp)[i];
        const uint32_t keys[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) rank += keys[k] > key || (keys[k] == key && 4 * i + k < lane) ? 1 : 0;
    }
    if (rank < 8) {
        m.best_key[8 * warp + rank] = key;
        m.best[8 * warp + rank] = t;
    }
}

/// When all have: 64 candidates are ranked, each by four threads. ranked(rank, expert) in one thread of each.
template <class Ranked>
__device__ __forceinline__ void lean_rank_best(int t, const LeanRanks& m, const Ranked& ranked) {
    const int candidate = t / 4, quarter = t % 4, mine = m.best[candidate];
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
    if (quarter == 0) ranked(rank, mine);
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
