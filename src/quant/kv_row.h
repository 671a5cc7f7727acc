// The bytes of an encoded K/V row and the signs of its rotation: what the CPU's and the GPU's codecs share.
//
// A row of n values in a block type holds the codes of all blocks, then their f16 scales, as many bytes as the blocks
// of quant/blocks.h, in another order: a GPU reads the codes 8 or 16 bytes at a time.
//   q8_0    int8 q[n],             f16 d[n / 32]     136 bytes for 128 values
//   q4_0    u8 nibbles[n / 2],     f16 d[n / 32]      72 bytes; byte 16 b + j: elements 32 b + j (low), 32 b + j + 16
//   tq3_0   u8 low[n / 4], high[n / 8], f16 d[n / 32] 56 bytes; bits 2 (i % 4), .. + 1 of low[i / 4]; bit i % 8 of
//                                                     high[i / 8]
#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/host_device.h"

namespace riptide {

inline constexpr int kKvBlock = 32;            // values that share a scale
inline constexpr int kKvRotation = 128;        // values that are rotated together
inline constexpr uint16_t kKvPoison = 0x7E00;  // the scale, a NaN, of a block that held an infinity or a NaN

/// Bytes of a row in front of its scales. REQUIRES a block type.
RT_HD constexpr int64_t kv_scales_at(DType type, int64_t n) {
    return type == DType::q8_0 ? n : type == DType::q4_0 ? n / 2 : n / 8 * 3;
}
/// row_bytes(type, n) for the types that hold K/V, on either device.
RT_HD constexpr int64_t kv_row_bytes(DType type, int64_t n) {
    switch (type) {
        case DType::f32:
            return 4 * n;
        case DType::f16:
        case DType::bf16:
            return 2 * n;
        case DType::f8_e4m3:
            return n;
        default:
            return kv_scales_at(type, n) + n / kKvBlock * 2;
    }
}

/// Signs of the rotation (kv_codec.h): bit i % 32 of word i / 32 is set where element i changes its sign.
struct KvSigns {
    uint32_t before[4];
    uint32_t after[4];
};

/// Two bits of each output of SplitMix64 (Steele, Lea, Flood 2014).
constexpr KvSigns make_kv_signs() {
    KvSigns signs{};
    uint64_t state = 0x5249505449444521u;
    for (int i = 0; i < kKvRotation; ++i) {
        uint64_t z = (state += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        signs.before[i / 32] |= static_cast<uint32_t>(z & 1) << (i % 32);
        signs.after[i / 32] |= static_cast<uint32_t>(z >> 1 & 1) << (i % 32);
    }
    return signs;
}
inline constexpr KvSigns kKvSigns = make_kv_signs();

}  // namespace riptide
