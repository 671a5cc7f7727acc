// Mixture of experts: routing, and the SwiGLU experts themselves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/matmul.h"
#include "tensor/context.h"

namespace riptide::ops {

/// Which experts each row uses, in order of rank, and how much each counts.
struct Routing {
    int64_t top_k = 0;
    Tensor experts;  // i32 [n, top_k]
    Tensor weights;  // f32 [n, top_k]
};

/// s = sigmoid(logits); the top_k experts with the largest s + bias, ties to the lower index; weight = s (without
/// bias), divided by the sum over the top_k if `normalize`, times `scale`. logits: f32 [n, E]; bias: [E] or empty. 1 <=
/// top_k <= E. All in f32; weights are added in order of rank. Rows do not influence each other. A NaN counts as
/// smaller than everything. Source: transformers, LagunaTopKRouter (the auxiliary-loss-free routing of DeepSeek-V3,
/// arXiv:2412.19437 §2.1.2).
Routing route_sigmoid(Context& ctx, const Tensor& logits, std::span<const float> bias, int64_t top_k, float scale,
                      bool normalize);

/// p = softmax(logits); the top_k experts with the largest logits, ties to the lower index; weight = p divided by the
/// sum over the top_k, so that with m the largest logit weight_j = exp(l_j - m) / sum over k of exp(l_k - m). All else
/// as route_sigmoid. Source: transformers, Qwen3_5MoeTopKRouter.
Routing route_softmax(Context& ctx, const Tensor& logits, int64_t top_k);

/// One Weight for each expert: gate, up [ffn, hidden], down [hidden, ffn].
struct ExpertWeights {
    std::vector<Weight> gate, up, down;
};

/// A SwiGLU network that every row uses, or none (null pointers).
struct SharedExpert {
    const Weight* gate = nullptr;
    const Weight* up = nullptr;
    const Weight* down = nullptr;
    const Weight* share = nullptr;  // [1, hidden], or null: the result counts sigmoid(share x)
};

/// y[r] = sum over k of weights[r, k] * Wd_e (silu(Wg_e x[r]) * (Wu_e x[r])), e = experts[r, k], plus, if there is a
/// shared expert, Wsd (silu(Wsg x[r]) * (Wsu x[r])): moe_swiglu + swiglu_ffn in the same parallel regions; with a
/// `share`, its product first times sigmoid(share x[r]), as mul_sigmoid. x: f32 [n, hidden] -> y: f32 [n, hidden],
/// fresh. The products are those of matmul and swiglu, bit for bit; the sum starts at weights[r, 0] * d_0 and adds one
/// rounded product after the other in order of k, last the shared expert's. The intermediate stays f32.
/// Determinism: y[r] depends on x[r], its routing and the weights alone, not on how rows share experts.
/// REQUIRES experts of one shape, indices in [0, number of experts). Only a shared expert may have a width of its own;
/// it then takes two regions more. Cost: reads each used expert's weights once for its first 256 rows; two parallel
/// regions (and one that quantises x if n >= 16).
Tensor moe_swiglu(Context& ctx, const Tensor& x, const Routing& routing, const ExpertWeights& weights,
                  const SharedExpert& shared = {});

/// How a sparse layer chooses experts: route_sigmoid, or route_softmax of the top_k alone.
struct Router {
    const Weight* w = nullptr;  // [E, d]
    std::span<const float> bias;
    int64_t top_k = 0;
    float scale = 1;
    bool normalize = true;
    bool softmax = false;  // then without a bias, normalised, scale 1
};

/// A sparse layer as the product before it is told of it (matmul_add).
struct MoeLayer {
    Norm norm;
    Router router;
    const ExpertWeights* experts = nullptr;
    SharedExpert shared = {};
};

/// That `product` was told of `next`, or of none.
inline RouterNote note_of(const Weight& product, const MoeLayer* next) {
    return next == nullptr ? RouterNote{} : RouterNote{next->router.w, &product};
}

struct MoeResult {
    Tensor y;       // f32 [n, d]
    Tensor logits;  // f32 [n, E], of the router
    Routing routing;
};

/// A whole sparse feed-forward layer: h = RMSNorm(x); logits = W_router h; routing = route_sigmoid(logits) or
/// route_softmax; y = moe_swiglu(h, routing) with the shared expert; x += y. x: f32 [n, d].
/// The same bits as rms_norm, matmul, the routing, moe_swiglu and add. Only the logits of a GPU are not those of
/// matmul in the prefill family, which rounds to bf16 there (a rounded logit may choose another expert; nor is the
/// shared expert's share), and in the
/// decode family for a bf16 router of 256 experts in Q4_K over 2,048 columns (ops/cuda/linear/shared/router_words.h:
/// NaN if 16 columns add up to 2^20 and more before RMSNorm's 1 / rms): they are as exact as f32 sums of f32 products,
/// off by at most d 2^-24 sum |W h| + 2^-22 / rms; all that follows has the bits that the ops make of these logits. On
/// a GPU: three kernels (decode, one row; two, of up to four rows, behind a matmul_add that knew of the layer; several
/// rows that share their experts' reads: up to six).
MoeResult moe_add(Context& ctx, Tensor& x, const Norm& norm, const Router& router, const ExpertWeights& weights,
                  const SharedExpert& shared = {});

/// The routing of one row in Acc, as route_sigmoid defines it.
template <class Acc>
void route_sigmoid_ref(const float* logits, const float* bias, int64_t num_experts, int64_t top_k, float scale,
                       bool normalize, int32_t* experts, Acc* weights);
/// The same for route_softmax.
template <class Acc>
void route_softmax_ref(const float* logits, int64_t num_experts, int64_t top_k, int32_t* experts, Acc* weights);

}  // namespace riptide::ops
