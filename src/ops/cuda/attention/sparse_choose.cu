// Which key tiles a query tile of sparse attention reads: means of the keys of each tile, estimates, the choice.
//
// Work, for 131,072 tokens of 16 heads over 8 KV heads of 128 in one layer: means read all keys once for each chunk,
// 134 to 268 MB; estimates are 2 * 128 * 128 FLOPs for each pair of tiles, 0.28 TFLOP, and 128 exponentials a pair: 1
// ms at 300 TFLOP/s. Design: means are images like the keys that they stand for, 128 to a tile; a block takes a query
// tile of one head as prefill_sm80.cu does, 64 means at a time, each step with a largest score of its own, so
// that one pass is enough: the choice brings the steps to the largest of all. Then a warp for each query tile and head:
// the mass at the border of the budget is found by halving an interval of bit patterns, 31 looks at the masses.
// H200, 2026-11-22, 8 chunks of 16,384 rows, one layer: means 0.35 ms, estimates 1.5, choice 0.3, beside 15 of
// attention over 70 tiles each.
#include "base/error.h"
#include "ops/cuda/attention/prefill_sm80.cuh"
#include "ops/cuda/attention/sparse_choose.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

// ---- means ----------------------------------------------------------------------------------------------------------

template <class T>
__device__ __forceinline__ T narrow(float x) {
    if constexpr (std::is_same_v<T, __half>)
        return __float2half_rn(x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x);
    else return __float2bfloat16_rn(x);
}

/// Keys of the plan's only sequence; those behind the last are zero in the scratch.
__device__ __forceinline__ int count_keys(const Plan& plan) {
    return plan.batch.committed[0] + plan.batch.row_begin[1];
}

/// Grid: (key tiles, KV heads). A thread adds up eight columns of every eighth or sixteenth key.
template <class T, int kDim>
__global__ void __launch_bounds__(128) sparse_means_kernel(const __grid_constant__ ChooseArgs args) {
    pdl_trigger();
    pdl_wait();
    constexpr int kColumns = kDim / 8, kGroups = 128 / kColumns;
    __shared__ float sums[kGroups][kDim];
    const int tile = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
    const int keys = min(kTile, count_keys(args.attend.plan) - tile * kTile);
    if (keys <= 0) return;
    const int column = static_cast<int>(threadIdx.x) % kColumns, group = static_cast<int>(threadIdx.x) / kColumns;
    const T* const image = static_cast<const T*>(args.attend.scratch) +
                           (int64_t{kv_head} * args.attend.plan.key_tiles + tile) * 2 * kTile * kDim;
    float sum[8] = {};
    for (int key = group; key < keys; key += kGroups) {
        const uint4 eight = *reinterpret_cast<const uint4*>(image + image_offset(key, column * 8));
        const T* const x = reinterpret_cast<const T*>(&eight);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] = __fadd_rn(sum[i], static_cast<float>(x[i]));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[group][column * 8 + i] = sum[i];
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < kDim; e += 128) {
        float total = 0.0f;
        for (int g = 0; g < kGroups; ++g) total = __fadd_rn(total, sums[g][e]);
        T* const to =
            static_cast<T*>(args.means) + (int64_t{kv_head} * args.mean_tiles() + tile / kTile) * kTile * kDim;
        to[image_offset(tile % kTile, e)] = narrow<T>(__fdiv_rn(total, static_cast<float>(keys)));
    }
}

/// f32 [kv head][key tile][d], from plain tiles. Grid: (key tiles, KV heads).
__global__ void __launch_bounds__(kMostDim) sparse_means_plain_kernel(const __grid_constant__ ChooseArgs args) {
    pdl_trigger();
    pdl_wait();
    const int tile = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y), d = args.attend.head_dim;
    const int keys = min(kTile, count_keys(args.attend.plan) - tile * kTile), e = static_cast<int>(threadIdx.x);
    if (keys <= 0 || e >= d) return;
    const int64_t at = int64_t{kv_head} * args.attend.plan.key_tiles + tile;
    const float* const key = static_cast<const float*>(args.attend.scratch) + at * 2 * kTile * d;
    float total = 0.0f;
    for (int j = 0; j < keys; ++j) total = __fadd_rn(total, key[int64_t{j} * d + e]);
    static_cast<float*>(args.means)[at * d + e] = __fdiv_rn(total, static_cast<float>(keys));
}

// ---- estimates ------------------------------------------------------------------------------------------------------

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

/// Of scores s of 16 rows and 64 tiles: each lane's columns' sums of 2^(s - base) over the rows that exist.
__device__ __forceinline__ void add_rows(const float (&s)[kStep / 2], float scale, float base, int rows, float* to) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kStep / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float sum = 0.0f;
#pragma unroll
            for (int h = 0; h < 2; ++h)
                if (lane / 4 + 8 * h < rows)
                    sum = __fadd_rn(sum, exp2_fast(__fmaf_rn(s[4 * i + 2 * h + e], scale, -base)));
#pragma unroll
            for (int mask = 4; mask < 32; mask *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, mask));
            if (lane / 4 == 0) to[8 * i + lane % 4 * 2 + e] = sum;
        }
}

/// The largest score of a warp's rows that exist with the first `columns` of 64 tiles.
__device__ __forceinline__ float largest_of(const float (&s)[kStep / 2], float scale, int rows, int columns) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kStep / 8; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (lane / 4 + e / 2 * 8 < rows && 8 * i + lane % 4 * 2 + e % 2 < columns)
                largest = fmaxf(largest, s[4 * i + e]);
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
    return __fmul_rn(largest, scale);
}

template <class T, int kDim>
__device__ __forceinline__ void estimate(const ChooseArgs& args, const QueryTile& tile, uint32_t memory) {
    __shared__ float largest[8], sums[8][kStep];
    constexpr uint32_t kBytes = static_cast<uint32_t>(kStep * kDim * 2);
    constexpr int64_t kImage = int64_t{kTile} * kDim * 2;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32),
              m = tile.end_tile - 1;
    const int rows = tile.rows - warp * 16, steps = m / kStep + 1,
              kv_head = tile.head / (args.attend.heads / args.attend.kv_heads);
    const float scale = __fmul_rn(args.attend.scale, 1.44269504f);
    const char* const means = static_cast<const char*>(args.means) + int64_t{kv_head} * args.mean_tiles() * kImage;
    const int64_t item = args.item(tile);
    const auto copy = [&](int i) {
        copy_keys<kDim>(memory + static_cast<uint32_t>(i % 2) * kBytes, means + i / 2 * kImage, i % 2 * kStep);
        copies_commit();
    };
    uint32_t q[kDim / 4];
    float s[kStep / 2];
    copy(0);
    load_queries<kDim>(q, args.attend, tile.head, tile.row + warp * 16 + lane / 4);
    for (int i = 0; i < steps; ++i) {
        if (i + 1 < steps) {
            copy(i + 1);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        scores<T, kDim>(s, q, memory + static_cast<uint32_t>(i % 2) * kBytes, lane);
        const float mine = largest_of(s, scale, rows, m + 1 - i * kStep);
        if (lane == 0) largest[warp] = mine;
        __syncthreads();
        float base = largest[0];
#pragma unroll
        for (int w = 1; w < 8; ++w) base = fmaxf(base, largest[w]);
        add_rows(s, scale, base == -INFINITY ? 0.0f : base, rows, sums[warp]);
        __syncthreads();
        const int n = static_cast<int>(threadIdx.x);
        if (n < kStep && i * kStep + n <= m) {
            float sum = sums[0][n];
#pragma unroll
            for (int w = 1; w < 8; ++w) sum = __fadd_rn(sum, sums[w][n]);
            args.mass[item * args.mass_stride() + i * kStep + n] = sum;
        }
        if (n == 0) args.bases[item * args.steps() + i] = base;
    }
}

#endif

template <class T, int kDim>
__global__ void __launch_bounds__(kStepThreads) sparse_estimate_kernel(const __grid_constant__ ChooseArgs args) {
    pdl_trigger();
    pdl_wait();
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    extern __shared__ uint4 memory[];
    const QueryTile tile(args.attend, static_cast<int>(blockIdx.x), args.attend.plan.query_tiles);
    if (tile.rows == 0) return;
    estimate<T, kDim>(args, tile, static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
#endif
}

/// The same in f32 from plain tiles: right, not fast. A step is one mean at a time, a thread a row.
__global__ void __launch_bounds__(kTile) sparse_estimate_plain_kernel(const __grid_constant__ ChooseArgs args) {
    pdl_trigger();
    pdl_wait();
    __shared__ float parts[kTile / 32], scores_of_step[kTile][kStep + 1];
    const QueryTile tile(args.attend, static_cast<int>(blockIdx.x), args.attend.plan.query_tiles);
    if (tile.rows == 0) return;
    const int row = static_cast<int>(threadIdx.x), d = args.attend.head_dim, m = tile.end_tile - 1;
    const int kv_head = tile.head / (args.attend.heads / args.attend.kv_heads);
    const float scale = __fmul_rn(args.attend.scale, 1.44269504f);
    const float* const means =
        static_cast<const float*>(args.means) + int64_t{kv_head} * args.attend.plan.key_tiles * d;
    const float* const q = static_cast<const float*>(args.attend.q) +
                           (int64_t{tile.row + min(row, tile.rows - 1)} * args.attend.heads + tile.head) * d;
    const int64_t item = args.item(tile);
    for (int i = 0; i <= m / kStep; ++i) {
        const int count = min(kStep, m + 1 - i * kStep);
        float mine = -INFINITY;
        for (int n = 0; n < count; ++n) {
            const float* const mean = means + int64_t{i * kStep + n} * d;
            float dot = 0.0f;
            for (int e = 0; e < d; ++e) dot = __fmaf_rn(q[e], mean[e], dot);
            scores_of_step[row][n] = __fmul_rn(dot, scale);
            if (row < tile.rows) mine = fmaxf(mine, scores_of_step[row][n]);
        }
        for (int mask = 16; mask > 0; mask /= 2) mine = fmaxf(mine, __shfl_xor_sync(~0u, mine, mask));
        if (row % 32 == 0) parts[row / 32] = mine;
        __syncthreads();
        const float base = fmaxf(fmaxf(parts[0], parts[1]), fmaxf(parts[2], parts[3]));
        if (row < count) {  // now a thread is a mean
            float sum = 0.0f;
            for (int j = 0; j < tile.rows; ++j)
                sum = __fadd_rn(sum, exp2_fast(__fsub_rn(scores_of_step[j][row], base == -INFINITY ? 0.0f : base)));
            args.mass[item * args.mass_stride() + i * kStep + row] = sum;
        }
        if (row == 0) args.bases[item * args.steps() + i] = base;
        __syncthreads();
    }
}

// ---- the choice -----------------------------------------------------------------------------------------------------

/// The masses of one query tile and head, by a warp.
struct Masses {
    float* mass;
    int m;           // the query tile's own key tile: masses 0 .. m
    int first, end;  // tiles that are not read anyhow: [first, end)

    /// Brings all steps to one base; returns the largest.
    __device__ __forceinline__ float to_one_base(const float* bases) const {
        const int lane = static_cast<int>(threadIdx.x % 32);
        float base = -INFINITY, largest = 0.0f;
        for (int i = lane; i <= m / kStep; i += 32) base = fmaxf(base, bases[i]);
        for (int mask = 16; mask > 0; mask /= 2) base = fmaxf(base, __shfl_xor_sync(~0u, base, mask));
        for (int n = lane; n <= m; n += 32) {
            mass[n] = __fmul_rn(mass[n], exp2_fast(__fsub_rn(bases[n / kStep], base)));
            largest = fmaxf(largest, mass[n]);
        }
        for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
        __syncwarp();
        return largest;
    }
    /// How many of [first, end) have at least, or more than, a mass.
    template <bool kMore>
    __device__ __forceinline__ int count(float least) const {
        int some = 0;
        for (int n = first + static_cast<int>(threadIdx.x % 32); n < end; n += 32)
            some += kMore ? mass[n] > least : mass[n] >= least;
        for (int mask = 16; mask > 0; mask /= 2) some += __shfl_xor_sync(~0u, some, mask);
        return some;
    }
};

/// A warp for each query tile and head: writes its list.
__global__ void __launch_bounds__(128) sparse_choose_kernel(const __grid_constant__ ChooseArgs args) {
    pdl_trigger();
    pdl_wait();
    const int lane = static_cast<int>(threadIdx.x % 32), index = static_cast<int>(blockIdx.x * 4 + threadIdx.x / 32);
    if (index >= args.attend.plan.query_tiles * args.attend.heads) return;
    const QueryTile tile(args.attend, index, args.attend.plan.query_tiles);
    if (tile.rows == 0) return;
    const int m = tile.end_tile - 1;
    const SparseOptions& o = args.options;
    const bool full = m < o.full_below || m >= o.full_from;
    const int64_t item = args.item(tile);
    const int first = full ? m + 1 : min(m + 1, o.sink_blocks);
    const Masses masses{args.mass + item * args.mass_stride(), m, first,
                        max(first, m + 1 - min(o.window_blocks, m + 1))};
    float least = 0.0f;  // of what is read: more than this, and the first `equal` of those that have just this
    int equal = 0;
    if (!full) {
        const float largest = masses.to_one_base(args.bases + item * args.steps());
        least = __fmul_rn(o.alpha, largest);
        equal = masses.end - masses.first;
        if (masses.count<false>(least) > o.most_blocks) {
            // The mass of the last one in the budget: the highest with at least that many at or above it.
            int low = __float_as_int(least), high = __float_as_int(largest);  // masses are not negative
            while (low < high && o.most_blocks > 0) {
                const int middle = low + (high - low + 1) / 2;
                if (masses.count<false>(__int_as_float(middle)) >= o.most_blocks) low = middle;
                else high = middle - 1;
            }
            least = o.most_blocks > 0 ? __int_as_float(low) : INFINITY;
            equal = o.most_blocks - masses.count<true>(least);
        }
    }
    int32_t* const list = const_cast<int32_t*>(args.attend.lists) + item * args.attend.list_stride;
    int count = 0;
    for (int base = 0; base <= m; base += 32) {
        const int n = base + lane;
        const bool open = n >= masses.first && n < masses.end;
        const float mass = open ? masses.mass[n] : 0.0f;
        const unsigned ties = __ballot_sync(~0u, open && mass == least);
        const bool first_ties = open && mass == least && __popc(ties & ((1u << lane) - 1)) < equal;
        const unsigned chosen = __ballot_sync(~0u, n <= m && (!open || mass > least || first_ties));
        if (chosen >> lane & 1) list[1 + count + __popc(chosen & ((1u << lane) - 1))] = n;
        count += __popc(chosen);
        equal -= __popc(ties);
    }
    if (lane == 0) list[0] = count;
}

template <class T, int kDim>
void start(const Gpu& gpu, const ChooseArgs& args) {
    constexpr size_t kShared = size_t{2} * kStep * kDim * 2;
    const Plan& plan = args.attend.plan;
    const dim3 tiles(static_cast<unsigned>(plan.key_tiles), static_cast<unsigned>(args.attend.kv_heads));
    launch(gpu, sparse_means_kernel<T, kDim>, tiles, dim3(128), 0, args);
    launch(gpu, sparse_estimate_kernel<T, kDim>, dim3(static_cast<unsigned>(plan.query_tiles * args.attend.heads)),
           dim3(kStepThreads), kShared, args);
}

}  // namespace

void choose_tiles(const Gpu& gpu, const ChooseArgs& args, Storage storage) {
    const Plan& plan = args.attend.plan;
    const auto items = static_cast<unsigned>(plan.query_tiles * args.attend.heads);
    if (storage == Storage::f32) {
        const dim3 tiles(static_cast<unsigned>(plan.key_tiles), static_cast<unsigned>(args.attend.kv_heads));
        launch(gpu, sparse_means_plain_kernel, tiles, dim3(kMostDim), 0, args);
        launch(gpu, sparse_estimate_plain_kernel, dim3(items), dim3(kTile), 0, args);
    } else {
        with_tiles(storage, static_cast<int>(args.attend.head_dim),
                   [&](auto zero, auto dim) { start<decltype(zero), decltype(dim)::value>(gpu, args); });
    }
    launch(gpu, sparse_choose_kernel, dim3((items + 3) / 4), dim3(128), 0, args);
}

}  // namespace riptide::ops::cuda::prefill
