// Which rows chose which experts: found by every CTA for itself, in shared memory. What experts_grouped_sm80.cu begins
// with.
#pragma once

#include "ops/cuda/device/int8_rows.cuh"
#include "ops/cuda/moe/route.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kExperts = 256, kGroupRows = 8;
constexpr int kCtaThreads = kThreads + 32;  // the last warp asks for weights
constexpr uint32_t kShared = 0xFFFF;        // the shared expert

struct GroupArgs {
    const int32_t* experts = nullptr;  // [n, top_k]
    const uint32_t* keys = nullptr;    // [n, route.experts], by which they are chosen here; null: they are known
    const float* logits = nullptr;     // with keys
    RouteArgs route;
    int32_t n = 0, top_k = 0, slots = 0;
    int32_t words = 0;   // of a mask of rows
    int32_t stages = 0;  // of the ring
};

/// Groups of up to eight rows of one expert, in shared memory.
struct Groups {
    uint32_t* mask;  // [words][kExperts]
    uint32_t* list;  // expert (or kShared) | number among the expert's groups << 16
    int32_t* costs;  // of a stage of each of the groups before; one more than groups
    uint8_t* ids;    // [n, top_k]

    static RT_HD int most(int n, int top_k) {
        const int chosen = n * top_k, spread = kExperts + chosen / kGroupRows;
        return (n + kGroupRows - 1) / kGroupRows + (chosen < spread ? chosen : spread);
    }
    static RT_HD int bytes(int n, int top_k) {
        return (n + 31) / 32 * kExperts * 4 + (8 * most(n, top_k) + 4 + n * top_k + 15) / 16 * 16;
    }
};

/// The rows of the group at hand.
struct Members {
    int32_t row[kGroupRows];
    int32_t place[kGroupRows];   // of its product among [n, slots], that of the lowest rank
    uint32_t slots[kGroupRows];  // bit k: rank k of the row (more than one if it chose an expert twice)
    float weight[kGroupRows];    // of the first of them; 1 for the shared expert
};

__device__ __forceinline__ Groups groups_at(char* memory, const GroupArgs& a) {
    Groups g;
    g.mask = reinterpret_cast<uint32_t*>(memory);
    g.list = g.mask + a.words * kExperts;
    g.costs = reinterpret_cast<int32_t*>(g.list + Groups::most(a.n, a.top_k));
    g.ids = reinterpret_cast<uint8_t*>(g.costs + Groups::most(a.n, a.top_k) + 1);
    return g;
}

/// How long a stage of a group takes, roughly.
__device__ __forceinline__ int stage_cost(int rows) { return rows == 1 ? 4 : rows == 2 ? 5 : 7; }

/// No rows yet. By the whole CTA, which synchronises before build_groups().
__device__ __forceinline__ void clear_groups(const GroupArgs& a, const Groups& g) {
#pragma unroll 1
    for (int i = threadIdx.x; i < a.words * kExperts; i += kCtaThreads) g.mask[i] = 0;
}

/// Keys of a row in device memory.
struct FarKeys {
    const uint32_t* keys;

    __device__ __forceinline__ uint32_t operator()(int e) const {
        return static_cast<uint32_t>(load_shared_i32(reinterpret_cast<const int32_t*>(keys) + e));
    }
};

/// The experts that route_row() (route.cuh) finds, by one warp: that of rank k in lane k. key_of(e): of up to 256
/// experts.
template <class KeyOf>
__device__ __forceinline__ int choose_by_warp(const KeyOf& key_of, int experts, int top_k, int lane) {
    int mine = 0;
#if __CUDA_ARCH__ >= 800
    constexpr int kEach = kExperts / 32;
    uint32_t key[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        key[i] = key_of(min(32 * i + lane, experts - 1));
        if (32 * i + lane >= experts) key[i] = 0;  // no expert
    }
#pragma unroll 1
    for (int rank = 0; rank < top_k; ++rank) {
        uint32_t most = key[0], first = ~0u;
#pragma unroll
        for (int i = 1; i < kEach; ++i) most = max(most, key[i]);
        most = __reduce_max_sync(~0u, most);
#pragma unroll
        for (int i = kEach - 1; i >= 0; --i)
            if (key[i] == most) first = 32 * i + lane;
        first = __reduce_min_sync(~0u, first);  // of those alike, the first
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            if (32 * i + lane == first) key[i] = 0;
        if (lane == rank) mine = static_cast<int>(first);
    }
#endif
    return mine;
}

/// Experts and weights of four rows, from `first` on, to device memory, as route_row() leaves them, by one warp behind
/// build_groups().
__device__ __forceinline__ void write_routing(const GroupArgs& a, const Groups& g, int first, int lane) {
    const int row = first + lane / 8, k = lane % 8;
    const bool mine = row < a.n && k < a.top_k;
    const int at = mine ? row * a.top_k + k : first * a.top_k, e = g.ids[at];
    const int64_t of = static_cast<int64_t>(mine ? row : first) * a.route.experts;
    const float weight = route_weights<8>(a.route, route_score(a.route.softmax, load_shared_f32(a.logits + of + e)));
    if (!mine) return;
    a.route.chosen[at] = e;
    a.route.weights[at] = weight;
}

/// How many groups there are; the whole CTA, all threads of which see the lists afterwards. totals: kWarps integers.
__device__ __forceinline__ int build_groups(const GroupArgs& a, const Groups& g, int* totals) {
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const bool works = thread < kThreads;
    const auto choose = [&](int i, int e) {
        const int row = i / a.top_k;
        g.ids[i] = static_cast<uint8_t>(e);
        atomicOr(&g.mask[row / 32 * kExperts + e], 1u << (row % 32));
    };
    if (a.keys != nullptr) {
#pragma unroll 1
        for (int row = warp; row < a.n; row += kCtaThreads / 32) {
            const int e = choose_by_warp(FarKeys{a.keys + static_cast<int64_t>(row) * a.route.experts}, a.route.experts,
                                         a.top_k, lane);
            if (lane < a.top_k) choose(row * a.top_k + lane, e);
        }
    } else {
#pragma unroll 1
        for (int i = thread; i < a.n * a.top_k; i += kCtaThreads) choose(i, load_shared_i32(a.experts + i));
    }
    __syncthreads();
    int rows = 0;
#pragma unroll 1
    for (int w = 0; works && w < a.words; ++w) rows += __popc(g.mask[w * kExperts + thread]);
    const int full = rows / kGroupRows, rest = rows % kGroupRows, mine = full + (rest > 0 ? 1 : 0);
    const int cost = full * stage_cost(kGroupRows) + (rest > 0 ? stage_cost(rest) : 0);
    int upto = mine | cost << 12;  // and of those before
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const int other = __shfl_up_sync(~0u, upto, o);
        if (lane >= o) upto += other;
    }
    if (works && lane == 31) totals[warp] = upto;
    __syncthreads();
    const int shared = a.slots > a.top_k ? (a.n + kGroupRows - 1) / kGroupRows : 0;
    const int last_shared = a.n - (shared - 1) * kGroupRows;
    int all = shared == 0 ? 0 : shared | ((shared - 1) * stage_cost(kGroupRows) + stage_cost(last_shared)) << 12;
    int before = all;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
        if (w < warp) before += totals[w];
        all += totals[w];
    }
    before += upto - (mine | cost << 12);
#pragma unroll 1
    for (int c = 0; works && c < mine; ++c) {
        g.list[(before & 0xFFF) + c] = static_cast<uint32_t>(thread | c << 16);
        g.costs[(before & 0xFFF) + c] = (before >> 12) + c * stage_cost(kGroupRows);
    }
    if (thread < shared) {
        g.list[thread] = kShared | static_cast<uint32_t>(thread) << 16;
        g.costs[thread] = thread * stage_cost(kGroupRows);
    }
    if (thread == 0) g.costs[all & 0xFFF] = all >> 12;
    __syncthreads();
    return all & 0xFFF;
}

__device__ __forceinline__ int cut(int units, int part, int parts) {
    return static_cast<int>(static_cast<int64_t>(units) * part / parts);
}

/// The first stage, among those of all groups (`each` of every group), of part `part` of `parts` that cost the same.
__device__ __forceinline__ int first_stage(const Groups& g, int groups, int each, int part, int parts) {
    const int cost = cut(g.costs[groups] * each, part, parts);
    int low = 0, high = groups;  // the last group that begins at or before it
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (g.costs[middle] * each <= cost) low = middle;
        else high = middle;
    }
    const int one = g.costs[low + 1] - g.costs[low];
    return low * each + (cost - g.costs[low] * each + one - 1) / one;
}

/// The rows of a group; their number. Called by the warps that multiply, which synchronise before they read `m`.
/// weights: null if they are not wanted.
__device__ __forceinline__ int find_members(const GroupArgs& a, const Groups& g, uint32_t entry, const float* weights,
                                            Members& m) {
    const int first = static_cast<int>(entry >> 16) * kGroupRows, row = threadIdx.x;
    const uint32_t e = entry & 0xFFFFu;
    if (e == kShared) {
        const int count = min(kGroupRows, a.n - first);
        if (row < count) {
            m.row[row] = first + row;
            m.place[row] = (first + row) * a.slots + a.top_k;
            m.slots[row] = 1u << a.top_k;
            m.weight[row] = 1.0f;
        }
        return count;
    }
    int before = 0, all = 0;
    uint32_t word = 0;
#pragma unroll 1
    for (int w = 0; w < a.words; ++w) {
        const uint32_t bits = g.mask[w * kExperts + e];
        if (w < row / 32) before += __popc(bits);
        if (w == row / 32) word = bits;
        all += __popc(bits);
    }
    const int at = before + __popc(word & ((1u << (row % 32)) - 1)) - first;
    if ((word >> (row % 32) & 1u) != 0 && at >= 0 && at < kGroupRows) {
        uint32_t slots = 0;
#pragma unroll 1
        for (int k = 0; k < a.top_k; ++k)
            if (g.ids[row * a.top_k + k] == e) slots |= 1u << k;
        const int rank = __ffs(static_cast<int>(slots)) - 1;
        m.row[at] = row;
        m.place[at] = row * a.slots + rank;
        m.slots[at] = slots;
        if (weights != nullptr) m.weight[at] = weights[row * a.top_k + rank];
    }
    return min(kGroupRows, all - first);
}

}  // namespace

}  // namespace riptide::ops::cuda::decode
