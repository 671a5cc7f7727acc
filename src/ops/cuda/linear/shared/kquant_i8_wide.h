// The host's side of the kernels for large matrices of any width (kquant_i8_wide_row1_sm90.cu: one row;
// kquant_i8_wide_sm90.cu: more): whether they fit, and launching them. False: nothing was done; other kernels take it,
// with the same bits.
#pragma once

#include <span>

#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

/// Whether these kernels can multiply this weight on this device: Q4_K, Q5_K or Q6_K, columns a multiple of 256,
/// Hopper or later.
bool dense_weight(const Gpu& gpu, const Weight& w);

/// One row of x; y and residual as in multiply_into. Takes groups in which at least one matrix is a dense_weight() and
/// the others are, too, or f32, f16 or bf16.
bool dense_multiply_row(Context& ctx, const ActSource& x, int64_t cols, std::span<const Weight* const> weights,
                        std::span<Tensor> y, Tensor* residual);

/// out[ff] = silu(gate x) * (up x), one row of x. Takes dense_weight()s of one type.
bool dense_gate_up_row(Context& ctx, const ActSource& x, int64_t cols, const Weight& gate, const Weight& up,
                       float* out);

/// n rows of x; y and residual as in multiply_into. Takes dense_weight()s. Takes arena memory.
bool dense_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual);

/// out[n, ff] = silu(gate x) * (up x). Takes dense_weight()s of one type. Takes arena memory.
bool dense_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate, const Weight& up,
                   float* out);

}  // namespace riptide::ops::cuda::decode
