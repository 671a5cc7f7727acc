// The host's side of the half-precision products of the decode family (kquant_f16_mma_sm90.cu): large Q4_K and Q6_K
// matrices on Hopper, any number of rows.
#pragma once

#include <span>

#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

/// Whether products with this weight are taken in half precision on this device: Q4_K or Q6_K, columns a multiple of
/// 1,024 and more than 2,048, and not one of the shapes that kquant_i8.cu and kquant_i8_narrow_sm90.cu are made for;
/// Hopper. It depends on nothing else, so that a row has the same bits whatever its company.
bool half_weight(const Gpu& gpu, const Weight& w);

/// y[i] = weights[i] x, n >= 1 rows, residual += y[0] (one weight). Takes groups of half_weight()s and f32, f16 or bf16
/// matrices of few rows; x of kinds plain and norm. False: nothing was done. Takes arena memory.
bool half_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                   std::span<const Tensor> y, Tensor* residual);

/// out[n, ff] = silu(gate x) * (up x). Takes half_weight()s of one type and shape. Takes arena memory.
bool half_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate, const Weight& up,
                  float* out);

}  // namespace riptide::ops::cuda::decode
