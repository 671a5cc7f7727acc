// The host's side of decode_lean.cu: whether its kernels fit, and launching them.
#pragma once

#include <span>

#include "ops/decode_host.h"
#include "ops/moe.h"

namespace riptide::ops::cuda::decode {

/// Launches the lean kernel for one row, if it has one for these matrices: Q4_K and Q6_K rows of 2048, 6144 or 8192
/// columns. y and residual as in multiply_into. False: nothing was done.
bool lean_multiply(Context& ctx, const ActSource& x, int64_t cols, std::span<const Weight* const> weights,
                   std::span<Tensor> y, Tensor* residual);

/// One row of a sparse layer: gate and up in Q4_K over 2048 columns, down in Q4_K or Q6_K over 512, up to 9 slots. x: a
/// staged row. y[d], residual += y. Right behind the kernel that wrote x and routing. False: nothing was done.
bool lean_experts(Context& ctx, const ActSource& x, int64_t cols, const Routing& routing, const ExpertWeights& weights,
                  const SharedExpert& shared, Tensor& y, Tensor* residual);

}  // namespace riptide::ops::cuda::decode
