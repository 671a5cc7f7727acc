// Encoders of the formats with blocks of 32 values.
#include <algorithm>

#include "quant/blocks.h"
#include "quant/codec_fit.h"
#include "quant/kv_levels.h"

namespace riptide::codec {

namespace {

/// A block of finite values in the scale of its Range.
struct Scaled {
    Range range;
    float x[kBlock];

    explicit Scaled(const float* source) : range(range_of(max_magnitude(source, kBlock))) {
        for (int i = 0; i < kBlock; ++i) x[i] = source[i] * range.down;
    }
};

/// Codes q + N of the symmetric grid, and its scale.
template <int N>
uint16_t symmetric_codes(const Scaled& block, uint8_t* codes) {
    const HalfScale d = half_scale(fit_symmetric<kBlock, N>(block.x), block.range);
    const float inv = inverse(d.value);
    for (int i = 0; i < kBlock; ++i) codes[i] = static_cast<uint8_t>(nearest_within(block.x[i] * inv, -N, N - 1) + N);
    return d.bits;
}

/// Codes of the affine grid with a minimum of either sign.
template <int Q>
void affine_codes(const Scaled& block, uint8_t* codes, uint16_t& d_bits, uint16_t& m_bits) {
    const Affine grid = fit_affine<kBlock, Q, false>(block.x);
    const HalfScale d = half_scale(grid.s, block.range), m = half_scale(grid.low, block.range);
    const float inv = inverse(d.value);
    for (int i = 0; i < kBlock; ++i) codes[i] = static_cast<uint8_t>(nearest_within((block.x[i] - m.value) * inv, 0, Q));
    d_bits = d.bits;
    m_bits = m.bits;
}

void encode(const float* x, BlockQ4_0& b) {
    uint8_t codes[kBlock];
    b.d = symmetric_codes<8>(Scaled(x), codes);
    pack_nibbles(codes, b.qs);
}

void encode(const float* x, BlockQ5_0& b) {
    uint8_t codes[kBlock];
    b.d = symmetric_codes<16>(Scaled(x), codes);
    pack_nibbles(codes, b.qs);
    pack_fifth_bits(codes, b.qh);
}

void encode(const float* x, BlockQ4_1& b) {
    uint8_t codes[kBlock];
    uint16_t d, m;
    affine_codes<15>(Scaled(x), codes, d, m);
    b.d = d;
    b.m = m;
    pack_nibbles(codes, b.qs);
}

void encode(const float* x, BlockQ5_1& b) {
    uint8_t codes[kBlock];
    uint16_t d, m;
    affine_codes<31>(Scaled(x), codes, d, m);
    b.d = d;
    b.m = m;
    pack_nibbles(codes, b.qs);
    pack_fifth_bits(codes, b.qh);
}

void encode(const float* x, BlockQ8_0& b) {
    const Scaled block(x);
    const HalfScale d = half_scale(max_magnitude(block.x, kBlock) / 127.0f, block.range);
    const float inv = inverse(d.value);
    for (int i = 0; i < kBlock; ++i) b.qs[i] = static_cast<int8_t>(nearest_within(block.x[i] * inv, -127, 127));
    b.d = d.bits;
}

int tq3_code(float v) {
    int q = 0;
    for (float edge : kTQ3Edges) q += v >= edge ? 1 : 0;
    return q;
}

/// Starts with the scale that gives the block the mean square of the levels' source, 1/128, and alternates codes and scale.
void encode(const float* x, BlockTQ3_0& b) {
    const Scaled block(x);
    float square = 0;
    for (float v : block.x) square += v * v;
    float d = std::sqrt(square * (128.0f / kBlock));
    for (int round = 0; round < 3; ++round) {
        const float inv = inverse(d);
        float xc = 0, cc = 0;
        for (float v : block.x) {
            const float level = kTQ3Values[tq3_code(v * inv)];
            xc += v * level;
            cc += level * level;
        }
        d = xc / cc;
    }
    const HalfScale scale = half_scale(d, block.range);
    const float inv = inverse(scale.value);
    b = {};
    b.d = scale.bits;
    for (int i = 0; i < kBlock; ++i) {
        const int q = tq3_code(block.x[i] * inv);
        b.qs[i / 4] = static_cast<uint8_t>(b.qs[i / 4] | (q & 3) << (2 * (i % 4)));
        b.qh[i / 8] = static_cast<uint8_t>(b.qh[i / 8] | q >> 2 << (i % 8));
    }
}

template <class Block>
bool encode_all(const float* src, void* dst, int64_t n) {
    auto* blocks = static_cast<Block*>(dst);
    for (int64_t i = 0; i < n / kBlock; ++i) encode(src + i * kBlock, blocks[i]);
    return true;
}

}  // namespace

bool encode_simple(DType type, const float* src, void* dst, int64_t n) {
    switch (type) {
        case DType::q8_0: return encode_all<BlockQ8_0>(src, dst, n);
        case DType::q4_0: return encode_all<BlockQ4_0>(src, dst, n);
        case DType::q4_1: return encode_all<BlockQ4_1>(src, dst, n);
        case DType::q5_0: return encode_all<BlockQ5_0>(src, dst, n);
        case DType::q5_1: return encode_all<BlockQ5_1>(src, dst, n);
        case DType::tq3_0: return encode_all<BlockTQ3_0>(src, dst, n);
        default: return false;
    }
}

}  // namespace riptide::codec
