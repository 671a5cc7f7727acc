// Matrix products of one row with planes of any type, of the width of Laguna XS.2: what kquant_i8.cu is for Q4_K_M
// files, with the bits of the general kernels (any.cuh). For chips with
// bulk copies.
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
    ActSource x;
    float* residual;
};

/// The row of x, by the whole CTA, behind pdl_wait().
template <int Cols>
__device__ __forceinline__ void stage_row(const ActSource& x, char* staged) {
    if (x.kind == ActKind::int8) row1_stage_int8<Cols / 32>(x.rows, true, staged);
    else row1_stage_floats<Cols / 8>(reinterpret_cast<const float*>(x.rows), row1_layout(Cols), staged);
}

/// Rows of 2,048 columns, one batch of G a warp: batch warp * gridDim.x + CTA.
template <int G>
__global__ void __launch_bounds__(kRow1Threads, 2) planes_i8_whole_kernel(const __grid_constant__ PlanesArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[kWarps];
    __shared__ uint64_t barriers[kRow1Warps];
    constexpr int kCols = 2048, kGroups = kCols / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, b = warp * gridDim.x + blockIdx.x;
    char* const staged = reinterpret_cast<char*>(dynamic);
    char* const mine = staged + staged_bytes(kCols) + warp * a.bytes;
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
    const bool normed = a.x.kind == ActKind::norm, stages = threadIdx.x < kThreads;
    if (normed && stages) row1_weights8(a.x.norm, threadIdx.x, norm);
    if (count > 0) fetch.wait();
    pdl_wait();
    pdl_trigger();  // see kquant_i8_whole_kernel
    if (normed) {
        Row1NormRow x;
        if (stages) x.load(reinterpret_cast<const float*>(a.x.rows), threadIdx.x, partial);
        __syncthreads();
        if (stages) x.stage(norm, a.x.eps, threadIdx.x, partial, staged);
    } else {
        stage_row<kCols>(a.x, staged);
    }
    __syncthreads();
    if (count == 0) return;
    float acc[G] = {};
    AnyFormat::with(m.planes.format, [&](auto format) {
        const SharedRows<format.value> rows{mine, kGroups, G};
        const KShifts at(lane);
#pragma unroll
        for (int s = 0; s < kGroups / 32; ++s) {
            const int j = 32 * s + lane;
            const KActs x = row_acts<format.value>(staged, kGroups, j);
#pragma unroll
            for (int g = 0; g < G; ++g) {
                const int index = g * kGroups + j;
                acc[g] = fmaf(rows.value(index, x, rows.scales(index, at), m.planes.levels), x.d, acc[g]);
            }
        }
    });
    row1_reduce<G>(acc, lane, [&](int g, float sum) {
        if (g >= count) return;
        m.y[row + g] = sum;
        if (a.residual != nullptr) a.residual[row + g] = a.residual[row + g] + sum;
    });
}

/// Rows of S * 1024 columns: as kquant_i8_split_kernel.
template <int S, bool Routed>
__global__ void __launch_bounds__(kRow1Threads, 2)
    planes_i8_split_kernel(const __grid_constant__ PlanesArgs a, const __grid_constant__ RouterAhead ahead) {
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barrier;
    constexpr int kCols = 1024 * S, kGroups = kCols / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    char* const staged = reinterpret_cast<char*>(dynamic);
    auto* const values = reinterpret_cast<float*>(staged + staged_bytes(kCols));  // [step][row][lane]
    char* const memory = reinterpret_cast<char*>(values + S * kRow1Threads);
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
    if constexpr (Routed) begin_choice(*ahead.words);
    const float old = a.residual != nullptr && lane == 0 && warp < rows ? a.residual[row] : 0.0f;
    stage_row<kCols>(a.x, staged);
    if constexpr (Routed) {
        if (lane == 0) norm = __uint_as_float(load_weight32(ahead.norm + row));
        share.ask(ahead.router);
    }
    __syncthreads();
    AnyFormat::with(m.planes.format, [&](auto format) {
        const KShifts at(lane);
        KActs x = {};
#pragma unroll 1
        for (int k = warp * S; k < warp * S + S; ++k) {
            const int r = k % kRow1Warps, j = 32 * (k / kRow1Warps) + lane;
            if (k == warp * S || r == 0) x = row_acts<format.value>(staged, kGroups, j);
            const SharedRows<format.value> own{memory + r * a.bytes, kGroups, 1};
            values[k * 32 + lane] = own.value(j, x, own.scales(j, at), m.planes.levels);
        }
    });
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
        share.add(group, *ahead.words);
    }
}

PlanesArgs args_of(const ActSource& x, std::span<const Weight* const> weights, std::span<Tensor> y, Tensor* residual,
                   int64_t batch) {
    PlanesArgs a = {};
    for (const Weight* w : weights) {
        const auto i = static_cast<size_t>(a.matrices++);
        a.m[i] = {row_planes(*w), y[i].row(0), static_cast<int32_t>(w->rows), a.batches};
        a.batches += static_cast<int32_t>((w->rows + batch - 1) / batch);
        a.bytes = std::max(a.bytes, static_cast<int32_t>(batch) * row_bytes(row_format(*w), static_cast<int>(w->cols)));
    }
    a.x = x;
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    return a;
}

template <int G>
void launch_whole(Context& ctx, const ActSource& x, std::span<const Weight* const> weights, std::span<Tensor> y,
                  Tensor* residual) {
    const PlanesArgs a = args_of(x, weights, y, residual, G);
    const auto shared = fit_planes_whole(chip_of(*ctx.gpu), a.batches, a.bytes);
    RT_ASSERT(shared);
    allow_shared(reinterpret_cast<const void*>(planes_i8_whole_kernel<G>), *shared);
    launch(*ctx.gpu, planes_i8_whole_kernel<G>,
           dim3(static_cast<unsigned>(std::min<int64_t>(ctx.gpu->info().sm_count, a.batches))), kRow1Threads,
           static_cast<size_t>(*shared), a);
}

template <int S>
void launch_split(Context& ctx, const ActSource& x, std::span<const Weight* const> weights, std::span<Tensor> y,
                  Tensor* residual, const RouterAhead* ahead) {
    const PlanesArgs a = args_of(x, weights, y, residual, 1);
    const int64_t rows = weights[0]->rows;
    const auto shared = fit_planes_split(chip_of(*ctx.gpu), rows, S, a.bytes);
    RT_ASSERT(shared && (ahead == nullptr || rows == kWordCols));
    const auto kernel = ahead != nullptr ? planes_i8_split_kernel<S, true> : planes_i8_split_kernel<S, false>;
    const int64_t ctas = ahead != nullptr ? rows / kWordGroup : std::min<int64_t>(ctx.gpu->info().sm_count, rows);
    if (ahead != nullptr) open_words(*ctx.gpu);
    allow_shared(reinterpret_cast<const void*>(kernel), *shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas)), kRow1Threads, static_cast<size_t>(*shared), a,
           ahead != nullptr ? *ahead : RouterAhead{});
}

}  // namespace

void planes_i8_multiply(Context& ctx, linear::Kernel kernel, const ActSource& x, int64_t cols,
                        std::span<const Weight* const> weights, std::span<Tensor> y, Tensor* residual,
                        const RouterAhead* ahead) {
    using linear::Kernel;
    RT_ASSERT((kernel == Kernel::planes_i8_split_router) == (ahead != nullptr));
    if (kernel == Kernel::planes_i8_whole5) launch_whole<5>(ctx, x, weights, y, residual);
    else if (kernel == Kernel::planes_i8_whole6) launch_whole<6>(ctx, x, weights, y, residual);
    else if (cols == 6144) launch_split<6>(ctx, x, weights, y, residual, ahead);
    else launch_split<8>(ctx, x, weights, y, residual, ahead);
}

}  // namespace riptide::ops::cuda::decode
