// Sparse layers of 2 to 8 rows (experts_rows8.cu): which rows share which experts, and copies of a warp's own.
#pragma once

#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/linear/gemv/kquant_i8.cuh"
#include "ops/cuda/linear/shared/router_words.cuh"
#include "ops/cuda/linear/shared/row_formats.cuh"
#include "ops/cuda/linear/shared/weight_ring.cuh"
#include "ops/cuda/moe/experts_grouped_sm80.cuh"
#include "ops/cuda/moe/share.cuh"

namespace riptide::ops::cuda::decode::few {

constexpr int kMostRows = 16, kRowSlots = 8, kMembers = 4;
constexpr int kHidden = 2048, kFf = 512, kHiddenBytes = staged_bytes(kHidden), kFfBytes = staged_bytes(kFf);
constexpr int kTiles = kFf / 32, kMostGroups = kMostRows8Groups, kLeastCtas = 128;

struct Rows8Args {
    const uint32_t* keys;  // [n, experts], of fused_router(); logits too
    float* logits;
    RouterWords* words;  // or null: of the product before, instead of keys; logits are left here
    uint64_t* listed;    // [n * kRowSlots], all ones until gate and up list the groups
    RouteArgs route;
    int32_t n;
    int32_t shared;  // whether there is a shared expert: then it is the last slot of a row
};

/// Up to kMembers rows that chose an expert: 8 * row + rank, a byte each.
struct Rows8Group {
    uint32_t expert, members;

    __device__ __forceinline__ int count() const { return static_cast<int>(expert >> 16); }
    __device__ __forceinline__ int id() const { return static_cast<int>(expert & 0xFFFFu); }
    __device__ __forceinline__ int place(int p) const { return static_cast<int>(members >> (8 * p) & 0xFFu); }
};

struct Rows8Groups {
    uint32_t mask[kExperts];  // rows that chose it
    Rows8Group list[kMostGroups];
    alignas(8) uint8_t ids[kMostRows * kRowSlots];

    /// Of an expert in a row that chose it.
    __device__ __forceinline__ uint32_t rank(int row, uint32_t e) const {
        const uint2 eight = *reinterpret_cast<const uint2*>(ids + kRowSlots * row);
        const uint32_t low = __vcmpeq4(eight.x, e * 0x01010101u), high = __vcmpeq4(eight.y, e * 0x01010101u);
        return static_cast<uint32_t>(low != 0 ? __ffs(static_cast<int>(low)) : 32 + __ffs(static_cast<int>(high))) / 8;
    }
};

__device__ __forceinline__ void rows8_clear(Rows8Groups& g) {
    if (threadIdx.x < kExperts) g.mask[threadIdx.x] = 0;
}

/// Each warp chooses for the row of its number, of which it is given the keys: the expert of rank `lane`. Behind
/// rows8_clear() and a barrier; before one.
template <class KeyOf>
__device__ __forceinline__ int rows8_choose(const Rows8Args& a, Rows8Groups& g, const KeyOf& key_of, int warp,
                                            int lane) {
    if (warp >= a.n) return 0;
    const int e = choose_by_warp(key_of, a.route.experts, a.route.top_k, lane);
    if (lane < a.route.top_k) {
        g.ids[kRowSlots * warp + lane] = static_cast<uint8_t>(e);
        atomicOr(&g.mask[e], 1u << warp);
    }
    return e;
}

/// The number of groups, which are listed behind the next barrier. By the whole CTA. MostRows: a multiple of four.
template <int MostRows>
__device__ __forceinline__ int rows8_list(const Rows8Args& a, Rows8Groups& g, int warp, int lane) {
    int all = 0;
#pragma unroll
    for (int k = 0; k < MostRows * kRowSlots / 32; ++k) {
        const int i = 32 * k + lane, row = i / kRowSlots;
        const bool there = row < a.n && i % kRowSlots < a.route.top_k;
        const uint32_t e = there ? g.ids[i] : 0u, mask = g.mask[e];
        // The first, fifth ... of the rows that chose it.
        const bool leads = there && __popc(mask & ((1u << row) - 1)) % kMembers == 0;
        const uint32_t leaders = __ballot_sync(~0u, leads);
        if (k == warp && leads) {
            uint32_t rest = mask >> row << row, members = 0;
            const int count = min(kMembers, __popc(rest));
#pragma unroll 1
            for (int c = 0; c < count; ++c, rest &= rest - 1) {
                const int r = __ffs(static_cast<int>(rest)) - 1;
                members |= (static_cast<uint32_t>(kRowSlots * r) + g.rank(r, e)) << (8 * c);
            }
            g.list[all + __popc(leaders & ((1u << lane) - 1))] = {e | static_cast<uint32_t>(count) << 16, members};
        }
        all += __popc(leaders);
    }
    return all;
}

/// The weight of the expert of rank `lane` of a row. By a warp.
__device__ __forceinline__ float rows8_weight(const Rows8Args& a, int row, int e, int lane) {
    const float logit = load_shared_f32(a.logits + row * a.route.experts + (lane < a.route.top_k ? e : 0));
    return route_weights<32>(a.route, route_score(a.route.softmax, logit));
}

/// A group that the next kernel, which may have started already, asks for with await_group(); 0: no more.
__device__ __forceinline__ void post_group(uint64_t* p, uint64_t group) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(group) : "memory");
}
__device__ __forceinline__ uint64_t await_group(const uint64_t* p) {
    uint64_t group;
    do {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(group) : "l"(p) : "memory");
    } while (group == ~uint64_t{0});
    return group;
}

/// All but the newest `Pending` groups of copies of this warp are there.
template <int Pending>
__device__ __forceinline__ void rows8_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
    __syncwarp();
}

/// So many bytes, a multiple of 16, by a warp.
template <int Bytes>
__device__ __forceinline__ void rows8_copy(char* to, const char* from, int lane) {
#pragma unroll
    for (int i = 0; i < Bytes / 512; ++i) copy_async16(to + 512 * i + 16 * lane, from + 512 * i + 16 * lane);
    constexpr int kDone = Bytes / 512 * 512;
    if (kDone < Bytes && 16 * lane < Bytes - kDone) copy_async16(to + kDone + 16 * lane, from + kDone + 16 * lane);
}
/// The same from two places, one behind the other.
template <int Bytes>
__device__ __forceinline__ void rows8_copy_two(char* to, const char* first, const char* second, int lane) {
    if constexpr (2 * Bytes <= 512) {
        const int at = 16 * lane;
        if (at < 2 * Bytes) copy_async16(to + at, at < Bytes ? first + at : second + (at - Bytes));
    } else {
        rows8_copy<Bytes>(to, first, lane);
        rows8_copy<Bytes>(to + Bytes, second, lane);
    }
}

/// Columns 8 c .. 8 c + 7 of a staged row of 32 Groups columns, as put8(); Halves: with the sums that Q6_K needs.
template <int Groups, bool Halves>
__device__ __forceinline__ void rows8_put8(char* row, int c, const float (&v)[8]) {
    const Act8 q = quantise8(v);
    const int g = c / 4, quarter = c % 4;
    *reinterpret_cast<uint2*>(row + (quarter / 2 * Groups + g) * 16 + quarter % 2 * 8) = q.words;
    if (quarter != 0) return;
    *reinterpret_cast<float2*>(row + 32 * Groups + 8 * g) = make_float2(q.d, static_cast<float>(q.all));
    if constexpr (Halves) *reinterpret_cast<float*>(row + 40 * Groups + 4 * g) = static_cast<float>(q.half);
}

/// The rows of a step whose router left words, in a CTA of kRow1Threads: of rows h, h + 2 .. (h: its half of the CTA)
/// a thread has expert u and columns 8 u .. 8 u + 7.
struct Rows8Words {
    static constexpr int kEach = (kMostWordRows + 1) / 2;
    static_assert(kRow1Threads == 2 * kWordExperts && kExperts == kWordExperts && kHidden == kWordCols &&
                  kHidden == kRow1Hidden && kMostWordRows <= 8);
    int n, u = threadIdx.x % kThreads;
    float bias = 0.0f, norm[8], x[kEach][8];

    /// Above pdl_wait().
    __device__ __forceinline__ Rows8Words(const Rows8Args& a, const float* weights) : n(a.n) {
        row1_weights8(weights, u, norm);
        if (a.route.bias != nullptr) bias = __uint_as_float(load_weight32(a.route.bias + u));
    }
    __device__ __forceinline__ int row(int i) const { return threadIdx.x / kThreads + 2 * i; }

    /// keys[n][kExperts], in shared memory; logits of row b by CTA b.
    __device__ __forceinline__ void leave_keys(const Rows8Args& a, float eps, uint32_t* keys) const {
        ReadWords<RouterWords::kSetsOfMany> read[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            if (row(i) < n) read[i].ask(*a.words, row(i), u);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (row(i) >= n) break;
            const float logit = logit_of(read[i].word(), read[i].scale(eps)), s = route_score(a.route.softmax, logit);
            keys[row(i) * kExperts + u] = route_key(a.route.bias == nullptr ? s : __fadd_rn(s, bias));
            if (static_cast<int>(blockIdx.x) == row(i)) a.logits[row(i) * kExperts + u] = logit;
        }
    }
    /// The rows as they are; rows [n, kHidden].
    __device__ __forceinline__ void ask(const float* rows) {
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            if (2 * i < n) row1_load8(rows + min(row(i), n - 1) * kHidden, u, x[i]);
    }
    /// Normalises and quantises them, to `staged`, `stride` bytes apart; partial: n * kWarps floats of shared memory.
    template <bool Halves>
    __device__ __forceinline__ void stage(float eps, float* partial, char* staged, int stride) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (row(i) >= n) break;
            const float sum = warp_sum(add_squares(x[i], 0.0f));
            if (u % 32 == 0) partial[row(i) * kWarps + u / 32] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (row(i) >= n) break;
            const float scale = row_scale(partial + row(i) * kWarps, kHidden, eps);
#pragma unroll
            for (int k = 0; k < 8; ++k) x[i][k] = rms_value(x[i][k], scale, norm[k]);
            rows8_put8<kHidden / 32, Halves>(staged + row(i) * stride, u, x[i]);
        }
        __syncthreads();
    }
    /// Behind stage(), by all of a CTA: where the shared expert counts in part, the logits of its share. Overwrites
    /// what rows8_list() needs.
    __device__ __forceinline__ void leave_share(const RouteArgs& a, Rows8Groups& g) const {
        const int half = threadIdx.x / kThreads;
        auto* const chains = reinterpret_cast<float*>(g.mask) + half * kShareChains;
        auto* const sums = reinterpret_cast<float*>(g.ids) + half * kShareSums;
        static_assert(sizeof g.mask >= 8 * kShareChains && sizeof g.ids >= 8 * kShareSums);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (2 * i >= n) break;
            const float logit = share_logit(a.share, x[i], u, chains, sums, [] { __syncthreads(); });
            if (u == 0 && row(i) < n) a.share_logits[row(i)] = logit;
        }
    }
};

}  // namespace riptide::ops::cuda::decode::few
