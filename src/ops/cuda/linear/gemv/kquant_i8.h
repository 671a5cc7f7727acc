// The host's side of the lean kernels (kquant_i8.cu, kquant_i8_rows4.cu, ../../moe/experts_q4k_row1_sm90.cu): whether
// they fit, and launching them.
#pragma once

#include <span>

#include "ops/cuda/linear/shared/linear.h"
#include "ops/moe.h"

namespace riptide::ops::cuda::decode {

/// Launches the lean kernel for one row, if it has one for these matrices: Q4_K and Q6_K rows of 2048, 6144 or 8192
/// columns. y and residual as in multiply_into. False: nothing was done.
bool lean_multiply(Context& ctx, const ActSource& x, int64_t cols, std::span<const Weight* const> weights,
                   std::span<Tensor> y, Tensor* residual);

/// The same for two to four rows (kquant_i8_rows4.cu).
bool few_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                  std::span<Tensor> y, Tensor* residual);

/// One row of a sparse layer: 256 experts, gate and up in Q4_K over 2048 columns, down in Q4_K or Q6_K over 512, at
/// most 8 of them and a shared one, a bf16 router. Fills the tensors of `result`; residual (or null) += y. False:
/// nothing was done.
bool lean_moe(Context& ctx, const Tensor& x, const Norm& norm, const Router& router, const ExpertWeights& weights,
              const SharedExpert& shared, MoeResult& result, float* residual);

}  // namespace riptide::ops::cuda::decode
