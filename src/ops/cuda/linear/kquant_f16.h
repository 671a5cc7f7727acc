// The host's side of the half-precision products of the decode family (kquant_f16_mma_sm90.cu): large Q4_K and Q6_K
// matrices on Hopper, any number of rows.
#pragma once

#include <span>

#include "ops/cuda/linear/plan.h"
#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

/// The rows of x that the launch has: y[i] = weights[i] x, residual += y[0] (one weight). Takes groups of
/// linear::f16_weight()s and f32, f16 or bf16 matrices of few rows; x of kinds plain and norm. Takes arena memory.
void f16_multiply(Context& ctx, const linear::Launch& launch, const ActSource& x, int64_t cols,
                  std::span<const Weight* const> weights, std::span<const Tensor> y, Tensor* residual);

/// out[n, ff] = silu(gate x) * (up x) of those rows. Takes linear::f16_weight()s of one type and shape. Takes arena
/// memory.
void f16_gate_up(Context& ctx, const linear::Launch& launch, const ActSource& x, int64_t cols, const Weight& gate,
                 const Weight& up, float* out);

}  // namespace riptide::ops::cuda::decode
