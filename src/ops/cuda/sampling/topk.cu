// The largest entries of rows: argmax, top_k, and the experts that a router chooses.
//
// Bytes: rows of m f32, read once: 401 KB for a vocabulary of 100352, from L2 (0.1 us at its speed). Floor on the H200:
// a launch and an exchange between CTAs, about 2 us. Design: an entry becomes a 64-bit key, ordered by value, then
// lower index, with NaN at the bottom; keys are all different and their maximum does not depend on the order in which
// it is taken, so any cut into CTAs gives the same result. argmax: up to 256 CTAs a row, the last to finish reduces
// their results. top_k: CTAs keep k keys of a piece, in rounds, until one piece is left. k <= 32: pieces of 1024 keys,
// of which each of four warps takes the largest k times. Else they sort pieces of 2048: two rounds for a vocabulary and
// k <= 40, three for k = 256. route_sigmoid: one warp for each row, its keys in registers, one maximum over the warp
// for each rank. Limited by latency: of the sort's 66 steps, of the exchange, of the launch.
#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/device/argmax.cuh"
#include "ops/cuda/device/row_math.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda {

namespace {

/// CTA (r, p): part p of row r. counters: one for each row, zero.
__global__ void __launch_bounds__(kArgmaxThreads) argmax_kernel(const float* x, int64_t m, int piece, bool strict,
                                                                uint64_t* partial, int32_t* counters, int32_t* out) {
    __shared__ ArgmaxShared shared;
    pdl_trigger();
    pdl_wait();
    const int64_t row = blockIdx.x;
    const int parts = static_cast<int>(gridDim.y);
    uint64_t key = 0;
    if (row_argmax(x + row * m, m, piece, strict, static_cast<int>(blockIdx.y), parts, partial + row * parts,
                   counters + row, shared, &key))
        out[row] = chosen(key, strict);
}

constexpr int kSortKeys = 2048;
constexpr int kSortThreads = 512;
constexpr int64_t kMostTopK = 256;

/// shared[0, size) in descending order; size a power of two.
__device__ void sort_descending(uint64_t* shared, int size) {
    for (int run = 2; run <= size; run *= 2)
        for (int step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int pair = static_cast<int>(threadIdx.x); pair < size / 2; pair += kSortThreads) {
                const int low = 2 * pair - pair % step, high = low + step;  // pair / step * 2 step + pair % step
                const bool descending = (low & run) == 0;
                const uint64_t a = shared[low], b = shared[high];
                if ((a < b) == descending) {
                    shared[low] = b;
                    shared[high] = a;
                }
            }
        }
    __syncthreads();
}

struct TopKRound {
    const float* x;  // [n, m]
    int64_t m;
    const uint64_t* in;  // [n, count] keys of an earlier round; nullptr: those of x
    int64_t count;
    int k;
    int size;       // keys that a CTA sorts, a power of two >= k
    uint64_t* out;  // [n, parts, k] keys; nullptr: the last round
    int32_t* indices;
    float* values;  // [n, k]
};

/// CTA (r, p): the k largest of keys [p * size, (p + 1) * size) of row r, in order.
__global__ void __launch_bounds__(kSortThreads) top_k_kernel(TopKRound round) {
    __shared__ uint64_t shared[kSortKeys];
    pdl_trigger();
    pdl_wait();
    const int64_t row = blockIdx.x, begin = int64_t{blockIdx.y} * round.size;
    for (int i = static_cast<int>(threadIdx.x); i < round.size; i += kSortThreads) {
        const int64_t at = begin + i;
        uint64_t key = 0;  // below every real one
        if (at < round.count)
            key = round.in != nullptr ? round.in[row * round.count + at]
                                      : order_key(round.x[row * round.m + at], static_cast<uint32_t>(at));
        shared[i] = key;
    }
    sort_descending(shared, round.size);
    for (int i = static_cast<int>(threadIdx.x); i < round.k; i += kSortThreads) {
        if (round.out != nullptr) {
            round.out[(row * gridDim.y + blockIdx.y) * round.k + i] = shared[i];
        } else {
            const int32_t index = index_of(shared[i]);
            round.indices[row * round.k + i] = index;
            round.values[row * round.k + i] = round.x[row * round.m + index];
        }
    }
}

/// The largest key of a warp.
__device__ __forceinline__ uint64_t warp_largest(uint64_t key) {
#if __CUDA_ARCH__ >= 800
    const uint32_t high = __reduce_max_sync(0xFFFFFFFFu, static_cast<uint32_t>(key >> 32));
    const uint32_t low =
        __reduce_max_sync(0xFFFFFFFFu, static_cast<uint32_t>(key >> 32) == high ? static_cast<uint32_t>(key) : 0u);
    return static_cast<uint64_t>(high) << 32 | low;
#else
    return warp_max(key);
#endif
}

/// The k <= 32 largest of a warp's keys, N in each lane: rank r in lane r.
template <int N>
__device__ __forceinline__ uint64_t warp_top(uint64_t (&keys)[N], int k) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int end = N - 1; end > 0; --end)  // each lane's own, descending
#pragma unroll
        for (int i = 0; i < end; ++i) {
            const uint64_t a = keys[i], b = keys[i + 1];
            keys[i] = max(a, b), keys[i + 1] = min(a, b);
        }
    uint64_t mine = 0;
#pragma unroll 1
    for (int rank = 0; rank < k; ++rank) {
        const uint64_t best = warp_largest(keys[0]);
        if (lane == rank) mine = best;
        if (keys[0] != best) continue;
#pragma unroll
        for (int i = 0; i + 1 < N; ++i) keys[i] = keys[i + 1];
        keys[N - 1] = 0;
    }
    return mine;
}

constexpr int kFewWarps = 4, kFewEach = 8, kFewKeys = 32 * kFewWarps * kFewEach, kFewMost = 32;

/// As top_k_kernel, for k <= kFewMost and size kFewKeys.
__global__ void __launch_bounds__(32 * kFewWarps) top_k_small_kernel(TopKRound round) {
    __shared__ uint64_t shared[kFewWarps * kFewMost];
    pdl_trigger();
    pdl_wait();
    const int64_t row = blockIdx.x;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    uint64_t keys[kFewEach];
#pragma unroll
    for (int i = 0; i < kFewEach; ++i) {
        const int64_t at = int64_t{blockIdx.y} * kFewKeys + 32 * (kFewEach * warp + i) + lane;
        keys[i] = at >= round.count     ? 0  // below every real one
                  : round.in != nullptr ? round.in[row * round.count + at]
                                        : order_key(round.x[row * round.m + at], static_cast<uint32_t>(at));
    }
    const uint64_t mine = warp_top(keys, round.k);
    shared[kFewMost * warp + lane] = lane < round.k ? mine : 0;
    __syncthreads();
    if (warp != 0) return;
    uint64_t rest[kFewWarps];
#pragma unroll
    for (int w = 0; w < kFewWarps; ++w) rest[w] = shared[kFewMost * w + lane];
    const uint64_t key = warp_top(rest, round.k);
    if (lane >= round.k) return;
    if (round.out != nullptr) {
        round.out[(row * gridDim.y + blockIdx.y) * round.k + lane] = key;
        return;
    }
    const int32_t index = index_of(key);
    round.indices[row * round.k + lane] = index;
    round.values[row * round.k + lane] = round.x[row * round.m + index];
}

struct RouteTask {
    const float* logits;  // [n, experts]
    const float* bias;    // [experts] or nullptr
    int rows, experts, top_k;
    float scale;
    bool normalize;
    bool softmax;     // else sigmoid
    int32_t* chosen;  // [n, top_k]
    float* weights;
};

constexpr int kMostExperts = 1024;
constexpr int kRouteRows = 4;  // of a CTA: a warp each

/// Lane l holds experts l, l + 32, ...
template <int kPerLane>
__global__ void __launch_bounds__(32 * kRouteRows) route_kernel(RouteTask task) {
    pdl_trigger();
    pdl_wait();
    const int row = static_cast<int>(blockIdx.x * kRouteRows + threadIdx.x / 32),
              lane = static_cast<int>(threadIdx.x % 32);
    if (row >= task.rows) return;
    const float* logits = task.logits + int64_t{row} * task.experts;
    uint64_t keys[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
        const int e = lane + 32 * i;
        keys[i] = 0;
        if (e >= task.experts) continue;
        const float s = task.softmax ? logits[e] : sigmoid(logits[e]);
        const float key = task.bias == nullptr ? s : __fadd_rn(s, task.bias[e]);
        keys[i] = order_key(key != key ? -INFINITY : key, static_cast<uint32_t>(e));
    }
    int chosen = 0;  // of rank `lane`
    for (int rank = 0; rank < task.top_k; ++rank) {
        uint64_t best = keys[0];
#pragma unroll
        for (int i = 1; i < kPerLane; ++i) best = max(best, keys[i]);
        best = warp_max(best);
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
            if (keys[i] == best) keys[i] = 0;
        if (lane == rank) chosen = index_of(best);
    }
    const float logit = logits[chosen], most = __shfl_sync(0xFFFFFFFFu, logit, 0);
    float weight = lane >= task.top_k ? 0.0f : task.softmax ? expf(__fsub_rn(logit, most)) : sigmoid(logit);
    float sum = 0.0f;
    for (int rank = 0; rank < task.top_k; ++rank) sum = __fadd_rn(sum, __shfl_sync(0xFFFFFFFFu, weight, rank));
    if (task.normalize) weight = __fdiv_rn(weight, sum);
    if (lane < task.top_k) {
        task.chosen[int64_t{row} * task.top_k + lane] = chosen;
        task.weights[int64_t{row} * task.top_k + lane] = __fmul_rn(weight, task.scale);
    }
}

}  // namespace

Tensor argmax(Context& ctx, const Tensor& x, bool strict) {
    const int64_t n = x.rows(), m = x.shape[1];
    Tensor y = ctx.alloc(DType::i32, {n});
    const ArenaScope scope(*ctx.arena);
    const ArgmaxGrid grid(ctx.gpu->info().sm_count, n, m);
    for (int64_t first = 0; first < n; first += Gpu::kCounters) {
        const int64_t rows = std::min<int64_t>(n - first, Gpu::kCounters);
        void* partial = grid.parts > 1 ? ctx.arena->allocate(rows * grid.parts * int64_t{sizeof(uint64_t)}) : nullptr;
        launch(*ctx.gpu, argmax_kernel, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(grid.parts)),
               kArgmaxThreads, 0, x.row(first), m, static_cast<int>(grid.piece), strict,
               static_cast<uint64_t*>(partial), ctx.gpu->counters(), y.row<int32_t>(first));
    }
    return y;
}

TopK top_k(Context& ctx, const Tensor& x, int64_t k) {
    RT_CHECK(k <= kMostTopK, "the {} largest entries were asked for, but GPU kernels find at most {}", k, kMostTopK);
    const int64_t n = x.rows();
    TopK result{k, ctx.alloc(DType::i32, {n, k}), ctx.alloc(DType::f32, {n, k})};
    if (n == 0) return result;
    const ArenaScope scope(*ctx.arena);
    TopKRound round{x.row(0),
                    x.shape[1],
                    nullptr,
                    x.shape[1],
                    static_cast<int>(k),
                    k <= kFewMost ? kFewKeys : kSortKeys,
                    nullptr,
                    result.indices.row<int32_t>(0),
                    result.values.row(0)};
    for (bool more = true; more;) {
        const bool few = k <= kFewMost;
        while (!few && round.size > 2 && round.size / 2 >= round.count && round.size / 2 >= k) round.size /= 2;
        const int64_t parts = (round.count + round.size - 1) / round.size;
        more = parts > 1;
        round.out =
            more ? static_cast<uint64_t*>(ctx.arena->allocate(n * parts * k * int64_t{sizeof(uint64_t)})) : nullptr;
        launch(*ctx.gpu, few ? top_k_small_kernel : top_k_kernel,
               dim3(static_cast<unsigned>(n), static_cast<unsigned>(parts)), few ? 32 * kFewWarps : kSortThreads, 0,
               round);
        round.in = round.out;
        round.count = parts * k;
    }
    return result;
}

void route(Context& ctx, const Tensor& logits, const Router& router, const Routing& to) {
    const int64_t n = logits.rows(), experts = logits.shape[1], top_k = to.top_k;
    RT_CHECK(experts <= kMostExperts && top_k <= 32, "{} of {} experts, but GPU kernels choose at most 32 of {}", top_k,
             experts, kMostExperts);
    if (n == 0) return;
    const RouteTask task{logits.row(0),
                         router.bias.empty() ? nullptr : router.bias.data(),
                         static_cast<int>(n),
                         static_cast<int>(experts),
                         static_cast<int>(top_k),
                         router.scale,
                         router.normalize,
                         router.softmax,
                         to.experts.row<int32_t>(0),
                         to.weights.row(0)};
    launch(*ctx.gpu, experts <= 256 ? route_kernel<8> : route_kernel<kMostExperts / 32>,
           static_cast<unsigned>((n + kRouteRows - 1) / kRouteRows), 32 * kRouteRows, 0, task);
}

Routing alloc_routing(Context& ctx, int64_t n, int64_t top_k) {
    return {top_k, ctx.alloc(DType::i32, {n, top_k}), ctx.alloc(DType::f32, {n, top_k})};
}

Routing route_sigmoid(Context& ctx, const Tensor& logits, std::span<const float> bias, int64_t top_k, float scale,
                      bool normalize) {
    const Routing routing = alloc_routing(ctx, logits.rows(), top_k);
    route(ctx, logits, {.bias = bias, .top_k = top_k, .scale = scale, .normalize = normalize}, routing);
    return routing;
}

Routing route_softmax(Context& ctx, const Tensor& logits, int64_t top_k) {
    const Routing routing = alloc_routing(ctx, logits.rows(), top_k);
    route(ctx, logits, {.top_k = top_k, .softmax = true}, routing);
    return routing;
}

}  // namespace riptide::ops::cuda
