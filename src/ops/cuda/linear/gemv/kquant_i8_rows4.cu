// Matrix products of two to four rows in Q4_K_M models of the width of Laguna XS.2: kquant_i8.cu for several rows of
// x, with the same bits. kquant_i8_sm80.cu takes more rows, and what does not fit here.
//
// Bytes and floors as in kquant_i8.cu. The weights of a CTA are fetched once, before pdl_wait(), and multiplied with
// two rows of x at a time by dp4a: for each further row sixteen instructions a sub-block, where the tensor cores' way
// costs as much for one row as for eight. Rows are normalised and quantised by every CTA for itself: no launch for it.
// The split kernel adds to the words of a router behind it, as that of one row does.
#include "ops/cuda/linear/gemv/kquant_i8_args.cuh"
#include "ops/cuda/linear/shared/router_words.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kFewRows = 4;
static_assert(kMostWordRows <= kFewRows);

/// int8 rows without the sums of halves, all of whose loads go out before the first store.
template <int Groups, int kStride>
__device__ __forceinline__ void rows4_stage_int8(const Row1MatmulArgs& a, char* staged) {
    constexpr int kPieces = 40 * Groups / 16, kRounds = (kFewRows * kPieces + kRow1Threads - 1) / kRow1Threads;
    uint4 v[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int at = i * kRow1Threads + threadIdx.x;
        if (at < a.n * kPieces)
            v[i] = reinterpret_cast<const uint4*>(a.x.rows + at / kPieces * a.x.stride)[at % kPieces];
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int at = i * kRow1Threads + threadIdx.x;
        if (at < a.n * kPieces) reinterpret_cast<uint4*>(staged + at / kPieces * kStride)[at % kPieces] = v[i];
    }
}

/// The rows of a batch times two staged rows.
template <bool Q6, int G, class Store>
__device__ __forceinline__ void rows4_dot(const char* nibbles, const Row1Aux<Q6>& aux, const char* x0, const char* x1,
                                          int lane, const Store& store) {
    const KShifts at(lane);
    float acc[2 * G] = {};  // [p][g]
#pragma unroll 1
    for (int s = 0; s < 2; ++s) {
        const KActs x[2] = {k_acts<Q6>(x0, aux.groups, 32 * s + lane), k_acts<Q6>(x1, aux.groups, 32 * s + lane)};
#pragma unroll
        for (int g = 0; g < G; ++g) {
            const int index = g * aux.groups + 32 * s + lane;
            const uint4 q = *reinterpret_cast<const uint4*>(nibbles + 16 * index);
            const float2 by = row1_scales<Q6>(aux, index, at);
#pragma unroll
            for (int p = 0; p < 2; ++p) acc[p * G + g] = row1_dot<Q6>(q, aux, index, x[p], by, acc[p * G + g]);
        }
    }
    row1_reduce<2 * G>(acc, lane, store);
}

/// kquant_i8_whole_kernel for several rows of x.
template <int G, int G6>
__global__ void __launch_bounds__(kRow1Threads, 2)
    kquant_i8_rows4_whole_kernel(const __grid_constant__ Row1MatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[kFewRows][kWarps];
    __shared__ uint64_t barriers[kRow1Warps];
    using Batch = OnceBatch<G, G6>;
    constexpr int kStride = staged_bytes(Batch::kCols);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    char* const staged = reinterpret_cast<char*>(dynamic);
    const Batch batch(a, warp * gridDim.x + blockIdx.x, staged + a.n * kStride + warp * a.warp_bytes);
    const Row1Fetch fetch{barriers + warp};
    batch.ask(fetch, lane);
    float norm[8];
    const bool normed = a.x.kind == ActKind::norm;
    const int half = threadIdx.x / kThreads, u = threadIdx.x % kThreads;
    if (normed) row1_weights8(a.x.norm, u, norm);
    pdl_wait();
    pdl_trigger();  // see kquant_i8_whole_kernel
    if (normed) {
        Row1NormRow x[kFewRows / 2];
#pragma unroll
        for (int i = 0; i < kFewRows / 2; ++i) {
            const int p = 2 * i + half;
            if (p < a.n) x[i].load(reinterpret_cast<const float*>(a.x.rows + p * a.x.stride), u, partial[p]);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kFewRows / 2; ++i) {
            const int p = 2 * i + half;
            if (p < a.n) x[i].stage(norm, a.x.eps, u, partial[p], staged + p * kStride);
        }
    } else {
        row1_stage_rows<Batch::kCols>(a.x, a.n, a.any_q6 != 0, staged);
    }
    __syncthreads();
    if (batch.count == 0) return;
    fetch.wait();
#pragma unroll 1
    for (int p0 = 0; p0 < a.n; p0 += 2) {
        const char *const x0 = staged + p0 * kStride, *const x1 = staged + min(p0 + 1, a.n - 1) * kStride;
        const auto store = [&](int i, int rows, float sum) {
            if (p0 + i / rows < a.n) batch.store(a, p0 + i / rows, i % rows, sum);
        };
        if (batch.q6)
            rows4_dot<true, G6>(batch.nibbles, batch.aux6(), x0, x1, lane,
                                [&](int i, float sum) { store(i, G6, sum); });
        else
            rows4_dot<false, G>(batch.nibbles, batch.aux4(), x0, x1, lane, [&](int i, float sum) { store(i, G, sum); });
    }
}

/// kquant_i8_split_kernel for several rows of x.
template <int S, bool Routed>
__global__ void __launch_bounds__(kRow1Threads, 1)
    kquant_i8_rows4_split_kernel(const __grid_constant__ Row1MatmulArgs a, const __grid_constant__ RouterAhead ahead) {
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barrier;
    constexpr int kCols = 1024 * S, kGroups = 32 * S, kNibbles = 16 * kGroups, kHeaders = 2 * kGroups;
    constexpr int kStride = staged_bytes(kCols);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    char* const staged = reinterpret_cast<char*>(dynamic);
    char* const nibbles = staged + a.n * kStride;
    char* const headers = nibbles + kRow1Warps * kNibbles;
    auto* const values = reinterpret_cast<float*>(headers + kRow1Warps * kHeaders);  // [p][step][row][lane]
    const Row1Matrix& m = a.m[0];
    const int rows =
        Routed ? kRow1Warps : (m.rows - 1 - static_cast<int>(blockIdx.x)) / static_cast<int>(gridDim.x) + 1;
    const int row = Routed ? kRow1Warps * blockIdx.x + warp : warp * gridDim.x + blockIdx.x;
    const Row1Fetch fetch{&barrier};
    if (warp == 0) fetch.begin(lane == 0, rows * (kNibbles + kHeaders));
    __syncthreads();
    if (warp < rows && lane == 0) {
        fetch.copy(nibbles + warp * kNibbles, m.planes.data + static_cast<int64_t>(row) * kNibbles, kNibbles);
        fetch.copy(headers + warp * kHeaders, m.planes.scales + static_cast<int64_t>(row) * kHeaders, kHeaders);
    }
    __syncwarp();
#if __CUDA_ARCH__ < 900
    copy_async_wait();
    __syncthreads();
#endif
    [[maybe_unused]] __shared__ WordGroup groups[kFewRows];
    [[maybe_unused]] RouterShare share;
    [[maybe_unused]] float norm = 0.0f;
    const KShifts at(lane);
    pdl_wait();
    pdl_trigger();  // see kquant_i8_whole_kernel
    if constexpr (Routed) begin_choice(*ahead.words, a.n);
    const int at_lane = min(lane, a.n - 1) * m.rows + row;
    const float old = a.residual != nullptr && lane < a.n && warp < rows ? a.residual[at_lane] : 0.0f;
    if (a.x.kind == ActKind::int8) rows4_stage_int8<kGroups, kStride>(a, staged);
    else row1_stage_rows<kCols>(a.x, a.n, a.any_q6 != 0, staged);
    if constexpr (Routed) {
        norm = __uint_as_float(load_weight32(ahead.norm + row));
        share.ask(ahead.router);
    }
    __syncthreads();
    fetch.wait();
#pragma unroll 1
    for (int p0 = 0; p0 < a.n; p0 += 2) {
        const char *const x0 = staged + p0 * kStride, *const x1 = staged + min(p0 + 1, a.n - 1) * kStride;
        KActs x[2] = {};
#pragma unroll 1
        for (int k = warp * S; k < warp * S + S; ++k) {
            const int r = k % kRow1Warps, index = 32 * (k / kRow1Warps) + lane;
            if (k == warp * S || r == 0)
                x[0] = k_acts<false>(x0, kGroups, index), x[1] = k_acts<false>(x1, kGroups, index);
            const uint4 q = *reinterpret_cast<const uint4*>(nibbles + r * kNibbles + 16 * index);
            const float2 by = row1_scales<false>({headers + r * kHeaders, kGroups, 1}, index, at);
#pragma unroll
            for (int p = 0; p < 2; ++p) values[p * S * kRow1Threads + k * 32 + lane] = k_value<false>(q, {}, x[p], by);
        }
        __syncthreads();
        if (warp < rows) {
            float acc[2] = {};
#pragma unroll
            for (int s = 0; s < S; ++s)
#pragma unroll
                for (int p = 0; p < 2; ++p) {
                    const float d =
                        *reinterpret_cast<const float*>((p == 0 ? x0 : x1) + 32 * kGroups + 8 * (32 * s + lane));
                    acc[p] = fmaf(values[p * S * kRow1Threads + (s * kRow1Warps + warp) * 32 + lane], d, acc[p]);
                }
            const float sum = reduce_lanes<2>(acc, lane);  // row p0 + lane / 16
            const float before = __shfl_sync(~0u, old, p0 + lane / 16);
            if (lane % 16 == 0 && p0 + lane / 16 < a.n) {
                const int64_t to = (p0 + lane / 16) * m.rows + row;
                m.y[to] = sum;
                if (a.residual != nullptr) a.residual[to] = before + sum;
                if constexpr (Routed) groups[p0 + lane / 16].put(warp, before + sum, norm);
            }
        }
        __syncthreads();
    }
    if constexpr (Routed) share.add(groups, a.n, *ahead.words);
}

template <int G, int G6>
void launch_whole(Context& ctx, const ActSource& x, int64_t n, std::span<const Weight* const> weights,
                  std::span<Tensor> y, Tensor* residual) {
    Row1MatmulArgs a = row1_args(x, n, weights, y, residual, G, G6);
    const auto fit = fit_row1_whole(chip_of(*ctx.gpu), n, a.batches, a.any_q6 != 0, G, G6);
    RT_ASSERT(fit);
    a.warp_bytes = fit->warp_bytes;
    launch_row1(ctx, kquant_i8_rows4_whole_kernel<G, G6>, std::min(ctx.gpu->info().sm_count, a.batches), kRow1Threads,
                fit->shared, a);
}

template <int S>
void launch_split(Context& ctx, const ActSource& x, int64_t n, std::span<const Weight* const> weights,
                  std::span<Tensor> y, Tensor* residual, const RouterAhead* ahead) {
    const int64_t rows = weights[0]->rows;
    const auto shared = fit_row1_split(chip_of(*ctx.gpu), n, rows, S);
    RT_ASSERT(shared && (ahead == nullptr || (rows == kWordCols && n <= kMostWordRows)));
    const auto kernel =
        ahead != nullptr ? kquant_i8_rows4_split_kernel<S, true> : kquant_i8_rows4_split_kernel<S, false>;
    launch_row1_split(ctx, kernel, rows, *shared, row1_args(x, n, weights, y, residual, 1, 1), ahead);
}

}  // namespace

void kquant_i8_rows4_multiply(Context& ctx, linear::Kernel kernel, const ActSource& x, int64_t cols, int64_t n,
                              std::span<const Weight* const> weights, std::span<Tensor> y, Tensor* residual,
                              const RouterAhead* ahead) {
    using linear::Kernel;
    RT_ASSERT(n >= 2 && n <= kFewRows && (kernel == Kernel::kquant_i8_rows4_split_router) == (ahead != nullptr));
    if (kernel == Kernel::kquant_i8_rows4_whole5) launch_whole<5, 3>(ctx, x, n, weights, y, residual);
    else if (kernel == Kernel::kquant_i8_rows4_whole6) launch_whole<6, 3>(ctx, x, n, weights, y, residual);
    else if (cols == 4096) launch_split<4>(ctx, x, n, weights, y, residual, ahead);
    else if (cols == 6144) launch_split<6>(ctx, x, n, weights, y, residual, ahead);
    else launch_split<8>(ctx, x, n, weights, y, residual, ahead);
}

}  // namespace riptide::ops::cuda::decode
