// The host's side of experts_q4k_rows8.cu: sparse layers of 2 to 8 rows that choose their experts where they use them.
#pragma once

#include "ops/cuda/moe/experts_grouped_sm80.h"

namespace riptide::ops::cuda::decode {

/// Whether few_moe() takes n rows of such a layer: Q4_K gate and up of [512, 2048], Q4_K or Q6_K down, a shared expert
/// of the same types or none, up to 256 experts, top_k to 8.
bool few_moe_suits(const Context& ctx, const Layer& layer, int64_t n);
/// y[n, d] of ops/moe.h, residual (or null) += y, and choose.route's results, right behind fused_router(), whose rows
/// x are. REQUIRES few_moe_suits().
void few_moe(Context& ctx, const Layer& layer, const ActSource& x, int64_t n, const ChooseHere& choose, Tensor& y,
             Tensor* residual);

}  // namespace riptide::ops::cuda::decode
