// Encoders of the formats with blocks of 32 values.
#include <algorithm>

#include "quant/blocks.h"
#include "quant/codec_fit.h"
#include "quant/kv_levels.h"

namespace riptide::codec {

namespace {

/// Codes q + N of the symmetric grid, and its scale.
template <int N>
uint16_t symmetric_codes(const float* x, const float* w, uint8_t* codes) {
    const HalfScale d = half_scale(fit_symmetric<kBlock, N>(x, w).s);
    const float inv = inverse(d.value);
    for (int i = 0; i < kBlock; ++i) codes[i] = static_cast<uint8_t>(nearest_within(x[i] * inv, -N, N - 1) + N);
    return d.bits;
}

/// Codes of the affine grid with a minimum of either sign.
template <int Q>
void affine_codes(const float* x, const float* w, uint8_t* codes, uint16_t& d_bits, uint16_t& m_bits) {
    const Affine grid = fit_affine<kBlock, Q, false>(x, w);
    const HalfScale d = half_scale(grid.s), m = half_scale(grid.low);
    const float inv = inverse(d.value);
    for (int i = 0; i < kBlock; ++i) codes[i] = static_cast<uint8_t>(nearest_within((x[i] - m.value) * inv, 0, Q));
    d_bits = d.bits;
    m_bits = m.bits;
}

void encode(const float* x, const float* w, BlockQ4_0& b) {
    uint8_t codes[kBlock];
    b.d = symmetric_codes<8>(x, w, codes);
    pack_nibbles(codes, b.qs);
}

void encode(const float* x, const float* w, BlockQ5_0& b) {
    uint8_t codes[kBlock];
    b.d = symmetric_codes<16>(x, w, codes);
    pack_nibbles(codes, b.qs);
    pack_fifth_bits(codes, b.qh);
}

void encode(const float* x, const float* w, BlockQ4_1& b) {
    uint8_t codes[kBlock];
    uint16_t d, m;
    affine_codes<15>(x, w, codes, d, m);
    b.d = d;
    b.m = m;
    pack_nibbles(codes, b.qs);
}

void encode(const float* x, const float* w, BlockQ5_1& b) {
    uint8_t codes[kBlock];
    uint16_t d, m;
    affine_codes<31>(x, w, codes, d, m);
    b.d = d;
    b.m = m;
    pack_nibbles(codes, b.qs);
    pack_fifth_bits(codes, b.qh);
}

void encode(const float* x, BlockQ8_0& b) {
    const HalfScale d = half_scale(max_magnitude(x, kBlock) / 127.0f);
    const float inv = inverse(d.value);
    for (int i = 0; i < kBlock; ++i) b.qs[i] = static_cast<int8_t>(nearest_within(x[i] * inv, -127, 127));
    b.d = d.bits;
}

void encode(const float* x, const float* w, BlockIQ4NL& b) {
    const HalfScale d = half_scale(fit_iq4<kBlock>(x, w).s);
    const float inv = inverse(d.value);
    uint8_t codes[kBlock];
    for (int i = 0; i < kBlock; ++i) codes[i] = static_cast<uint8_t>(kNearestIq4(x[i] * inv));
    b.d = d.bits;
    pack_nibbles(codes, b.qs);
}

/// The code of E2M1 that is nearest to v / 2.
int e2m1_code(float v) {
    int q = 0;
    for (float edge : {0.5f, 1.5f, 2.5f, 3.5f, 5.0f, 7.0f, 10.0f}) q += std::fabs(v) > edge ? 1 : 0;
    return v < 0 ? q | 8 : q;
}

/// Of the powers of two that give the largest magnitude 2 to 32 units, of which the levels end at 6, the best. None is
/// so small that its half is subnormal.
void encode(const float* x, const float* w, BlockMxfp4& b) {
    int power;
    std::frexp(max_magnitude(x, kBlock), &power);
    float least = INFINITY;
    for (int e = 127 + power - 5; e <= 127 + power - 2; ++e) {
        const int held = std::max(e, 2);
        const float half = std::ldexp(1.0f, held - 128);
        uint8_t codes[kBlock];
        float error = 0;
        for (int i = 0; i < kBlock; ++i) {
            codes[i] = static_cast<uint8_t>(e2m1_code(x[i] / half));
            const float off = x[i] - half * static_cast<float>(kE2M1Doubled[codes[i]]);
            error += w[i] * off * off;
        }
        if (!(error < least)) continue;
        least = error;
        b.e = static_cast<uint8_t>(held);
        pack_nibbles(codes, b.qs);
    }
}

int tq3_code(float v) {
    int q = 0;
    for (float edge : kTQ3Edges) q += v >= edge ? 1 : 0;
    return q;
}

/// The best d for the codes of x / d, and by how much it lowers the sum of squares. The levels are symmetric, and a
/// level has the sign of its value, so magnitudes are enough.
float tq3_step(const float* magnitudes, float d, float& gain) {
    constexpr float k0 = kTQ3Values[4], k1 = kTQ3Values[5] - k0, k2 = kTQ3Values[6] - k1 - k0;
    constexpr float k3 = kTQ3Values[7] - k2 - k1 - k0;
    const F4 e1 = all4(kTQ3Edges[4] * d), e2 = all4(kTQ3Edges[5] * d), e3 = all4(kTQ3Edges[6] * d);
    F4 xc = all4(0), cc = all4(0);
    for (int i = 0; i < kBlock; i += 4) {
        const F4 a = load4(magnitudes + i);
        const F4 c =
            k0 + (a >= e1 ? all4(k1) : all4(0)) + (a >= e2 ? all4(k2) : all4(0)) + (a >= e3 ? all4(k3) : all4(0));
        xc += a * c;
        cc += c * c;
    }
    const float x = sum4(xc), c = sum4(cc);
    gain = x * x / c;
    return x / c;
}

/// Starts from scales around the one that gives the block the mean square of the levels' source, 1/128.
float fit_tq3(const float* x) {
    float magnitudes[kBlock], square = 0;
    for (int i = 0; i < kBlock; ++i) {
        magnitudes[i] = std::fabs(x[i]);
        square += magnitudes[i] * magnitudes[i];
    }
    const float usual = std::sqrt(square * (128.0f / kBlock));
    float best = 0, best_gain = -1;
    const auto consider = [&](float start) {
        float gain;
        const float d = tq3_step(magnitudes, start, gain);
        if (gain > best_gain) best_gain = gain, best = d;
    };
    for (int k = -5; k <= 6; ++k) consider(usual * (1 + 0.06f * static_cast<float>(k)));
    for (int i = 0; i < 2; ++i) consider(best);
    return best;
}

void encode(const float* x, BlockTQ3_0& b) {
    const HalfScale scale = half_scale(fit_tq3(x));
    const float inv = inverse(scale.value);
    b = {};
    b.d = scale.bits;
    for (int i = 0; i < kBlock; ++i) {
        const int q = tq3_code(x[i] * inv);
        b.qs[i / 4] = static_cast<uint8_t>(b.qs[i / 4] | (q & 3) << (2 * (i % 4)));
        b.qh[i / 8] = static_cast<uint8_t>(b.qh[i / 8] | q >> 2 << (i % 8));
    }
}

template <class Block>
bool encode_all(const float* src, const float* importance, void* dst, int64_t n) {
    auto* blocks = static_cast<Block*>(dst);
    for (int64_t i = 0; i < n / kBlock; ++i) {
        const float* x = src + i * kBlock;
        if constexpr (requires { encode(x, blocks[i]); }) {  // no importance
            encode(x, blocks[i]);
        } else {
            const FitBlock<kBlock> block(x, importance == nullptr ? nullptr : importance + i * kBlock);
            encode(block.x, block.w, blocks[i]);
        }
    }
    return true;
}

}  // namespace

bool encode_simple(DType type, const float* src, const float* importance, void* dst, int64_t n) {
    switch (type) {
        case DType::q8_0:
            return encode_all<BlockQ8_0>(src, importance, dst, n);
        case DType::q4_0:
            return encode_all<BlockQ4_0>(src, importance, dst, n);
        case DType::q4_1:
            return encode_all<BlockQ4_1>(src, importance, dst, n);
        case DType::q5_0:
            return encode_all<BlockQ5_0>(src, importance, dst, n);
        case DType::q5_1:
            return encode_all<BlockQ5_1>(src, importance, dst, n);
        case DType::iq4_nl:
            return encode_all<BlockIQ4NL>(src, importance, dst, n);
        case DType::mxfp4:
            return encode_all<BlockMxfp4>(src, importance, dst, n);
        case DType::tq3_0:
            return encode_all<BlockTQ3_0>(src, importance, dst, n);
        default:
            return false;
    }
}

}  // namespace riptide::codec
