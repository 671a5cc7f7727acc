// Weights as FP8 and NVFP4 with scales apart, as compressed-tensors stores them: the roundings of `riptide quantize`.
//
// Pure functions; what comes out depends on the values alone. Thread-safe. Values must be finite.
#pragma once

#include <cstdint>
#include <span>

namespace riptide::apps {

inline constexpr int64_t kFp8Block = 128;   // rows and columns that share a scale
inline constexpr int64_t kNvfp4Group = 16;  // columns that share a scale

/// The bf16 bits of a block's scale: max |w| / 448, nearest even; 1 where that is zero.
uint16_t fp8_block_scale(float largest);
/// codes[i] = e4m3(values[i] / scale), nearest even, saturating at +-448: w = e4m3 * scale. `scale`: bf16 bits.
void round_to_fp8(std::span<const float> values, uint16_t scale, uint8_t* codes);

/// By what a matrix's scales are divided: 448 * 6 / largest, so that the largest group's scale is 448. `largest`: max
/// |w| of all matrices that share it. 1 where that is zero; at most 2^100.
float nvfp4_global_scale(float largest);
/// A row: w = e2m1 * e4m3 / global. Of each group of 16
///   scale = e4m3(max |w| * global / 6),  code = e2m1(w / (scale / global))
/// both nearest even and saturating (e4m3 at 448, e2m1 at 6), each operation rounded to f32; zeros where the scale is
/// zero. codes: values.size() / 2 bytes, column 2 i in the low nibble of byte i; scales: values.size() / 16. REQUIRES
/// whole groups.
void round_to_nvfp4(std::span<const float> values, float global, uint8_t* codes, uint8_t* scales);

}  // namespace riptide::apps
