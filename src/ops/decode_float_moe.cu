// Sparse and dense SwiGLU layers of float weights for one row: decode_float.cuh has the design of the products.
//
// Bytes of a sparse layer of Laguna XS.2 in bf16: router 1 MB, gate and up of eight experts and the shared one 38 MB,
// down 19 MB; floor at 4.65 TB/s 0.2, 8.1 and 4.1 us; fp8 half of it but for the router. Three kernels:
//   router             float_multiply(): the norm and the logits.
//   float_gate_up      every CTA chooses the experts itself from the logits, while half of it normalises x, and has an
//                      even share of the pairs of rows (gate, up) of all slots; the shared expert's come first and are
//                      asked for before the wait.
//   float_down         an output for each one or two warps, all slots: one piece of each slot a lane, asked for while
//                      gate and up are being computed, those of the next output as soon as a slot's are used.
// What down reads before its wait: the ids of the experts, which CTA 0 of gate and up stores, with a fence, before it
// lets down start; the others do so behind their wait.
// What limits it: router, choice, memory latency and gate's bytes follow one another. Not yet measured.
#include <algorithm>

#include "ops/decode_float.cuh"
#include "ops/decode_float.h"
#include "ops/decode_moe.cuh"
#include "ops/decode_route.cuh"

namespace riptide::ops::cuda::decode {

namespace {

// ---- Gate and up.

struct FloatGateUpArgs {
    FloatMatrix m[4];         // gate and up of the experts, gate and up of the shared expert or of a dense layer
    int32_t duos = 0;         // pairs of rows of a slot
    int32_t shared_duos = 0;  // 0: no shared expert
    RouteArgs route;          // top_k 0: nothing to choose
    const float* logits = nullptr;
    ActLayout layout;
    ActSource x;
    float* out = nullptr;  // [slots, ff], the shared expert last
};

/// A CTA's batches: rows 2 i and 2 i + 1 of gate and of up, first those of the shared expert.
struct DuoBatches {
    using Rows = TwoPairs;
    const FloatGateUpArgs& a;
    const int32_t* chosen;  // shared memory; of duos that are not early
    int shared_first, shared_count, first, quad, count;

    __device__ __forceinline__ int duo(int k) const { return kQuads * k + quad; }
    __device__ __forceinline__ bool early(int k) const { return duo(k) < shared_count; }
    __device__ __forceinline__ int matrix(int k) const { return early(k) ? 2 : 0; }
    /// Expert and first row of batch k.
    __device__ __forceinline__ int2 place(int k) const {
        if (early(k)) return {0, 2 * (shared_first + duo(k))};
        const int at = first + duo(k) - shared_count, slot = at / a.duos;
        return {chosen[slot], 2 * (at - slot * a.duos)};
    }
    __device__ __forceinline__ Rows rows(int k, int lane_bytes) const {
        const int2 at = place(k);
        const FloatMatrix &gate = a.m[matrix(k)], &up = a.m[matrix(k) + 1];
        const int64_t row = static_cast<int64_t>(at.y) * gate.row_bytes + lane_bytes;
        return {gate.data + at.x * gate.stride + row, up.data + at.x * up.stride + row};
    }
    __device__ __forceinline__ uint32_t scale(int k, int g, int piece) const {
        const int2 at = place(k);
        const FloatMatrix& m = a.m[matrix(k) + g / 2];
        return float_scale(m, at.x * m.scale_stride, at.y + g % 2, piece);
    }
};

template <class Set>
__global__ void __launch_bounds__(kFloatThreads, 2) float_gate_up_kernel(const __grid_constant__ FloatGateUpArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[kWarps];
    __shared__ RouteMemory route;
    const int t = threadIdx.x, b = blockIdx.x, parts = gridDim.x, quad = t / 128;
    const int routed = a.route.top_k * a.duos, shared_first = part_of(a.shared_duos, b, parts);
    const int shared_count = part_of(a.shared_duos, b + 1, parts) - shared_first, first = part_of(routed, b, parts);
    const int total = shared_count + part_of(routed, b + 1, parts) - first;
    char* staged = reinterpret_cast<char*>(dynamic);
    auto* norm = reinterpret_cast<float*>(staged + a.layout.float_bytes);
    float* results = norm + a.x.norm_bytes(a.layout.cols) / 4;
    const ActLayout l{a.layout.cols, 0, 0, a.layout.float_bytes};
    const DuoBatches list{a,
                          route.chosen,
                          shared_first,
                          shared_count,
                          first,
                          quad,
                          total > quad ? (total - quad + kQuads - 1) / kQuads : 0};
    multiply_quad<Set>(
        a.m, list,
        [&] {
            const int u = t % kThreads;
            const bool stages = t >= kThreads, normed = a.x.kind == ActKind::norm;
            if (stages) fetch_norm(a.x, l.cols, norm, u);
            pdl_wait();
            if (a.route.top_k == 0) pdl_trigger();
            if (!stages && a.route.top_k > 0) choose_row(a.route, a.logits, route, PartOfCta{1});
            if (stages && normed) stage_normed(a.x, l, u, norm, partial, staged, PartOfCta{2});
            else if (stages) stage_plain(reinterpret_cast<const float*>(a.x.rows), l, u, kThreads, staged);
            __syncthreads();
            if (a.route.top_k == 0) return;
            if (b > 0) {
                pdl_trigger();
            } else if (t < 32) {  // in CTA 0 this warp alone, behind its stores: see the top of the file
                for (int i = t; i < a.route.top_k; i += 32) a.route.chosen[i] = route.chosen[i];
                __threadfence();
                __syncwarp();
                pdl_trigger();
            }
            if (b == 0 && t < a.route.top_k) a.route.weights[t] = route_weight(a.route, route, t);
        },
        staged, results);
    __syncthreads();
#pragma unroll 1
    for (int i = t; i < 2 * total; i += kFloatThreads) {
        const int duo = i / 2, r = i % 2, of = duo < shared_count ? 2 : 0;
        const float gate = __fmul_rn(float_sum(results, kQuadRows * duo + r), a.m[of].scale);
        const float up = __fmul_rn(float_sum(results, kQuadRows * duo + 2 + r), a.m[of + 1].scale);
        const int at = duo < shared_count ? routed + shared_first + duo : first + duo - shared_count;
        a.out[2 * at + r] = swiglu_value(gate, up);
    }
}

// ---- Down.

constexpr int kFloatSlots = 9;

struct FloatDownArgs {
    FloatMatrix m[2];  // of the experts, of the shared expert; alike but for scale and places
    const int32_t* experts = nullptr;
    const float* weights = nullptr;
    int32_t top_k = 0, slots = 0, ff = 0;
    ActLayout layout;            // of slots * ff columns
    const float* act = nullptr;  // [slots, ff]
    float* y = nullptr;
    float* residual = nullptr;  // null: none
};

/// Rows of `Parts` steps of 32 pieces: that many warps have an output, each one step of every slot, an accumulator of
/// the canonical order.
template <class Set, int Parts>
__global__ void __launch_bounds__(kFloatThreads, 2) float_down_row_kernel(const __grid_constant__ FloatDownArgs a) {
    constexpr int kOutputs = kFloatWarps / Parts;
    extern __shared__ uint4 dynamic[];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32, part = warp % Parts, output = warp / Parts;
    const int step = gridDim.x * kOutputs, c = part * 32 + lane;
    char* staged = reinterpret_cast<char*>(dynamic);
    auto* terms = reinterpret_cast<float*>(staged + a.layout.float_bytes);  // [outputs of the CTA][slot][part]
    const int mine = lane < a.top_k ? load_shared_i32(a.experts + lane) : 0;
    uint32_t raw[kFloatSlots][1][4], entries[3] = {0, 0, 0};
    const auto load = [&](int slot, int o) {
        const int expert = __shfl_sync(~0u, mine, slot);
        const FloatMatrix& m = a.m[slot < a.top_k ? 0 : 1];
        const char* row = m.data + static_cast<int64_t>(o) * m.row_bytes;
        if (slot < a.top_k) row += expert * m.stride;
        put_words(raw[slot][0], 0, load_weights(row + 16 * c));
    };
    const auto load_entries = [&](int i, int o) {  // of slots 4 i .. 4 i + 3, eight lanes each
        const int slot = 4 * i + lane / 8, expert = __shfl_sync(~0u, mine, slot);
        if (a.m[0].scales == nullptr || slot >= a.slots) return;
        const FloatMatrix& m = a.m[slot < a.top_k ? 0 : 1];
        entries[i] = float_scale(m, slot < a.top_k ? expert * m.scale_stride : 0, o, part * 32 + lane % 8 * 4);
    };
    int o = blockIdx.x * kOutputs + output;
    if (o < a.m[0].rows) {
#pragma unroll
        for (int slot = 0; slot < kFloatSlots; ++slot)
            if (slot < a.slots) load(slot, o);
        if constexpr (Set::kF8)
#pragma unroll
            for (int i = 0; i < 3; ++i) load_entries(i, o);
    }
    pdl_trigger();  // now: the next kernel's weights queue up behind these
    pdl_wait();
    stage_plain(a.act, {a.layout.cols, 0, 0, a.layout.float_bytes}, t, kFloatThreads, staged);
    __syncthreads();
#pragma unroll 1
    for (int k = 0; o < a.m[0].rows; ++k, o += step) {
        const bool more = o + step < a.m[0].rows;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            float v[4] = {};
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                const int slot = 4 * i + s;
                if (slot >= kFloatSlots || slot >= a.slots) continue;
                const FloatMatrix& m = a.m[slot < a.top_k ? 0 : 1];
                float acc[1] = {};
                dot_float_rows<Set, 1>(m, true, c, slot * (a.ff / 4), raw[slot < kFloatSlots ? slot : 0], entries[i],
                                       8 * s, staged, acc);
                v[s] = acc[0];
                if (more) load(slot, o + step);
            }
            if constexpr (Set::kF8)
                if (more) load_entries(i, o + step);
            const float sum = reduce_lanes<4>(v, lane);
            const int slot = 4 * i + lane / 8;
            if (lane % 8 == 0 && slot < a.slots)
                terms[((k * kOutputs + output) * kFloatSlots + slot) * Parts + part] = sum;
        }
    }
    __syncthreads();
    const float weight = lane < a.top_k ? a.weights[lane] : 0.0f;
#pragma unroll 1
    for (int i = warp;; i += kFloatWarps) {
        o = (i / kOutputs * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * kOutputs + i % kOutputs;
        if (o >= a.m[0].rows) return;
        float term = 0.0f;
        if (lane < a.slots) {
            const float* p = terms + (i * kFloatSlots + lane) * Parts;
            const float sum = __fadd_rn(p[0], Parts == 2 ? p[Parts - 1] : 0.0f);  // the other two are zeros
            term = __fmul_rn(__fadd_rn(sum, 0.0f), a.m[lane < a.top_k ? 0 : 1].scale);
            if (lane < a.top_k) term = __fmul_rn(weight, term);
        }
        float y = __shfl_sync(~0u, term, 0);
        for (int slot = 1; slot < a.slots; ++slot) y = __fadd_rn(y, __shfl_sync(~0u, term, slot));
        if (lane != 0) continue;
        a.y[o] = y;
        if (a.residual != nullptr) a.residual[o] = __fadd_rn(load_shared_f32(a.residual + o), y);
    }
}

using DownRowKernel = void (*)(FloatDownArgs);

/// And its Parts; null: none.
std::pair<DownRowKernel, int> down_kernel(const Matrix& m) {
    if (m.cols != 512) return {};
    switch (m.type) {
        case DType::bf16:
            return {float_down_row_kernel<OneFloat<DType::bf16>, 2>, 2};
        case DType::f16:
            return {float_down_row_kernel<OneFloat<DType::f16>, 2>, 2};
        case DType::f8_e4m3:
            return {float_down_row_kernel<OneFloat<DType::f8_e4m3>, 1>, 1};
        default:
            return {};
    }
}

// ---- Launching.

bool alike(const Matrix& a, const Matrix& b) {
    return a.type == b.type && a.rows == b.rows && a.cols == b.cols && a.row_bytes == b.row_bytes &&
           (a.scales == nullptr) == (b.scales == nullptr) &&
           (a.scales == nullptr ||
            (a.scale_rows == b.scale_rows && a.scale_cols == b.scale_cols && a.scale_type == b.scale_type));
}

bool pair_fits(const Matrix& gate, const Matrix& up) {
    return float_matrix(gate) && alike(gate, up) && gate.rows % 2 == 0;
}

/// Of gate and up; 0: too much.
int64_t gate_up_shared(const Gpu& gpu, const ActSource& x, const ActLayout& layout, int64_t duos, int64_t ctas) {
    const int64_t rounds = duos / ctas + 2;  // for shares that are rounded up, of both lists
    return float_shared(gpu, layout.bytes() + x.norm_bytes(layout.cols) + rounds * kQuadRows * int64_t{sizeof(float4)},
                        true);
}

void launch_gate_up(Context& ctx, const FloatGateUpArgs& a, int64_t ctas, int64_t shared) {
    const auto all = [&](DType type) { return a.m[0].type == type && a.m[2].type == type; };
    const auto kernel = all(DType::bf16)      ? float_gate_up_kernel<OneFloat<DType::bf16>>
                        : all(DType::f8_e4m3) ? float_gate_up_kernel<OneFloat<DType::f8_e4m3>>
                                              : float_gate_up_kernel<AllFloats>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas)), kFloatThreads, static_cast<size_t>(shared), a);
}

}  // namespace

bool float_gate_up(Context& ctx, const ActSource& x, int64_t cols, const Weight& gate, const Weight& up, float* out) {
    if (is_planes(gate.dtype) || is_planes(up.dtype) || (x.kind != ActKind::plain && x.kind != ActKind::norm))
        return false;
    const Matrix g = matrix_of(gate), u = matrix_of(up);
    if (!pair_fits(g, u)) return false;
    FloatGateUpArgs a;
    a.m[2] = float_matrix_of(g);
    a.m[3] = float_matrix_of(u);
    a.m[0] = a.m[2], a.m[1] = a.m[3];
    a.duos = a.shared_duos = g.rows / 2;
    a.layout = act_layout(cols, false, true);
    a.x = x;
    a.out = out;
    const int64_t ctas = std::min<int64_t>(ctx.gpu->info().sm_count, (a.duos + kQuads - 1) / kQuads);
    const int64_t shared = gate_up_shared(*ctx.gpu, x, a.layout, a.duos, ctas);
    if (shared == 0) return false;
    launch_gate_up(ctx, a, ctas, shared);
    return true;
}

bool float_moe(Context& ctx, const ActSource& x, int64_t cols, const Router& router, const Layer& layer,
               MoeResult& result, Tensor* residual) {
    const Gpu& gpu = *ctx.gpu;
    const Matrix &gate = layer.gate, &down = layer.down;
    const int slots = layer.top_k + (layer.shared ? 1 : 0);
    if (slots > kFloatSlots || router.w->rows > kMostExperts || !pair_fits(gate, layer.up) || !float_matrix(down))
        return false;
    if (layer.shared && (!pair_fits(layer.shared_gate, layer.shared_up) || layer.shared_gate.rows != gate.rows ||
                         !alike(down, layer.shared_down)))
        return false;
    FloatDownArgs d;
    d.m[0] = float_matrix_of(down);
    d.m[1] = layer.shared ? float_matrix_of(layer.shared_down) : d.m[0];
    const auto [down_row_kernel, parts] = down_kernel(down);
    if (down_row_kernel == nullptr) return false;
    const int64_t outputs = kFloatWarps / parts, sms = gpu.info().sm_count;
    const int64_t down_ctas = std::min<int64_t>(sms, (down.rows + outputs - 1) / outputs);
    const int64_t down_rounds = (down.rows + down_ctas * outputs - 1) / (down_ctas * outputs);
    d.layout = act_layout(int64_t{slots} * down.cols, false, true);
    const int64_t down_shared =
        float_shared(gpu, d.layout.bytes() + down_rounds * kFloatWarps * kFloatSlots * int64_t{sizeof(float)}, false);
    FloatGateUpArgs a;
    a.layout = act_layout(cols, false, true);
    a.duos = gate.rows / 2;
    a.shared_duos = layer.shared ? a.duos : 0;
    const int64_t ctas = std::min<int64_t>(sms, (slots * a.duos + kQuads - 1) / kQuads);
    const int64_t shared = gate_up_shared(gpu, x, a.layout, slots * a.duos, ctas);
    if (down_shared == 0 || shared == 0) return false;
    const Weight* const router_weight = router.w;
    if (!float_multiply(ctx, x, cols, {&router_weight, 1}, {&result.logits, 1}, nullptr)) return false;

    const ArenaScope scope(*ctx.arena);
    a.m[0] = float_matrix_of(gate);
    a.m[1] = float_matrix_of(layer.up);
    a.m[2] = layer.shared ? float_matrix_of(layer.shared_gate) : a.m[0];
    a.m[3] = layer.shared ? float_matrix_of(layer.shared_up) : a.m[1];
    a.route = {router.bias.empty() ? nullptr : router.bias.data(),
               static_cast<int32_t>(router.w->rows),
               layer.top_k,
               router.scale,
               router.normalize,
               result.routing.experts.row<int32_t>(0),
               result.routing.weights.row(0)};
    a.logits = result.logits.row(0);
    a.x = x;
    a.out = static_cast<float*>(ctx.arena->allocate(int64_t{slots} * gate.rows * int64_t{sizeof(float)}));
    launch_gate_up(ctx, a, ctas, shared);

    d.experts = a.route.chosen;
    d.weights = a.route.weights;
    d.top_k = layer.top_k;
    d.slots = slots;
    d.ff = down.cols;
    d.act = a.out;
    d.y = result.y.row(0);
    d.residual = residual == nullptr ? nullptr : residual->row(0);
    allow_shared(reinterpret_cast<const void*>(down_row_kernel), down_shared);
    launch(gpu, down_row_kernel, dim3(static_cast<unsigned>(down_ctas)), kFloatThreads,
           static_cast<size_t>(down_shared), d);
    return true;
}

}  // namespace riptide::ops::cuda::decode
