#include "quant/kv_codec.h"

#include <array>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "quant/blocks.h"
#include "quant/codec.h"
#include "quant/codec_internal.h"

namespace riptide {

namespace {

constexpr int64_t kGroup = 128;
constexpr uint64_t kSignSeed = 0x5249505449444521u;
constexpr uint16_t kHalfNaN = 0x7E00;

struct Signs {
    std::array<float, kGroup> before{};
    std::array<float, kGroup> after{};
};

/// Two bits of each output of SplitMix64 (Steele, Lea, Flood 2014).
constexpr Signs make_signs() {
    Signs signs;
    uint64_t state = kSignSeed;
    for (size_t i = 0; i < signs.before.size(); ++i) {
        uint64_t z = (state += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        signs.before[i] = (z & 1) != 0 ? -1.0f : 1.0f;
        signs.after[i] = (z & 2) != 0 ? -1.0f : 1.0f;
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

void poison(DType type, void* block) {
    const auto bytes = static_cast<size_t>(dtype_info(type).block_bytes);
    std::memset(block, 0, bytes);
    std::memcpy(block, &kHalfNaN, sizeof kHalfNaN);  // every block type of a cache begins with its f16 scale
}

void encode_blocks(DType type, const float* src, void* dst, int64_t n) {
    auto* block = static_cast<uint8_t*>(dst);
    for (; n > 0; n -= kBlock, src += kBlock, block += dtype_info(type).block_bytes) {
        if (!codec::all_finite(src, kBlock)) poison(type, block);
        else if (type == DType::q4_0) encode_q4_0(src, *reinterpret_cast<BlockQ4_0*>(block));
        else codec::encode_simple(type, src, block, kBlock);
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
    if (dtype_info(type).block_elements > 1) return encode_blocks(type, src, dst, n);
    if (type != DType::f8_e4m3 || scale == 1.0f) return quantize(type, src, dst, n);
    auto* codes = static_cast<uint8_t*>(dst);
    for (int64_t i = 0; i < n; ++i) codes[i] = f32_to_f8_e4m3(src[i] / scale);
}

void decode_kv_row(DType type, const void* src, float* dst, int64_t n, float scale) {
    RT_ASSERT(can_hold_kv(type) && n % dtype_info(type).block_elements == 0);
    dequantize(type, src, dst, n);
    if (type == DType::f8_e4m3 && scale != 1.0f)
        for (int64_t i = 0; i < n; ++i) dst[i] *= scale;
}

void kv_rotate(float* x, int64_t n) { transform_all(x, n, kSigns.before.data(), kSigns.after.data()); }

void kv_unrotate(float* x, int64_t n) { transform_all(x, n, kSigns.after.data(), kSigns.before.data()); }

}  // namespace riptide
