// Encoders of the formats with super-blocks of 256 values and scales alone: Q3_K, Q6_K, IQ4_XS, TQ1_0, TQ2_0; those of
// grids: codec_quantize_grids.cpp.
//
// All but TQ, which has one scale, are x = d f(s[g]) q with q of a grid, and go the same way (fit_scaled_block): fit
// the step of each group freely; choose d so that d f(s) comes near all of these steps; try the neighbours of each s;
// given s and codes, solve for d.
#include <algorithm>
#include <array>
#include <numeric>

#include "quant/blocks.h"
#include "quant/codec_fit.h"

namespace riptide::codec {

namespace {

using ScaledSource = FitBlock<kSuperBlock>;

/// Whole scales s in [least, most], of either sign; groups of 16, q in [-N, N - 1].
template <int N, int least>
struct UniformGrid {
    static constexpr int kValues = 16, kLeast = least, kMost = -least - 1;
    static constexpr bool kEitherSign = true;
    static float factor(int s) { return static_cast<float>(s); }
    static StepFit fit(const float* x, const float* w) { return fit_symmetric<kValues, N>(x, w); }
    static GridSums sums(const float* x, const float* w, float s) { return symmetric_sums<kValues, N>(x, w, s); }
};
using Q3Grid = UniformGrid<4, -32>;
using Q6Grid = UniformGrid<32, -128>;

struct Iq4Grid {
    static constexpr int kValues = 32, kLeast = -32, kMost = 31;
    static constexpr bool kEitherSign = true;
    static float factor(int s) { return static_cast<float>(s); }
    static StepFit fit(const float* x, const float* w) { return fit_iq4<kValues>(x, w); }
    static GridSums sums(const float* x, const float* w, float s) { return iq4_sums<kValues>(x, w, s); }
};

void uniform_codes(const float* x, float step, int least, int most, int* codes) {
    const float inv = inverse(step);
    for (int i = 0; i < 16; ++i)
        codes[i] = nearest_within(x[i] * inv, static_cast<float>(least), static_cast<float>(most));
}

void encode_steps(const ScaledSource& source, BlockQ3K& b) {
    const auto block = fit_scaled_block<Q3Grid>(source);
    b = {};
    b.d = block.d.bits;
    uint8_t low[kSuperBlock];
    for (int g = 0; g < 16; ++g) {
        int codes[16];
        uniform_codes(source.x + 16 * g, block.step(block.s[g]), -4, 3, codes);
        for (int l = 0; l < 16; ++l) {
            const int element = 16 * g + l, q = codes[l] + 4;
            low[element] = static_cast<uint8_t>(q & 3);
            b.hmask[element % 32] = static_cast<uint8_t>(b.hmask[element % 32] | (q >> 2) << (element / 32));
        }
        const int s = block.s[g] + 32;
        b.scales[g % 8] = static_cast<uint8_t>(b.scales[g % 8] | (s & 15) << (g < 8 ? 0 : 4));
        b.scales[8 + g % 4] = static_cast<uint8_t>(b.scales[8 + g % 4] | (s >> 4) << (2 * (g / 4)));
    }
    pack_two_bits(low, b.qs);
}

void encode_steps(const ScaledSource& source, BlockQ6K& b) {
    const auto block = fit_scaled_block<Q6Grid>(source);
    b = {};
    b.d = block.d.bits;
    for (int g = 0; g < 16; ++g) {
        int codes[16];
        uniform_codes(source.x + 16 * g, block.step(block.s[g]), -32, 31, codes);
        b.scales[g] = static_cast<int8_t>(block.s[g]);
        const int h = g / 8, s = g / 2 % 4, first = 16 * (g % 2);
        uint8_t* ql = b.ql + 64 * h + 32 * (s & 1) + first;
        uint8_t* qh = b.qh + 32 * h + first;
        for (int l = 0; l < 16; ++l) {
            const int q = codes[l] + 32;
            ql[l] = static_cast<uint8_t>(ql[l] | (q & 15) << (s < 2 ? 0 : 4));
            qh[l] = static_cast<uint8_t>(qh[l] | (q >> 4) << (2 * s));
        }
    }
}

void encode_steps(const ScaledSource& source, BlockIQ4XS& b) {
    const auto block = fit_scaled_block<Iq4Grid>(source);
    b = {};
    b.d = block.d.bits;
    uint32_t high = 0;
    for (int g = 0; g < 8; ++g) {
        const float inv = inverse(block.step(block.s[g]));
        uint8_t codes[kBlock];
        for (int i = 0; i < kBlock; ++i) codes[i] = static_cast<uint8_t>(kNearestIq4(source.x[kBlock * g + i] * inv));
        pack_nibbles(codes, b.qs + 16 * g);
        const int s = block.s[g] + 32;
        b.scales_l[g / 2] = static_cast<uint8_t>(b.scales_l[g / 2] | (s & 15) << (4 * (g % 2)));
        high |= static_cast<uint32_t>(s >> 4) << (2 * g);
    }
    b.scales_h = static_cast<uint16_t>(high);
}

/// The d that is best for x = d q, q in -1..1: at the best one the k largest magnitudes get +-1, and every k is tried.
float fit_ternary(const ScaledSource& source) {
    std::array<int, kSuperBlock> order;
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return std::fabs(source.x[a]) > std::fabs(source.x[b]); });
    float best = 0, most = 0, xw = 0, w = 0;
    for (const int i : order) {
        xw += source.w[i] * std::fabs(source.x[i]);
        w += source.w[i];
        if (const float gain = xw * xw / w; gain > most) most = gain, best = xw / w;
    }
    return best;
}

/// Codes 0..2, and d.
uint16_t ternary_codes(const ScaledSource& source, uint8_t* codes) {
    const HalfScale d = half_scale(fit_ternary(source));
    const float inv = inverse(d.value);
    for (int i = 0; i < kSuperBlock; ++i) codes[i] = static_cast<uint8_t>(1 + nearest_within(source.x[i] * inv, -1, 1));
    return d.bits;
}

void encode_steps(const ScaledSource& source, BlockTQ2_0& b) {
    uint8_t codes[kSuperBlock];
    b.d = ternary_codes(source, codes);
    pack_two_bits(codes, b.qs);
}

void encode_steps(const ScaledSource& source, BlockTQ1_0& b) {
    uint8_t codes[kSuperBlock];
    b.d = ternary_codes(source, codes);
    /// Of digits that lie `apart`; a fifth that is not there is 0. The byte is the number, from 0 to 242, as a share of
    /// 256, rounded up.
    const auto byte = [](const uint8_t* digits, int apart, int count) {
        int number = 0;
        for (int n = 0; n < 5; ++n) number = 3 * number + (n < count ? digits[apart * n] : 0);
        return static_cast<uint8_t>((256 * number + 242) / 243);
    };
    for (int m = 0; m < 32; ++m) b.qs[m] = byte(codes + m, 32, 5);
    for (int m = 0; m < 16; ++m) b.qs[32 + m] = byte(codes + 160 + m, 16, 5);
    for (int m = 0; m < 4; ++m) b.qh[m] = byte(codes + 240 + m, 4, 4);
}

}  // namespace

bool encode_scaled(DType type, const float* src, const float* importance, void* dst, int64_t n) {
    switch (type) {
        case DType::q3_k:
            return encode_super_blocks<BlockQ3K>(src, importance, dst, n, encode_steps);
        case DType::q6_k:
            return encode_super_blocks<BlockQ6K>(src, importance, dst, n, encode_steps);
        case DType::iq4_xs:
            return encode_super_blocks<BlockIQ4XS>(src, importance, dst, n, encode_steps);
        case DType::tq1_0:
            return encode_super_blocks<BlockTQ1_0>(src, importance, dst, n, encode_steps);
        case DType::tq2_0:
            return encode_super_blocks<BlockTQ2_0>(src, importance, dst, n, encode_steps);
        default:
            return false;
    }
}

}  // namespace riptide::codec
