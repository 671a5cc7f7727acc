// The grids of the IQ1, IQ2 and IQ3 formats: which groups of magnitudes a code stands for. Data of the formats, as
// ggml's readers and writers have them (NOTICE); here as indices into the few magnitudes that occur.
#pragma once

#include <cstdint>

namespace riptide {

/// Bits 2 j and 2 j + 1 of an entry: which of the levels element j of eight is.
inline constexpr uint8_t kIQ2Levels[4] = {8, 25, 43, 0};
inline constexpr int8_t kIQ1Levels[4] = {-1, 0, 1, 0};
extern const uint16_t kIQ2XXSGrid[256], kIQ2XSGrid[512], kIQ2SGrid[1024], kIQ1SGrid[2048];

/// Bits 3 j to 3 j + 2: element j of four.
inline constexpr uint8_t kIQ3XXSLevels[8] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr uint8_t kIQ3SLevels[8] = {1, 3, 5, 7, 9, 11, 13, 15};
extern const uint16_t kIQ3XXSGrid[256], kIQ3SGrid[512];

/// The entries as bytes, element 0 lowest: 128 + magnitude; of IQ1 128 + 8 q + 1, where delta is +0.125.
struct GridBytes {
    uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024], iq1_s[2048];
    uint32_t iq3_xxs[256], iq3_s[512];
};
extern const GridBytes kGridBytes;

}  // namespace riptide
