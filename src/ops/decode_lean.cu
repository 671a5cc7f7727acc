// Matrix products of one row in Q4_K_M models of the width of Laguna XS.2. Bytes and floors as in decode_matmul.cu; the
// general kernels there take every other shape, type and number of rows, with the same bits.
//
// Two kernels. lean_once_kernel: every warp has one batch of rows, as decode_lean.cuh describes (q k v and the gate,
// o). lean_stream_kernel: more batches than warps (the head): batches in registers, two CTAs an SM.
#include "ops/decode_lean.h"

#include <algorithm>

#include "ops/decode_lean.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kLeanMatrices = 4;

struct LeanMatrix {
    LeanPlanes planes;
    float* y;
    int32_t rows, first;  // first batch
    int32_t q6;
};

struct LeanMatmulArgs {
    LeanMatrix m[kLeanMatrices];
    int32_t matrices, batches;
    int32_t warp_bytes;  // shared memory of a warp
    int32_t any_q6;
    ActSource x;
    float* residual;
};

/// Batches of G rows of S * 1024 columns; each warp has a contiguous range of them.
template <int S, int G>
__global__ void __launch_bounds__(kThreads, 2) lean_stream_kernel(const __grid_constant__ LeanMatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[2 * kWarps];
    pdl_trigger();
    constexpr ActLayout l = lean_layout(1024 * S);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int unit = warp * gridDim.x + blockIdx.x, units = kWarps * gridDim.x;
    const int begin = static_cast<int>(static_cast<int64_t>(a.batches) * unit / units);
    const int end = static_cast<int>(static_cast<int64_t>(a.batches) * (unit + 1) / units);
    char* staged = reinterpret_cast<char*>(dynamic);
    float* norm = reinterpret_cast<float*>(staged + staged_bytes(1024 * S));
    char* mine = staged + staged_bytes(1024 * S) + a.x.norm_bytes(l.cols) + warp * a.warp_bytes;
    const LeanAux<true> aux6{mine, 32 * S, G};
    const LeanAux<false> aux4{mine, 32 * S, G};
    uint4 raw[G][S];
#pragma unroll 1
    for (int b = begin; b < end || b == begin; ++b) {
        int i = 0;
#pragma unroll
        for (int k = 1; k < kLeanMatrices; ++k)
            if (k < a.matrices && b >= a.m[k].first) i = k;
        const LeanMatrix& m = a.m[i];
        const int row = (b - m.first) * G, count = min(G, m.rows - row);
        if (b < end) {
            lean_load_rows<S, G>(m.planes, row, count, lane, raw);
            if (m.q6 != 0) lean_fetch_rows(m.planes, row, count, lane, aux6);
            else lean_fetch_rows(m.planes, row, count, lane, aux4);
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
        if (m.q6 != 0) lean_dot_rows<true, S, G>(raw, aux6, staged, lane, acc);
        else lean_dot_rows<false, S, G>(raw, aux4, staged, lane, acc);
        lean_reduce<G>(acc, lane, [&](int g, float sum) {
            if (g >= count) return;
            m.y[row + g] = sum;
            if (a.residual != nullptr) a.residual[row + g] = a.residual[row + g] + sum;
        });
        __syncwarp();
    }
}

/// Rows of 2,048 columns, one batch a warp: batch warp * gridDim.x + CTA, G rows of Q4_K or G6 of Q6_K.
template <int G, int G6>
__global__ void __launch_bounds__(kLeanThreads, 2) lean_once_kernel(const __grid_constant__ LeanMatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[kWarps];
    __shared__ uint64_t barriers[kLeanWarps];
    constexpr int S = 2, kCols = 1024 * S, kGroups = 32 * S;
    constexpr ActLayout l = lean_layout(kCols);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int b = warp * gridDim.x + blockIdx.x;
    char* staged = reinterpret_cast<char*>(dynamic);
    char* nibbles = staged + staged_bytes(kCols) + warp * a.warp_bytes;
    int i = 0;
#pragma unroll
    for (int k = 1; k < kLeanMatrices; ++k)
        if (k < a.matrices && b >= a.m[k].first) i = k;
    const LeanMatrix& m = a.m[i];
    const bool q6 = m.q6 != 0;
    const int rows = q6 ? G6 : G, row = (b - m.first) * rows, count = b < a.batches ? min(rows, m.rows - row) : 0;
    const LeanAux<true> aux6{nibbles + 16 * kGroups * G6, kGroups, G6};
    const LeanAux<false> aux4{nibbles + 16 * kGroups * G, kGroups, G};
    const LeanFetch fetch{barriers + warp};
    if (count > 0) {
        const int64_t first = static_cast<int64_t>(row) * kGroups;
        const int n = count * kGroups;
        fetch.begin(lane == 0, q6 ? 16 * n + 10 * n + n / 4 : 18 * n);
        if (lane == 0) {
            fetch.copy(nibbles, m.planes.data + 16 * first, 16 * n);
            fetch.copy(q6 ? aux6.scales() : aux4.scales(), m.planes.scales + 2 * first, 2 * n);
            if (q6) {
                fetch.copy(aux6.high(), m.planes.high + 8 * first, 8 * n);
                fetch.copy(aux6.d(), m.planes.d + first / 4, n / 4);
            }
        }
        __syncwarp();
    }
    float norm[8];
    const bool normed = a.x.kind == ActKind::norm, stages = threadIdx.x < kThreads;
    if (normed && stages) lean_weights8(a.x.norm, threadIdx.x, norm);
    // While the kernel before this one ends: everything that needs the weights alone.
    float2 by[G][S], by6[G6][S];
    if (count > 0) {
        fetch.wait();
        if (q6) lean_row_scales<true, S, G6>(aux6, lane, by6);
        else lean_row_scales<false, S, G>(aux4, lane, by);
    }
    pdl_wait();
    pdl_trigger();  // behind the wait: the next kernel's loads do not get in the way of what this one still waits for
    if (normed) {
        LeanNormRow x;
        if (stages) x.load(reinterpret_cast<const float*>(a.x.rows), threadIdx.x, partial);
        __syncthreads();
        if (stages) x.stage(norm, a.x.eps, threadIdx.x, partial, staged);
    } else if (a.x.kind == ActKind::int8) {
        lean_stage_int8<kGroups>(a.x.rows, a.any_q6 != 0, staged);
    } else {
        lean_stage_floats<kCols / 8>(reinterpret_cast<const float*>(a.x.rows), l, staged);
    }
    __syncthreads();
    if (count == 0) return;
    const auto store = [&](int g, float sum) {
        if (g >= count) return;
        m.y[row + g] = sum;
        if (a.residual != nullptr) a.residual[row + g] = a.residual[row + g] + sum;
    };
    if (q6) {
        float acc[G6];
        lean_dot_shared<true, S, G6>(nibbles, aux6, by6, staged, lane, acc);
        lean_reduce<G6>(acc, lane, store);
    } else {
        float acc[G];
        lean_dot_shared<false, S, G>(nibbles, aux4, by, staged, lane, acc);
        lean_reduce<G>(acc, lane, store);
    }
}

/// Q4_K rows of S * 1024 columns, S above 2: a CTA has up to 16 of them, row warp * gridDim.x + CTA. A warp multiplies
/// one step (1,024 columns, activations in registers) of several rows; then warp r adds up row r, step after step.
template <int S>
__global__ void __launch_bounds__(kLeanThreads, 2) lean_wide_kernel(const __grid_constant__ LeanMatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barrier;
    constexpr int kCols = 1024 * S, kGroups = 32 * S, kNibbles = 16 * kGroups, kHeaders = 2 * kGroups;
    constexpr ActLayout l = lean_layout(kCols);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    char* staged = reinterpret_cast<char*>(dynamic);
    char* nibbles = staged + staged_bytes(kCols);
    char* headers = nibbles + kLeanWarps * kNibbles;
    auto* scales = reinterpret_cast<float2*>(headers + kLeanWarps * kHeaders);  // [step][row][lane]
    auto* values = reinterpret_cast<float*>(scales + S * kLeanThreads);
    const LeanMatrix& m = a.m[0];
    const int rows = (m.rows - 1 - static_cast<int>(blockIdx.x)) / static_cast<int>(gridDim.x) + 1;
    const int row = warp * gridDim.x + blockIdx.x;
    const LeanFetch fetch{&barrier};
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
    // This warp's S products: of 16 S, those from warp * S on, all rows of a step before the next step. Loops stay
    // loops: at one pass a kernel, fetching code costs more than a branch.
    const KShifts at(lane);
    fetch.wait();
#pragma unroll 1
    for (int k = warp * S; k < warp * S + S; ++k)
        scales[k * 32 + lane] =
            lean_scales<false>({headers + k % kLeanWarps * kHeaders, kGroups, 1}, 32 * (k / kLeanWarps) + lane, at);
    pdl_wait();
    pdl_trigger();  // see lean_once_kernel
    const float old = a.residual != nullptr && lane == 0 && warp < rows ? a.residual[row] : 0.0f;
    if (a.x.kind == ActKind::int8) lean_stage_int8<kGroups>(a.x.rows, false, staged);
    else lean_stage_floats<kCols / 8>(reinterpret_cast<const float*>(a.x.rows), l, staged);
    __syncthreads();
    KActs x = {};
#pragma unroll 1
    for (int k = warp * S; k < warp * S + S; ++k) {
        const int r = k % kLeanWarps, index = 32 * (k / kLeanWarps) + lane;
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
        acc[0] = fmaf(values[(s * kLeanWarps + warp) * 32 + lane], d, acc[0]);
    }
    lean_reduce<1>(acc, lane, [&](int, float sum) {
        m.y[row] = sum;
        if (a.residual != nullptr) a.residual[row] = old + sum;
    });
}

/// One batch is G rows of Q4_K or G6 of Q6_K.
LeanMatmulArgs lean_args(const ActSource& x, std::span<const Weight* const> weights, std::span<Tensor> y,
                         Tensor* residual, int G, int G6) {
    LeanMatmulArgs a = {};
    for (const Weight* w : weights) {
        const auto i = static_cast<size_t>(a.matrices);
        const bool q6 = w->dtype == DType::planes_q6_k;
        const int64_t batch = q6 ? G6 : G;
        a.m[i] = {planes_of(*w), y[i].row(0), static_cast<int32_t>(w->rows), a.batches, q6};
        a.batches += static_cast<int32_t>((w->rows + batch - 1) / batch);
        a.any_q6 = a.any_q6 != 0 || q6;
        ++a.matrices;
    }
    a.x = x;
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    return a;
}

void launch_kernel(Context& ctx, void (*kernel)(LeanMatmulArgs), int64_t ctas, int threads, int64_t shared,
                   const LeanMatmulArgs& a) {
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas)), threads, static_cast<size_t>(shared), a);
}

int64_t shared_limit(const Context& ctx) { return ctx.gpu->info().shared_bytes - (1 << 10); }

/// False: more batches than warps, or no room.
template <int G, int G6>
bool launch_once(Context& ctx, const ActSource& x, std::span<const Weight* const> weights, std::span<Tensor> y,
                 Tensor* residual) {
    constexpr int kGroups = 64, kBytes4 = G * 18 * kGroups, kBytes6 = G6 * (26 * kGroups + kGroups / 4);
    LeanMatmulArgs a = lean_args(x, weights, y, residual, G, G6);
    const int sms = ctx.gpu->info().sm_count;
    a.warp_bytes = a.any_q6 != 0 ? std::max(kBytes4, kBytes6) : kBytes4;
    const int shared = std::max(kLeanLarge, staged_bytes(32 * kGroups) + kLeanWarps * a.warp_bytes);
    if (shared > shared_limit(ctx) || a.batches > kLeanWarps * sms) return false;
    launch_kernel(ctx, lean_once_kernel<G, G6>, std::min(sms, a.batches), kLeanThreads, shared, a);
    return true;
}

/// False: not Q4_K, too many rows, or no room.
template <int S>
bool launch_wide(Context& ctx, const ActSource& x, std::span<const Weight* const> weights, std::span<Tensor> y,
                 Tensor* residual) {
    constexpr int kGroups = 32 * S;
    const int sms = ctx.gpu->info().sm_count;
    const int row = 18 * kGroups + S * 32 * static_cast<int>(sizeof(float3));
    const int shared = std::max(kLeanLarge, staged_bytes(32 * kGroups) + kLeanWarps * row);
    if (weights.size() != 1 || weights[0]->dtype != DType::planes_q4_k || weights[0]->rows > kLeanWarps * sms ||
        x.kind == ActKind::norm || shared > shared_limit(ctx))
        return false;
    const LeanMatmulArgs a = lean_args(x, weights, y, residual, 1, 1);
    launch_kernel(ctx, lean_wide_kernel<S>, std::min<int64_t>(sms, weights[0]->rows), kLeanThreads, shared, a);
    return true;
}

template <int S, int G>
void launch_stream(Context& ctx, const ActSource& x, std::span<const Weight* const> weights, std::span<Tensor> y,
                   Tensor* residual) {
    constexpr ActLayout l = lean_layout(1024 * S);
    LeanMatmulArgs a = lean_args(x, weights, y, residual, G, G);
    a.warp_bytes = G * (a.any_q6 != 0 ? LeanAux<true>::row_bytes(l.groups) : LeanAux<false>::row_bytes(l.groups));
    const int64_t ctas = std::min<int64_t>(2 * ctx.gpu->info().sm_count, (a.batches + kWarps - 1) / kWarps);
    launch_kernel(ctx, lean_stream_kernel<S, G>, ctas, kThreads,
                  l.bytes() + x.norm_bytes(l.cols) + int64_t{kWarps} * a.warp_bytes, a);
}

}  // namespace

bool lean_multiply(Context& ctx, const ActSource& x, int64_t cols, std::span<const Weight* const> weights,
                   std::span<Tensor> y, Tensor* residual) {
    if (weights.size() > kLeanMatrices ||
        !std::all_of(weights.begin(), weights.end(), [](const Weight* w) { return lean_type(*w); }))
        return false;
    if (cols == 2048) {
        // Q6_K takes twice the arithmetic: half the rows for a warp, if there are warps enough.
        if (!launch_once<5, 3>(ctx, x, weights, y, residual) && !launch_once<6, 3>(ctx, x, weights, y, residual))
            launch_stream<2, 5>(ctx, x, weights, y, residual);
    } else if (cols == 6144) {
        if (!launch_wide<6>(ctx, x, weights, y, residual)) launch_stream<6, 1>(ctx, x, weights, y, residual);
    } else if (cols == 8192) {
        if (!launch_wide<8>(ctx, x, weights, y, residual)) launch_stream<8, 1>(ctx, x, weights, y, residual);
    } else {
        return false;
    }
    return true;
}

}  // namespace riptide::ops::cuda::decode
