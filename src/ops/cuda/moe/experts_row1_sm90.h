// The host's side of experts_row1_sm90.cu: a sparse layer of one row.
#pragma once

#include "ops/cuda/moe/experts_grouped_sm80.h"

namespace riptide::ops::cuda::decode {

/// One row of a sparse layer: 256 experts, gate and up over 2048 columns, down over 512, at most 8 of them and a shared
/// one, all in planes, a bf16 router. route: its results are result.routing. summed: whoever made x has left the
/// router's words. Fills the tensors of `result`; residual (or null) += y.
void experts_row1(Context& ctx, const Tensor& x, const Norm& norm, const Weight& router, const RouteArgs& route,
                  const ExpertWeights& weights, const SharedExpert& shared, bool summed, MoeResult& result,
                  float* residual);

}  // namespace riptide::ops::cuda::decode
