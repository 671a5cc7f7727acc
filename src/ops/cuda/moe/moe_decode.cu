// Sparse and dense SwiGLU layers of the decode family.
//
// Bytes of a sparse layer of Laguna XS.2 in Q4_K_M at one row: router 1.0 MB (bf16), gate and up of 8 + 1 experts 10.6
// MB, down 5.3 MB (Q6_K: 7.7); floor at 4.65 TB/s 0.23, 2.3 and 1.1 us. FLOPs do not matter. Design: three kernels.
//   router_any_kernel           norm and router product, two experts a CTA; the CTA that finishes last chooses the
//                               experts. One more CTA leaves the normalised row quantised for the next kernel.
//   experts_any_gate_up_kernel  one list of (slot, f) pairs over all CTAs, the shared expert as one more slot; a CTA's
//                               warps share its matrix rows and meet in shared memory for silu(gate) * up.
//   experts_any_down_kernel     (experts_any.cuh) one output row a warp, all slots: their products are those of
//                               matmul, added in order of rank.
// Float weights in usual shapes: experts_float.cu. Planes in usual shapes: one row experts_row1_sm90.cu, more
// experts_rows8.cu or experts_grouped_sm80.cu with router_rows.cu (the latter else from three rows on); else the same
// kernels for each row, weights that rows share come from L2 (blockIdx.y = row). Limits: latency of three dependent
// kernels; the experts' addresses are not known before the router has ended.
#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/linear/gemv/bf16_small_sm90.h"
#include "ops/cuda/linear/gemv/kquant_i8.h"
#include "ops/cuda/linear/kquant_f16.h"
#include "ops/cuda/linear/shared/float.h"
#include "ops/cuda/linear/shared/kquant_i8_wide.h"
#include "ops/cuda/linear/shared/linear.h"
#include "ops/cuda/linear/skinny/draft_f16_sm90.h"
#include "ops/cuda/linear/skinny/q8_i8_sm80.h"
#include "ops/cuda/moe/experts_any.cuh"
#include "ops/cuda/moe/experts_float.h"
#include "ops/cuda/moe/experts_grouped_sm80.h"
#include "ops/cuda/moe/experts_row1_sm90.h"
#include "ops/cuda/moe/experts_rows8.h"
#include "ops/cuda/moe/plan.h"
#include "ops/cuda/moe/route.cuh"

namespace riptide::ops::cuda::decode {

namespace {

struct RouterArgs {
    Matrix m;  // float rows without a scale plane
    ActSource x;
    ActLayout layout;     // of x for the router
    ActLayout prepared;   // of x for the experts
    char* out = nullptr;  // [n] prepared rows
    float* logits = nullptr;
    RouteArgs route;
    int32_t* counters = nullptr;  // one for each row
};

/// Four warps have an expert, each one accumulator of the canonical order.
__global__ void __launch_bounds__(kThreads) router_any_kernel(const __grid_constant__ RouterArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[2 * kWarps];
    __shared__ float sums[kWarps];
    __shared__ bool last;
    __shared__ RouteMemory memory;
    pdl_trigger();
    constexpr int kSteps = 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.y;
    const int expert = 2 * blockIdx.x + warp / 4,
              pieces = expert < a.m.rows ? pieces_of(a.m) : 0;  // the last CTA: none
    uint32_t raw[kSteps][4];
    const auto load = [&](int step) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
            const int c = (step + warp % 4 + 4 * s) * 32 + lane;
            raw[s][0] = raw[s][1] = raw[s][2] = raw[s][3] = 0;
            if (c < pieces) load_piece(a.m, 0, expert, c, raw[s]);
        }
    };
    char* staged = reinterpret_cast<char*>(dynamic);
    float* norm = reinterpret_cast<float*>(staged + max(a.layout.bytes(), a.prepared.bytes()));
    fetch_norm(a.x, a.layout.cols, norm);
    const bool prepares = blockIdx.x == gridDim.x - 1;
    float acc[1] = {};
#pragma unroll 1
    for (int step = 0; step == 0 || step * 32 < pieces; step += 4 * kSteps) {
        load(step);
        if (step == 0) {
            pdl_wait();
            stage_rows(a.x, prepares ? a.prepared : a.layout, row, 1, staged, norm, partial);
            __syncthreads();
        }
        with_float_type<PlainFloats>(a.m.type, [&](auto type) {
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                const int c = (step + warp % 4 + 4 * s) * 32 + lane;
                if (c < pieces) dot_piece<1>(type, c, 0, raw[s], PiecePlane{}, 0, staged, 0, 1, acc);
            }
        });
    }
    if (prepares) {
        copy_bytes(a.out + static_cast<int64_t>(row) * a.prepared.bytes(), staged, a.prepared.bytes());
        return;
    }
    const float sum = warp_sum(acc[0]);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    const float* logits = a.logits + static_cast<int64_t>(row) * a.m.rows;
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (2 * static_cast<int>(blockIdx.x) + i < a.m.rows)
                a.logits[static_cast<int64_t>(row) * a.m.rows + 2 * blockIdx.x + i] =
                    ((sums[4 * i] + sums[4 * i + 1]) + (sums[4 * i + 2] + sums[4 * i + 3])) * a.m.scale;
        __threadfence();
        last = atomicAdd(a.counters + row, 1) == static_cast<int>(gridDim.x) - 2;
        if (last) a.counters[row] = 0;
        __threadfence();
    }
    __syncthreads();
    if (last) route_row(a.route, logits, row, memory);
}

bool all_k_quants(const Matrix& a, const Matrix& b) { return is_k_quant(a.type) && is_k_quant(b.type); }

/// out [n, slots, ff]. x: staged rows of `layout` if n > 1.
void launch_gate_up(Context& ctx, const Layer& layer, const ActSource& x, const ActLayout& layout, int64_t n,
                    const int32_t* experts, bool next_reads_early, float* out) {
    GateUpArgs a;
    const bool routed = layer.top_k > 0;
    const Matrix& any = routed ? layer.gate : layer.shared_gate;
    a.m[0] = layer.gate, a.m[1] = layer.up, a.m[2] = layer.shared_gate, a.m[3] = layer.shared_up;
    a.experts = experts;
    a.top_k = layer.top_k;
    a.ff = any.rows;
    if (layer.shared) a.shared_warps = routed ? std::max(1, kWarps / (layer.top_k + 1)) : kWarps;
    a.next_reads_early = next_reads_early;
    a.layout = layout;
    a.x = x;
    a.out = out;
    const bool floats = !is_planes(any.type);
    const bool k_quants = (!routed || all_k_quants(layer.gate, layer.up)) &&
                          (!layer.shared || all_k_quants(layer.shared_gate, layer.shared_up));
    const GateUpKernel kernel = !k_quants             ? other_gate_up_kernel(floats)
                                : layout.groups <= 64 ? experts_any_gate_up_kernel<PlaneBatch<KQuants, 5, 2, true>>
                                                      : experts_any_gate_up_kernel<PlaneBatch<KQuants, 1, 8, false>>;
    const int64_t slots = layer.top_k + (layer.shared ? 1 : 0);
    const int64_t ctas = std::clamp<int64_t>(slots * a.ff * 2 / kWarps, 1, int64_t{2} * ctx.gpu->info().sm_count);
    const int64_t shared = layout.bytes() + x.norm_bytes(layout.cols) +
                           8 * ((int64_t{a.top_k} * a.ff + ctas - 1) / ctas + (a.ff + ctas - 1) / ctas + 2);
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas), static_cast<unsigned>(n)), kThreads,
           static_cast<size_t>(shared), a);
}

/// Right behind launch_gate_up(next_reads_early).
void launch_down(Context& ctx, const Layer& layer, const Routing& routing, const float* act, int64_t n, Tensor& y,
                 Tensor* residual, const Tensor* extra) {
    DownArgs a;
    const bool floats = !is_planes(layer.down.type);
    a.m[0] = layer.down;
    a.m[1] = layer.shared ? layer.shared_down : layer.down;
    a.experts = routing.experts.row<int32_t>(0);
    a.weights = routing.weights.row(0);
    a.act = act;
    a.top_k = layer.top_k;
    a.slots = layer.top_k + (layer.shared ? 1 : 0);
    a.ff = layer.down.cols;
    a.padded = (a.ff + 15) / 16 * 16;
    a.rows = layer.down.rows;
    a.layout = act_layout(int64_t{a.slots} * a.padded, !floats, floats);
    a.y = y.row(0);
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    a.extra = extra == nullptr ? nullptr : extra->row(0);
    const bool k_quants = a.m[0].type == a.m[1].type && is_k_quant(a.m[0].type);
    const DownKernel kernel = !k_quants     ? other_down_kernel(floats, a.ff == 512)
                              : a.ff == 512 ? experts_any_down_kernel<KQuants, 5, true>
                                            : experts_any_down_kernel<KQuants, 5, false>;
    stage_count(ctx, a.layout, 0, 1);  // whether a row fits
    allow_shared(reinterpret_cast<const void*>(kernel), a.layout.bytes());
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>((a.rows + kWarps - 1) / kWarps), static_cast<unsigned>(n)),
           kThreads, static_cast<size_t>(a.layout.bytes()), a);
}

struct SparseShape {
    Layer layer;
    ActLayout layout;       // of the rows that gate and up read
    bool separate = false;  // the shared expert goes through kernels of its own
};

SparseShape sparse_shape(const ExpertWeights& weights, const SharedExpert& shared, bool separate, int64_t top_k,
                         int64_t cols) {
    RT_CHECK(!weights.gate.empty() && top_k <= kMostTopK,
             "{} of {} experts, but GPU kernels choose 1 to {} of 1 or more", top_k, weights.gate.size(), kMostTopK);
    const Weight &gate = weights.gate[0], &up = weights.up[0], &down = weights.down[0];
    check_weight(gate, cols);
    check_weight(up, cols);
    check_weight(down, gate.rows);
    RT_CHECK(moe::same_kind(gate, up),
             "GPU kernels need gate and up both quantised or both floats, but they are {} and {}",
             dtype_name(gate.dtype), dtype_name(up.dtype));
    for (size_t e = 0; e < weights.gate.size(); ++e)
        RT_CHECK(weights.gate[e].rows == gate.rows && weights.up[e].rows == gate.rows && weights.gate[e].cols == cols &&
                     weights.up[e].cols == cols && weights.down[e].cols == gate.rows &&
                     weights.down[e].rows == down.rows,
                 "expert {} has shapes gate [{}, {}], up [{}, {}], down [{}, {}], which do not fit those of expert 0",
                 e, weights.gate[e].rows, weights.gate[e].cols, weights.up[e].rows, weights.up[e].cols,
                 weights.down[e].rows, weights.down[e].cols);
    SparseShape s;
    s.layer.gate = matrix_of(weights.gate);
    s.layer.up = matrix_of(weights.up);
    s.layer.down = matrix_of(weights.down);
    s.layer.top_k = static_cast<int32_t>(top_k);
    s.layer.experts = static_cast<int32_t>(weights.gate.size());
    s.layout = act_layout(cols, is_planes(gate.dtype), !is_planes(gate.dtype));
    if (shared.gate == nullptr) return s;
    s.separate = separate;
    if (s.separate) return s;
    check_weight(*shared.gate, cols);
    check_weight(*shared.up, cols);
    check_weight(*shared.down, gate.rows);
    s.layer.shared = true;
    s.layer.shared_gate = matrix_of(*shared.gate);
    s.layer.shared_up = matrix_of(*shared.up);
    s.layer.shared_down = matrix_of(*shared.down);
    return s;
}

/// logits[n, experts] of a float router and what is chosen by them, for a row or two; the rows as `prepared` wants
/// them.
ActSource route_any(Context& ctx, const Weight& router, const ActSource& x, const ActLayout& prepared, int64_t n,
                    const RouteArgs& route, float* logits) {
    ActSource staged;
    staged.kind = ActKind::staged;
    staged.stride = prepared.bytes();
    auto* rows = static_cast<char*>(ctx.arena->allocate(n * staged.stride));
    staged.rows = rows;
    RouterArgs a;
    a.m = matrix_of(router);
    a.x = x;
    a.layout = act_layout(router.cols, false, true);
    a.prepared = prepared;
    a.out = rows;
    a.logits = logits;
    a.route = route;
    a.counters = ctx.gpu->counters();
    RT_ASSERT(n <= Gpu::kCounters);
    stage_count(ctx, a.layout, a.x.norm_bytes(a.layout.cols) + (10 << 10), 1);
    const int64_t dynamic = std::max(a.layout.bytes(), a.prepared.bytes()) + a.x.norm_bytes(a.layout.cols);
    allow_shared(reinterpret_cast<const void*>(router_any_kernel), dynamic + (10 << 10));
    launch(*ctx.gpu, router_any_kernel,
           dim3(static_cast<unsigned>((router.rows + 1) / 2 + 1), static_cast<unsigned>(n)), kThreads,
           static_cast<size_t>(dynamic), a);
    return staged;
}

/// Logits [n, 1] of the shared expert's share, or nothing where it is whole. x: the rows, normalised or to be.
Tensor share_logits(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const SharedExpert& shared) {
    return shared.share == nullptr ? Tensor() : multiply(ctx, x, cols, n, {&shared.share, 1}, nullptr)[0];
}

/// y[n, d] of ops/moe.h; residual += y. x: the rows, normalised or to be; `prepared`: the same as staged rows, or x;
/// share: of share_logits().
void run_experts(Context& ctx, moe::Experts experts, const SparseShape& s, const ActSource& x,
                 const ActSource& prepared, int64_t cols, int64_t n, const Routing& routing, const SharedExpert& shared,
                 const Tensor& share, Tensor& y, Tensor* residual) {
    Tensor extra;
    if (s.separate) {
        extra = ctx.alloc(DType::f32, {n, y.shape[1]});
        dense_swiglu(ctx, x, cols, n, *shared.gate, *shared.up, *shared.down, extra, nullptr);
        if (share.data != nullptr) mul_sigmoid(ctx, extra, share, 1);
    }
    if (experts == moe::Experts::grouped_sm80)
        return group_experts(ctx, s.layer, prepared, n, routing, y, residual, extra, s.separate ? Tensor() : share);
    const Tensor* const more = s.separate ? &extra : nullptr;
    if (experts == moe::Experts::float_experts)
        return float_experts(ctx, s.layer, prepared, cols, n, routing, y, residual, more);
    RT_ASSERT(experts == moe::Experts::any);
    const int64_t slots = s.layer.top_k + (s.layer.shared ? 1 : 0);
    auto* act = static_cast<float*>(ctx.arena->allocate(n * slots * s.layer.gate.rows * int64_t{sizeof(float)}));
    launch_gate_up(ctx, s.layer, prepared, s.layout, n, routing.experts.row<int32_t>(0), true, act);
    launch_down(ctx, s.layer, routing, act, n, y, residual, more);
}

}  // namespace

namespace {

/// out[n, ff] = silu(gate x) * (up x), by one launch of the plan for pairs; q8_i8_sm80 has an end of its own.
void run_pair(Context& ctx, const linear::Launch& launch, const ActSource& x, int64_t cols, const Weight& gate,
              const Weight& up, float* out) {
    using linear::Kernel;
    switch (launch.kernel) {
        case Kernel::draft_f16_sm90:
            return draft_gate_up(ctx, x, cols, launch.rows, gate, up, out);
        case Kernel::kquant_f16_row1_sm90:
        case Kernel::kquant_f16_mma_sm90:
        case Kernel::kquant_f16_wgmma_sm90:
            return f16_gate_up(ctx, launch, x, cols, gate, up, out);
        case Kernel::bf16_small_sm90:
            return bf16_small_gate_up(ctx, x, cols, gate, up, out);
        case Kernel::float_row1:
            return float_gate_up(ctx, x, cols, gate, up, out);
        case Kernel::kquant_i8_wide_row1_sm90:
            return kquant_i8_wide_row1_gate_up(ctx, x, cols, gate, up, out);
        case Kernel::kquant_i8_wide_sm90:
            return kquant_i8_wide_gate_up(ctx, x, cols, launch.rows, gate, up, out);
        default:
            break;
    }
    RT_ASSERT(launch.kernel == Kernel::any);
    Layer layer;
    layer.shared = true;
    layer.shared_gate = matrix_of(gate);
    layer.shared_up = matrix_of(up);
    const bool floats = !is_planes(gate.dtype);
    launch_gate_up(ctx, layer, x, act_layout(cols, !floats, floats), 1, nullptr, false, out);
}

}  // namespace

void dense_swiglu(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& w_gate, const Weight& w_up,
                  const Weight& w_down, Tensor& y, Tensor* residual) {
    for (const Weight* w : {&w_gate, &w_up}) check_weight(*w, cols);
    const ArenaScope scope(*ctx.arena);
    const Weight *const both[] = {&w_gate, &w_up}, *const down = &w_down;
    const linear::Choice choice = linear::choose_pair(case_of(ctx, x, cols, n, both, false), w_down);
    ActSource act;
    act.stride = w_gate.rows * int64_t{sizeof(float)};
    if (choice.empty()) {
        const std::vector<Tensor> products = multiply(ctx, x, cols, n, both, nullptr);
        if (n > 1 && linear::q8_weight(chip_of(*ctx.gpu), w_down)) act = prepare_swiglu(ctx, products[0], products[1]);
        else act.rows = static_cast<const char*>(cuda::swiglu(ctx, products[0], products[1]).data);
    } else if (choice[0].kernel == linear::Kernel::q8_i8_sm80) {
        act = q8_i8_gate_up(ctx, x, cols, n, w_gate, w_up);
    } else {
        auto* const out = static_cast<float*>(ctx.arena->allocate(n * act.stride));
        act.rows = reinterpret_cast<const char*>(out);
        for (const linear::Launch& launch : choice) run_pair(ctx, launch, x, cols, w_gate, w_up, out);
    }
    multiply_into(ctx, act, w_gate.rows, n, {&down, 1}, {&y, 1}, residual);
}

Tensor swiglu_ffn(Context& ctx, Tensor& x, const Norm& norm, const Weight& w_gate, const Weight& w_up,
                  const Weight& w_down, bool add) {
    Tensor y = ctx.alloc(DType::f32, {x.rows(), w_down.rows});
    if (x.rows() == 0) return y;
    const Chip chip = chip_of(*ctx.gpu);
    const bool floats = (ctx.family == Family::draft && linear::draft_weight(chip, w_gate)) ||
                        !is_planes(w_gate.dtype) || !is_planes(w_up.dtype) || linear::f16_weight(chip, w_gate) ||
                        linear::f16_weight(chip, w_up);
    dense_swiglu(ctx, source_of(x, norm, floats), x.shape[1], x.rows(), w_gate, w_up, w_down, y, add ? &x : nullptr);
    if (add) x.int8 = nullptr;
    return y;
}

Tensor moe_swiglu(Context& ctx, const Tensor& x, const Routing& routing, const ExpertWeights& weights,
                  const SharedExpert& shared) {
    const int64_t n = x.rows(), cols = x.shape[1];
    const moe::Choice choice = moe::choose({.family = ctx.family,
                                            .rows = n,
                                            .normed = false,
                                            .top_k = routing.top_k,
                                            .experts = &weights,
                                            .shared = shared,
                                            .chip = chip_of(*ctx.gpu)});
    const SparseShape s = sparse_shape(weights, shared, choice.separate, routing.top_k, cols);
    Tensor y = ctx.alloc(DType::f32, {n, s.layer.down.rows});
    if (n == 0) return y;
    const ArenaScope scope(*ctx.arena);
    const ActSource source = source_of(x, {}, true);
    const ActSource prepared = n == 1 ? source : prepare_rows(ctx, source, s.layout, n);
    run_experts(ctx, choice.up, s, source, prepared, cols, n, routing, shared, {}, y, nullptr);
    return y;
}

namespace {

/// What the plan is asked of rows x of a sparse layer.
moe::Case sparse_case(const Context& ctx, int64_t n, const Norm& norm, const Router& router,
                      const ExpertWeights& weights, const SharedExpert& shared) {
    return {.family = ctx.family,
            .rows = n,
            .normed = !norm.weight.empty(),
            .aligned = reinterpret_cast<uintptr_t>(norm.weight.data()) % 16 == 0,
            .router = router.w,
            .top_k = router.top_k,
            .experts = &weights,
            .shared = shared,
            .chip = chip_of(*ctx.gpu)};
}

}  // namespace

Tensor matmul_add(Context& ctx, const Weight& w, const Tensor& x, Tensor& residual, const MoeLayer& next) {
    RouterAhead ahead;
    if (moe::takes_words(sparse_case(ctx, x.rows(), next.norm, next.router, *next.experts, next.shared)))
        ahead = {static_cast<const char*>(next.router.w->data), next.norm.weight.data(), router_words(*ctx.gpu)};
    const Weight* const only = &w;
    return matmul_group(ctx, x, {}, {&only, 1}, &residual, ahead.words != nullptr ? &ahead : nullptr)[0];
}

MoeResult moe_add(Context& ctx, Tensor& x, const Norm& norm, const Router& router, const ExpertWeights& weights,
                  const SharedExpert& shared) {
    const int64_t n = x.rows(), cols = x.shape[1], num_experts = router.w->rows;
    RT_CHECK(num_experts <= kMostExperts, "{} experts, but GPU kernels choose from at most {}", num_experts,
             kMostExperts);
    check_weight(*router.w, cols);
    moe::Case c = sparse_case(ctx, n, norm, router, weights, shared);
    c.words = x.routed.words;
    const moe::Choice choice = moe::choose(c);
    RT_ASSERT(!c.words || choice.router == moe::Router::words);
    const SparseShape s = sparse_shape(weights, shared, choice.separate, router.top_k, cols);
    const ActSource source = source_of(x, norm, true);
    MoeResult result;
    result.y = ctx.alloc(DType::f32, {n, s.layer.down.rows});
    if (choice.router == moe::Router::product || n == 0) {
        const Weight* const w = router.w;
        result.logits = multiply(ctx, source, cols, n, {&w, 1}, nullptr)[0];
        result.routing = alloc_routing(ctx, n, router.top_k);
        if (n == 0) return result;
        cuda::route(ctx, result.logits, router, result.routing);
        const ArenaScope scope(*ctx.arena);
        const ActSource prepared = prepare_rows(ctx, source, s.layout, n);
        const Tensor share = share_logits(ctx, source, cols, n, shared);
        run_experts(ctx, choice.up, s, source, prepared, cols, n, result.routing, shared, share, result.y, &x);
        x.int8 = nullptr;
        return result;
    }
    ActSource rows;  // prepared, with floats beside for router_logits()
    const ActLayout both = act_layout(cols, s.layout.int8_bytes > 0, true);
    if (choice.router == moe::Router::rows) rows = prepare_rows(ctx, source, both, n);
    result.logits = ctx.alloc(DType::f32, {n, num_experts});
    if (choice.router == moe::Router::rows)
        router_logits(ctx, *router.w, rows.rows + both.int8_bytes, rows.stride, n, result.logits.row(0));
    result.routing = alloc_routing(ctx, n, router.top_k);
    x.int8 = nullptr;
    const ArenaScope scope(*ctx.arena);
    RouteArgs route = route_args(router, result.routing);
    const Tensor share = choice.share ? ctx.alloc(DType::f32, {n, 1}) : share_logits(ctx, source, cols, n, shared);
    if (choice.share) route.share = static_cast<const char*>(shared.share->data);
    if (share.data != nullptr) route.share_logits = share.row(0);
    switch (choice.router) {
        case moe::Router::rows_norm: {
            auto* keys = static_cast<uint32_t*>(ctx.arena->allocate(n * num_experts * int64_t{sizeof(uint32_t)}));
            constexpr int64_t kEight = SparseShape512::kRows8;
            auto* listed = static_cast<uint64_t*>(
                ctx.arena->allocate((n + kEight - 1) / kEight * kMostRows8Groups * int64_t{sizeof(uint64_t)}));
            const ChooseHere choose{&route, result.logits.row(0), keys, listed};
            rows = fused_router(ctx, *router.w, source, s.layout, n, route, choice.words, result.logits.row(0), keys,
                                listed);
            if (choice.up != moe::Experts::rows8) {
                group_experts(ctx, s.layer, rows, n, result.routing, result.y, &x, {}, share, choose);
                return result;
            }
            for (int64_t first = 0; first < n; first += kEight) {
                const int64_t count = std::min(kEight, n - first);
                RouteArgs some = route;
                some.chosen += first * router.top_k;
                some.weights += first * router.top_k;
                if (share.data != nullptr) some.share_logits += first;
                ActSource from = rows;
                from.rows += first * rows.stride;
                Tensor y(result.y.row(first), DType::f32, {count, result.y.shape[1]}),
                    residual(x.row(first), DType::f32, {count, x.shape[1]});
                experts_rows8(ctx, weights, shared, from, count,
                              {&some, result.logits.row(first), keys + first * num_experts,
                               listed + first / kEight * kMostRows8Groups},
                              y, &residual);
            }
            return result;
        }
        case moe::Router::words_rows:
            rows =
                fused_router(ctx, *router.w, source, s.layout, n, route, true, result.logits.row(0), nullptr, nullptr);
            choose_experts(ctx, route, result.logits.row(0), n);
            break;
        case moe::Router::rows:
            choose_experts(ctx, route, result.logits.row(0), n);
            break;
        case moe::Router::words:
            if (choice.up == moe::Experts::rows8) {
                RouterWords* const words = router_words(*ctx.gpu);
                experts_rows8(ctx, weights, shared, source, n,
                              {&route, result.logits.row(0), nullptr, words->listed, words}, result.y, &x);
                return result;
            }
            [[fallthrough]];
        case moe::Router::words_row1:
        case moe::Router::row1:
        case moe::Router::float_product:
            if (choice.up == moe::Experts::row1_sm90)
                experts_row1(ctx, x, norm, *router.w, route, weights, shared, c.words, result, x.row(0));
            else float_moe(ctx, choice.router == moe::Router::row1, source, cols, router, s.layer, result, &x);
            return result;
        default:
            RT_ASSERT(choice.router == moe::Router::any);
            rows = route_any(ctx, *router.w, source, s.layout, n, route, result.logits.row(0));
    }
    run_experts(ctx, choice.up, s, source, rows, cols, n, result.routing, shared, share, result.y, &x);
    return result;
}

}  // namespace riptide::ops::cuda::decode
