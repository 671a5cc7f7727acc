// How good the quantisers are: against a search of all scales, by type, and with an importance of each value.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <span>

#include "base/error.h"
#include "quant/blocks.h"
#include "quant/codec.h"
#include "quant/iq_grids.h"
#include "quant_data.h"
#include "tests/sanitizers.h"

namespace riptide {

namespace {

/// Student's t with three degrees of freedom, divided by 50: a few values far out.
std::vector<float> heavy_tailed(int64_t n, uint32_t seed) {
    std::mt19937 engine(seed);
    std::student_t_distribution<float> draw(3.0f);
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = 0.02f * draw(engine);
    return values;
}

/// Mean squares of activations of columns that differ by a factor of e^2 in scale, most of them.
std::vector<float> log_normal(int64_t n, uint32_t seed) {
    std::vector<float> values = test::gaussian(n, seed);
    for (float& v : values) v = std::exp(v);
    return values;
}

double weighted_error(DType type, std::span<const float> x, std::span<const float> w, bool told) {
    const std::ptrdiff_t n = std::ssize(x);
    std::vector<uint8_t> bytes(static_cast<size_t>(row_bytes(type, n)));
    std::vector<float> back(x.size(), NAN);
    quantize(type, x.data(), bytes.data(), n, told ? w.data() : nullptr);
    dequantize(type, bytes.data(), back.data(), n);
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += w[i] * std::pow(double{x[i]} - back[i], 2.0);
    return sum;
}

// ---- what a search of all scales finds

/// The least error of a group at a step; levels or grid points are scanned one by one.
using GroupError = std::function<float(const float* x, const float* w, float step)>;

template <class Levels>
GroupError scan_levels(int n, Levels levels) {
    return [=](const float* x, const float* w, float step) {
        float sum = 0;
        for (int i = 0; i < n; ++i) {
            float least = INFINITY;
            for (int level : levels) {
                const float e = x[i] - step * static_cast<float>(level);
                least = std::min(least, e * e);
            }
            sum += w[i] * least;
        }
        return sum;
    };
}

/// Signs are free.
template <int kDims, size_t entries>
GroupError scan_grid(int n, const uint16_t (&grid)[entries], int bits, const uint8_t* levels) {
    std::vector<std::array<float, kDims>> magnitudes(entries);
    for (size_t c = 0; c < entries; ++c)
        for (int j = 0; j < kDims; ++j)
            magnitudes[c][static_cast<size_t>(j)] = levels[grid[c] >> (bits * j) & ((1 << bits) - 1)];
    return [=](const float* x, const float* w, float step) {
        float sum = 0;
        for (int first = 0; first < n; first += kDims) {
            float least = INFINITY;
            for (const auto& m : magnitudes) {
                float cost = 0;
                for (int j = 0; j < kDims; ++j) {
                    const float e = std::fabs(x[first + j]) - step * m[static_cast<size_t>(j)];
                    cost += w[first + j] * e * e;
                }
                least = std::min(least, cost);
            }
            sum += least;
        }
        return sum;
    };
}

struct Search {
    DType type;
    int values;                  // of a group
    std::vector<float> factors;  // what a group may multiply d by
    float top;                   // the largest level
    GroupError error;
};

/// x = d factor level, d of 40 within 0.5 to 1.4 of what gives the block's largest value the largest code.
double best_of_all_scales(const Search& search, const float* x, const float* w) {
    float most = 0, most_factor = 0;
    for (int i = 0; i < kSuperBlock; ++i) most = std::max(most, std::fabs(x[i]));
    for (float f : search.factors) most_factor = std::max(most_factor, std::fabs(f));
    double best = INFINITY;
    for (int k = 0; k <= 40; ++k) {
        const float d = most / (search.top * most_factor) * (0.5f + 0.0225f * static_cast<float>(k));
        double sum = 0;
        for (int g = 0; g < kSuperBlock; g += search.values) {
            float least = INFINITY;
            for (float f : search.factors) least = std::min(least, search.error(x + g, w + g, d * f));
            sum += least;
        }
        best = std::min(best, sum);
    }
    return best;
}

/// Q2_K: every s and m of each group, for 16 times 16 of d and dmin.
double best_of_all_q2_k(const float* x, const float* w) {
    float low = 0, range = 0;
    for (int g = 0; g < 16; ++g) {
        const auto [least, most] = std::minmax_element(x + 16 * g, x + 16 * g + 16);
        low = std::max(low, -*least);
        range = std::max(range, *most - std::min(0.0f, *least));
    }
    double best = INFINITY;
    for (int k = 0; k < 16; ++k)
        for (int l = 0; l < 16; ++l) {
            const float d = range / 45 * (0.5f + 0.045f * static_cast<float>(k));
            const float dmin = low / 15 * (0.5f + 0.045f * static_cast<float>(l));
            double sum = 0;
            for (int g = 0; g < 16; ++g) {
                float least = INFINITY;
                for (int s = 0; s < 16; ++s)
                    for (int m = 0; m < 16; ++m) {
                        float cost = 0;
                        const float step = d * static_cast<float>(s), from = dmin * static_cast<float>(m);
                        const float inv = s == 0 ? 0.0f : 1 / step;
                        for (int i = 16 * g; i < 16 * g + 16 && cost < least; ++i) {
                            const float q = std::clamp(std::nearbyint((x[i] + from) * inv), 0.0f, 3.0f);
                            cost += w[i] * (x[i] + from - step * q) * (x[i] + from - step * q);
                        }
                        least = std::min(least, cost);
                    }
                sum += least;
            }
            best = std::min(best, sum);
        }
    return best;
}

std::vector<float> whole_numbers(int from, int to, int by = 1) {
    std::vector<float> numbers;
    for (int i = from; i <= to; i += by) numbers.push_back(static_cast<float>(i));
    return numbers;
}

}  // namespace

TEST(QuantizeQuality, error_is_near_the_best_of_all_scales) {
    constexpr int kSearchedBlocks = 1;
    const std::array<int, 8> eight = {-4, -3, -2, -1, 0, 1, 2, 3};
    const Search searches[] = {
        {DType::q3_k, 16, whole_numbers(-32, 31), 4, scan_levels(16, eight)},
        {DType::iq4_xs, 32, whole_numbers(-32, 31), 120, scan_levels(32, std::to_array(kIQ4Values))},
        {DType::iq3_s, 32, whole_numbers(1, 31, 2), 15, scan_grid<4>(32, kIQ3SGrid, 3, kIQ3SLevels)},
        {DType::iq2_s, 16, whole_numbers(1, 31, 2), 43, scan_grid<8>(16, kIQ2SGrid, 2, kIQ2Levels)},
        {DType::q2_k, 16, {}, 0, {}},
    };
    for (const bool heavy : {false, true})
        for (const bool weighted : {false, true}) {
            if (kAddressSanitizer && !weighted) continue;
            const std::vector<float> x =
                heavy ? heavy_tailed(256 * kSearchedBlocks, 3) : test::gaussian(256 * kSearchedBlocks, 4);
            const std::vector<float> w =
                weighted ? log_normal(256 * kSearchedBlocks, 5) : std::vector<float>(256 * kSearchedBlocks, 1.0f);
            for (const Search& search : searches) {
                for (size_t b = 0; b < kSearchedBlocks; ++b) {
                    const float *values = x.data() + 256 * b, *weights = w.data() + 256 * b;
                    const double best =
                        search.error ? best_of_all_scales(search, values, weights) : best_of_all_q2_k(values, weights);
                    EXPECT_LE(weighted_error(search.type, {values, 256}, {weights, 256}, weighted), 1.05 * best)
                        << dtype_name(search.type) << (heavy ? " heavy" : " gaussian") << (weighted ? " weighted" : "");
                }
            }
        }
}

TEST(QuantizeQuality, more_bits_less_error) {
    const std::vector<DType> chains[] = {
        {DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k, DType::q8_0},
        {DType::iq2_s, DType::iq3_s, DType::iq4_xs, DType::q4_k},
        {DType::q3_k, DType::iq3_s, DType::iq4_nl},  // of 3.44 bits both: grids are better than steps
        {DType::q4_0, DType::iq4_xs}};               // with a quarter of a bit less
    const std::vector<float> ones(256 * 64, 1.0f), importance = log_normal(256 * 64, 8);
    for (const std::vector<float>& x : {test::gaussian(256 * 64, 6), heavy_tailed(256 * 64, 7)})
        for (const std::vector<float>& w : {ones, importance})
            for (const std::vector<DType>& chain : chains)
                for (size_t i = 1; i < chain.size(); ++i)
                    EXPECT_LT(weighted_error(chain[i], x, w, true), weighted_error(chain[i - 1], x, w, true))
                        << dtype_name(chain[i]) << " after " << dtype_name(chain[i - 1]);
}

TEST(QuantizeQuality, importance_lowers_the_error_that_counts) {
    const DType types[] = {DType::q2_k,  DType::q3_k,   DType::q4_k,  DType::q5_k, DType::q6_k,
                           DType::q4_0,  DType::q4_1,   DType::q5_0,  DType::q5_1, DType::iq2_s,
                           DType::iq3_s, DType::iq4_nl, DType::iq4_xs};
    constexpr size_t kRow = 1024, kRows = 32;
    const std::vector<float> row = log_normal(kRow, 9);  // by column, as files have it
    for (const bool heavy : {false, true})
        for (DType type : types) {
            const std::vector<float> x = heavy ? heavy_tailed(kRow * kRows, 10) : test::gaussian(kRow * kRows, 11);
            for (size_t r = 0; r < kRows; ++r) {
                const std::span values(x.data() + kRow * r, kRow);
                const double a = weighted_error(type, values, row, true), b = weighted_error(type, values, row, false);
                EXPECT_LE(a, b) << dtype_name(type) << " row " << r;
            }
        }
}

TEST(QuantizeQuality, any_importance_gives_finite_values) {
    std::vector<float> x = test::gaussian(256, 12);
    x[100] = 300;
    for (int t = 0; t < static_cast<int>(DType::count); ++t) {
        const auto type = static_cast<DType>(t);
        if (!can_quantize(type)) continue;
        const std::vector<float> zeros(256, 0.0f), ones(256, 1.0f), huge(256, 3e38f), tiny(256, 1e-45f);
        std::vector<float> one = zeros, steep = ones;
        one[7] = 1;
        for (size_t i = 0; i < steep.size(); ++i) steep[i] = std::pow(10.0f, 0.25f * static_cast<float>(i) - 32);
        for (const std::vector<float>& w : {zeros, huge, tiny, one, steep}) {
            std::vector<uint8_t> bytes(2048);
            std::vector<float> back(256, NAN);
            quantize(type, x.data(), bytes.data(), 256, w.data());
            dequantize(type, bytes.data(), back.data(), 256);
            for (float v : back) ASSERT_LE(std::fabs(v), 400) << dtype_name(type);
        }
        for (const std::vector<float>& w : {zeros, huge, tiny})  // all alike is as good as none
            EXPECT_EQ(weighted_error(type, x, ones, false), [&] {
                std::vector<uint8_t> bytes(2048);
                std::vector<float> back(256, NAN);
                quantize(type, x.data(), bytes.data(), 256, w.data());
                dequantize(type, bytes.data(), back.data(), 256);
                double sum = 0;
                for (size_t i = 0; i < x.size(); ++i) sum += std::pow(double{x[i]} - back[i], 2.0);
                return sum;
            }()) << dtype_name(type);
    }
}

}  // namespace riptide
