// Matrix products of one row, and of eight at a time, with planes of any type, of the width of Laguna XS.2: what
// kquant_i8.cu and kquant_i8_rows4.cu are for Q4_K_M files, with the bits of the general kernels (any.cuh). For chips
// with bulk copies.
//
// Bytes: those of the rows, a byte and a sixteenth for a weight in Q8_0 (q, k, v and gate 22 MB, 4.8 us at 4.65 TB/s).
// All weights of a CTA are fetched at once, before pdl_wait(), by bulk copies of whole rows; what a matrix is made of
// (RowFormat) is asked once a warp, not once a sub-block. The scales are read where they are used: there are too many
// forms of them to keep them in registers.
#include "ops/cuda/linear/fit.h"
#include "ops/cuda/linear/gemv/kquant_i8.cuh"
#include "ops/cuda/linear/gemv/kquant_i8.h"
#include "ops/cuda/linear/shared/router_words.cuh"
#include "ops/cuda/linear/shared/row_formats.cuh"

namespace riptide::ops::cuda::decode {

namespace {

struct PlanesMatrix {
    RowPlanes planes;
    float* y;
    int32_t rows, first;  // first batch
};
struct PlanesArgs {
    PlanesMatrix m[kRow1Matrices];
    int32_t matrices, batches;
    int32_t bytes;  // shared memory of a warp
    int32_t n;      // rows of x; those of y and residual lie one behind the other
    ActSource x;
    float* residual;
};

/// The rows of x, normalised, to staged ones, behind pdl_wait(); norm: the weights of this thread's columns. Two rows
/// at a time, half a CTA each.
__device__ __forceinline__ void stage_normed(const PlanesArgs& a, int n, const float (&norm)[8],
                                             float (*partial)[kWarps], char* staged) {
    const int half = threadIdx.x / kThreads, u = threadIdx.x % kThreads;
#pragma unroll 1
    for (int p = half; p - half < n; p += 2) {
        Row1NormRow x;
        if (p < n) x.load(reinterpret_cast<const float*>(a.x.rows + p * a.x.stride), u, partial[p]);
        __syncthreads();
        if (p < n) x.stage(norm, a.x.eps, u, partial[p], staged + p * staged_bytes(kRow1Hidden));
    }
}

/// Rows of 2,048 columns, one batch of G a warp: batch warp * gridDim.x + CTA. P: rows of x that a warp multiplies at
/// once.
template <int G, int P>
__global__ void __launch_bounds__(kRow1Threads, 2) planes_i8_whole_kernel(const __grid_constant__ PlanesArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[kPlanesRows][kWarps];
    __shared__ uint64_t barriers[kRow1Warps];
    constexpr int kCols = 2048, kGroups = kCols / 32, kStride = staged_bytes(kCols);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, b = warp * gridDim.x + blockIdx.x;
    const int n = P == 1 ? 1 : a.n;
    char* const staged = reinterpret_cast<char*>(dynamic);
    char* const mine = staged + n * kStride + warp * a.bytes;
    int i = 0;
#pragma unroll
    for (int k = 1; k < kRow1Matrices; ++k)
        if (k < a.matrices && b >= a.m[k].first) i = k;
    const PlanesMatrix& m = a.m[i];
    const int row = (b - m.first) * G, count = b < a.batches ? min(G, m.rows - row) : 0;
    const Row1Fetch fetch{barriers + warp};
    if (count > 0) {
        fetch.begin(lane == 0, count * (kCols / 256) * plane_bytes(m.planes.format).all());
        AnyFormat::with(m.planes.format, [&](auto format) {
            if (lane != 0) return;
            SharedRows<format.value>{mine, kGroups, G}.each(
                m.planes, 0, row, count, [&](char* to, const char* from, int bytes) { fetch.copy(to, from, bytes); });
        });
        __syncwarp();
    }
    float norm[8];
    const bool normed = a.x.kind == ActKind::norm;
    if (normed) row1_weights8(a.x.norm, threadIdx.x % kThreads, norm);
    if (count > 0) fetch.wait();
    pdl_wait();
    pdl_trigger();  // see kquant_i8_whole_kernel
    if (normed) stage_normed(a, n, norm, partial, staged);
    else row1_stage_rows<kCols>(a.x, n, true, staged);
    __syncthreads();
    if (count == 0) return;
#pragma unroll 1
    for (int p0 = 0; p0 < n; p0 += P) {
        float acc[P * G] = {};
        AnyFormat::with(m.planes.format, [&](auto format) {
            const SharedRows<format.value> rows{mine, kGroups, G};
            const KShifts at(lane);
#pragma unroll(P == 1 ? 2 : 1)
            for (int s = 0; s < kGroups / 32; ++s) {
                const int j = 32 * s + lane;
                KActs x[P];
#pragma unroll
                for (int p = 0; p < P; ++p)
                    x[p] = row_acts<format.value>(staged + min(p0 + p, n - 1) * kStride, kGroups, j);
#pragma unroll
                for (int g = 0; g < G; ++g) {
                    const int index = g * kGroups + j;
                    const auto by = rows.scales(index, at);
#pragma unroll
                    for (int p = 0; p < P; ++p)
                        acc[p * G + g] = fmaf(rows.value(index, x[p], by, m.planes.levels), x[p].d, acc[p * G + g]);
                }
            }
        });
        row1_reduce<P * G>(acc, lane, [&](int i, float sum) {
            const int g = i % G, p = p0 + i / G;
            if (g >= count || p >= n) return;
            const int to = p * m.rows + row + g;
            m.y[to] = sum;
            if (a.residual != nullptr) a.residual[to] = a.residual[to] + sum;
        });
    }
}

/// Rows of S * 1024 columns: as kquant_i8_split_kernel. P: rows of x that a warp multiplies at once; Routed: one.
template <int S, bool Routed, int P>
__global__ void __launch_bounds__(kRow1Threads, 2)
    planes_i8_split_kernel(const __grid_constant__ PlanesArgs a, const __grid_constant__ RouterAhead ahead) {
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barrier;
    constexpr int kCols = 1024 * S, kGroups = kCols / 32, kStride = staged_bytes(kCols);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int n = P == 1 ? 1 : a.n;
    char* const staged = reinterpret_cast<char*>(dynamic);
    auto* const values = reinterpret_cast<float*>(staged + n * kStride);  // [p][step][row][lane]
    char* const memory = reinterpret_cast<char*>(values + P * S * kRow1Threads);
    const PlanesMatrix& m = a.m[0];
    const int rows =
        Routed ? kRow1Warps : (m.rows - 1 - static_cast<int>(blockIdx.x)) / static_cast<int>(gridDim.x) + 1;
    const int row = Routed ? kRow1Warps * blockIdx.x + warp : warp * gridDim.x + blockIdx.x;
    const Row1Fetch fetch{&barrier};
    if (warp == 0) fetch.begin(lane == 0, rows * a.bytes);
    __syncthreads();
    if (warp < rows && lane == 0)
        AnyFormat::with(m.planes.format, [&](auto format) {
            SharedRows<format.value>{memory + warp * a.bytes, kGroups, 1}.each(
                m.planes, 0, row, 1, [&](char* to, const char* from, int bytes) { fetch.copy(to, from, bytes); });
        });
    __syncwarp();
    [[maybe_unused]] __shared__ WordGroup group;
    [[maybe_unused]] RouterShare share;
    [[maybe_unused]] float norm = 0.0f;
    fetch.wait();
    pdl_wait();
    pdl_trigger();  // see kquant_i8_whole_kernel
    if constexpr (Routed) begin_choice(*ahead.words, 1);
    const float old = a.residual != nullptr && lane < n && warp < rows ? a.residual[lane * m.rows + row] : 0.0f;
    row1_stage_rows<kCols>(a.x, n, true, staged);
    if constexpr (Routed) {
        if (lane == 0) norm = __uint_as_float(load_weight32(ahead.norm + row));
        share.ask(ahead.router);
    }
    __syncthreads();
#pragma unroll 1
    for (int p0 = 0; p0 < n; p0 += P) {
        const char* from[P];
#pragma unroll
        for (int p = 0; p < P; ++p) from[p] = staged + min(p0 + p, n - 1) * kStride;
        AnyFormat::with(m.planes.format, [&](auto format) {
            const KShifts at(lane);
            KActs x[P] = {};
#pragma unroll 1
            for (int k = warp * S; k < warp * S + S; ++k) {
                const int r = k % kRow1Warps, j = 32 * (k / kRow1Warps) + lane;
                const SharedRows<format.value> own{memory + r * a.bytes, kGroups, 1};
                const auto by = own.scales(j, at);
#pragma unroll
                for (int p = 0; p < P; ++p) {
                    if (k == warp * S || r == 0) x[p] = row_acts<format.value>(from[p], kGroups, j);
                    values[p * S * kRow1Threads + k * 32 + lane] = own.value(j, x[p], by, m.planes.levels);
                }
            }
        });
        __syncthreads();
        if (warp < rows) {
            float acc[P] = {};
#pragma unroll
            for (int s = 0; s < S; ++s)
#pragma unroll
                for (int p = 0; p < P; ++p) {
                    const float d = *reinterpret_cast<const float*>(from[p] + 32 * kGroups + 8 * (32 * s + lane));
                    acc[p] = fmaf(values[p * S * kRow1Threads + (s * kRow1Warps + warp) * 32 + lane], d, acc[p]);
                }
            const float sum = reduce_lanes<P>(acc, lane);  // of row p0 + lane / (32 / P)
            const int p = p0 + lane / (32 / P);
            const float before = __shfl_sync(~0u, old, p);
            if (lane % (32 / P) == 0 && p < n) {
                const int to = p * m.rows + row;
                m.y[to] = sum;
                if (a.residual != nullptr) a.residual[to] = before + sum;
                if constexpr (Routed) group.put(warp, before + sum, norm);
            }
        }
        if constexpr (P > 1) __syncthreads();
    }
    if constexpr (Routed) {
        __syncthreads();
        share.add(&group, 1, *ahead.words);
    }
}

/// Of rows [first, first + n) of x.
PlanesArgs args_of(const ActSource& x, int64_t first, int64_t n, std::span<const Weight* const> weights,
                   std::span<Tensor> y, Tensor* residual, int64_t batch) {
    PlanesArgs a = {};
    for (const Weight* w : weights) {
        const auto i = static_cast<size_t>(a.matrices++);
        a.m[i] = {row_planes(*w), y[i].row(first), static_cast<int32_t>(w->rows), a.batches};
        a.batches += static_cast<int32_t>((w->rows + batch - 1) / batch);
        a.bytes = std::max(a.bytes, static_cast<int32_t>(batch) * row_bytes(row_format(*w), static_cast<int>(w->cols)));
    }
    a.n = static_cast<int32_t>(n);
    a.x = x;
    a.x.rows += first * x.stride;
    a.residual = residual == nullptr ? nullptr : residual->row(first);
    return a;
}

template <int G>
void launch_whole(Context& ctx, const PlanesArgs& a) {
    const auto shared = fit_planes_whole(chip_of(*ctx.gpu), a.n, a.batches, a.bytes);
    RT_ASSERT(shared);
    const auto kernel = a.n == 1 ? planes_i8_whole_kernel<G, 1> : planes_i8_whole_kernel<G, 2>;
    allow_shared(reinterpret_cast<const void*>(kernel), *shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(std::min<int64_t>(ctx.gpu->info().sm_count, a.batches))),
           kRow1Threads, static_cast<size_t>(*shared), a);
}

template <int S>
void launch_split(Context& ctx, const PlanesArgs& a, const RouterAhead* ahead) {
    const int64_t rows = a.m[0].rows;
    const auto shared = fit_planes_split(chip_of(*ctx.gpu), a.n, rows, S, a.bytes);
    RT_ASSERT(shared && (ahead == nullptr || (rows == kWordCols && a.n == 1)));
    const auto kernel = ahead != nullptr ? planes_i8_split_kernel<S, true, 1>
                        : a.n == 1       ? planes_i8_split_kernel<S, false, 1>
                                         : planes_i8_split_kernel<S, false, 2>;
    const int64_t ctas = ahead != nullptr ? rows / kWordGroup : std::min<int64_t>(ctx.gpu->info().sm_count, rows);
    if (ahead != nullptr) open_words(*ctx.gpu);
    allow_shared(reinterpret_cast<const void*>(kernel), *shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas)), kRow1Threads, static_cast<size_t>(*shared), a,
           ahead != nullptr ? *ahead : RouterAhead{});
}

}  // namespace

void planes_i8_multiply(Context& ctx, linear::Kernel kernel, const ActSource& x, int64_t cols, int64_t n,
                        std::span<const Weight* const> weights, std::span<Tensor> y, Tensor* residual,
                        const RouterAhead* ahead) {
    using linear::Kernel;
    const bool five = kernel == Kernel::planes_i8_whole5, six = kernel == Kernel::planes_i8_whole6;
    RT_ASSERT((kernel == Kernel::planes_i8_split_router) == (ahead != nullptr));
    const int64_t batch = five ? 5 : six ? 6 : 1, most = planes_rows(chip_of(*ctx.gpu), cols, n, weights, batch);
    RT_ASSERT(most > 0);
    for (int64_t first = 0; first < n; first += most) {
        const PlanesArgs a = args_of(x, first, std::min(most, n - first), weights, y, residual, batch);
        if (five) launch_whole<5>(ctx, a);
        else if (six) launch_whole<6>(ctx, a);
        else if (cols == 4096) launch_split<4>(ctx, a, ahead);
        else if (cols == 6144) launch_split<6>(ctx, a, ahead);
        else launch_split<8>(ctx, a, ahead);
    }
}

}  // namespace riptide::ops::cuda::decode
