// Least-squares fits of a group of values to a grid: what the quantisers search with. Not for other folders.
//
// Two grids: symmetric x = s q with q in [-N, N - 1] (s of either sign), and affine x = s q + low with q in [0, Q].
// Given the codes, the best s (and low) solve a linear system; given s and low, the best codes are the nearest ones.
// Each fit starts from several steps, since where the extreme values round decides which local minimum is found, and
// then alternates. Errors are sums of w (x - its value on the grid)^2, w a weight of each value.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "quant/blocks.h"
#include "quant/codec_internal.h"

namespace riptide::codec {

/// Four floats at once, in whatever registers the target has.
using F4 = float __attribute__((vector_size(16)));
inline F4 load4(const float* x) {
    F4 v;
    std::memcpy(&v, x, sizeof v);
    return v;
}
inline float sum4(F4 v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline F4 all4(float x) { return F4{x, x, x, x}; }
/// nearest_within() as floats.
inline F4 round_within4(F4 v, F4 low, F4 high) {
    v = v < low ? low : v;
    v = v > high ? high : v;
    return (v + 12582912.0f) - 12582912.0f;
}

/// Anything smaller rounds to zero as an f16 scale. Blocks that f16 scales can hold have magnitudes from here to 3e8,
/// so that no square leaves the range of float; larger ones saturate whatever their sums come to.
constexpr float kNothing = 0x1p-26f;

/// The f16 nearest to x, saturating, and its value.
struct HalfScale {
    uint16_t bits;
    float value;
};
inline HalfScale half_scale(float x) {
    const uint16_t bits = to_half(x);
    return {bits, f16_to_f32(bits)};
}
inline float inverse(float s) { return s != 0.0f ? 1.0f / s : 0.0f; }

/// Values of a block and their weights, as the fits take them.
template <int n>
struct FitBlock {
    /// A weight below this share of the block's largest counts as this share: sums of floats stay good to three digits,
    /// and a column that no text used is still worth something.
    static constexpr float kLeastWeight = 0x1p-13f;
    /// More than any block type but MXFP4 can hold; squares of larger ones would leave the range of float.
    static constexpr float kLargest = 1e9f;

    float x[n], w[n];

    /// importance: a weight >= 0 of each value; nullptr, or all zero: 1.
    FitBlock(const float* values, const float* importance) {
        const float most = importance == nullptr ? 0.0f : max_magnitude(importance, n);
        for (int i = 0; i < n; ++i) {
            x[i] = values[i] > kLargest ? kLargest : values[i] < -kLargest ? -kLargest : values[i];
            w[i] = most > 0 ? importance[i] / most : 1.0f;
            w[i] = w[i] > kLeastWeight ? w[i] : kLeastWeight;
        }
    }
};

/// Sums over values x with codes q at step s.
struct GridSums {
    float xq = 0;     // w x q
    float qq = 0;     // w q^2
    float error = 0;  // w (x - s q)^2
};

// ---- symmetric
// ----------------------------------------------------------------------------------------------------------

/// x on the grid s q, q in [-N, N - 1], n values.
template <int n, int N>
GridSums symmetric_sums(const float* x, const float* w, float s) {
    const F4 inv = all4(inverse(s)), low = all4(-N), high = all4(N - 1);
    F4 xq = all4(0), qq = all4(0), sum = all4(0);
    for (int i = 0; i < n; i += 4) {
        const F4 v = load4(x + i), q = round_within4(v * inv, low, high), wq = load4(w + i) * q, e = v - s * q;
        xq += v * wq;
        qq += q * wq;
        sum += load4(w + i) * e * e;
    }
    return {sum4(xq), sum4(qq), sum4(sum)};
}

/// The value of largest magnitude.
template <int n>
float extreme_value(const float* x) {
    float extreme = 0;
    for (int i = 0; i < n; ++i) extreme = std::fabs(x[i]) > std::fabs(extreme) ? x[i] : extreme;
    return extreme;
}

/// A step of a grid, and the curvature of the error at its codes, sum w q^2.
struct StepFit {
    float s = 0;
    float qq = 0;
};

/// Looks for the step s of least error: solves for s at the codes of each start, then twice at its own codes.
/// sums(s): GridSums of the codes that are best at step s.
template <class Sums>
class StepSearch {
  public:
    explicit StepSearch(Sums sums) : sums_(sums) {}

    void start(float s) {
        const GridSums at = sums_(s);
        const float gain = at.qq > 0 ? at.xq * at.xq / at.qq : 0.0f;  // how much the best s lowers sum w x^2
        if (gain > gain_) gain_ = gain, best_ = {at.qq > 0 ? at.xq / at.qq : 0.0f, at.qq};
    }
    StepFit finish() {
        for (int i = 0; i < 2; ++i) start(best_.s);
        return best_;
    }

  private:
    Sums sums_;
    float gain_ = -1;
    StepFit best_;
};

/// The step of the symmetric grid for n values.
template <int n, int N>
StepFit fit_symmetric(const float* x, const float* w) {
    const float extreme = extreme_value<n>(x);
    if (std::fabs(extreme) < kNothing) return {};
    StepSearch search([=](float s) { return symmetric_sums<n, N>(x, w, s); });
    for (int k = -7; k <= 7; ++k) {  // the extreme value at code -N or at N - 1, give or take, clipped or not
        search.start(-extreme / (static_cast<float>(N) + 0.125f * static_cast<float>(k)));
        search.start(extreme / (static_cast<float>(N - 1) + 0.125f * static_cast<float>(k)));
    }
    return search.finish();
}

// ---- levels of a table
// -------------------------------------------------------------------------------------------------

/// The nearest of the levels of IQ4: its place.
class NearestIq4 {
  public:
    constexpr NearestIq4() {
        for (int cell = 0; cell < kCells; ++cell) {  // [cell / 2, cell / 2 + 1/2) - 127: all edges are whole halves
            const int twice = 2 * cell - 2 * 2 * 127 + 1;  // four times the middle
            int best = 0;
            for (int l = 1; l < 16; ++l)
                if (distance(twice, l) < distance(twice, best)) best = l;
            place_[cell] = static_cast<uint8_t>(best);
        }
    }
    int operator()(float v) const {
        v = v < -127 ? -127.0f : v;
        v = v > 113 ? 113.0f : v;
        return place_[static_cast<int>(2 * v + 254.0f)];
    }

  private:
    static constexpr int kCells = 2 * (127 + 113) + 1;
    static constexpr int distance(int four_times, int level) {
        const int d = four_times - 4 * kIQ4Values[level];
        return d < 0 ? -d : d;
    }
    uint8_t place_[kCells] = {};
};
inline constexpr NearestIq4 kNearestIq4;

/// x on the grid s kIQ4Values[q], n values.
template <int n>
GridSums iq4_sums(const float* x, const float* w, float s) {
    const float inv = inverse(s);
    GridSums sums;
    for (int i = 0; i < n; ++i) {
        const auto q = static_cast<float>(kIQ4Values[kNearestIq4(x[i] * inv)]);
        const float e = x[i] - s * q;
        sums.xq += w[i] * x[i] * q;
        sums.qq += w[i] * q * q;
        sums.error += w[i] * e * e;
    }
    return sums;
}

template <int n>
StepFit fit_iq4(const float* x, const float* w) {
    const float extreme = extreme_value<n>(x);
    if (std::fabs(extreme) < kNothing) return {};
    StepSearch search([=](float s) { return iq4_sums<n>(x, w, s); });
    for (int k = -5; k <= 5; ++k) {  // the extreme value at the first or the last level, give or take
        search.start(extreme / (-127.0f + 5.0f * static_cast<float>(k)));
        search.start(extreme / (113.0f + 5.0f * static_cast<float>(k)));
    }
    return search.finish();
}

// ---- affine
// ---------------------------------------------------------------------------------------------------------------

/// x = s q + low.
struct Affine {
    float s = 0;
    float low = 0;
};

/// Error of x on the grid s q + low, q in [0, Q].
template <int n, int Q>
float affine_error(const float* x, const float* w, Affine grid) {
    const F4 inv = all4(inverse(grid.s)), zero = all4(0), high = all4(Q);
    F4 sum = all4(0);
    for (int i = 0; i < n; i += 4) {
        const F4 v = load4(x + i) - grid.low, e = v - grid.s * round_within4(v * inv, zero, high);
        sum += load4(w + i) * e * e;
    }
    return sum4(sum);
}

/// Sums over all values of a fit.
struct AffineTotals {
    float w = 0, wx = 0, wxx = 0;
};

/// The best grid for the codes that (1 / inv, low) gives; kNegative: with low <= 0, as K types need it. Returns its
/// error.
template <int n, int Q, bool kNegative>
float affine_step(const float* x, const float* w, float inv, float low, const AffineTotals& all, Affine& grid) {
    const F4 zero = all4(0), high = all4(Q);
    F4 q1 = all4(0), q2 = all4(0), q3 = all4(0);
    for (int i = 0; i < n; i += 4) {
        const F4 v = load4(x + i), q = round_within4((v - low) * inv, zero, high), wq = load4(w + i) * q;
        q1 += wq;
        q2 += wq * q;
        q3 += v * wq;
    }
    const float sq = sum4(q1), sqq = sum4(q2), sxq = sum4(q3);
    const float det = all.w * sqq - sq * sq;
    if (det <= 0) return INFINITY;
    grid = {(all.w * sxq - all.wx * sq) / det, (sqq * all.wx - sq * sxq) / det};
    if (kNegative && grid.low > 0) grid = {sxq / sqq, 0.0f};
    return all.wxx - 2 * (grid.s * sxq + grid.low * all.wx) + grid.s * grid.s * sqq + 2 * grid.s * grid.low * sq +
           all.w * grid.low * grid.low;
}

/// The affine grid for n values; s >= 0.
template <int n, int Q, bool kNegative>
Affine fit_affine(const float* x, const float* w) {
    float low = x[0], high = x[0];
    AffineTotals all;
    for (int i = 0; i < n; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        all.w += w[i];
        all.wx += w[i] * x[i];
        all.wxx += w[i] * x[i] * x[i];
    }
    if (kNegative && low > 0) low = 0;
    if (high - low < kNothing) return {0.0f, low};
    Affine best{(high - low) / Q, low};
    float least = INFINITY;
    const auto consider = [&](float inv, float start) {
        Affine grid;
        const float error = affine_step<n, Q, kNegative>(x, w, inv, start, all, grid);
        if (error < least && grid.s > 0) least = error, best = grid;
    };
    for (int k = -8; k <= 8; ++k)
        consider((static_cast<float>(Q) + 0.125f * static_cast<float>(k)) / (high - low), low);
    for (int i = 0; i < 3; ++i) consider(inverse(best.s), best.low);
    return best;
}

// ---- super-blocks

/// x = d unit f(s[g]) q: groups of Grid::kValues, which know how to fit a step, the sums at one, and f.
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
float improve_steps(const FitBlock<kSuperBlock>& source, ScaledBlock<Grid>& block) {
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
void solve_scale(const FitBlock<kSuperBlock>& source, ScaledBlock<Grid>& block) {
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
ScaledBlock<Grid> fit_scaled_block(const FitBlock<kSuperBlock>& source, float unit = 1.0f) {
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

/// Encodes n values, super-block by super-block.
template <class Block>
bool encode_super_blocks(const float* src, const float* importance, void* dst, int64_t n,
                         void (*encode)(const FitBlock<kSuperBlock>&, Block&)) {
    auto* blocks = static_cast<Block*>(dst);
    for (int64_t i = 0; i < n; i += kSuperBlock)
        encode({src + i, importance == nullptr ? nullptr : importance + i}, blocks[i / kSuperBlock]);
    return true;
}

}  // namespace riptide::codec
