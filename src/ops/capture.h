// Hidden states of a target model, kept for its drafter.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/context.h"

namespace riptide::ops {

/// out[r, column .. column + d) = x[r]. x f32 [n, d], contiguous; out f32 [n, C], row stride any, column + d <= C.
/// x and out must not overlap. Determinism: exact. Cost: reads and writes 4 n d bytes.
void copy_columns(Context& ctx, const Tensor& x, Tensor& out, int64_t column);

/// Each of `parts` equal pieces of a row normalised by itself, with weights of its own:
/// y[r, i d + j] = weight[i d + j] * (x[r, i d + j] * rsqrt(mean_j(x[r, i d + j]^2) + eps)), d = C / parts.
/// x f32 [n, C], contiguous; weight [C]; y f32 [n, C], fresh. Row-exact. On the CPU the bits of rms_norm of each piece.
/// Source: the tap norms of Laguna 2.1's drafters.
Tensor rms_norm_parts(Context& ctx, const Tensor& x, std::span<const float> weight, int64_t parts, float eps);

}  // namespace riptide::ops
