// The host's side of the lean kernels (kquant_i8.cu, kquant_i8_rows4.cu, ../../moe/experts_row1_sm90.cu).
#pragma once

#include <span>

#include "ops/cuda/linear/plan.h"
#include "ops/cuda/linear/shared/linear.h"
#include "ops/moe.h"

namespace riptide::ops::cuda::decode {

/// One row: kernels kquant_i8_whole5, whole6, split and stream. y, residual and (of split_router) ahead as in
/// multiply_into.
void kquant_i8_multiply(Context& ctx, linear::Kernel kernel, const ActSource& x, int64_t cols,
                        std::span<const Weight* const> weights, std::span<Tensor> y, Tensor* residual,
                        const RouterAhead* ahead);

/// The same with planes of any type, for any number of rows: planes_i8_whole5, whole6, split and, for one row,
/// split_router (planes_i8_sm90.cu).
void planes_i8_multiply(Context& ctx, linear::Kernel kernel, const ActSource& x, int64_t cols, int64_t n,
                        std::span<const Weight* const> weights, std::span<Tensor> y, Tensor* residual,
                        const RouterAhead* ahead);

/// Two to four rows: kquant_i8_rows4_whole5, whole6, split and split_router (kquant_i8_rows4.cu).
void kquant_i8_rows4_multiply(Context& ctx, linear::Kernel kernel, const ActSource& x, int64_t cols, int64_t n,
                              std::span<const Weight* const> weights, std::span<Tensor> y, Tensor* residual,
                              const RouterAhead* ahead);

}  // namespace riptide::ops::cuda::decode
