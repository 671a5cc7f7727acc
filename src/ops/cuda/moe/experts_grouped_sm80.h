// The host's side of experts_grouped_sm80.cu and router_rows.cu: sparse layers of 2 to 256 rows that read each expert
// once for up to eight rows.
#pragma once

#include "ops/cuda/linear/shared/linear.h"
#include "ops/cuda/moe/fit.h"
#include "ops/moe.h"

namespace riptide::ops::cuda::decode {

/// The matrices of a sparse or dense layer.
struct Layer {
    Matrix gate, up, down, shared_gate, shared_up, shared_down;
    int32_t top_k = 0;
    int32_t experts = 0;
    bool shared = false;
};

struct RouteArgs;

/// Experts that are chosen where they are used: keys[n, experts] and logits of fused_router(), for what routing
/// (ops/moe.h) makes of these, which is written to route.chosen and route.weights.
struct ChooseHere {
    const RouteArgs* route = nullptr;
    float* logits = nullptr;
    const uint32_t* keys = nullptr;
    uint64_t* listed = nullptr;    // of experts_rows8() only
    RouterWords* words = nullptr;  // of experts_rows8() only: instead of keys
};
/// y[n, d] of ops/moe.h, + extra; residual += y. share: logits [n, 1] of the shared expert's, or nothing where it is
/// whole. x: staged rows of act_layout(2048, true, false). Right behind the kernel that wrote x and routing, or, with
/// `choose`, behind fused_router(); choose.route's results are `routing` then.
void group_experts(Context& ctx, const Layer& layer, const ActSource& x, int64_t n, const Routing& routing, Tensor& y,
                   Tensor* residual, const Tensor& extra, const Tensor& share, const ChooseHere& choose = {});

constexpr int64_t kMostFusedRouterRows = 8;
constexpr int kMostRows8Groups = 128;
/// logits[n, experts] = router RMSNorm(x), keys of what `route` chooses by (route.cuh), and the normalised rows
/// as staged rows of `layout`, in one kernel, for up to kMostFusedRouterRows rows of 2,048 columns to be normalised.
/// words: the sums are those of ../linear/shared/router_words.h, and rows as many as there are. router: as for
/// router_logits(). keys: null or [n, experts]. listed: null or [n / 8 up, kMostRows8Groups],
/// set to ones.
ActSource fused_router(Context& ctx, const Weight& router, const ActSource& x, const ActLayout& layout, int64_t n,
                       const RouteArgs& route, bool words, float* logits, uint32_t* keys, uint64_t* listed);

/// logits[n, experts] = router x, in one kernel. router: f32, f16 or bf16 without a scale plane. x: the float parts of
/// staged rows, `stride` bytes apart.
void router_logits(Context& ctx, const Weight& router, const char* x, int64_t stride, int64_t n, float* logits);

/// What routing (ops/moe.h) makes of logits[n, experts], one CTA a row.
void choose_experts(Context& ctx, const RouteArgs& a, const float* logits, int64_t n);

}  // namespace riptide::ops::cuda::decode
