// The host's side of q8_i8_sm80.cu: Q8_0 matrices times 2 to 256 rows.
#pragma once

#include <span>

#include "ops/cuda/linear/fit.h"
#include "ops/cuda/linear/plan.h"
#include "ops/cuda/linear/shared/linear.h"
#include "ops/cuda/linear/shared/shapes.h"

namespace riptide::ops::cuda::decode {

/// y and residual as in multiply_into. REQUIRES linear::q8_weight() of all, at most kQ8Matrices.
void q8_i8_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual);

/// int8 rows of silu(w_gate x) * (w_up x), in the arena: the bits of q8_i8_multiply() and prepare_swiglu() in one
/// kernel.
ActSource q8_i8_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& w_gate,
                        const Weight& w_up);

/// Staged rows (ActKind::staged, int8 parts) of silu(gate) * up, f32 [n, cols] each: swiglu and prepare_rows in one.
ActSource prepare_swiglu(Context& ctx, const Tensor& gate, const Tensor& up);

}  // namespace riptide::ops::cuda::decode
