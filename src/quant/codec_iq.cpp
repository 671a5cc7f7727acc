// Decoders of IQ1, IQ2, IQ3 and TQ1_0: formulas in blocks.h, rounded in the order written here.
#include <bit>

#include "quant/blocks.h"
#include "quant/codec_internal.h"
#include "quant/iq_grids.h"

namespace riptide::codec {

namespace {

uint32_t word(const uint8_t* from) {
    uint32_t w;
    std::memcpy(&w, from, sizeof w);
    return w;
}

/// Seven signs and the one that makes the number of set bits even.
uint32_t even_signs(uint32_t seven) {
    seven &= 127;
    return seven | static_cast<uint32_t>(std::popcount(seven) & 1) << 7;
}

float signed_value(float db, uint8_t magnitude, uint32_t minus) {
    return db * static_cast<float>(magnitude) * (minus != 0 ? -1.0f : 1.0f);
}

void put_eight(float db, uint32_t entry, uint32_t signs, float* __restrict y) {
    for (int j = 0; j < 8; ++j) y[j] = signed_value(db, kIQ2Levels[entry >> (2 * j) & 3], signs >> j & 1);
}

void put_fours(float db, const uint8_t* levels, uint32_t first, uint32_t second, uint32_t signs, float* __restrict y) {
    for (int j = 0; j < 4; ++j) {
        y[j] = signed_value(db, levels[first >> (3 * j) & 7], signs >> j & 1);
        y[4 + j] = signed_value(db, levels[second >> (3 * j) & 7], signs >> (4 + j) & 1);
    }
}

void put_ternary(float dl, uint32_t entry, bool negative, float* __restrict y) {
    const float delta = negative ? -0.125f : 0.125f;
    for (int j = 0; j < 8; ++j) y[j] = dl * (static_cast<float>(kIQ1Levels[entry >> (2 * j) & 3]) + delta);
}

void decode_iq_block(const BlockIQ2XXS& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    for (int g = 0; g < 8; ++g) {
        const uint32_t signs = word(b.qs + 8 * g + 4);
        const float db = d * (0.5f + static_cast<float>(signs >> 28)) * 0.25f;
        for (int l = 0; l < 4; ++l)
            put_eight(db, kIQ2XXSGrid[b.qs[8 * g + l]], even_signs(signs >> (7 * l)), y + 32 * g + 8 * l);
    }
}

/// db of elements 16 h to 16 h + 15 of a 32 whose nibbles are `scales`.
float iq2_scale(float d, uint8_t scales, int h) {
    return d * (0.5f + static_cast<float>(scales >> (4 * h) & 15)) * 0.25f;
}

void decode_iq_block(const BlockIQ2XS& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 32; ++i) {
        const uint32_t q = b.qs[i];
        put_eight(iq2_scale(d, b.scales[i / 4], i % 4 / 2), kIQ2XSGrid[q & 511], even_signs(q >> 9), y + 8 * i);
    }
}

void decode_iq_block(const BlockIQ2S& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 32; ++i) {
        const uint32_t code = b.qs[i] | (static_cast<uint32_t>(b.qh[i / 4]) >> (2 * (i % 4)) & 3) << 8;
        put_eight(iq2_scale(d, b.scales[i / 4], i % 4 / 2), kIQ2SGrid[code], b.signs[i], y + 8 * i);
    }
}

void decode_iq_block(const BlockIQ3XXS& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    for (int g = 0; g < 8; ++g) {
        const uint32_t signs = word(b.gas + 4 * g);
        const float db = d * (0.5f + static_cast<float>(signs >> 28)) * 0.5f;
        for (int l = 0; l < 4; ++l) {
            const uint8_t* const q = b.qs + 8 * g + 2 * l;
            put_fours(db, kIQ3XXSLevels, kIQ3XXSGrid[q[0]], kIQ3XXSGrid[q[1]], even_signs(signs >> (7 * l)),
                      y + 32 * g + 8 * l);
        }
    }
}

void decode_iq_block(const BlockIQ3S& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    for (int g = 0; g < 8; ++g) {
        const float db = d * static_cast<float>(1 + 2 * (b.scales[g / 2] >> (4 * (g % 2)) & 15));
        const auto entry = [&](int i) {  // of the group's eight fours
            return kIQ3SGrid[b.qs[8 * g + i] | (static_cast<uint32_t>(b.qh[g]) >> i & 1) << 8];
        };
        for (int l = 0; l < 4; ++l)
            put_fours(db, kIQ3SLevels, entry(2 * l), entry(2 * l + 1), b.signs[4 * g + l], y + 32 * g + 8 * l);
    }
}

void decode_iq_block(const BlockIQ1S& b, float* __restrict y) {
    const float d = f16_to_f32(b.d);
    for (int g = 0; g < 8; ++g) {
        const uint32_t h = b.qh[g];
        const float dl = d * static_cast<float>(2 * (h >> 12 & 7) + 1);
        for (int l = 0; l < 4; ++l)
            put_ternary(dl, kIQ1SGrid[b.qs[4 * g + l] | (h >> (3 * l) & 7) << 8], h >> 15 != 0, y + 32 * g + 8 * l);
    }
}

void decode_iq_block(const BlockIQ1M& b, float* __restrict y) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits |= static_cast<uint32_t>(b.scales[i] >> 12) << (4 * i);
    const float d = f16_to_f32(static_cast<uint16_t>(bits));
    for (int i = 0; i < 32; ++i) {
        const int pair = i / 2;  // of eights: 16 elements
        const uint32_t h = static_cast<uint32_t>(b.qh[pair]) >> (4 * (i % 2));
        const float dl = d * static_cast<float>(2 * (b.scales[pair / 4] >> (3 * (pair % 4)) & 7) + 1);
        put_ternary(dl, kIQ1SGrid[b.qs[i] | (h & 7) << 8], (h & 8) != 0, y + 8 * i);
    }
}

void decode_iq_block(const BlockTQ1_0& b, float* __restrict y) {
    constexpr uint8_t kPower[5] = {1, 3, 9, 27, 81};
    const float d = f16_to_f32(b.d);
    const auto digit = [&](uint8_t byte, int n) {
        const auto shifted = static_cast<uint8_t>(byte * kPower[n]);
        return static_cast<float>((static_cast<uint16_t>(shifted * 3) >> 8) - 1) * d;
    };
    for (int n = 0; n < 5; ++n) {
        for (int m = 0; m < 32; ++m) y[32 * n + m] = digit(b.qs[m], n);
        for (int m = 0; m < 16; ++m) y[160 + 16 * n + m] = digit(b.qs[32 + m], n);
    }
    for (int n = 0; n < 4; ++n)
        for (int m = 0; m < 4; ++m) y[240 + 4 * n + m] = digit(b.qh[m], n);
}

template <class Block>
bool decode_all_iq(const void* src, float* dst, int64_t n) {
    const auto* blocks = static_cast<const Block*>(src);
    for (int64_t i = 0; i < n / kSuperBlock; ++i) decode_iq_block(blocks[i], dst + i * kSuperBlock);
    return true;
}

}  // namespace

bool decode_iq(DType type, const void* src, float* dst, int64_t n) {
    switch (type) {
        case DType::iq1_s:
            return decode_all_iq<BlockIQ1S>(src, dst, n);
        case DType::iq1_m:
            return decode_all_iq<BlockIQ1M>(src, dst, n);
        case DType::iq2_xxs:
            return decode_all_iq<BlockIQ2XXS>(src, dst, n);
        case DType::iq2_xs:
            return decode_all_iq<BlockIQ2XS>(src, dst, n);
        case DType::iq2_s:
            return decode_all_iq<BlockIQ2S>(src, dst, n);
        case DType::iq3_xxs:
            return decode_all_iq<BlockIQ3XXS>(src, dst, n);
        case DType::iq3_s:
            return decode_all_iq<BlockIQ3S>(src, dst, n);
        case DType::tq1_0:
            return decode_all_iq<BlockTQ1_0>(src, dst, n);
        default:
            return false;
    }
}

}  // namespace riptide::codec
