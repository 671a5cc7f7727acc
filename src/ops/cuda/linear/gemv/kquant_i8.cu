// Matrix products of one row in Q4_K_M models of the width of Laguna XS.2. Bytes and floors as in any.cuh; the
// general kernels there take every other shape, type and number of rows, with the same bits.
//
// Three kernels. kquant_i8_whole_kernel: every warp has one batch of whole rows, as kquant_i8.cuh describes (q k v and
// the gate). kquant_i8_split_kernel: 16 warps share a row (o), and may multiply with the router behind it.
// kquant_i8_stream_kernel: more batches than warps (the head): batches in registers, two CTAs an SM.
#include "ops/cuda/linear/gemv/kquant_i8_args.cuh"
#include "ops/cuda/linear/shared/router_words.cuh"

namespace riptide::ops::cuda::decode {

namespace {

/// Batches of G rows of S * 1024 columns; each warp has a contiguous range of them.
template <int S, int G>
__global__ void __launch_bounds__(kThreads, 2) kquant_i8_stream_kernel(const __grid_constant__ Row1MatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[2 * kWarps];
    pdl_trigger();
    constexpr ActLayout l = row1_layout(1024 * S);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int unit = warp * gridDim.x + blockIdx.x, units = kWarps * gridDim.x;
    const int begin = static_cast<int>(static_cast<int64_t>(a.batches) * unit / units);
    const int end = static_cast<int>(static_cast<int64_t>(a.batches) * (unit + 1) / units);
    char* staged = reinterpret_cast<char*>(dynamic);
    float* norm = reinterpret_cast<float*>(staged + staged_bytes(1024 * S));
    char* mine = staged + staged_bytes(1024 * S) + a.x.norm_bytes(l.cols) + warp * a.warp_bytes;
    const Row1Aux<true> aux6{mine, 32 * S, G};
    const Row1Aux<false> aux4{mine, 32 * S, G};
    uint4 raw[G][S];
#pragma unroll 1
    for (int b = begin; b < end || b == begin; ++b) {
        const Row1Matrix& m = row1_matrix(a, b);
        const int row = (b - m.first) * G, count = min(G, m.rows - row);
        if (b < end) {
            row1_load_rows<S, G>(m.planes, row, count, lane, raw);
            if (m.q6 != 0) row1_fetch_rows(m.planes, row, count, lane, aux6);
            else row1_fetch_rows(m.planes, row, count, lane, aux4);
        }
        if (b == begin) {
            fetch_norm(a.x, l.cols, norm);
            pdl_wait();
            stage_rows(a.x, l, 0, 1, staged, norm, partial);
            __syncthreads();
        }
        if (b >= end) return;
        copy_async_wait();
        __syncwarp();
        float acc[G];
        if (m.q6 != 0) row1_dot_rows<true, S, G>(raw, aux6, staged, lane, acc);
        else row1_dot_rows<false, S, G>(raw, aux4, staged, lane, acc);
        row1_reduce<G>(acc, lane, [&](int g, float sum) {
            if (g >= count) return;
            m.y[row + g] = sum;
            if (a.residual != nullptr) a.residual[row + g] = a.residual[row + g] + sum;
        });
        __syncwarp();
    }
}

/// Rows of 2,048 columns, one batch a warp: batch warp * gridDim.x + CTA, G rows of Q4_K or G6 of Q6_K.
template <int G, int G6>
__global__ void __launch_bounds__(kRow1Threads, 2) kquant_i8_whole_kernel(const __grid_constant__ Row1MatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[kWarps];
    __shared__ uint64_t barriers[kRow1Warps];
    constexpr int S = 2;
    using Batch = OnceBatch<G, G6>;
    constexpr ActLayout l = row1_layout(Batch::kCols);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    char* staged = reinterpret_cast<char*>(dynamic);
    const Batch batch(a, warp * gridDim.x + blockIdx.x, staged + staged_bytes(Batch::kCols) + warp * a.warp_bytes);
    const Row1Fetch fetch{barriers + warp};
    batch.ask(fetch, lane);
    float norm[8];
    const bool normed = a.x.kind == ActKind::norm, stages = threadIdx.x < kThreads;
    if (normed && stages) row1_weights8(a.x.norm, threadIdx.x, norm);
    // While the kernel before this one ends: everything that needs the weights alone.
    float2 by[G][S], by6[G6][S];
    if (batch.count > 0) {
        fetch.wait();
        if (batch.q6) row1_row_scales<true, S, G6>(batch.aux6(), lane, by6);
        else row1_row_scales<false, S, G>(batch.aux4(), lane, by);
    }
    pdl_wait();
    pdl_trigger();  // behind the wait: the next kernel's loads do not get in the way of what this one still waits for
    if (normed) {
        Row1NormRow x;
        if (stages) x.load(reinterpret_cast<const float*>(a.x.rows), threadIdx.x, partial);
        __syncthreads();
        if (stages) x.stage(norm, a.x.eps, threadIdx.x, partial, staged);
    } else if (a.x.kind == ActKind::int8) {
        row1_stage_int8<Batch::kGroups>(a.x.rows, a.any_q6 != 0, staged);
    } else {
        row1_stage_floats<Batch::kCols / 8>(reinterpret_cast<const float*>(a.x.rows), l, staged);
    }
    __syncthreads();
    if (batch.count == 0) return;
    const auto store = [&](int g, float sum) { batch.store(a, 0, g, sum); };
    if (batch.q6) {
        float acc[G6];
        row1_dot_shared<true, S, G6>(batch.nibbles, batch.aux6(), by6, staged, lane, acc);
        row1_reduce<G6>(acc, lane, store);
    } else {
        float acc[G];
        row1_dot_shared<false, S, G>(batch.nibbles, batch.aux4(), by, staged, lane, acc);
        row1_reduce<G>(acc, lane, store);
    }
}

/// Q4_K rows of S * 1024 columns, S above 2: a CTA has up to 16 of them, row warp * gridDim.x + CTA. A warp multiplies
/// one step (1,024 columns, activations in registers) of several rows; then warp r adds up row r, step after step.
/// Routed: the rows of a CTA are columns 16 CTA .. of the residual, which it then multiplies with its share of the
/// router (../shared/router_words.h).
template <int S, bool Routed>
__global__ void __launch_bounds__(kRow1Threads, 2)
    kquant_i8_split_kernel(const __grid_constant__ Row1MatmulArgs a, const __grid_constant__ RouterAhead ahead) {
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barrier;
    constexpr int kCols = 1024 * S, kGroups = 32 * S, kNibbles = 16 * kGroups, kHeaders = 2 * kGroups;
    constexpr ActLayout l = row1_layout(kCols);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    char* staged = reinterpret_cast<char*>(dynamic);
    char* nibbles = staged + staged_bytes(kCols);
    char* headers = nibbles + kRow1Warps * kNibbles;
    auto* scales = reinterpret_cast<float2*>(headers + kRow1Warps * kHeaders);  // [step][row][lane]
    auto* values = reinterpret_cast<float*>(scales + S * kRow1Threads);
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
    [[maybe_unused]] __shared__ WordGroup group;
    [[maybe_unused]] RouterShare share;
    [[maybe_unused]] float norm = 0.0f;
    // This warp's S products: of 16 S, those from warp * S on, all rows of a step before the next step. Loops stay
    // loops: at one pass a kernel, fetching code costs more than a branch.
    const KShifts at(lane);
    fetch.wait();
#pragma unroll 1
    for (int k = warp * S; k < warp * S + S; ++k)
        scales[k * 32 + lane] =
            row1_scales<false>({headers + k % kRow1Warps * kHeaders, kGroups, 1}, 32 * (k / kRow1Warps) + lane, at);
    pdl_wait();
    pdl_trigger();  // see kquant_i8_whole_kernel
    if constexpr (Routed) begin_choice(*ahead.words, 1);
    const float old = a.residual != nullptr && lane == 0 && warp < rows ? a.residual[row] : 0.0f;
    if (a.x.kind == ActKind::int8) row1_stage_int8<kGroups>(a.x.rows, false, staged);
    else row1_stage_floats<kCols / 8>(reinterpret_cast<const float*>(a.x.rows), l, staged);
    if constexpr (Routed) {
        if (lane == 0) norm = __uint_as_float(load_weight32(ahead.norm + row));
        share.ask(ahead.router);
    }
    __syncthreads();
    KActs x = {};
#pragma unroll 1
    for (int k = warp * S; k < warp * S + S; ++k) {
        const int r = k % kRow1Warps, index = 32 * (k / kRow1Warps) + lane;
        if (k == warp * S || r == 0) x = k_acts<false>(staged, kGroups, index);
        const uint4 q = *reinterpret_cast<const uint4*>(nibbles + r * kNibbles + 16 * index);
        const float2 by = scales[k * 32 + lane];
        values[k * 32 + lane] = k_value<false>(q, {}, x, by);
    }
    __syncthreads();
    if (warp >= rows) return;
    float acc[1] = {};
#pragma unroll
    for (int s = 0; s < S; ++s) {
        const float d = *reinterpret_cast<const float*>(staged + 32 * kGroups + 8 * (32 * s + lane));
        acc[0] = fmaf(values[(s * kRow1Warps + warp) * 32 + lane], d, acc[0]);
    }
    row1_reduce<1>(acc, lane, [&](int, float sum) {
        m.y[row] = sum;
        if (a.residual != nullptr) a.residual[row] = old + sum;
        if constexpr (Routed) group.put(warp, old + sum, norm);
    });
    if constexpr (Routed) {
        __syncthreads();
        share.add(&group, 1, *ahead.words);
    }
}

template <int G, int G6>
void launch_whole(Context& ctx, const ActSource& x, std::span<const Weight* const> weights, std::span<Tensor> y,
                  Tensor* residual) {
    Row1MatmulArgs a = row1_args(x, 1, weights, y, residual, G, G6);
    const auto fit = fit_row1_whole(chip_of(*ctx.gpu), 1, a.batches, a.any_q6 != 0, G, G6);
    RT_ASSERT(fit);
    a.warp_bytes = fit->warp_bytes;
    launch_row1(ctx, kquant_i8_whole_kernel<G, G6>, std::min(ctx.gpu->info().sm_count, a.batches), kRow1Threads,
                fit->shared, a);
}

template <int S>
void launch_split(Context& ctx, const ActSource& x, std::span<const Weight* const> weights, std::span<Tensor> y,
                  Tensor* residual, const RouterAhead* ahead) {
    const int64_t rows = weights[0]->rows;
    const auto shared = fit_row1_split(chip_of(*ctx.gpu), 1, rows, S);
    RT_ASSERT(shared && (ahead == nullptr || rows == kWordCols));
    const auto kernel = ahead != nullptr ? kquant_i8_split_kernel<S, true> : kquant_i8_split_kernel<S, false>;
    launch_row1_split(ctx, kernel, rows, *shared, row1_args(x, 1, weights, y, residual, 1, 1), ahead);
}

template <int S, int G>
void launch_stream(Context& ctx, const ActSource& x, std::span<const Weight* const> weights, std::span<Tensor> y,
                   Tensor* residual) {
    constexpr ActLayout l = row1_layout(1024 * S);
    Row1MatmulArgs a = row1_args(x, 1, weights, y, residual, G, G);
    a.warp_bytes = G * (a.any_q6 != 0 ? Row1Aux<true>::row_bytes(l.groups) : Row1Aux<false>::row_bytes(l.groups));
    const int64_t ctas = std::min<int64_t>(2 * ctx.gpu->info().sm_count, (a.batches + kWarps - 1) / kWarps);
    launch_row1(ctx, kquant_i8_stream_kernel<S, G>, ctas, kThreads,
                l.bytes() + x.norm_bytes(l.cols) + int64_t{kWarps} * a.warp_bytes, a);
}

}  // namespace

void kquant_i8_multiply(Context& ctx, linear::Kernel kernel, const ActSource& x, int64_t cols,
                        std::span<const Weight* const> weights, std::span<Tensor> y, Tensor* residual,
                        const RouterAhead* ahead) {
    using linear::Kernel;
    RT_ASSERT((kernel == Kernel::kquant_i8_split_router) == (ahead != nullptr));
    const bool split = kernel == Kernel::kquant_i8_split || kernel == Kernel::kquant_i8_split_router;
    if (kernel == Kernel::kquant_i8_whole5) launch_whole<5, 3>(ctx, x, weights, y, residual);
    else if (kernel == Kernel::kquant_i8_whole6) launch_whole<6, 3>(ctx, x, weights, y, residual);
    else if (split && cols == 4096) launch_split<4>(ctx, x, weights, y, residual, ahead);
    else if (split && cols == 6144) launch_split<6>(ctx, x, weights, y, residual, ahead);
    else if (split) launch_split<8>(ctx, x, weights, y, residual, ahead);
    else if (cols == 2048) launch_stream<2, 5>(ctx, x, weights, y, residual);
    else if (cols == 6144) launch_stream<6, 1>(ctx, x, weights, y, residual);
    else launch_stream<8, 1>(ctx, x, weights, y, residual);
}

}  // namespace riptide::ops::cuda::decode
