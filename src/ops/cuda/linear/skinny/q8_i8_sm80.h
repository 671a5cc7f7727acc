// The host's side of q8_i8_sm80.cu: Q8_0 matrices times 2 to 256 rows.
#pragma once

#include <span>

#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

constexpr size_t kEightMatrices = 16;  // in one launch

/// Whether the kernel can run on this device and multiply this weight: int8 with an f16 scale for each 32 columns,
/// columns a multiple of 2,048.
bool eight_weight(const Gpu& gpu, const Weight& w);

/// y and residual as in multiply_into. REQUIRES eight_weight() of all, at most kEightMatrices. False: rows this long do
/// not fit in shared memory; nothing was done.
bool eight_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual);

/// act <- int8 rows of silu(w_gate x) * (w_up x), in the arena: the bits of eight_multiply() and prepare_swiglu() in
/// one kernel. False: other weights, or rows too long; what was allocated is of no use then.
bool eight_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& w_gate, const Weight& w_up,
                   ActSource& act);

/// Staged rows (ActKind::staged, int8 parts) of silu(gate) * up, f32 [n, cols] each: swiglu and prepare_rows in one.
ActSource prepare_swiglu(Context& ctx, const Tensor& gate, const Tensor& up);

}  // namespace riptide::ops::cuda::decode
