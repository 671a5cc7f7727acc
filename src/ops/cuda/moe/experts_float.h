// The host's side of the float experts (experts_float.cu).
#pragma once

#include "ops/cuda/linear/shared/linear.h"
#include "ops/cuda/moe/experts_grouped_sm80.h"
#include "ops/cuda/moe/fit.h"
#include "ops/moe.h"

namespace riptide::ops::cuda::decode {

/// One row of a sparse layer: router, choice, experts and the shared one if layer has it. Fills the tensors of
/// `result`; residual (or null) += y. keyed: by the router of router_row1.cuh, else by a product and its logits.
void float_moe(Context& ctx, bool keyed, const ActSource& x, int64_t cols, const Router& router, const Layer& layer,
               MoeResult& result, Tensor* residual);

/// y[n, d] of ops/moe.h for experts that are chosen, + extra; residual += y. x: not int8. Right behind the kernel that
/// wrote x and routing. Takes arena memory.
void float_experts(Context& ctx, const Layer& layer, const ActSource& x, int64_t cols, int64_t n,
                   const Routing& routing, Tensor& y, Tensor* residual, const Tensor* extra);

}  // namespace riptide::ops::cuda::decode
