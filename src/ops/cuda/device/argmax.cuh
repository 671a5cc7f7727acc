// The largest entry of a row by many CTAs: order of entries, maximum over a CTA, meeting of a row's CTAs.
#pragma once

#include <cstdint>

#include "tensor/launch.cuh"

namespace riptide::ops::cuda {

/// Larger for what comes first: larger values, then lower indices; -0 equals 0; NaN comes last.
__device__ __forceinline__ uint64_t order_key(float value, uint32_t index) {
    const uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);
    const uint32_t order = value != value ? 0u : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(order) << 32 | static_cast<uint32_t>(~index);
}
__device__ __forceinline__ int32_t index_of(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }

constexpr uint64_t kDamaged = ~uint64_t{0};  // stands for NaN where it must be noticed: above every number
/// The entry of a row's largest key; if `strict`, -1 for keys of NaN, +infinity or -infinity.
__device__ __forceinline__ int32_t chosen(uint64_t key, bool strict) {
    const auto order = static_cast<uint32_t>(key >> 32);
    return strict && (order >= 0xFF800000u || order <= 0x007FFFFFu) ? -1 : index_of(key);
}

__device__ __forceinline__ uint64_t warp_max(uint64_t key) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) key = max(key, __shfl_xor_sync(0xFFFFFFFFu, key, mask));
    return key;
}

constexpr int kArgmaxThreads = 256;
constexpr int kArgmaxWarps = kArgmaxThreads / 32;

/// Over a CTA, in thread 0. shared: kArgmaxWarps keys, free again behind the next __syncthreads().
__device__ __forceinline__ uint64_t block_max(uint64_t key, uint64_t* shared) {
    key = warp_max(key);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = key;
    __syncthreads();
    if (threadIdx.x < 32) key = warp_max(threadIdx.x < kArgmaxWarps ? shared[threadIdx.x] : 0);
    return key;
}

/// A row's CTAs, up to kArgmaxThreads of them.
struct ArgmaxShared {
    uint64_t keys[kArgmaxWarps];
    int last;
};

/// CTA `part` of `parts` of a row: its elements of x [m] are [part * piece, (part + 1) * piece). True in the one thread
/// of all that knows the row's largest key. counter: of the row, zero before and behind. partial: [parts] keys. Called
/// by all threads, behind pdl_wait().
__device__ __forceinline__ bool row_argmax(const float* x, int64_t m, int piece, bool strict, int part, int parts,
                                           uint64_t* partial, int32_t* counter, ArgmaxShared& shared, uint64_t* key) {
    const int64_t begin = int64_t{part} * piece, end = min(m, begin + piece);
    const int thread = static_cast<int>(threadIdx.x);
    uint64_t best = 0;
#pragma unroll 4
    for (int64_t i = begin + thread; i < end; i += kArgmaxThreads) {
        const float value = x[i];
        best = max(best, strict && value != value ? kDamaged : order_key(value, static_cast<uint32_t>(i)));
    }
    best = block_max(best, shared.keys);
    *key = best;
    if (parts == 1) return thread == 0;
    if (thread == 0) {
        __stcg(reinterpret_cast<unsigned long long*>(partial + part), best);
        __threadfence();
        shared.last = atomicAdd(counter, 1) == parts - 1;
    }
    __syncthreads();
    if (shared.last == 0) return false;
    __threadfence();
    best = thread < parts ? __ldcg(reinterpret_cast<unsigned long long*>(partial + thread)) : 0;
    *key = block_max(best, shared.keys);
    if (thread != 0) return false;
    *counter = 0;
    return true;
}

/// Two CTAs for each SM over all rows, pieces of at least 1024 elements.
struct ArgmaxGrid {
    int64_t piece, parts;
    ArgmaxGrid(int sms, int64_t rows, int64_t m) {
        const int64_t most = 2 * int64_t{sms} / (rows > 0 ? rows : 1);
        const int64_t wanted = most < 1 ? 1 : most > kArgmaxThreads ? kArgmaxThreads : most;
        piece = (m + wanted - 1) / wanted < 1024 ? 1024 : (m + wanted - 1) / wanted;
        parts = (m + piece - 1) / piece;
    }
};

}  // namespace riptide::ops::cuda
