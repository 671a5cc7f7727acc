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
    int64_t shared = l.bytes() + x.norm_bytes(l.cols) + int64_t{kWarps} * a.warp_bytes;
    const int64_t once = std::max<int64_t>(kLeanLarge, l.bytes() + int64_t{kLeanWarps} * (a.warp_bytes + 16 * G * l.groups));
    const bool fits = once <= ctx.gpu->info().shared_bytes - (1 << 10) && (x.kind != ActKind::norm || S == 2);
    if (fits && a.batches <= kLeanWarps * sms) {
        a.warp_bytes += 16 * G * l.groups;
        const int ctas = std::min(sms, a.batches);
        allow_shared(reinterpret_cast<const void*>(lean_once_kernel<S, G>), once);
        launch(*ctx.gpu, lean_once_kernel<S, G>, dim3(static_cast<unsigned>(ctas)), kLeanThreads,
               static_cast<size_t>(once), a);
        return;
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
