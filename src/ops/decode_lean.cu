// Matrix products of one row in Q4_K_M models of the width of Laguna XS.2. Bytes and floors as in decode_matmul.cu; the
// general kernels there take every other shape, type and number of rows, with the same bits.
//
// Two kernels. lean_once_kernel: every warp has one batch of rows, as decode_lean.cuh describes (q k v and the gate, o).
// lean_stream_kernel: more batches than warps (the head): batches in registers, two CTAs an SM.
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

/// As lean_stream_kernel, one batch a warp: batch warp * gridDim.x + CTA.
template <int S, int G>
__global__ void __launch_bounds__(kLeanThreads, 2) lean_once_kernel(const __grid_constant__ LeanMatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[kWarps];
    __shared__ uint64_t barriers[kLeanWarps];
    if (TRIG == 0) pdl_trigger();
    constexpr int kCols = 1024 * S, kGroups = 32 * S;
    constexpr ActLayout l = lean_layout(kCols);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = threadIdx.x;
    const int b = warp * gridDim.x + blockIdx.x;
    char* staged = reinterpret_cast<char*>(dynamic);
    char* nibbles = staged + staged_bytes(kCols) + warp * a.warp_bytes;
    int i = 0;
#pragma unroll
    for (int k = 1; k < kLeanMatrices; ++k)
        if (k < a.matrices && b >= a.m[k].first) i = k;
    const LeanMatrix& m = a.m[i];
    const bool q6 = m.q6 != 0;
    const int row = (b - m.first) * G, count = b < a.batches ? min(G, m.rows - row) : 0;
    const LeanFetch fetch{barriers + warp};
    if (count > 0) {
        const int64_t first = static_cast<int64_t>(row) * kGroups;
        const int n = count * kGroups;
        fetch.begin(lane == 0, q6 ? 16 * n + 10 * n + n / 4 : 18 * n);
        if (lane == 0) {
            fetch.copy(nibbles, m.planes.data + 16 * first, 16 * n);
            if (q6) {
                const LeanAux<true> aux{nibbles + 16 * kGroups * G, kGroups, G};
                fetch.copy(aux.scales(), m.planes.scales + 2 * first, 2 * n);
                fetch.copy(aux.high(), m.planes.high + 8 * first, 8 * n);
                fetch.copy(aux.d(), m.planes.d + first / 4, n / 4);
            } else {
                fetch.copy(nibbles + 16 * kGroups * G, m.planes.scales + 2 * first, 2 * n);
            }
        }
        __syncwarp();
    }
    float norm[8];
    const bool normed = S == 2 && a.x.kind == ActKind::norm;
    if (normed && t < kThreads) lean_weights8(a.x.norm, t, norm);
    // While the kernel before this one ends: everything that needs the weights alone.
    const LeanAux<true> aux6{nibbles + 16 * kGroups * G, kGroups, G};
    const LeanAux<false> aux4{nibbles + 16 * kGroups * G, kGroups, G};
    float2 by[G][S];
    if (count > 0) {
        fetch.wait();
        if (q6) lean_row_scales<true, S, G>(aux6, lane, by);
        else lean_row_scales<false, S, G>(aux4, lane, by);
    }
    pdl_wait();
    float old = 0.0f;
    if (G == 1 && a.residual != nullptr && lane == 0 && count > 0) old = a.residual[row];
    if (normed) {
        if (t < kThreads)
            lean_stage_norm(reinterpret_cast<const float*>(a.x.rows), norm, a.x.eps, 0, partial, staged);
    } else if (a.x.kind == ActKind::int8) {
        lean_stage_int8<kGroups>(a.x.rows, a.any_q6 != 0, staged);
    } else {
        lean_stage_floats<kCols / 8>(reinterpret_cast<const float*>(a.x.rows), l, staged);
    }
    if (TRIG == 1) pdl_trigger();
    __syncthreads();
    if (TRIG == 2) pdl_trigger();
    if (count == 0) return;
    float acc[G];
    if (q6) lean_dot_shared<true, S, G>(nibbles, aux6, by, staged, lane, acc);
    else lean_dot_shared<false, S, G>(nibbles, aux4, by, staged, lane, acc);
    lean_reduce<G>(acc, lane, [&](int g, float sum) {
        if (g >= count) return;
        m.y[row + g] = sum;
        if (a.residual != nullptr) a.residual[row + g] = (G == 1 ? old : a.residual[row + g]) + sum;
    });
}

/// Q4_K rows of S * 1024 columns, S above 2: a CTA has up to 16 of them, row warp * gridDim.x + CTA. A warp multiplies
/// one step (1,024 columns, activations in registers) of several rows; then warp r adds up row r, step after step.
template <int S>
__global__ void __launch_bounds__(kLeanThreads, 2) lean_wide_kernel(const __grid_constant__ LeanMatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barrier;
    if (TRIG == 0) pdl_trigger();
    constexpr int kCols = 1024 * S, kGroups = 32 * S, kNibbles = 16 * kGroups, kHeaders = 2 * kGroups;
    constexpr ActLayout l = lean_layout(kCols);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    char* staged = reinterpret_cast<char*>(dynamic);
    char* nibbles = staged + staged_bytes(kCols);
    char* headers = nibbles + kLeanWarps * kNibbles;
    auto* values = reinterpret_cast<float*>(headers + kLeanWarps * kHeaders);  // [step][row][lane]
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
    const LeanLane at(lane);
    const auto step_of = [&](int k) { return (warp * S + k) / kLeanWarps; };
    const auto row_of = [&](int k) { return (warp * S + k) % kLeanWarps; };
    float2 by[S];
    fetch.wait();
#pragma unroll
    for (int k = 0; k < S; ++k)
        by[k] = lean_scales<false>({headers + row_of(k) * kHeaders, kGroups, 1}, 32 * step_of(k) + lane, at);
    pdl_wait();
    const float old = a.residual != nullptr && lane == 0 && warp < rows ? a.residual[row] : 0.0f;
    if (a.x.kind == ActKind::int8) lean_stage_int8<kGroups>(a.x.rows, false, staged);
    else lean_stage_floats<kCols / 8>(reinterpret_cast<const float*>(a.x.rows), l, staged);
    if (TRIG == 1) pdl_trigger();
    __syncthreads();
    LeanActs x = {};
#pragma unroll
    for (int k = 0; k < S; ++k) {
        const int step = step_of(k), r = row_of(k), index = 32 * step + lane;
        if (k == 0 || r == 0) x = lean_acts<false>(staged, kGroups, index);
        const uint4 q = *reinterpret_cast<const uint4*>(nibbles + r * kNibbles + 16 * index);
        const LeanAux<false> aux{headers + r * kHeaders, kGroups, 1};
        values[(step * kLeanWarps + r) * 32 + lane] = lean_value<false>(q, aux, index, x, by[k]);
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

template <int S, int G>
void launch_lean(Context& ctx, const ActSource& x, std::span<const Weight* const> weights, std::span<Tensor> y,
                 Tensor* residual) {
    LeanMatmulArgs a = {};
    bool q6 = false;
    for (const Weight* w : weights) {
        q6 = q6 || w->dtype == DType::planes_q6_k;
        const auto i = static_cast<size_t>(a.matrices);
        a.m[i] = {planes_of(*w), y[i].row(0), static_cast<int32_t>(w->rows), a.batches, w->dtype == DType::planes_q6_k};
        a.batches += static_cast<int32_t>((w->rows + G - 1) / G);
        ++a.matrices;
    }
    a.x = x;
    a.any_q6 = q6;
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    constexpr ActLayout l = lean_layout(1024 * S);
    const int sms = ctx.gpu->info().sm_count;
    a.warp_bytes = G * (q6 ? LeanAux<true>::row_bytes(l.groups) : LeanAux<false>::row_bytes(l.groups));
    const int64_t shared = l.bytes() + x.norm_bytes(l.cols) + int64_t{kWarps} * a.warp_bytes;
    const int64_t limit = ctx.gpu->info().shared_bytes - (1 << 10), rows_bytes = 16 * l.groups;
    if constexpr (S == 2) {
        const int64_t once = std::max<int64_t>(kLeanLarge, l.bytes() + kLeanWarps * (a.warp_bytes + G * rows_bytes));
        if (once <= limit && a.batches <= kLeanWarps * sms) {
            a.warp_bytes += static_cast<int32_t>(G * rows_bytes);
            const int ctas = std::min(sms, a.batches);
            allow_shared(reinterpret_cast<const void*>(lean_once_kernel<S, G>), once);
            launch(*ctx.gpu, lean_once_kernel<S, G>, dim3(static_cast<unsigned>(ctas)), kLeanThreads,
                   static_cast<size_t>(once), a);
            return;
        }
    } else {
        const int64_t wide = std::max<int64_t>(
            kLeanLarge, l.bytes() + kLeanWarps * (rows_bytes + 2 * l.groups + S * 32 * int64_t{sizeof(float)}));
        if (wide <= limit && !q6 && a.matrices == 1 && a.m[0].rows <= kLeanWarps * sms && x.kind != ActKind::norm) {
            const int ctas = std::min(sms, a.m[0].rows);
            allow_shared(reinterpret_cast<const void*>(lean_wide_kernel<S>), wide);
            launch(*ctx.gpu, lean_wide_kernel<S>, dim3(static_cast<unsigned>(ctas)), kLeanThreads,
                   static_cast<size_t>(wide), a);
            return;
        }
    }
    const int64_t ctas = std::min<int64_t>(2 * sms, (a.batches + kWarps - 1) / kWarps);
    allow_shared(reinterpret_cast<const void*>(lean_stream_kernel<S, G>), shared);
    launch(*ctx.gpu, lean_stream_kernel<S, G>, dim3(static_cast<unsigned>(ctas)), kThreads, static_cast<size_t>(shared),
           a);
}

}  // namespace

bool lean_multiply(Context& ctx, const ActSource& x, int64_t cols, std::span<const Weight* const> weights,
                   std::span<Tensor> y, Tensor* residual) {
    if (weights.size() > kLeanMatrices ||
        !std::all_of(weights.begin(), weights.end(), [](const Weight* w) { return lean_type(*w); }))
        return false;
    if (cols == 2048) launch_lean<2, 5>(ctx, x, weights, y, residual);
    else if (cols == 6144) launch_lean<6, 1>(ctx, x, weights, y, residual);
    else if (cols == 8192) launch_lean<8, 1>(ctx, x, weights, y, residual);
    else return false;
    return true;
}

}  // namespace riptide::ops::cuda::decode
