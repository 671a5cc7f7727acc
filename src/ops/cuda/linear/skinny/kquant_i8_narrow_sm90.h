// The host's side of kquant_i8_narrow_sm90.cu: matrices times many rows.
#pragma once

#include <span>

#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

/// y and residual as in multiply_into, same bits. x: kinds plain, norm or int8. False: these kernels do not serve this
/// (fewer rows than kLeastManyRows, or kLeastWideRows of more than 2,048 columns; other types or widths than theirs; no
/// room in shared memory), nothing was done.
constexpr int64_t kLeastManyRows = 5, kLeastWideRows = 9;
bool many_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                   std::span<const Tensor> y, Tensor* residual);

}  // namespace riptide::ops::cuda::decode
