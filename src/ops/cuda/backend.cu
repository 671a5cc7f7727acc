// From the public ops to the families of kernels.
#include "ops/cuda/backend.h"

namespace riptide::ops::cuda {

namespace {
bool decoding(const Context& ctx) { return ctx.family != Family::prefill; }
}  // namespace

std::vector<Tensor> matmul_group(Context& ctx, std::span<const Weight* const> weights, const Tensor& x) {
    return norm_matmul_group(ctx, x, {}, weights);
}

std::vector<Tensor> norm_matmul_group(Context& ctx, const Tensor& x, const Norm& norm,
                                      std::span<const Weight* const> weights) {
    return decoding(ctx) ? decode::matmul_group(ctx, x, norm, weights, nullptr)
                         : prefill::matmul_group(ctx, x, norm, weights, nullptr);
}

Tensor matmul_add(Context& ctx, const Weight& w, const Tensor& x, Tensor& residual, const MoeLayer* next) {
    const Weight* const only = &w;
    if (decoding(ctx) && next != nullptr) return decode::matmul_add(ctx, w, x, residual, *next);
    return (decoding(ctx) ? decode::matmul_group(ctx, x, {}, {&only, 1}, &residual)
                          : prefill::matmul_group(ctx, x, {}, {&only, 1}, &residual))[0];
}

Tensor swiglu_ffn(Context& ctx, const Tensor& x, const Weight& w_gate, const Weight& w_up, const Weight& w_down) {
    Tensor input = x;
    return decoding(ctx) ? decode::swiglu_ffn(ctx, input, {}, w_gate, w_up, w_down, false)
                         : prefill::swiglu_ffn(ctx, input, {}, w_gate, w_up, w_down, false);
}

Tensor swiglu_ffn_add(Context& ctx, Tensor& x, const Norm& norm, const Weight& w_gate, const Weight& w_up,
                      const Weight& w_down) {
    return decoding(ctx) ? decode::swiglu_ffn(ctx, x, norm, w_gate, w_up, w_down, true)
                         : prefill::swiglu_ffn(ctx, x, norm, w_gate, w_up, w_down, true);
}

Tensor moe_swiglu(Context& ctx, const Tensor& x, const Routing& routing, const ExpertWeights& weights,
                  const SharedExpert& shared) {
    return decoding(ctx) ? decode::moe_swiglu(ctx, x, routing, weights, shared)
                         : prefill::moe_swiglu(ctx, x, routing, weights, shared);
}

MoeResult moe_add(Context& ctx, Tensor& x, const Norm& norm, const Router& router, const ExpertWeights& weights,
                  const SharedExpert& shared) {
    return decoding(ctx) ? decode::moe_add(ctx, x, norm, router, weights, shared)
                         : prefill::moe_add(ctx, x, norm, router, weights, shared);
}

Tensor attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale) {
    return decoding(ctx) ? decode::attention(ctx, q, view, batch, softmax_scale)
                         : prefill::attention(ctx, q, view, batch, softmax_scale);
}

Tensor gated_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch) {
    return decoding(ctx) ? decode::gated_attention(ctx, in, view, batch)
                         : prefill::gated_attention(ctx, in, view, batch);
}

bool has_sigmoid_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch) {
    return decoding(ctx) && decode::has_sigmoid_attention(ctx, in, view, batch);
}

Tensor sigmoid_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch) {
    return decode::sigmoid_attention(ctx, in, view, batch);
}

}  // namespace riptide::ops::cuda
