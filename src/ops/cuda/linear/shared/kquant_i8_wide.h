// The host's side of the kernels for large matrices of any width (kquant_i8_wide_row1_sm90.cu: one row;
// kquant_i8_wide_sm90.cu: more).
#pragma once

#include <span>

#include "ops/cuda/linear/fit.h"
#include "ops/cuda/linear/plan.h"
#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

/// One row of x; y and residual as in multiply_into. Takes linear::wide_weight()s and a few
/// f32, f16 or bf16 matrices.
void kquant_i8_wide_row1_multiply(Context& ctx, const ActSource& x, int64_t cols,
                                  std::span<const Weight* const> weights, std::span<Tensor> y, Tensor* residual);

/// out[ff] = silu(gate x) * (up x), one row of x. Takes linear::wide_weight()s of one type.
void kquant_i8_wide_row1_gate_up(Context& ctx, const ActSource& x, int64_t cols, const Weight& gate, const Weight& up,
                                 float* out);

/// n rows of x; y and residual as in multiply_into. Takes linear::wide_weight()s. Takes arena memory.
void kquant_i8_wide_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n,
                             std::span<const Weight* const> weights, std::span<const Tensor> y, Tensor* residual);

/// out[n, ff] = silu(gate x) * (up x). Takes linear::wide_weight()s of one type. Takes arena memory.
void kquant_i8_wide_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate,
                            const Weight& up, float* out);

}  // namespace riptide::ops::cuda::decode
