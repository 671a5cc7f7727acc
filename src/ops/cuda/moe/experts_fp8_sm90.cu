// Mixture of experts in FP8: as moe_prefill.cu, with e4m3 copies of the experts.
//
// FLOPs: 6 n (top_k + shared) d ff. Bytes: one for a weight of each expert that has rows (805 M a layer of Laguna XS.2:
// 0.19 ms at 4.3 TB/s), which bounds it up to some 2000 rows; nothing is decoded. Rows to their slots: a byte a value.
// A layer of 4,096 rows takes 826 us (bf16: 1,190), one of 8,192 1,532 us (2,233; H200, 2026-11-22): about half of it
// the products, the rest router, moves and the sums of f32 slots.
#include <algorithm>

#include "base/error.h"
#include "ops/cuda/linear/gemm/fp8_sm90.h"
#include "ops/cuda/moe/moe_prefill.h"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

/// Scales of rows to their slots: a thread for each.
__global__ void __launch_bounds__(256)
    moe_spread_scales_kernel(const float* from, const int32_t* slot_of, int top_k, int blocks, int count, float* to) {
    pdl_trigger();
    pdl_wait();
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i >= count) return;
    const int entry = i / blocks, block = i % blocks;
    to[int64_t{slot_of[entry]} * blocks + block] = from[int64_t{entry / top_k} * blocks + block];
}

}  // namespace

Fp8Slots alloc_fp8_slots(Context& ctx, int64_t n, int64_t top_k, int64_t d) {
    const int64_t sorted = n * top_k, all = sorted + n, blocks = d / kFp8Cols;
    auto* const memory = static_cast<uint8_t*>(ctx.arena->allocate(2 * all * d));
    const Fp8Rows inputs = {memory, reinterpret_cast<float*>(memory + all * d)};
    return {inputs, {inputs.values + sorted * d, inputs.scales + sorted * blocks}, reinterpret_cast<uint16_t*>(memory)};
}

void fp8_experts(Context& ctx, const Fp8Slots& slots, const Routing& routing, const ExpertWeights& w,
                 const SharedExpert& shared, const float* share, const Tensor& y, Tensor* x) {
    const int64_t n = y.rows(), d = y.shape[1], ff = w.gate[0].rows, sorted_rows = n * routing.top_k;
    const bool has_shared = shared.gate != nullptr;
    const auto experts = static_cast<int>(w.gate.size());
    const SortedRouting sorted = sort_routing(ctx, routing, experts, has_shared);
    const int64_t used = sorted_rows + (has_shared ? n : 0), blocks = d / kFp8Cols;
    spread_rows(*ctx.gpu, reinterpret_cast<const uint16_t*>(slots.rows.values), sorted.slot_of, n, routing.top_k, d / 2,
                reinterpret_cast<uint16_t*>(slots.inputs.values));
    const auto count = static_cast<int>(sorted_rows * blocks);
    launch(*ctx.gpu, moe_spread_scales_kernel, static_cast<unsigned>(ceil_div(count, 256)), 256, 0, slots.rows.scales,
           sorted.slot_of, static_cast<int>(routing.top_k), static_cast<int>(blocks), count, slots.inputs.scales);

    Fp8Problem problem;
    problem.a = slots.inputs;
    problem.b[0] = fp8_of(w.gate[0]), problem.b[1] = fp8_of(w.up[0]);
    if (has_shared) problem.shared[0] = fp8_of(*shared.gate), problem.shared[1] = fp8_of(*shared.up);
    problem.matrices = 2;
    problem.rows = static_cast<int>(used);
    problem.k = static_cast<int>(d);
    problem.plan = sorted.plan;
    problem.experts = experts + (has_shared ? 1 : 0);
    const Fp8Rows act = {static_cast<uint8_t*>(ctx.arena->allocate(used * ff)),
                         static_cast<float*>(ctx.arena->allocate(4 * used * (ff / kFp8Cols)))};
    gemm_fp8(*ctx.gpu, problem, OutFp8{act, static_cast<int>(ff)});

    problem.a = act;
    problem.b[0] = fp8_of(w.down[0]);
    if (has_shared) problem.shared[0] = fp8_of(*shared.down);
    problem.matrices = 1;
    problem.k = static_cast<int>(ff);
    gemm_fp8(*ctx.gpu, problem, OutBf16{slots.results, d});
    const ExpertResults results = {slots.results, d, has_shared ? slots.results + sorted_rows * d : nullptr, nullptr,
                                   share};
    combine(*ctx.gpu, results, sorted.slot_of, routing, y, x);
}

}  // namespace riptide::ops::cuda::prefill
