// The host's side of the float products (float.cu): whether they fit, and launching them.
// False means: nothing was done; the general kernels take it, with the same bits.
#pragma once

#include <span>

#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

struct FloatMatrix;

/// Whether the kernels can multiply it: f32, f16, bf16; fp8 whose scale plane, if any, has one entry for a power of two
/// of columns (64 or more) or for whole rows, and for one row, an even number of rows or all.
bool float_matrix(const Weight& w);
bool float_matrix(const Matrix& m);
FloatMatrix float_matrix_of(const Matrix& m);
/// Dynamic shared memory to ask for: `need`, and on chips that overlap kernels as much as keeps a second CTA of the
/// same kernel off the SM. 0: too much.
int64_t float_shared(const Gpu& gpu, int64_t need, bool large);
/// allow_shared() for a kernel that has up to ten KB of static shared memory besides.
void allow_beside_static(const void* kernel, int64_t bytes);

/// y[i] = weights[i] x, f32 [n, rows]; residual += y[0]. Takes arena memory. x: not int8.
bool float_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual);

/// out[ff] = silu(gate x) * (up x), one row of a dense layer.
bool float_gate_up(Context& ctx, const ActSource& x, int64_t cols, const Weight& gate, const Weight& up, float* out);

}  // namespace riptide::ops::cuda::decode
