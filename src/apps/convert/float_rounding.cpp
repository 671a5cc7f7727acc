#include "apps/convert/float_rounding.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tensor/half.h"

namespace riptide::apps {

namespace {

constexpr float kLargestE4m3 = 448, kLargestE2m1 = 6;

/// e2m1, nearest even: below each border, from 0 on, lies the next value of 0, 1/2, 1, 3/2, 2, 3, 4, 6. A border itself
/// belongs to the neighbour whose last bit is zero.
uint8_t e2m1_of(float x) {
    const float a = std::fabs(x);
    const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return static_cast<uint8_t>(code | (code > 0 && x < 0 ? 8 : 0));
}

float largest_of(std::span<const float> values) {
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::fabs(value));
    return largest;
}

}  // namespace

uint16_t fp8_block_scale(float largest) {
    const uint16_t scale = f32_to_bf16(largest / kLargestE4m3);
    return bf16_to_f32(scale) > 0 ? scale : f32_to_bf16(1.0f);
}

void round_to_fp8(std::span<const float> values, uint16_t scale, uint8_t* codes) {
    const float step = bf16_to_f32(scale);
    for (size_t i = 0; i < values.size(); ++i) codes[i] = f32_to_f8_e4m3(values[i] / step);
}

float nvfp4_global_scale(float largest) {
    return largest > 0 ? std::min(kLargestE4m3 * kLargestE2m1 / largest, 0x1p100f) : 1.0f;
}

void round_to_nvfp4(std::span<const float> values, float global, uint8_t* codes, uint8_t* scales) {
    RT_ASSERT(values.size() % kNvfp4Group == 0);
    for (size_t g = 0; g < values.size() / kNvfp4Group; ++g) {
        const std::span<const float> group = values.subspan(g * kNvfp4Group, kNvfp4Group);
        scales[g] = f32_to_f8_e4m3(largest_of(group) * global / kLargestE2m1);
        const float step = f8_e4m3_to_f32(scales[g]) / global;
        for (size_t i = 0; i < kNvfp4Group / 2; ++i) {
            const uint8_t low = step > 0 ? e2m1_of(group[2 * i] / step) : 0;
            const uint8_t high = step > 0 ? e2m1_of(group[2 * i + 1] / step) : 0;
            codes[g * kNvfp4Group / 2 + i] = static_cast<uint8_t>(low | high << 4);
        }
    }
}

}  // namespace riptide::apps
