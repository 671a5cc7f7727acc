// The host's side of experts_q4k_rows8.cu: sparse layers of 2 to 8 rows that choose their experts where they use them.
#pragma once

#include "ops/cuda/moe/experts_grouped_sm80.h"
#include "ops/cuda/moe/fit.h"

namespace riptide::ops::cuda::decode {

/// y[n, d] of ops/moe.h, residual (or null) += y, and choose.route's results, right behind fused_router(), whose rows
/// x are. REQUIRES what moe::choose() asks for q4k_rows8.
void experts_q4k_rows8(Context& ctx, const Layer& layer, const ActSource& x, int64_t n, const ChooseHere& choose,
                       Tensor& y, Tensor* residual);

}  // namespace riptide::ops::cuda::decode
