// The host's side of kquant_i8_narrow_sm90.cu: matrices times many rows.
#pragma once

#include <span>

#include "ops/cuda/linear/fit.h"
#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

/// y and residual as in multiply_into, same bits. x: kinds plain, norm or int8.
void kquant_i8_narrow_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n,
                               std::span<const Weight* const> weights, std::span<const Tensor> y, Tensor* residual);

}  // namespace riptide::ops::cuda::decode
