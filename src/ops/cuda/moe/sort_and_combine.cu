// The small kernels around the expert products of the prefill family.
//
// For n rows of d = 2048, top 8 of 256 experts, 16384 rows on an H200 (floor at 4.5 TB/s):
//   sort     0.5 MB in, 0.5 MB out three times: launches, about 10 us; up to 8192 entries in one block, 3 to 4 us
//            expected (copy, count, plan and place took 21 us for 512 rows, 2026-11-21: latency of four launches)
//   spread   2 bytes * n d (1 + top_k) = 0.6 GB: 0.13 ms
//   combine  2 bytes * n d (top_k + 1) + 4 bytes * 3 n d = 1.0 GB: 0.22 ms
#include "base/error.h"
#include "ops/cuda/linear/gemm/gemm.cuh"
#include "ops/cuda/moe/moe_prefill.h"
#include "quant/decode.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

// ---- sorting -----------------------------------------------------------------------------------

constexpr int kMostExperts = 1024, kChunk = 2048, kSortThreads = 256, kSortWarps = kSortThreads / 32;

/// counts[chunk][e]: entries of expert e among kChunk.
__global__ void __launch_bounds__(kSortThreads)
    moe_count_kernel(const int32_t* chosen, int entries, int experts, int32_t* counts) {
    pdl_trigger();
    __shared__ int32_t bins[kMostExperts];
    for (int e = static_cast<int>(threadIdx.x); e < experts; e += kSortThreads) bins[e] = 0;
    __syncthreads();
    pdl_wait();
    const int begin = static_cast<int>(blockIdx.x) * kChunk, end = min(entries, begin + kChunk);
    for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kSortThreads) atomicAdd(&bins[chosen[i]], 1);
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < experts; e += kSortThreads)
        counts[int64_t{blockIdx.x} * experts + e] = bins[e];
}

/// Inclusive sum over the block's 1024 threads.
__device__ __forceinline__ int block_scan(int v, int32_t* warps) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(~0u, v, step);
        if (lane >= step) v += below;
    }
    __syncthreads();  // the scan before is done with `warps`
    if (lane == 31) warps[warp] = v;
    __syncthreads();
    int before = 0;
    for (int i = 0; i < warp; ++i) before += warps[i];
    return v + before;
}

/// What a sort gives (GroupPlan), and what it is told.
struct PlanArgs {
    int experts, entries, shared_rows;
    int32_t *row_first, *tile_first, *tile_expert, *slot_of;
};

/// By 1024 threads: thread e has the entries of expert e, 0 behind the last. Writes the plan; the first slot of expert
/// e.
__device__ __forceinline__ int make_plan(int total, const PlanArgs& a) {
    __shared__ int32_t warps[32], tiles_end[kMostExperts];
    const int e = static_cast<int>(threadIdx.x), tiles = ceil_div(total, kTileM);
    const int rows_through = block_scan(total, warps), tiles_through = block_scan(tiles, warps);
    tiles_end[e] = tiles_through;
    if (e < a.experts) {
        a.row_first[e] = rows_through - total;
        a.tile_first[e] = tiles_through - tiles;
    }
    __syncthreads();
    const int expert_tiles = tiles_end[kMostExperts - 1], all_tiles = expert_tiles + ceil_div(a.shared_rows, kTileM);
    if (e == 0) {
        a.row_first[a.experts] = a.entries;
        a.row_first[a.experts + 1] = a.entries + a.shared_rows;
        a.tile_first[a.experts] = expert_tiles;
        a.tile_first[a.experts + 1] = all_tiles;
    }
    for (int t = e; t < all_tiles; t += kMostExperts) {
        int low = 0, high = a.experts;  // the first expert whose tiles end behind t; `experts` if none
        while (low < high) {
            const int middle = (low + high) / 2;
            if (tiles_end[middle] > t) high = middle;
            else low = middle + 1;
        }
        a.tile_expert[t] = low;
    }
    return rows_through - total;
}

/// One block, thread e for expert e: counts[chunk][e] becomes the number of its entries in earlier chunks; then the
/// plan.
__global__ void __launch_bounds__(kMostExperts) moe_plan_kernel(int32_t* counts, int chunks, const PlanArgs a) {
    pdl_trigger();
    pdl_wait();
    const int e = static_cast<int>(threadIdx.x);
    int total = 0;
    if (e < a.experts) {
        constexpr int kAtOnce = 8;
        for (int first = 0; first < chunks; first += kAtOnce) {
            int32_t some[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                some[i] = first + i < chunks ? counts[int64_t{first + i} * a.experts + e] : 0;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (first + i >= chunks) break;
                counts[int64_t{first + i} * a.experts + e] = total;
                total += some[i];
            }
        }
    }
    make_plan(total, a);
}

/// Gives 32 entries (e: of this lane, -1 if none) places behind those that next[e] counts: the place of this one.
__device__ __forceinline__ int take_places(int e, int32_t* next) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    // Those of one expert form a group; its first lane speaks for it.
    const uint32_t same = __match_any_sync(~0u, e);
    const int rank = __popc(same & ((1u << lane) - 1)), base = e >= 0 ? next[e] : 0;
    __syncwarp();
    if (e >= 0 && rank == 0) next[e] = base + __popc(same);
    __syncwarp();
    return base + rank;
}

// Few entries: all of the sort in one block.
constexpr int kFewEntries = 8192, kFewExperts = 256, kFewWarps = kMostExperts / 32;

__global__ void __launch_bounds__(kMostExperts) moe_sort_few_kernel(const int32_t* chosen, const PlanArgs a) {
    pdl_trigger();
    constexpr int kRounds = kFewEntries / kMostExperts;
    __shared__ int32_t next[kFewWarps][kFewExperts], start[kFewExperts];
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
    for (int i = thread; i < kFewWarps * kFewExperts; i += kMostExperts) next[0][i] = 0;
    __syncthreads();
    pdl_wait();
    // Warp w has `rounds` times 32 neighbouring entries.
    const int rounds = (a.entries + kMostExperts - 1) / kMostExperts, first = warp * rounds * 32 + thread % 32;
    int expert[kRounds], place[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
        const int i = first + 32 * r;
        expert[r] = r < rounds && i < a.entries ? chosen[i] : -1;
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r)
        if (r < rounds) place[r] = take_places(expert[r], next[warp]);
    __syncthreads();
    int total = 0;
    if (thread < a.experts) {
#pragma unroll 8
        for (int w = 0; w < kFewWarps; ++w) {
            const int count = next[w][thread];
            next[w][thread] = total;
            total += count;
        }
    }
    const int begin = make_plan(total, a);
    if (thread < a.experts) start[thread] = begin;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRounds; ++r)
        if (expert[r] >= 0) a.slot_of[first + 32 * r] = start[expert[r]] + next[warp][expert[r]] + place[r];
}

/// Each warp places a stretch of kChunk / 8 entries of its chunk, 32 at a time in order.
__global__ void __launch_bounds__(kSortThreads)
    moe_place_kernel(const int32_t* chosen, const int32_t* before, const PlanArgs a) {
    pdl_trigger();
    extern __shared__ int32_t next[];  // [warp][expert]
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, experts = a.experts;
    for (int i = thread; i < kSortWarps * experts; i += kSortThreads) next[i] = 0;
    __syncthreads();
    pdl_wait();
    constexpr int kStretch = kChunk / kSortWarps, kRounds = kStretch / 32;
    const int begin = static_cast<int>(blockIdx.x) * kChunk + warp * kStretch + lane;
    int32_t* mine = next + warp * experts;
    int expert[kRounds], place[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
        const int i = begin + 32 * r;
        expert[r] = i < a.entries ? chosen[i] : -1;
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) place[r] = take_places(expert[r], mine);
    __syncthreads();
    for (int e = thread; e < experts; e += kSortThreads) {
        int sum = a.row_first[e] + before[int64_t{blockIdx.x} * experts + e];
        for (int w = 0; w < kSortWarps; ++w) {
            const int count = next[w * experts + e];
            next[w * experts + e] = sum;
            sum += count;
        }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRounds; ++r)
        if (expert[r] >= 0) a.slot_of[begin + 32 * r] = mine[expert[r]] + place[r];
}

// ---- moving rows -------------------------------------------------------------------------------

/// One block for a row; sixteen bytes a thread.
__global__ void __launch_bounds__(256)
    moe_spread_kernel(const uint16_t* from, const int32_t* slot_of, int top_k, int k, uint16_t* to) {
    pdl_trigger();
    pdl_wait();
    const int64_t row = blockIdx.x;
    for (int c = 8 * static_cast<int>(threadIdx.x); c < k; c += 8 * 256) {
        const uint4 v = *reinterpret_cast<const uint4*>(from + row * k + c);
        for (int i = 0; i < top_k; ++i) *reinterpret_cast<uint4*>(to + int64_t{slot_of[row * top_k + i]} * k + c) = v;
    }
}

/// kEach values, which are aligned if they are several.
template <int kEach>
__device__ __forceinline__ void load_values(const float* p, float (&v)[kEach]) {
    if constexpr (kEach == 1) v[0] = p[0];
    else
#pragma unroll
        for (int j = 0; j < kEach; j += 4) *reinterpret_cast<float4*>(v + j) = *reinterpret_cast<const float4*>(p + j);
}
template <int kEach>
__device__ __forceinline__ void store_values(float* p, const float (&v)[kEach]) {
    if constexpr (kEach == 1) p[0] = v[0];
    else
#pragma unroll
        for (int j = 0; j < kEach; j += 4) *reinterpret_cast<float4*>(p + j) = *reinterpret_cast<const float4*>(v + j);
}
/// The same in bf16, as they lie.
template <int kEach>
struct Bf16Values {
    uint32_t w[(kEach + 1) / 2] = {};

    __device__ __forceinline__ void load(const uint16_t* p) {
        if constexpr (kEach == 1) w[0] = p[0];
        else {
            static_assert(kEach == 8);
            const uint4 v = *reinterpret_cast<const uint4*>(p);
            w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
        }
    }
    __device__ __forceinline__ float operator[](int j) const {
        return __uint_as_float(j % 2 == 0 ? w[j / 2] << 16 : w[j / 2] & 0xFFFF0000u);
    }
};

/// One block for a row; a thread works on eight columns or one. Loads of eight slots are under way at a time.
template <int kEach>
__global__ void __launch_bounds__(256, 3)
    moe_combine_kernel(const ExpertResults results, const int32_t* slot_of, const float* weights, int top_k, int d,
                       float* y, float* x) {
    constexpr int kAtOnce = 8;
    pdl_trigger();
    pdl_wait();
    const int64_t row = blockIdx.x;
    slot_of += row * top_k;
    weights += row * top_k;
    for (int c = kEach * static_cast<int>(threadIdx.x); c < d; c += kEach * 256) {
        alignas(16) float sum[kEach] = {}, old[kEach] = {};
        Bf16Values<kEach> v[kAtOnce], shared;
        if (results.shared != nullptr) shared.load(results.shared + row * results.stride + c);
        if (x != nullptr) load_values(x + row * d + c, old);
        for (int first = 0; first < top_k; first += kAtOnce) {
            float weight[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (first + i >= top_k) break;
                weight[i] = weights[first + i];
                v[i].load(results.slots + int64_t{slot_of[first + i]} * results.stride + c);
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (first + i >= top_k) break;
#pragma unroll
                for (int j = 0; j < kEach; ++j) {
                    const float term = __fmul_rn(weight[i], v[i][j]);
                    sum[j] = first + i == 0 ? term : __fadd_rn(sum[j], term);
                }
            }
        }
        const float share = results.share == nullptr ? 1.0f : sigmoid(results.share[row]);
        if (results.shared != nullptr) {
#pragma unroll
            for (int j = 0; j < kEach; ++j) sum[j] = __fadd_rn(sum[j], __fmul_rn(shared[j], share));
        } else if (results.shared_f32 != nullptr) {
            alignas(16) float other[kEach];
            load_values(results.shared_f32 + row * d + c, other);
#pragma unroll
            for (int j = 0; j < kEach; ++j) sum[j] = __fadd_rn(sum[j], __fmul_rn(other[j], share));
        }
        store_values(y + row * d + c, sum);
        if (x == nullptr) continue;
#pragma unroll
        for (int j = 0; j < kEach; ++j) old[j] = __fadd_rn(old[j], sum[j]);
        store_values(x + row * d + c, old);
    }
}

/// A warp a row; lane l has sixteens l, l + 32, ... of its columns.
__global__ void __launch_bounds__(256)
    moe_share_kernel(const __grid_constant__ Weight w, const float* h, int n, float* logits) {
    pdl_trigger();
    pdl_wait();
    const int row = static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    if (row >= n) return;
    h += row * w.cols;
    float sum = 0.0f;
    for (int c = 16 * lane; c < w.cols; c += 16 * 32) {
        float v[16];
        decode16(w, 0, c, v);
#pragma unroll
        for (int j = 0; j < 16; j += 4) {
            const float4 x = *reinterpret_cast<const float4*>(h + c + j);
            sum = __fmaf_rn(v[j], x.x, sum), sum = __fmaf_rn(v[j + 1], x.y, sum);
            sum = __fmaf_rn(v[j + 2], x.z, sum), sum = __fmaf_rn(v[j + 3], x.w, sum);
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) logits[row] = sum;
}

int32_t* alloc_i32(Context& ctx, int64_t n) { return static_cast<int32_t*>(ctx.arena->allocate(4 * n)); }

}  // namespace

SortedRouting sort_routing(Context& ctx, const Routing& routing, int64_t experts, bool shared) {
    const int64_t n = routing.experts.rows(), entries = n * routing.top_k, chunks = (entries + kChunk - 1) / kChunk;
    RT_CHECK(experts <= kMostExperts, "{} experts: at most {} on a GPU", experts, kMostExperts);
    const int64_t tiles = entries / kTileM + experts + (shared ? n / kTileM + 1 : 0);  // at most
    RT_CHECK(entries + n <= INT32_MAX, "a step of {} rows is too long", n);
    int32_t* row_first = alloc_i32(ctx, experts + 2);
    int32_t* tile_first = alloc_i32(ctx, experts + 2);
    int32_t* tile_expert = alloc_i32(ctx, tiles);
    int32_t* slot_of = alloc_i32(ctx, entries);
    const auto* chosen = static_cast<const int32_t*>(routing.experts.data);
    const auto all = static_cast<int>(entries), e = static_cast<int>(experts);
    const PlanArgs plan = {e, all, static_cast<int>(shared ? n : 0), row_first, tile_first, tile_expert, slot_of};
    const GroupPlan groups = {row_first, tile_first, tile_expert, e};
    if (entries <= kFewEntries && experts <= kFewExperts) {
        launch(*ctx.gpu, moe_sort_few_kernel, 1, kMostExperts, 0, chosen, plan);
        return {groups, slot_of, experts};
    }
    int32_t* counts = alloc_i32(ctx, chunks * experts);
    const auto blocks = static_cast<unsigned>(chunks);
    launch(*ctx.gpu, moe_count_kernel, blocks, kSortThreads, 0, chosen, all, e, counts);
    launch(*ctx.gpu, moe_plan_kernel, 1, kMostExperts, 0, counts, static_cast<int>(chunks), plan);
    launch(*ctx.gpu, moe_place_kernel, blocks, kSortThreads, static_cast<size_t>(kSortWarps * experts * 4), chosen,
           counts, plan);
    return {groups, slot_of, experts};
}

void spread_rows(const Gpu& gpu, const uint16_t* from, const int32_t* slot_of, int64_t n, int64_t top_k, int64_t k,
                 uint16_t* to) {
    launch(gpu, moe_spread_kernel, static_cast<unsigned>(n), 256, 0, from, slot_of, static_cast<int>(top_k),
           static_cast<int>(k), to);
}

void share_logits(const Gpu& gpu, const Weight& w, const float* h, int64_t n, float* logits) {
    RT_CHECK(w.rows == 1 && w.cols % 16 == 0,
             "a shared expert's gate of shape [{}, {}], expected one row, columns in 16s", w.rows, w.cols);
    launch(gpu, moe_share_kernel, static_cast<unsigned>((n + 7) / 8), 256, 0, w, h, static_cast<int>(n), logits);
}

void combine(const Gpu& gpu, const ExpertResults& results, const int32_t* slot_of, const Routing& routing,
             const Tensor& y, Tensor* x) {
    const auto d = static_cast<int>(y.shape[1]);
    float* const stream = x == nullptr ? nullptr : x->row(0);
    const bool vectors = d % 8 == 0 && reinterpret_cast<uintptr_t>(stream) % 16 == 0;
    launch(gpu, vectors ? moe_combine_kernel<8> : moe_combine_kernel<1>, static_cast<unsigned>(y.rows()), 256, 0,
           results, slot_of, routing.weights.row(0), static_cast<int>(routing.top_k), d, y.row(0), stream);
}

}  // namespace riptide::ops::cuda::prefill
