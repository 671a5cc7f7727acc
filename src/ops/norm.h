// RMS normalisation.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/context.h"

namespace riptide::ops {

/// y[r, i] = weight[i] * (x[r, i] * rsqrt(mean_i(x[r, i]^2) + eps)).
/// x f32 [n, d], or [n, heads, d] to normalise each head by itself; weight [d]; y has the shape of x, fresh.
/// The sum of squares runs over 16 lanes (element i in lane i % 16) that are added pairwise: a row's value does not
/// depend on the other rows. Error: a few units of f32 roundoff, relative. Source: Zhang & Sennrich 2019; transformers,
/// LagunaRMSNorm.
Tensor rms_norm(Context& ctx, const Tensor& x, std::span<const float> weight, float eps);

/// One row of d values: the bits of rms_norm. y may be x.
void rms_norm_row(const float* x, const float* weight, int64_t d, float eps, float* y);

/// The formula over rows of d values, in Acc. Acc = float is what rms_norm computes; double judges.
template <class Acc>
void rms_norm_ref(const float* x, const float* weight, int64_t rows, int64_t d, float eps, Acc* y);

}  // namespace riptide::ops
