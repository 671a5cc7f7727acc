#include "quant/kv_codec.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "quant/blocks.h"
#include "quant/codec.h"
#include "quant/codec_internal.h"
#include "quant/kv_row.h"

namespace riptide {

namespace {

constexpr int64_t kGroup = kKvRotation;

struct Signs {
    std::array<float, kGroup> before{};
    std::array<float, kGroup> after{};
};

constexpr Signs make_signs() {
    Signs signs;
    for (size_t i = 0; i < signs.before.size(); ++i) {
        signs.before[i] = (kKvSigns.before[i / 32] >> (i % 32) & 1) != 0 ? -1.0f : 1.0f;
        signs.after[i] = (kKvSigns.after[i / 32] >> (i % 32) & 1) != 0 ? -1.0f : 1.0f;
    }
    return signs;
}
constexpr Signs kSigns = make_signs();

/// x <- D2 H D1 x / sqrt(g), g a power of two up to kGroup.
void transform(float* x, int64_t g, const float* first, const float* second) {
    for (int64_t i = 0; i < g; ++i) x[i] *= first[i];
    for (int64_t half = 1; half < g; half *= 2)
        for (int64_t base = 0; base < g; base += 2 * half)
            for (int64_t i = base; i < base + half; ++i) {
                const float a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
    const float norm = 1.0f / std::sqrt(static_cast<float>(g));
    for (int64_t i = 0; i < g; ++i) x[i] *= second[i] * norm;
}

void transform_all(float* x, int64_t n, const float* first, const float* second) {
    while (n > 0) {
        const int64_t g = n >= kGroup ? kGroup : static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
        transform(x, g, first, second);
        x += g;
        n -= g;
    }
}

/// The value of largest magnitude at code 0, that is -8 d, so that it is kept up to the rounding of d.
void encode_q4_0(const float* x, BlockQ4_0& b) {
    float extreme = 0;
    for (int i = 0; i < kBlock; ++i) extreme = std::fabs(x[i]) > std::fabs(extreme) ? x[i] : extreme;
    b.d = codec::to_half(extreme * -0.125f);
    const float d = f16_to_f32(b.d), inv = d != 0 ? 1.0f / d : 0.0f;
    uint8_t codes[kBlock];
    for (int i = 0; i < kBlock; ++i) codes[i] = static_cast<uint8_t>(codec::nearest_within(x[i] * inv, -8, 7) + 8);
    codec::pack_nibbles(codes, b.qs);
}

/// Between a block as quant/blocks.h has it and its places in a row of `n` values.
struct RowPlaces {
    DType type;
    uint8_t* row;
    int64_t n;

    uint8_t* scale(int64_t b) const { return row + kv_scales_at(type, n) + 2 * b; }

    void put(int64_t b, const BlockQ8_0& block) const {
        std::memcpy(row + 32 * b, block.qs, 32);
        std::memcpy(scale(b), &block, 2);  // every block begins with its f16 scale
    }
    void put(int64_t b, const BlockQ4_0& block) const {
        std::memcpy(row + 16 * b, block.qs, 16);
        std::memcpy(scale(b), &block, 2);
    }
    void put(int64_t b, const BlockTQ3_0& block) const {
        std::memcpy(row + 8 * b, block.qs, 8);
        std::memcpy(row + n / 4 + 4 * b, block.qh, 4);
        std::memcpy(scale(b), &block, 2);
    }
    void get(int64_t b, BlockQ8_0& block) const {
        std::memcpy(block.qs, row + 32 * b, 32);
        std::memcpy(&block, scale(b), 2);
    }
    void get(int64_t b, BlockQ4_0& block) const {
        std::memcpy(block.qs, row + 16 * b, 16);
        std::memcpy(&block, scale(b), 2);
    }
    void get(int64_t b, BlockTQ3_0& block) const {
        std::memcpy(block.qs, row + 8 * b, 8);
        std::memcpy(block.qh, row + n / 4 + 4 * b, 4);
        std::memcpy(&block, scale(b), 2);
    }
};

template <class Block>
void encode_blocks(DType type, const float* src, void* dst, int64_t n) {
    const RowPlaces row{type, static_cast<uint8_t*>(dst), n};
    for (int64_t b = 0; b < n / kBlock; ++b, src += kBlock) {
        Block block{};
        if (!codec::all_finite(src, kBlock)) std::memcpy(&block, &kKvPoison, sizeof kKvPoison);
        else if constexpr (std::is_same_v<Block, BlockQ4_0>) encode_q4_0(src, block);
        else codec::encode_simple(type, src, nullptr, &block, kBlock);
        row.put(b, block);
    }
}

template <class Block>
void decode_blocks(DType type, const void* src, float* dst, int64_t n) {
    const RowPlaces row{type, static_cast<uint8_t*>(const_cast<void*>(src)), n};
    for (int64_t b = 0; b < n / kBlock; ++b) {
        Block block;
        row.get(b, block);
        codec::decode_simple(type, &block, dst + b * kBlock, kBlock);
    }
}

}  // namespace

bool can_hold_kv(DType type) {
    switch (type) {
        case DType::f32:
        case DType::f16:
        case DType::bf16:
        case DType::f8_e4m3:
        case DType::q8_0:
        case DType::q4_0:
        case DType::tq3_0:
            return true;
        default:
            return false;
    }
}

bool kv_rotated(DType type) { return type == DType::tq3_0; }

void encode_kv_row(DType type, const float* src, void* dst, int64_t n, float scale) {
    RT_ASSERT(can_hold_kv(type) && n % dtype_info(type).block_elements == 0);
    if (type == DType::q8_0) return encode_blocks<BlockQ8_0>(type, src, dst, n);
    if (type == DType::q4_0) return encode_blocks<BlockQ4_0>(type, src, dst, n);
    if (type == DType::tq3_0) return encode_blocks<BlockTQ3_0>(type, src, dst, n);
    if (type != DType::f8_e4m3 || scale == 1.0f) return quantize(type, src, dst, n);
    auto* codes = static_cast<uint8_t*>(dst);
    for (int64_t i = 0; i < n; ++i) codes[i] = f32_to_f8_e4m3(src[i] / scale);
}

void decode_kv_row(DType type, const void* src, float* dst, int64_t n, float scale) {
    RT_ASSERT(can_hold_kv(type) && n % dtype_info(type).block_elements == 0);
    if (type == DType::q8_0) return decode_blocks<BlockQ8_0>(type, src, dst, n);
    if (type == DType::q4_0) return decode_blocks<BlockQ4_0>(type, src, dst, n);
    if (type == DType::tq3_0) return decode_blocks<BlockTQ3_0>(type, src, dst, n);
    dequantize(type, src, dst, n);
    if (type == DType::f8_e4m3 && scale != 1.0f)
        for (int64_t i = 0; i < n; ++i) dst[i] *= scale;
}

void kv_rotate(float* x, int64_t n) { transform_all(x, n, kSigns.before.data(), kSigns.after.data()); }

void kv_unrotate(float* x, int64_t n) { transform_all(x, n, kSigns.after.data(), kSigns.before.data()); }

}  // namespace riptide
