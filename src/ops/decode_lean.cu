// Kernels for one row of a Laguna XS.2 layer in Q4_K_M. Bytes and floors as in decode_matmul.cu and decode_moe.cu; the
// general kernels there take every other shape, type and number of rows, with the same bits.
//
// H200, 2026-11-21, microseconds in a graph of 40 layers with programmatic launches: q k v gate 10.2 (floor 2.7), o 6.4
// (2.0), router 2.9 (0.2), gate up and down 13.2 (3.7), head 44.9 (36). Limit: not yet understood. Isolated, each
// kernel is active for 5 to 6 us, of which waiting for loads is the largest part; the norm in front of q k v costs
// about 4 us more than copying a quantised row does. Tried: ten rows a warp and one CTA an SM, so that two kernels fit
// on an SM: 5 % slower; all of L1 as shared memory (cudaFuncCachePreferShared): 3 % slower; headers in registers: more
// spills.
#include "ops/decode_lean.h"

#include <algorithm>

#include "ops/decode_lean.cuh"
#include "ops/decode_moe.cuh"

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
    int32_t warp_bytes;  // of LeanAux
    ActSource x;
    float* residual;
};

__host__ __device__ constexpr int staged_bytes(int cols) { return 44 * (cols / 32); }
__host__ __device__ constexpr ActLayout lean_layout(int cols) { return {cols, cols / 32, staged_bytes(cols), 0}; }

/// Batches of G rows of S * 1024 columns; each warp has a contiguous range of them.
template <int S, int G>
__global__ void __launch_bounds__(kThreads, 2) lean_matmul_kernel(const __grid_constant__ LeanMatmulArgs a) {
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

bool lean_type(const Weight& w) {
    return (w.dtype == DType::planes_q4_k || w.dtype == DType::planes_q6_k) && w.scale == 1.0f &&
           w.rows * w.cols <= int64_t{1} << 31;
}

LeanPlanes planes_of(const Weight& w) {
    const char* scales = static_cast<const char*>(w.scales);
    return {static_cast<const char*>(w.data), static_cast<const char*>(w.high), scales,
            scales + w.rows * (w.cols / 16)};
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
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    constexpr ActLayout l = lean_layout(1024 * S);
    a.warp_bytes = G * (q6 ? LeanAux<true>::row_bytes(l.groups) : LeanAux<false>::row_bytes(l.groups));
    const int64_t shared = l.bytes() + x.norm_bytes(l.cols) + int64_t{kWarps} * a.warp_bytes;
    const int64_t ctas = std::min<int64_t>(2 * ctx.gpu->info().sm_count, (a.batches + kWarps - 1) / kWarps);
    allow_shared(reinterpret_cast<const void*>(lean_matmul_kernel<S, G>), shared);
    launch(*ctx.gpu, lean_matmul_kernel<S, G>, dim3(static_cast<unsigned>(ctas)), kThreads, static_cast<size_t>(shared),
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

// ---- Experts.

namespace {

constexpr int kSlots = 9, kHidden = 2048, kFf = 512, kPairRows = 5, kDownRows = 2, kDownBatch = 5;

struct LeanGateUpArgs {
    LeanPlanes m[4];  // gate and up of the experts, gate and up of the shared expert
    int64_t stride;   // from expert to expert
    const int32_t* experts;
    int32_t top_k, slots;
    ActSource x;
    float* out;  // [slots, ff]
};

/// As gate_up_kernel: rows gate 0, up 0, gate 1, ... of all slots, five a warp; a CTA's rows meet in shared memory.
__global__ void __launch_bounds__(kThreads, 2) lean_gate_up_kernel(const __grid_constant__ LeanGateUpArgs a) {
    constexpr ActLayout l = lean_layout(kHidden);
    constexpr int S = kHidden / 1024, kCtaRows = kWarps * kPairRows, kHeaders = kHidden / 256;
    __shared__ alignas(16) char staged[staged_bytes(kHidden)];
    __shared__ alignas(16) char headers[kCtaRows * kHeaders * 16];
    __shared__ float results[kCtaRows];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int rows = a.slots * kFf * 2, first = blockIdx.x * kCtaRows + warp * kPairRows;
    const LeanAux<false> aux{headers + warp * kPairRows * kHeaders * 16, 32 * S, kPairRows};
    pdl_wait();
    pdl_trigger();  // now: the next kernel may read above its wait what is older than this kernel
    const int mine = lane < a.top_k ? load_shared_i32(a.experts + lane) : 0;
    const auto planes_of_row = [&](int g, int& f) {
        const int i = min(first + g, rows - 1), slot = i / (2 * kFf);
        f = (i / 2) % kFf;
        const int64_t expert = __shfl_sync(~0u, mine, slot);
        LeanPlanes m = a.m[(slot < a.top_k ? 0 : 2) + (i & 1)];
        if (slot < a.top_k) m.data += expert * a.stride, m.scales += expert * a.stride;
        return m;
    };
    uint4 raw[kPairRows][S];
#pragma unroll
    for (int g = 0; g < kPairRows; ++g) {
        int f;
        const LeanPlanes m = planes_of_row(g, f);
        const char* from = m.data + (f * (32 * S) + lane) * 16;
#pragma unroll
        for (int s = 0; s < S; ++s) raw[g][s] = load_weights(from + 512 * s);
    }
#pragma unroll
    for (int c = 0; c < (kPairRows * kHeaders + 31) / 32; ++c) {
        const int chunk = 32 * c + lane;
        int f;
        const LeanPlanes m = planes_of_row(min(chunk / kHeaders, kPairRows - 1), f);
        if (chunk < kPairRows * kHeaders)
            copy_async16(aux.scales() + 16 * chunk, m.scales + (f * kHeaders + chunk % kHeaders) * 16);
    }
    stage_rows(a.x, l, 0, 1, staged, nullptr, nullptr);
    copy_async_wait();
    __syncthreads();
    float acc[kPairRows];
    lean_dot_rows<false, S, kPairRows>(raw, aux, staged, lane, acc);
    lean_reduce<kPairRows>(acc, lane, [&](int g, float sum) { results[warp * kPairRows + g] = sum; });
    __syncthreads();
    const int pair = threadIdx.x, at = blockIdx.x * (kCtaRows / 2) + pair;
    if (pair < kCtaRows / 2 && at < rows / 2) a.out[at] = swiglu_value(results[2 * pair], results[2 * pair + 1]);
}

/// stage_slots() for up to kSlots slots of kFf: all loads first.
__device__ __forceinline__ void lean_stage_slots(const DownArgs& a, char* out) {
    constexpr ActLayout l = lean_layout(kSlots * kFf);
    constexpr int kRounds = (kSlots * kFf / 8 + kThreads - 1) / kThreads;
    const int pieces = a.slots * (kFf / 8);
    float v[kRounds][8];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int c = i * kThreads + threadIdx.x;
        load8(a.act, c < pieces ? c : pieces, 8 * pieces, v[i]);
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) put8(l, out, i * kThreads + threadIdx.x, v[i]);
}

/// As plane_down_kernel: two outputs a warp, a slot for each half of it, ten slots at once.
template <bool Q6>
__global__ void __launch_bounds__(kThreads, 2)
    lean_down_kernel(const __grid_constant__ DownArgs a, const __grid_constant__ LeanPlanes routed,
                     const __grid_constant__ LeanPlanes shared, int64_t stride) {
    constexpr ActLayout l = lean_layout(kSlots * kFf);
    constexpr int kGroups = kFf / 32, kSlotBytes = kDownRows * LeanAux<Q6>::row_bytes(kGroups);
    __shared__ alignas(16) char staged[staged_bytes(kSlots * kFf)];
    __shared__ alignas(16) char planes[kWarps][2 * kDownBatch][(kSlotBytes + 15) / 16 * 16];
    __shared__ float terms[kWarps][kDownRows][kMostTopK + 1];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = lane / 16, j = lane % 16;
    const int o = (blockIdx.x * kWarps + warp) * kDownRows;
    uint4 raw[kDownBatch][kDownRows];
#pragma unroll
    for (int b = 0; b < kDownBatch; ++b) {
        const int slot = 2 * b + half;
        if (slot < a.slots) {
            LeanPlanes m = slot < a.top_k ? routed : shared;
            if (slot < a.top_k) {
                const int64_t offset = load_shared_i32(a.experts + slot) * stride;  // older than gate_up: see there
                m.data += offset, m.scales += offset;
                if constexpr (Q6) m.high += offset, m.d += offset;
            }
            const int first = o * kGroups;
#pragma unroll
            for (int r = 0; r < kDownRows; ++r) raw[b][r] = load_weights(m.data + (first + r * kGroups + j) * 16);
            const LeanAux<Q6> aux{planes[warp][slot], kGroups, kDownRows};
            if (j < kDownRows * kGroups / 8) copy_async16(aux.scales() + 16 * j, m.scales + 2 * first + 16 * j);
            if constexpr (Q6) {
                copy_async16(aux.high() + 16 * j, m.high + 8 * first + 16 * j);
                if (j < 2) *reinterpret_cast<uint32_t*>(aux.d() + 4 * j) = load_weight32(m.d + first / 4 + 4 * j);
            }
        } else {
#pragma unroll
            for (int r = 0; r < kDownRows; ++r) raw[b][r] = make_uint4(0, 0, 0, 0);
        }
    }
    pdl_wait();
    lean_stage_slots(a, staged);
    copy_async_wait();
    __syncthreads();
    float acc[kDownRows][kDownBatch];
#pragma unroll
    for (int b = 0; b < kDownBatch; ++b) {
        const int slot = min(2 * b + half, a.slots - 1);
        const LeanAux<Q6> aux{planes[warp][slot], kGroups, kDownRows};
        const LeanActs x = lean_acts<Q6>(staged, l.groups, slot * kGroups + j);
#pragma unroll
        for (int r = 0; r < kDownRows; ++r) acc[r][b] = lean_dot<Q6>(raw[b][r], aux, r * kGroups + j, x, lane, 0.0f);
    }
#pragma unroll
    for (int r = 0; r < kDownRows; ++r)
        lean_reduce<kDownBatch, 16>(acc[r], lane, [&](int b, float sum) {
            const int slot = 2 * b + half;
            if (slot < a.slots) put_term(a, 0, slot, sum, terms[warp][r]);
        });
    __syncwarp();
    if (lane < kDownRows) store_down(a, 0, o + lane, terms[warp][lane]);
}

/// From expert to expert, the same in every plane; 0 if they do not lie so.
int64_t expert_stride(const std::vector<Weight>& experts) {
    if (experts.size() < 2) return 0;
    return static_cast<const char*>(experts[1].data) - static_cast<const char*>(experts[0].data);
}

bool all_lean(std::span<const Weight* const> weights, DType type, int64_t rows, int64_t cols) {
    return std::all_of(weights.begin(), weights.end(), [&](const Weight* w) {
        return w->dtype == type && lean_type(*w) && w->rows == rows && w->cols == cols;
    });
}

}  // namespace

bool lean_experts(Context& ctx, const ActSource& x, int64_t cols, const Routing& routing, const ExpertWeights& weights,
                  const SharedExpert& shared, Tensor& y, Tensor* residual) {
    if (shared.gate == nullptr || routing.top_k + 1 > kSlots || cols != kHidden || x.kind != ActKind::staged)
        return false;
    const Weight* const ups[] = {&weights.gate[0], &weights.up[0], shared.gate, shared.up};
    const Weight* const downs[] = {&weights.down[0], shared.down};
    const int64_t out = weights.down[0].rows, stride = expert_stride(weights.gate);
    if (!all_lean(ups, DType::planes_q4_k, kFf, kHidden) || !all_lean(downs, downs[0]->dtype, out, kFf) ||
        out % (kWarps * kDownRows) != 0 || expert_stride(weights.up) != stride)
        return false;
    LeanGateUpArgs a = {};
    for (size_t i = 0; i < 4; ++i) a.m[i] = planes_of(*ups[i]);
    a.stride = stride;
    a.experts = routing.experts.row<int32_t>(0);
    a.top_k = static_cast<int32_t>(routing.top_k);
    a.slots = a.top_k + 1;
    a.x = x;
    a.out = static_cast<float*>(ctx.arena->allocate(a.slots * kFf * int64_t{sizeof(float)}));
    constexpr int kCtaRows = kWarps * kPairRows;
    launch(*ctx.gpu, lean_gate_up_kernel, dim3(static_cast<unsigned>((a.slots * kFf * 2 + kCtaRows - 1) / kCtaRows)),
           kThreads, 0, a);

    DownArgs d;
    d.m[0] = matrix_of(weights.down[0]);
    d.m[1] = matrix_of(*shared.down);
    d.experts = a.experts;
    d.weights = routing.weights.row(0);
    d.act = a.out;
    d.top_k = a.top_k;
    d.slots = a.slots;
    d.ff = d.padded = kFf;
    d.rows = static_cast<int32_t>(out);
    d.layout = lean_layout(kSlots * kFf);
    d.y = y.row(0);
    d.residual = residual == nullptr ? nullptr : residual->row(0);
    const auto kernel = downs[0]->dtype == DType::planes_q6_k ? lean_down_kernel<true> : lean_down_kernel<false>;
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(out / (kWarps * kDownRows))), kThreads, 0, d,
           planes_of(weights.down[0]), planes_of(*shared.down), expert_stride(weights.down));
    return true;
}

}  // namespace riptide::ops::cuda::decode
