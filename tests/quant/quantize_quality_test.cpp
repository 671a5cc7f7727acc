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

template <int kDims, class Level, size_t entries>
std::vector<std::array<float, kDims>> grid_entries(const uint16_t (&grid)[entries], int bits, const Level* levels) {
    std::vector<std::array<float, kDims>> values(entries);
    for (size_t c = 0; c < entries; ++c)
        for (int j = 0; j < kDims; ++j)
            values[c][static_cast<size_t>(j)] = levels[grid[c] >> (bits * j) & ((1 << bits) - 1)];
    return values;
}

/// Error of the magnitudes m at |x|, and what it grows by if the value that matters least has the wrong sign.
struct SignedError {
    float right = 0, wrong = INFINITY;
};
template <size_t dims>
SignedError error_at(const std::array<float, dims>& m, const float* x, const float* w, float step) {
    SignedError error;
    for (size_t j = 0; j < dims; ++j) {
        const float a = std::fabs(x[j]), q = step * m[j];
        error.right += w[j] * (a - q) * (a - q);
        error.wrong = std::min(error.wrong, 4 * w[j] * a * q);
    }
    return error;
}

/// Signs are free, or (`even`) an even number of each eight is negative.
template <int kDims, size_t entries>
GroupError scan_grid(int n, const uint16_t (&grid)[entries], int bits, const uint8_t* levels, bool even = false) {
    const auto magnitudes = grid_entries<kDims>(grid, bits, levels);
    return [=](const float* x, const float* w, float step) {
        float sum = 0;
        for (int eight = 0; eight < n; eight += 8) {
            float wrong = INFINITY;  // least growth if some value has the wrong sign
            for (int first = eight; first < eight + 8; first += kDims) {
                float least = INFINITY, least_wrong = INFINITY;
                for (const auto& m : magnitudes) {
                    const SignedError error = error_at(m, x + first, w + first, step);
                    least = std::min(least, error.right);
                    if (even) least_wrong = std::min(least_wrong, error.right + error.wrong);
                }
                sum += least;
                wrong = std::min(wrong, least_wrong - least);
            }
            if (even && std::count_if(x + eight, x + eight + 8, [](float v) { return v < 0; }) % 2 != 0) sum += wrong;
        }
        return sum;
    };
}

/// IQ1: `alike` values share the sign of delta.
GroupError scan_iq1(int n, int alike) {
    const auto entries = grid_entries<8>(kIQ1SGrid, 2, kIQ1Levels);
    return [=](const float* x, const float* w, float step) {
        float sum = 0;
        for (int from = 0; from < n; from += alike) {
            float shared[2] = {};
            for (int i = 0; i < 2; ++i)
                for (int first = from; first < from + alike; first += 8) {
                    float least = INFINITY;
                    for (const auto& entry : entries) {
                        float cost = 0;
                        for (int j = 0; j < 8; ++j) {
                            const float e = x[first + j] - step * (entry[static_cast<size_t>(j)] + 0.125f - 0.25f * i);
                            cost += w[first + j] * e * e;
                        }
                        least = std::min(least, cost);
                    }
                    shared[i] += least;
                }
            sum += std::min(shared[0], shared[1]);
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
    float from = 0.5f;  // the least d that is tried, of what gives the block's largest value the largest code
};

/// x = d factor level, d of 40 from search.from to 0.9 more than that.
double best_of_all_scales(const Search& search, const float* x, const float* w) {
    float most = 0, most_factor = 0;
    for (int i = 0; i < kSuperBlock; ++i) most = std::max(most, std::fabs(x[i]));
    for (float f : search.factors) most_factor = std::max(most_factor, std::fabs(f));
    double best = INFINITY;
    for (int k = 0; k <= 40; ++k) {
        const float d = most / (search.top * most_factor) * (search.from + 0.0225f * static_cast<float>(k));
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
        {DType::iq3_xxs, 32, whole_numbers(1, 31, 2), 62, scan_grid<4>(32, kIQ3XXSGrid, 3, kIQ3XXSLevels, true)},
        {DType::iq2_s, 16, whole_numbers(1, 31, 2), 43, scan_grid<8>(16, kIQ2SGrid, 2, kIQ2Levels)},
        {DType::iq2_xs, 16, whole_numbers(1, 31, 2), 43, scan_grid<8>(16, kIQ2XSGrid, 2, kIQ2Levels, true)},
        {DType::iq2_xxs, 32, whole_numbers(1, 31, 2), 43, scan_grid<8>(32, kIQ2XXSGrid, 2, kIQ2Levels, true)},
        {DType::iq1_m, 16, whole_numbers(1, 15, 2), 1.125f, scan_iq1(16, 8), 0.2f},
        {DType::iq1_s, 32, whole_numbers(1, 15, 2), 1.125f, scan_iq1(32, 32), 0.2f},
        {DType::tq2_0, 256, {1}, 1, scan_levels(256, std::to_array({-1, 0, 1})), 0.2f},
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
        {DType::iq1_s, DType::iq1_m, DType::iq2_xxs, DType::iq2_xs, DType::iq2_s, DType::iq3_xxs, DType::iq3_s,
         DType::iq4_xs, DType::q4_k},
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
    constexpr size_t kRow = 1024, kRows = 32;
    const std::vector<float> row = log_normal(kRow, 9);  // by column, as files have it
    int heeding = 0;
    for (const bool heavy : {false, true})
        for (int t = 0; t < static_cast<int>(DType::count); ++t) {
            const auto type = static_cast<DType>(t);
            if (!heeds_importance(type)) continue;
            ++heeding;
            const std::vector<float> x = heavy ? heavy_tailed(kRow * kRows, 10) : test::gaussian(kRow * kRows, 11);
            for (size_t r = 0; r < kRows; ++r) {
                const std::span values(x.data() + kRow * r, kRow);
                const double a = weighted_error(type, values, row, true), b = weighted_error(type, values, row, false);
                EXPECT_LE(a, b) << dtype_name(type) << " row " << r;
            }
        }
    EXPECT_EQ(heeding, 2 * 21);
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
