// Sparse and dense SwiGLU layers of float weights: float.cuh has the design of the products.
//
// Bytes of a sparse layer of Laguna XS.2 in bf16 at one row: router 1 MB, gate and up of eight experts and the shared
// one 38 MB, down 19 MB; floor at 4.65 TB/s 0.2, 8.1 and 4.1 us; fp8 half of it but for the router. Three kernels:
//   router             Laguna's one row: router_row1_kernel, which leaves keys and the normalised row. Else
//                      float_multiply(): the norm and the logits.
//   float_gate_up      every CTA chooses the experts itself from the keys (or logits, while half of it normalises x),
//                      and has an even share of the pairs of rows (gate, up) of all slots; the shared expert's come
//                      first and go to the L2 cache before the wait.
//   float_down         experts_float_down.cuh: an output for each one or two warps, all slots; asked for while gate and
//                      up are being computed.
// What down reads before its wait: x, complete since then; and the ids of the experts. From keys: it asks for them
// until they are there, as in experts_row1_sm90.cu. From logits: CTA 0 of gate and up stores them, with a fence,
// before it lets down start; the others do so behind their wait. More rows (blockIdx.y) choose experts in kernels of
// their own and each read theirs: at eight rows of 8 of 256 experts 57 of 64 are distinct. Rows that share experts get
// them from L2. What limits one row: router, choice, memory latency and gate's bytes follow one another. Measured
// (H200, 2026-11-22): a sparse layer 22.9 us (54 % of the roof), fp8 15.9 (40 %). Before, 29.4 and 21.4: router and
// choice took 2.4 us more (logits in 16 CTAs, the norm again in every CTA of gate and up, a fence before down), and see
// float.cu.
#include <algorithm>
#include <utility>

#include "ops/cuda/linear/shared/float.cuh"
#include "ops/cuda/linear/shared/float.h"
#include "ops/cuda/moe/experts_any.cuh"
#include "ops/cuda/moe/experts_float.h"
#include "ops/cuda/moe/experts_float_down.cuh"
#include "ops/cuda/moe/route.cuh"
#include "ops/cuda/moe/router_row1.cuh"

namespace riptide::ops::cuda::decode {

namespace {

// ---- Gate and up.

struct FloatGateUpArgs {
    FloatMatrix m[4];               // gate and up of the experts, gate and up of the shared expert or of a dense layer
    int32_t duos = 0;               // pairs of rows of a slot
    int32_t shared_duos = 0;        // 0: no shared expert
    int32_t most_duos = 0;          // of a CTA
    RouteArgs route;                // top_k 0: no experts
    const float* logits = nullptr;  // of the only row, from which every CTA chooses; or ...
    const int32_t* experts = nullptr;  // ... [n, top_k], chosen already; or ...
    Row1Scores scores = {};            // ... from which every CTA chooses, of the only row: its rows of x are staged
    ActLayout layout;
    ActSource x;
    float* out = nullptr;  // [n, slots, ff], the shared expert last
};

constexpr int kMostAhead = 8;  // tiles of a warp

/// Rows `row` and `row` + 1 of matrices `matrix` and `matrix` + 1, of the expert of `slot` if matrix is 0; their
/// results go to out[2 at], out[2 at + 1].
struct alignas(16) Duo {
    int32_t matrix, slot, row, at;
};
static_assert(kDuoBytes == sizeof(Duo) + kQuadRows * sizeof(float4));

/// A CTA's batches are its duos, those of the shared expert first, which alone are known before the wait: they go to
/// the L2 cache then. (In registers they would leave none for the choice of experts.)
struct DuoBatches {
    using Rows = TwoPairs;
    static constexpr bool kEarly = false;
    const FloatGateUpArgs& a;
    const Duo* duos;        // shared memory
    const int32_t* chosen;  // shared memory, too
    int shared, quad, count, ahead;

    __device__ __forceinline__ int matrix(int k) const { return kQuads * k + quad < shared ? 2 : 0; }
    __device__ __forceinline__ int64_t expert(const Duo& d) const { return d.matrix == 0 ? chosen[d.slot] : 0; }
    __device__ __forceinline__ Rows rows(int k, int lane_bytes) const {
        const Duo d = duos[kQuads * k + quad];
        const FloatMatrix &gate = a.m[d.matrix], &up = a.m[d.matrix + 1];
        const int64_t e = expert(d), row = static_cast<int64_t>(d.row) * gate.row_bytes + lane_bytes;
        return {gate.data + e * gate.stride + row, up.data + e * up.stride + row};
    }
    __device__ __forceinline__ uint32_t scale(int k, int g, int piece) const {
        const Duo d = duos[kQuads * k + quad];
        const FloatMatrix& m = a.m[d.matrix + g / 2];
        return float_scale(m, expert(d) * m.scale_stride, d.row + g % 2, piece);
    }
};

/// The choice from keys: behind it, down may ask for its weights. Whole CTA; nothing else is to be awaited.
__device__ __forceinline__ void choose_by_key(const FloatGateUpArgs& a, Row1Route& route, char* staged) {
    const int t = threadIdx.x;
    pdl_wait();
    if (t < kThreads) {
        row1_rank_own(__float_as_uint(load_shared_f32(reinterpret_cast<const float*>(a.scores.key) + t)), route);
    } else {
        constexpr int kPieces = kRow1Hidden / 4 / kThreads;
        float4 v[kPieces];
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
            v[i] = load_shared_f32x4(reinterpret_cast<const float*>(a.scores.x) + 4 * (t + (i - 1) * kThreads));
#pragma unroll
        for (int i = 0; i < kPieces; ++i) reinterpret_cast<float4*>(staged)[t + (i - 1) * kThreads] = v[i];
    }
    __syncthreads();
    if (t < kThreads) row1_rank_best(a.route.top_k, route);
    __syncthreads();
    if (blockIdx.x == 0 && t < a.route.top_k) post_id(a.route.chosen + t, route.chosen[t]);
    pdl_trigger();
}

/// The same from logits or ids; x is normalised or copied meanwhile.
__device__ __forceinline__ void choose_by_logit(const FloatGateUpArgs& a, RouteMemory& route, const float* norm,
                                                float* partial, char* staged) {
    const ActLayout l{a.layout.cols, 0, 0, a.layout.float_bytes};
    const int t = threadIdx.x, b = blockIdx.x, row = blockIdx.y, u = t % kThreads;
    const bool stages = t >= kThreads, chooses = a.logits != nullptr;
    ActSource x = a.x;
    x.rows += row * x.stride;
    pdl_wait();
    if (!chooses) pdl_trigger();
    const bool normed = stages && x.kind == ActKind::norm;
    float v[8];
    if (normed) {
        sum_squares(x, l, u, partial, v);
        copy_async_wait();
    } else if (stages) {
        if (x.kind == ActKind::staged) copy_staged(x.rows, l.float_bytes, u, kThreads, staged);
        else stage_plain(reinterpret_cast<const float*>(x.rows), l, u, kThreads, staged);
    } else if (chooses) {
        route_scores(a.route, a.logits, route);
    } else if (t < a.route.top_k) {
        route.chosen[t] = load_shared_i32(a.experts + static_cast<int64_t>(row) * a.route.top_k + t);
    }
    __syncthreads();
    if (normed) put_normed(x, l, u, norm, partial, v, staged);
    if (chooses) {
        if (!stages) rank_first(a.route, route);
        __syncthreads();
        if (!stages) rank_last(a.route, route);
    }
    __syncthreads();
    if (chooses && b > 0) {
        pdl_trigger();
    } else if (chooses && t < 32) {  // in CTA 0 this warp alone, behind its stores: see the top of the file
        if (t < a.route.top_k) {
            a.route.chosen[t] = route.chosen[t];
            __threadfence();
        }
        __syncwarp();
        pdl_trigger();
    }
    if (chooses && b == 0 && t < a.route.top_k) a.route.weights[t] = route_weight(a.route, route, t);
}

template <class Set, int Columns, bool Keyed>
__global__ void __launch_bounds__(kFloatThreads, 2)
    experts_float_gate_up_kernel(const __grid_constant__ FloatGateUpArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[kWarps];
    __shared__ std::conditional_t<Keyed, Row1Route, RouteMemory> route;
    const int t = threadIdx.x, b = blockIdx.x, parts = gridDim.x, quad = t / 128, row = blockIdx.y;
    const int routed = a.route.top_k * a.duos, shared_first = part_of(a.shared_duos, b, parts);
    const int shared = part_of(a.shared_duos, b + 1, parts) - shared_first, first = part_of(routed, b, parts) - shared;
    const int total = part_of(routed, b + 1, parts) - first;
    char* staged = reinterpret_cast<char*>(dynamic);
    auto* norm = reinterpret_cast<float*>(staged + a.layout.float_bytes);
    auto* duos = reinterpret_cast<Duo*>(norm + a.x.norm_bytes(a.layout.cols) / 4);
    auto* results = reinterpret_cast<float*>(duos + a.most_duos);
    const int known = shared > quad ? (shared - quad + kQuads - 1) / kQuads : 0;
    const DuoBatches list{a,
                          duos,
                          route.chosen,
                          shared,
                          quad,
                          total > quad ? (total - quad + kQuads - 1) / kQuads : 0,
                          min(known * a.m[2].windows, kMostAhead)};
    for (int d = t; d < total; d += kFloatThreads) {
        const int slot = d < shared ? 0 : (first + d) / a.duos;
        if (d < shared) duos[d] = {2, 0, 2 * (shared_first + d), routed + shared_first + d};
        else duos[d] = {0, slot, 2 * (first + d - slot * a.duos), first + d};
    }
    __syncthreads();
    if (!Keyed && t >= kThreads) fetch_norm(a.x, a.layout.cols, norm, t % kThreads);
    multiply_row<Set, Columns>(
        a.m, list,
        [&] {
            if constexpr (Keyed) choose_by_key(a, route, staged);
            else choose_by_logit(a, route, norm, partial, staged);
        },
        [&] {
            if constexpr (Keyed)
                if (b == 0 && t < a.route.top_k) a.route.weights[t] = row1_weight(a.route, route, a.scores.s);
        },
        {staged, 0, 1}, results);
    __syncthreads();
#pragma unroll 1
    for (int i = t; i < 2 * total; i += kFloatThreads) {
        const Duo d = duos[i / 2];
        const float gate = __fmul_rn(float_sum(results, kQuadRows * (i / 2) + i % 2), a.m[d.matrix].scale);
        const float up = __fmul_rn(float_sum(results, kQuadRows * (i / 2) + 2 + i % 2), a.m[d.matrix + 1].scale);
        a.out[2 * (static_cast<int64_t>(row) * (routed + a.shared_duos) + d.at) + i % 2] = swiglu_value(gate, up);
    }
}

// ---- Launching.

using DownRowKernel = void (*)(FloatDownArgs);

/// And its Parts; null: none.
std::pair<DownRowKernel, int> down_kernel(const Matrix& m) {
    if (m.cols != 512) return {};
    switch (m.type) {
        case DType::bf16:
            return {experts_float_down_kernel<OneFloat<DType::bf16>, 2>, 2};
        case DType::f16:
            return {experts_float_down_kernel<OneFloat<DType::f16>, 2>, 2};
        case DType::f8_e4m3:
            return {m.scales == nullptr ? experts_float_down_kernel<PlainFloat8, 1>
                                        : experts_float_down_kernel<OneFloat<DType::f8_e4m3>, 1>,
                    1};
        default:
            return {};
    }
}

void launch_gate_up(Context& ctx, const FloatGateUpArgs& a, int64_t n, int64_t ctas, int64_t shared) {
    const auto all = [&](DType type) { return a.m[0].type == type && a.m[2].type == type; };
    const bool plain = a.m[0].scales == nullptr && a.m[2].scales == nullptr;
    const bool keyed = a.scores.key != nullptr;
    const auto typed = [&](auto set) {
        using Set = decltype(set);
        const bool wide = a.layout.cols == kRow1Hidden && a.m[0].row_bytes == a.m[0].pieces * 16 &&
                          a.m[2].row_bytes == a.m[0].row_bytes;
        return keyed  ? experts_float_gate_up_kernel<Set, kRow1Hidden, true>
               : wide ? experts_float_gate_up_kernel<Set, kRow1Hidden, false>
                      : experts_float_gate_up_kernel<Set, 0, false>;
    };
    const auto kernel = all(DType::bf16)               ? typed(OneFloat<DType::bf16>{})
                        : all(DType::f8_e4m3) && plain ? typed(PlainFloat8{})
                        : all(DType::f8_e4m3)          ? typed(OneFloat<DType::f8_e4m3>{})
                        : keyed                        ? experts_float_gate_up_kernel<AllFloats, 0, true>
                                                       : experts_float_gate_up_kernel<AllFloats, 0, false>;
    allow_beside_static(reinterpret_cast<const void*>(kernel), shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas), static_cast<unsigned>(n)), kFloatThreads,
           static_cast<size_t>(shared), a);
}

/// The two kernels of a sparse layer, for n rows.
struct ExpertKernels {
    FloatGateUpArgs up;
    FloatDownArgs down;
    DownRowKernel down_kernel = nullptr;
    int64_t slots = 0, up_ctas = 0, up_shared = 0, down_ctas = 0, down_shared = 0;
};

/// x: how gate and up get their rows.
ExpertKernels expert_kernels(const Gpu& gpu, const Layer& layer, const ActSource& x, int64_t cols, int64_t n) {
    const Matrix &gate = layer.gate, &down = layer.down;
    ExpertKernels k;
    const int64_t duos = gate.rows / 2, outputs = float_down_outputs(down.type, down.cols);
    const auto fit = fit_float_experts(chip_of(gpu), cols, x.kind, n, layer.top_k, duos, layer.shared ? duos : 0,
                                       down.cols, down.rows, outputs);
    RT_ASSERT(fit && outputs == kFloatWarps / down_kernel(down).second);
    k.slots = layer.top_k + (layer.shared ? 1 : 0);
    k.up_ctas = fit->up_ctas, k.up_shared = fit->up_shared;
    k.down_ctas = fit->down_ctas, k.down_shared = fit->down_shared;
    FloatDownArgs& d = k.down;
    d.m[0] = float_matrix_of(down);
    d.m[1] = layer.shared ? float_matrix_of(layer.shared_down) : d.m[0];
    d.top_k = layer.top_k;
    d.slots = static_cast<int32_t>(k.slots);
    d.ff = down.cols;
    d.layout = act_layout(k.slots * down.cols, false, true);
    k.down_kernel = down_kernel(down).first;
    FloatGateUpArgs& a = k.up;
    a.layout = act_layout(cols, false, true);
    RT_ASSERT(x.kind != ActKind::staged || x.stride == a.layout.bytes());
    a.x = x;
    a.duos = static_cast<int32_t>(duos);
    a.shared_duos = layer.shared ? a.duos : 0;
    a.most_duos = static_cast<int32_t>(fit->most_duos);
    a.m[0] = float_matrix_of(gate);
    a.m[1] = float_matrix_of(layer.up);
    a.m[2] = layer.shared ? float_matrix_of(layer.shared_gate) : a.m[0];
    a.m[3] = layer.shared ? float_matrix_of(layer.shared_up) : a.m[1];
    a.route.top_k = layer.top_k;
    return k;
}

/// Behind what chose the experts, or (k.up.logits) what gave the logits.
void launch_experts(Context& ctx, ExpertKernels& k, const Routing& routing, int64_t n, Tensor& y, Tensor* residual,
                    const Tensor* extra) {
    k.up.out = static_cast<float*>(ctx.arena->allocate(n * k.slots * k.up.duos * 2 * int64_t{sizeof(float)}));
    launch_gate_up(ctx, k.up, n, k.up_ctas, k.up_shared);
    FloatDownArgs& d = k.down;
    d.experts = routing.experts.row<int32_t>(0);
    d.weights = routing.weights.row(0);
    d.act = k.up.out;
    d.y = y.row(0);
    d.residual = residual == nullptr ? nullptr : residual->row(0);
    d.extra = extra == nullptr ? nullptr : extra->row(0);
    allow_beside_static(reinterpret_cast<const void*>(k.down_kernel), k.down_shared);
    launch(*ctx.gpu, k.down_kernel, dim3(static_cast<unsigned>(k.down_ctas), static_cast<unsigned>(n)), kFloatThreads,
           static_cast<size_t>(k.down_shared), d);
}

}  // namespace

void float_gate_up(Context& ctx, const ActSource& x, int64_t cols, const Weight& gate, const Weight& up, float* out) {
    const auto fit = fit_float_pair(chip_of(*ctx.gpu), cols, x.kind, gate.rows);
    RT_ASSERT(fit);
    FloatGateUpArgs a;
    a.m[2] = float_matrix_of(matrix_of(gate));
    a.m[3] = float_matrix_of(matrix_of(up));
    a.m[0] = a.m[2], a.m[1] = a.m[3];
    a.duos = a.shared_duos = static_cast<int32_t>(gate.rows / 2);
    a.layout = act_layout(cols, false, true);
    a.x = x;
    a.out = out;
    a.most_duos = static_cast<int32_t>((a.duos + fit->ctas - 1) / fit->ctas);
    launch_gate_up(ctx, a, 1, fit->ctas, fit->shared);
}

void float_moe(Context& ctx, bool keyed, const ActSource& x, int64_t cols, const Router& router, const Layer& layer,
               MoeResult& result, Tensor* residual) {
    RT_ASSERT(router.w->rows <= kMostExperts);
    ActSource staged;
    staged.kind = ActKind::staged;
    staged.stride = act_layout(cols, false, true).bytes();
    ExpertKernels k = expert_kernels(*ctx.gpu, layer, keyed ? staged : x, cols, 1);
    const Weight* const w = router.w;
    if (!keyed) float_multiply(ctx, x, cols, 1, {&w, 1}, {&result.logits, 1}, nullptr);
    k.up.route = route_args(router, result.routing);
    const ArenaScope scope(*ctx.arena);
    if (keyed) {
        constexpr int64_t kScores = kRow1Experts * 4;
        auto* memory = static_cast<char*>(ctx.arena->allocate(2 * kScores + staged.stride));
        k.up.scores = {reinterpret_cast<uint32_t*>(memory), reinterpret_cast<float*>(memory + kScores),
                       memory + 2 * kScores};
        k.down.posted = true;
        launch_row1_router(ctx, reinterpret_cast<const float*>(x.rows), x.norm, x.eps, router, result, k.up.scores);
    } else {
        k.up.logits = result.logits.row(0);
    }
    launch_experts(ctx, k, result.routing, 1, result.y, residual, nullptr);
}

void float_experts(Context& ctx, const Layer& layer, const ActSource& x, int64_t cols, int64_t n,
                   const Routing& routing, Tensor& y, Tensor* residual, const Tensor* extra) {
    ExpertKernels k = expert_kernels(*ctx.gpu, layer, x, cols, n);
    k.up.experts = routing.experts.row<int32_t>(0);
    launch_experts(ctx, k, routing, n, y, residual, extra);
}

}  // namespace riptide::ops::cuda::decode
