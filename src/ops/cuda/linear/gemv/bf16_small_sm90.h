// The host's side of bf16_small_sm90.cu.
#pragma once

#include <span>

#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

/// One row of x, not int8: y[i] = weights[i] x, residual += y[0]. Takes up to four bf16 matrices of a multiple of eight
/// columns, up to 4,096 (2,048 where x is normalised), on Hopper and later; none so large that it fills the chip by
/// itself.
void bf16_small_multiply(Context& ctx, const ActSource& x, int64_t cols, std::span<const Weight* const> weights,
                         std::span<const Tensor> y, Tensor* residual);
/// The same for n rows, each for itself, of few outputs of 2,048 columns: Launch::beside.
void bf16_small_beside(Context& ctx, const ActSource& x, int64_t cols, int64_t n,
                       std::span<const Weight* const> weights, std::span<const Tensor> y);

/// out[ff] = silu(gate x) * (up x), of such matrices.
void bf16_small_gate_up(Context& ctx, const ActSource& x, int64_t cols, const Weight& gate, const Weight& up,
                        float* out);

}  // namespace riptide::ops::cuda::decode
