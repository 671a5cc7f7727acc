// The host's side of the float products (float.cu).
#pragma once

#include <span>

#include "ops/cuda/linear/fit.h"
#include "ops/cuda/linear/plan.h"
#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

struct FloatMatrix;

/// linear::float_weight() of a matrix.
bool float_matrix(const Matrix& m);
FloatMatrix float_matrix_of(const Matrix& m);
/// As in fit.h.
int64_t float_shared(const Gpu& gpu, int64_t need, bool large);
/// allow_shared() for a kernel that has up to ten KB of static shared memory besides.
void allow_beside_static(const void* kernel, int64_t bytes);

/// y[i] = weights[i] x, f32 [n, rows]; residual += y[0]. Takes arena memory. x: plain or norm.
void float_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual);

/// out[ff] = silu(gate x) * (up x), one row of a dense layer.
void float_gate_up(Context& ctx, const ActSource& x, int64_t cols, const Weight& gate, const Weight& up, float* out);

}  // namespace riptide::ops::cuda::decode
