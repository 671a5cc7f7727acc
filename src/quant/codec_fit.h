// Least-squares fits of a group of values to a grid: what the quantisers search with. Not for other folders.
//
// Two grids: symmetric x = s q with q in [-N, N - 1] (s of either sign), and affine x = s q + low with q in [0, Q].
// Given the codes, the best s (and low) solve a linear system; given s and low, the best codes are the nearest ones.
// Each fit starts from several steps, since where the extreme values round decides which local minimum is found, and
// then alternates.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

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

// ---- symmetric
// ----------------------------------------------------------------------------------------------------------

/// Squared error of x on the grid s q, q in [-N, N - 1], n values.
template <int n, int N>
float symmetric_error(const float* x, float s) {
    const F4 inv = all4(inverse(s)), low = all4(-N), high = all4(N - 1);
    F4 sum = all4(0);
    for (int i = 0; i < n; i += 4) {
        const F4 v = load4(x + i), e = v - s * round_within4(v * inv, low, high);
        sum += e * e;
    }
    return sum4(sum);
}

/// The best s for the codes that 1 / inv gives. `gain` is by how much it lowers the sum of squares.
template <int n, int N>
float symmetric_step(const float* x, float inv, float& gain) {
    const F4 low = all4(-N), high = all4(N - 1);
    F4 xq = all4(0), qq = all4(0);
    for (int i = 0; i < n; i += 4) {
        const F4 v = load4(x + i), q = round_within4(v * inv, low, high);
        xq += v * q;
        qq += q * q;
    }
    const float a = sum4(xq), b = sum4(qq);
    gain = b > 0 ? a * a / b : 0.0f;
    return b > 0 ? a / b : 0.0f;
}

/// The step s of the symmetric grid for n values.
template <int n, int N>
float fit_symmetric(const float* x) {
    float extreme = 0;
    for (int i = 0; i < n; ++i) extreme = std::fabs(x[i]) > std::fabs(extreme) ? x[i] : extreme;
    if (std::fabs(extreme) < kNothing) return 0.0f;
    float best = 0, best_gain = -1;
    const auto consider = [&](float inv) {
        float gain;
        const float s = symmetric_step<n, N>(x, inv, gain);
        if (gain > best_gain) best_gain = gain, best = s;
    };
    for (int k = -7; k <= 7; ++k) {  // the extreme value at code -N or at N - 1, give or take, clipped or not
        consider(-(static_cast<float>(N) + 0.125f * static_cast<float>(k)) / extreme);
        consider((static_cast<float>(N - 1) + 0.125f * static_cast<float>(k)) / extreme);
    }
    for (int i = 0; i < 2; ++i) consider(inverse(best));
    return best;
}

// ---- affine
// ---------------------------------------------------------------------------------------------------------------

/// x = s q + low.
struct Affine {
    float s = 0;
    float low = 0;
};

/// Squared error of x on the grid s q + low, q in [0, Q].
template <int n, int Q>
float affine_error(const float* x, Affine grid) {
    const F4 inv = all4(inverse(grid.s)), zero = all4(0), high = all4(Q);
    F4 sum = all4(0);
    for (int i = 0; i < n; i += 4) {
        const F4 v = load4(x + i) - grid.low, e = v - grid.s * round_within4(v * inv, zero, high);
        sum += e * e;
    }
    return sum4(sum);
}

/// The best grid for the codes that (1 / inv, low) gives; kNegative: with low <= 0, as K types need it. Returns its
/// squared error.
template <int n, int Q, bool kNegative>
float affine_step(const float* x, float inv, float low, float sum_x, float sum_xx, Affine& grid) {
    const F4 zero = all4(0), high = all4(Q);
    F4 q1 = all4(0), q2 = all4(0), q3 = all4(0);
    for (int i = 0; i < n; i += 4) {
        const F4 v = load4(x + i), q = round_within4((v - low) * inv, zero, high);
        q1 += q;
        q2 += q * q;
        q3 += v * q;
    }
    const float sq = sum4(q1), sqq = sum4(q2), sxq = sum4(q3), count = n;
    const float det = count * sqq - sq * sq;
    if (det <= 0) return INFINITY;
    grid = {(count * sxq - sum_x * sq) / det, (sqq * sum_x - sq * sxq) / det};
    if (kNegative && grid.low > 0) grid = {sxq / sqq, 0.0f};
    return sum_xx - 2 * (grid.s * sxq + grid.low * sum_x) + grid.s * grid.s * sqq + 2 * grid.s * grid.low * sq +
           count * grid.low * grid.low;
}

/// The affine grid for n values; s >= 0.
template <int n, int Q, bool kNegative>
Affine fit_affine(const float* x) {
    float low = x[0], high = x[0], sum_x = 0, sum_xx = 0;
    for (int i = 0; i < n; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        sum_x += x[i];
        sum_xx += x[i] * x[i];
    }
    if (kNegative && low > 0) low = 0;
    if (high - low < kNothing) return {0.0f, low};
    Affine best{(high - low) / Q, low};
    float least = INFINITY;
    const auto consider = [&](float inv, float start) {
        Affine grid;
        const float error = affine_step<n, Q, kNegative>(x, inv, start, sum_x, sum_xx, grid);
        if (error < least && grid.s > 0) least = error, best = grid;
    };
    for (int k = -8; k <= 8; ++k)
        consider((static_cast<float>(Q) + 0.125f * static_cast<float>(k)) / (high - low), low);
    for (int i = 0; i < 3; ++i) consider(inverse(best.s), best.low);
    return best;
}

}  // namespace riptide::codec
