// The host's side of draft_f16_sm90.cu: what drafters multiply by, for 2 and more rows (Family::draft).
#pragma once

#include <span>

#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

/// y and residual as in multiply_into; x of kinds plain and norm. REQUIRES linear::draft_weight()s of one type. Takes
/// arena memory.
void draft_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual);

/// out[n, ff] = silu(gate x) * (up x). REQUIRES as above. Takes arena memory.
void draft_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate, const Weight& up,
                   float* out);

}  // namespace riptide::ops::cuda::decode
