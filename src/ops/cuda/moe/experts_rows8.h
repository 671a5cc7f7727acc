// The host's side of experts_rows8.cu: sparse layers of 2 to 8 rows that choose their experts where they use them.
#pragma once

#include "ops/cuda/moe/experts_grouped_sm80.h"
#include "ops/cuda/moe/fit.h"

namespace riptide::ops::cuda::decode {

/// y[n, d] of ops/moe.h, residual (or null) += y, and choose.route's results, for up to eight rows right behind
/// fused_router(), whose rows x are, or behind another call of this; with choose.words right behind the product that
/// left them, of rows x that are to be normalised. REQUIRES what moe::choose() asks for rows8.
void experts_rows8(Context& ctx, const ExpertWeights& weights, const SharedExpert& shared, const ActSource& x,
                   int64_t n, const ChooseHere& choose, Tensor& y, Tensor* residual);

}  // namespace riptide::ops::cuda::decode
