// 16-bit and 8-bit floating point: exact conversions to float, round-to-nearest-even conversions from float.
#pragma once

#include <bit>
#include <cstdint>

namespace riptide {

/// All ones if the condition holds. Masks instead of branches: a loop over the conversions below then vectorises.
constexpr uint32_t mask_if(bool condition) { return 0u - static_cast<uint32_t>(condition); }

/// IEEE binary16 -> float, exact. Source: IEEE 754-2008 §3.4.
inline float f16_to_f32(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const int32_t magnitude = (h & 0x7FFF) << 13;  // signed: compares are cheaper
    const auto normal = static_cast<uint32_t>(magnitude) + 0x38000000u;
    const float subnormal = std::bit_cast<float>(normal + 0x00800000u) - 0x1p-14f;
    const uint32_t small = mask_if(magnitude < 0x00800000), special = mask_if(magnitude >= 0x0F800000) & 0x38000000u;
    return std::bit_cast<float>(sign | (std::bit_cast<uint32_t>(subnormal) & small) | ((normal + special) & ~small));
}

/// float -> IEEE binary16, nearest even; overflow to infinity, NaN kept quiet.
inline uint16_t f32_to_f16(float f) {
    const uint32_t bits = std::bit_cast<uint32_t>(f);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
    if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // >= 65520 rounds to infinity
    if (magnitude < 0x38800000u) {                                               // below 2^-14: subnormal
        const float scaled = std::bit_cast<float>(magnitude) + 0.5f;             // 0.5 has an ulp of 2^-24
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x3F000000u));
    }
    const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

/// bfloat16 -> float, exact.
inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

/// float -> bfloat16, nearest even; NaN kept quiet.
inline uint16_t f32_to_bf16(float f) {
    const uint32_t bits = std::bit_cast<uint32_t>(f);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 64u);
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/// OCP E4M3FN (1-4-3, bias 7, no infinity, 0x7F is NaN) -> float, exact. Source: OCP 8-bit FP specification 1.0.
inline float f8_e4m3_to_f32(uint8_t v) {
    const uint32_t sign = static_cast<uint32_t>(v & 0x80u) << 24;
    const int32_t magnitude = (v & 0x7F) << 20;
    const auto normal = static_cast<uint32_t>(magnitude) + 0x3C000000u;
    const float subnormal = std::bit_cast<float>(normal + 0x00800000u) - 0x1p-6f;
    const uint32_t small = mask_if(magnitude < 0x00800000), nan = mask_if(magnitude == 0x07F00000);
    return std::bit_cast<float>(sign | (std::bit_cast<uint32_t>(subnormal) & small) | (normal & ~small & ~nan) |
                                (0x7FC00000u & nan));
}

/// float -> OCP E4M3FN, nearest even, saturating at +-448; NaN -> 0x7F.
inline uint8_t f32_to_f8_e4m3(float f) {
    const uint32_t bits = std::bit_cast<uint32_t>(f);
    const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return 0x7F;
    if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);  // >= 448 saturates
    if (magnitude < 0x3C800000u) {                                            // below 2^-6: subnormal, ulp 2^-9
        const float scaled = std::bit_cast<float>(magnitude) + 16384.0f;      // 2^14 has an ulp of 2^-9
        return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x46800000u));
    }
    const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
    return static_cast<uint8_t>(sign | ((rounded - 0x3C000000u) >> 20));
}

}  // namespace riptide
