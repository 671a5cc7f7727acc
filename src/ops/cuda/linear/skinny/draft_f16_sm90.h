// The host's side of draft_f16_sm90.cu: what drafters multiply by, for 2 and more rows (Family::draft).
#pragma once

#include <span>

#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

/// Whether these kernels multiply by this weight on this device: bf16, f16, or int8 with an f16 scale for each 32
/// columns that is no eight_weight(), which is as fast; columns a multiple of 256; Hopper.
bool draft_weight(const Gpu& gpu, const Weight& w);

/// y and residual as in multiply_into; x of kinds plain and norm. False: other weights, of several types, or another x;
/// nothing was done. Takes arena memory.
bool draft_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual);

/// out[n, ff] = silu(gate x) * (up x). False as above. Takes arena memory.
bool draft_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate, const Weight& up,
                   float* out);

}  // namespace riptide::ops::cuda::decode
