// Encoders of the formats with super-blocks of 256 values and scales alone: Q3_K, Q6_K, IQ4_XS, IQ3_S, IQ2_S.
//
// All are x = d f(s[g]) q with q of a grid, and go the same way: fit the step of each group freely; choose d so that
// d f(s) comes near all of these steps; try the neighbours of each s; given s and codes, solve for d.
#include <algorithm>
#include <iterator>

#include "quant/blocks.h"
#include "quant/codec_fit.h"
#include "quant/grid_search.h"
#include "quant/iq_grids.h"

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

const auto& iq3_s_search() {
    static const GridSearch<512, 4, 8> search(kIQ3SGrid, 3, kIQ3SLevels);
    return search;
}
const auto& iq2_s_search() {
    static const GridSearch<1024, 8, 3> search(kIQ2SGrid, 2, kIQ2Levels);
    return search;
}

/// Magnitudes of a grid, signs apart: s in [0, 15], x = +-d (2 s + 1) unit m. `starts` are the magnitudes that the
/// group's largest value may have.
template <int values, int dims, const auto& (*search)()>
struct MagnitudeGrid {
    static constexpr int kValues = values, kDims = dims, kLeast = 0, kMost = 15;
    static constexpr bool kEitherSign = false;
    static float factor(int s) { return static_cast<float>(2 * s + 1); }

    /// The codes that are best at step s.
    static void codes(const float* x, const float* w, float s, int* code) {
        const float inv = inverse(s);
        float a[kValues];
        for (int i = 0; i < kValues; ++i) a[i] = std::fabs(x[i]) * inv;
        for (int i = 0; i < kValues; i += kDims) code[i / kDims] = search().nearest(a + i, w + i);
    }
    static GridSums sums(const float* x, const float* w, float s) {
        int code[kValues / kDims];
        codes(x, w, s, code);
        GridSums sums;
        for (int i = 0; i < kValues; i += kDims) {
            const float* m = search().magnitudes(code[i / kDims]);
            for (int j = i; j < i + kDims; ++j) {
                const float v = std::fabs(x[j]), q = m[j - i], e = v - s * q;
                sums.xq += w[j] * v * q;
                sums.qq += w[j] * q * q;
                sums.error += w[j] * e * e;
            }
        }
        return sums;
    }
    static StepFit fit(const float* x, const float* w, float first, float last, float by) {
        const float most = max_magnitude(x, kValues);
        if (most < kNothing) return {};
        StepSearch step([=](float s) { return sums(x, w, s); });
        for (float top = first; top <= last; top += by) step.start(most / top);
        step.start(most / search().magnitudes(0)[0]);  // one magnitude throughout: code 0 has the lowest level for all
        return step.finish();
    }
};

struct Iq3Grid : MagnitudeGrid<32, 4, iq3_s_search> {
    static StepFit fit(const float* x, const float* w) { return MagnitudeGrid::fit(x, w, 10.0f, 22.0f, 1.5f); }
};
/// In units of d / 8.
struct Iq2Grid : MagnitudeGrid<16, 8, iq2_s_search> {
    static StepFit fit(const float* x, const float* w) { return MagnitudeGrid::fit(x, w, 28.0f, 76.0f, 6.0f); }
};

template <class Grid>
struct ScaledBlock {
    static constexpr int kGroups = kSuperBlock / Grid::kValues;

    HalfScale d{};
    float unit = 1;  // of the format: d's multiple that factor() counts
    int s[kGroups] = {};

    float step(int scale) const { return d.value * unit * Grid::factor(scale); }
};

/// The s whose factor is nearest to `ratio`.
template <class Grid>
int nearest_scale(float ratio) {
    return Grid::kEitherSign ? nearest_within(ratio, Grid::kLeast, Grid::kMost)
                             : nearest_within(0.5f * (ratio - 1), Grid::kLeast, Grid::kMost);
}

/// The d among a few for which the fits' steps are nearest to d f(s), by what that costs to second order.
template <class Grid>
float choose_scale(const StepFit* fits, int groups) {
    float extreme = 0;
    for (int g = 0; g < groups; ++g) extreme = std::fabs(fits[g].s) > std::fabs(extreme) ? fits[g].s : extreme;
    if (std::fabs(extreme) < kNothing) return 0.0f;
    if (Grid::kMost == 127) return extreme / Grid::factor(Grid::kLeast);
    float best = 0, least = INFINITY;
    const auto consider = [&](float d) {
        float cost = 0;
        for (int g = 0; g < groups; ++g) {
            const float off = fits[g].s - d * Grid::factor(nearest_scale<Grid>(fits[g].s / d));
            cost += fits[g].qq * off * off;
        }
        if (cost < least) least = cost, best = d;
    };
    for (float share = 0.6f; share <= 1.1f; share += 0.02f) {  // of the largest factor that the largest step gets
        consider(extreme / (Grid::factor(Grid::kMost) * share));
        if (Grid::kEitherSign) consider(extreme / (Grid::factor(Grid::kLeast) * share));
    }
    return best;
}

template <class Grid>
float improve_steps(const ScaledSource& source, ScaledBlock<Grid>& block) {
    constexpr int n = Grid::kValues;
    float total = 0;
    for (int g = 0; g < block.kGroups; ++g) {
        const int s = block.s[g];
        float least = INFINITY;
        for (int to = std::max(s - 1, Grid::kLeast); to <= std::min(s + 1, Grid::kMost); ++to) {
            const float error = Grid::sums(source.x + n * g, source.w + n * g, block.step(to)).error;
            if (error < least) least = error, block.s[g] = to;
        }
        total += least;
    }
    return total;
}

template <class Grid>
void solve_scale(const ScaledSource& source, ScaledBlock<Grid>& block) {
    constexpr int n = Grid::kValues;
    float xa = 0, aa = 0;
    for (int g = 0; g < block.kGroups; ++g) {
        const float f = block.unit * Grid::factor(block.s[g]);
        const GridSums at = Grid::sums(source.x + n * g, source.w + n * g, block.step(block.s[g]));
        xa += f * at.xq;
        aa += f * f * at.qq;
    }
    if (aa > 0) block.d = half_scale(xa / aa);
}

/// unit: see ScaledBlock.
template <class Grid>
ScaledBlock<Grid> fit_scaled_block(const ScaledSource& source, float unit = 1.0f) {
    ScaledBlock<Grid> block;
    block.unit = unit;
    StepFit fits[block.kGroups];
    for (int g = 0; g < block.kGroups; ++g)
        fits[g] = Grid::fit(source.x + Grid::kValues * g, source.w + Grid::kValues * g);
    block.d = half_scale(choose_scale<Grid>(fits, block.kGroups) / unit);
    const float inv = inverse(block.d.value * unit);
    for (int g = 0; g < block.kGroups; ++g) block.s[g] = nearest_scale<Grid>(fits[g].s * inv);
    float least = improve_steps(source, block);
    for (int round = 0; round < 2; ++round) {
        ScaledBlock<Grid> next = block;
        solve_scale(source, next);
        const float error = improve_steps(source, next);
        if (!(error < least)) break;
        least = error;
        block = next;
    }
    return block;
}

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

/// Scales, codes and signs of IQ3_S and IQ2_S, which lie alike: code i has its low byte in qs[i] and the rest, of
/// kHighBits bits, in qh.
template <class Grid, int kHighBits, class Block>
void encode_magnitudes(const ScaledSource& source, float unit, Block& b) {
    constexpr int kCodes = Grid::kValues / Grid::kDims;
    const auto block = fit_scaled_block<Grid>(source, unit);
    b = {};
    b.d = block.d.bits;
    for (int g = 0; g < block.kGroups; ++g) {
        int code[kCodes];
        const int first = Grid::kValues * g;
        Grid::codes(source.x + first, source.w + first, block.step(block.s[g]), code);
        b.scales[g / 2] = static_cast<uint8_t>(b.scales[g / 2] | block.s[g] << (4 * (g % 2)));
        for (int c = 0; c < kCodes; ++c) {
            const int i = kCodes * g + c, bit = kHighBits * i;
            b.qs[i] = static_cast<uint8_t>(code[c] & 255);
            b.qh[bit / 8] = static_cast<uint8_t>(b.qh[bit / 8] | (code[c] >> 8) << (bit % 8));
        }
    }
    for (int i = 0; i < kSuperBlock; ++i)
        b.signs[i / 8] = static_cast<uint8_t>(b.signs[i / 8] | (source.x[i] < 0 ? 1 : 0) << (i % 8));
}

void encode_steps(const ScaledSource& source, BlockIQ3S& b) { encode_magnitudes<Iq3Grid, 1>(source, 1.0f, b); }
void encode_steps(const ScaledSource& source, BlockIQ2S& b) { encode_magnitudes<Iq2Grid, 2>(source, 0.125f, b); }

template <class Block>
bool encode_all_scaled(const float* src, const float* importance, void* dst, int64_t n) {
    auto* blocks = static_cast<Block*>(dst);
    for (int64_t i = 0; i < n / kSuperBlock; ++i)
        encode_steps({src + i * kSuperBlock, importance == nullptr ? nullptr : importance + i * kSuperBlock},
                     blocks[i]);
    return true;
}

}  // namespace

bool encode_scaled(DType type, const float* src, const float* importance, void* dst, int64_t n) {
    switch (type) {
        case DType::q3_k:
            return encode_all_scaled<BlockQ3K>(src, importance, dst, n);
        case DType::q6_k:
            return encode_all_scaled<BlockQ6K>(src, importance, dst, n);
        case DType::iq4_xs:
            return encode_all_scaled<BlockIQ4XS>(src, importance, dst, n);
        case DType::iq3_s:
            return encode_all_scaled<BlockIQ3S>(src, importance, dst, n);
        case DType::iq2_s:
            return encode_all_scaled<BlockIQ2S>(src, importance, dst, n);
        default:
            return false;
    }
}

}  // namespace riptide::codec
