// Shared memory of the kernels that take chains and trees of rows through Gated DeltaNet states.
#pragma once

#include "ops/cuda/gated_delta/prepare_rows.cuh"
#include "ops/delta_schedule.h"

namespace riptide::ops {

/// A word (or, aligned, four) to shared memory, while the caller goes on.
template <int kBytes>
__device__ __forceinline__ void copy_async(float* to, const float* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    if constexpr (kBytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
#else
    for (int i = 0; i < kBytes / 4; ++i) to[i] = from[i];
#endif
}
__device__ __forceinline__ void copies_commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Until at most `kPending` groups of this thread are under way.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

/// `count` floats by a warp. kAligned: both sides and the count are whole pieces of 16 bytes.
template <bool kAligned>
__device__ __forceinline__ void copy_row(float* to, const float* from, int count) {
    constexpr int kPiece = kAligned ? 4 : 1;
#pragma unroll 1
    for (int i = kPiece * static_cast<int>(threadIdx.x % 32); i < count; i += 32 * kPiece)
        copy_async<4 * kPiece>(to + i, from + i);
}

inline constexpr int kGroupRows = 16;  // on their way to shared memory at a time

/// What the rows of a group need; heads padded with zeros. Columns are those of the block.
struct DeltaGroup {
    float* q;     // [kGroupRows, padded]
    float* k;     // [kGroupRows, padded]
    float* v;     // [kGroupRows, columns]
    float* gate;  // [kGroupRows, 4]: e^g, beta, k . q
    int padded;
    int columns;
};
inline __host__ __device__ size_t delta_group_floats(int padded, int columns) {
    return static_cast<size_t>(kGroupRows) * static_cast<size_t>(2 * padded + columns + 4);
}
__device__ __forceinline__ DeltaGroup delta_group(float* at, int padded, int columns) {
    DeltaGroup group;
    group.q = at;
    group.k = group.q + kGroupRows * padded;
    group.v = group.k + kGroupRows * padded;
    group.gate = group.v + kGroupRows * columns;
    group.padded = padded;
    group.columns = columns;
    return group;
}

/// A tree's order, in shared memory.
struct TreePlan {
    int32_t parent[kDeltaTreeRows];
    int32_t numbers[4][kDeltaTreeRows + 1];
    DeltaVisit visits[kDeltaTreeRows];
};

/// Shared memory: two groups of rows, then (trees) the plan, then the kept states: [slot][warp][kRows][32] pieces.
struct DeltaLayout {
    int padded, columns;
    __host__ __device__ size_t plan() const { return (2 * delta_group_floats(padded, columns) * 4 + 15) / 16 * 16; }
    __host__ __device__ size_t slots() const { return plan() + (sizeof(TreePlan) + 15) / 16 * 16; }
    __host__ __device__ size_t slot_bytes() const { return static_cast<size_t>(padded) * columns * 4; }
};

/// By all threads of the block; ends with a barrier. Returns whether the committed state must be kept.
__device__ inline bool plan_tree(const int32_t* parents, TreePlan& plan, int first, int n) {
    for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
        const int p = delta_early(parents + first + i);
        plan.parent[i] = p < 0 ? -1 : p - first;
    }
    const auto parent = [&plan](int32_t i) { return plan.parent[i]; };
    const DeltaSchedule<decltype(parent)> schedule{
        parent, n, plan.numbers[0], plan.numbers[1], plan.numbers[2], plan.numbers[3], plan.visits};
    const auto add = [](int32_t* to, int32_t x) { atomicAdd(to, x); };
    const auto max = [](int32_t* to, int32_t x) { atomicMax(to, x); };
    const int begin = static_cast<int>(threadIdx.x), stride = static_cast<int>(blockDim.x);
    for (int i = begin; i <= n; i += stride) schedule.begin(i);
    __syncthreads();
    for (int i = begin; i < n; i += stride) schedule.count(i, add);
    __syncthreads();
    for (int i = begin; i < n; i += stride) schedule.choose(i, max);
    __syncthreads();
    for (int i = begin; i < n; i += stride) schedule.arrange(i);
    __syncthreads();
    for (int i = begin; i < n; i += stride) schedule.place(i);
    __syncthreads();
    return schedule.saves_root();
}

}  // namespace riptide::ops
