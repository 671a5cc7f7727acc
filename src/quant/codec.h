// Between stored numbers and f32: the definition of every weight format, and the quantisers.
//
// All functions here are pure: the result for a block depends on that block alone. Thread-safe; nothing is allocated
// beyond the stack. `src` and `dst` of a stored type need no alignment and must not overlap the floats.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/tensor.h"

namespace riptide {

/// dst[i] = value i of n stored values, exactly as the format defines it (see blocks.h for the formulas; products are
/// rounded to f32 in the order written there). Types: f32, f16, bf16, f8_e4m3 and every block type. i4_pack, i8_pack
/// and f4_pack give the stored numbers without their scales. tq3_0 gives values of the rotated domain (see kv_codec.h).
/// Throws Error if n is not a whole number of blocks or if the type is an integer type or f64.
/// Cost: one pass; K types decode at more than 1 GB/s of f32 output a core.
void dequantize(DType type, const void* src, float* dst, int64_t n);

/// dst[c] = W[row, c] for all w.cols columns: (stored * plane scale) * w.scale, each product rounded to f32.
/// Works for every Weight whose type dequantize() knows. REQUIRES 0 <= row < w.rows.
void dequantize_row(const Weight& w, int64_t row, float* dst);

/// Whether quantize() can write this type.
bool can_quantize(DType type);
/// The names of those types, separated by commas, for error messages and help.
std::string quantize_names();

/// Whether quantize() looks at importance for this type: all block types but q8_0 and tq3_0.
bool heeds_importance(DType type);

/// Writes n values as `type`. f16, bf16: nearest even. f8_e4m3: nearest even, saturating at +-448.
/// Block types minimise sum w_i (x_i - stored_i)^2 of each block, f16 scales included: a least-squares fit of scale
/// (and minimum) for several starting steps, then again with the scales that the format can hold. IQ1, IQ2 and IQ3 take
/// of the grid entries near a group the one of least error; where IQ2_XXS, IQ2_XS and IQ3_XXS need an even number of
/// minus signs in eight values, the one that matters least may change its sign. MXFP4 tries four exponents. A block too
/// large for an f16 scale saturates, MXFP4 at 1e9; one too small for it becomes zero. q8_0 takes the step max |x| / 127
/// instead of searching. importance: w, n numbers >= 0 in any unit, such as the mean squares of what each column
/// multiplies; within a block those below 2^-13 of its largest count as that. nullptr, or zero throughout a block: 1.
/// q8_0, tq3_0 and float types do not look at it. Throws Error if n is not a whole number of blocks, if
/// can_quantize(type) is false, or if a value for a block type is not finite (no block can hold it). Float types keep
/// infinities and NaN as far as they can. Cost, in values a core: q4_k, q5_k, q6_k, mxfp4, tq1_0, tq2_0 more than
/// 5 M/s, q2_k, iq1, iq2, iq3 about 2 M/s; the search is most of it.
void quantize(DType type, const float* src, void* dst, int64_t n, const float* importance = nullptr);

}  // namespace riptide
