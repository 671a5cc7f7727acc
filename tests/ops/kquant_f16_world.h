// Weights and rows of x that are hard on products in half precision, and such a product on the host.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/ops/kquant_f16_bound.h"
#include "tests/quant/random_weight.h"

namespace riptide::test {

/// A Q4_K or Q6_K matrix of random bits: every code, scale and minimum that a file may hold, d and dmin of both signs,
/// now and then zero or below the normal range of f16.
struct AnyWeight {
    std::vector<std::byte> data;
    Weight w;

    AnyWeight(DType type, int64_t rows, int64_t cols, uint64_t seed) {
        w.dtype = type;
        w.rows = rows;
        w.cols = cols;
        w.row_bytes = row_bytes(type, cols);
        data.resize(static_cast<size_t>(w.bytes()));
        std::mt19937_64 random(seed);
        for (size_t i = 0; i + 8 <= data.size(); i += 8) {
            const uint64_t word = random();
            std::memcpy(data.data() + i, &word, 8);
        }
        w.data = data.data();
        const auto number = [&](double size) {
            const uint64_t bits = random();
            if (bits % 97 == 0) size = 0;
            if (bits % 97 == 1) size = 0x1p-20;
            const double vary = 0.5 + static_cast<double>(bits >> 40) * 0x1p-24;
            return f32_to_f16(static_cast<float>((bits >> 20 & 1) != 0 ? size * vary : -size * vary));
        };
        const size_t blocks = static_cast<size_t>(rows * cols / 256);
        for (size_t b = 0; b < blocks; ++b) {
            if (type == DType::q4_k) {
                auto& block = reinterpret_cast<BlockQ4K*>(data.data())[b];
                block.d = number(1.0 / (32 * 4.6));
                block.dmin = number(7.5 / (32 * 4.6));
            } else {
                reinterpret_cast<BlockQ6K*>(data.data())[b].d = number(1.0 / (74 * 18.5));
            }
        }
    }
};

/// Rows of one width, each with a name.
struct AwkwardRows {
    std::vector<std::string> names;
    std::vector<float> x;

    AwkwardRows(int64_t cols, uint64_t seed) : cols_(cols), random_(seed) {
        add("ordinary", [](int64_t, float v) { return v; });
        add("every 37th larger", [](int64_t c, float v) { return c % 37 == 5 ? 40 * v : v; });
        add("outliers of 1e4", [](int64_t c, float v) { return c % 601 == 77 ? 1e4f * v : v; });
        add("an outlier of 1e30", [](int64_t c, float v) { return c == 1000 ? 1e30f : v; });
        add("outliers of 1e30 and 1e-30", [](int64_t c, float v) {
            return c % 509 == 3 ? 1e30f * v : c % 11 == 4 ? 1e-30f * v : v;
        });
        add("1e30", [](int64_t, float v) { return 1e30f * v; });
        add("1e-30", [](int64_t, float v) { return 1e-30f * v; });
        add("zeros", [](int64_t, float) { return 0.0f; });
        add("blocks of zeros", [](int64_t c, float v) { return c / 256 % 3 == 1 || c / 32 % 5 == 0 ? 0.0f : v; });
        add("any exponent", [this](int64_t, float v) { return std::ldexp(v, static_cast<int>(random_() % 80) - 40); });
        add("ties and edges", [this](int64_t c, float v) {  // what the rounding to f16 and the blocks' scales turn at
            const float sign = v < 0 ? -1.0f : 1.0f;
            if (c % 256 == 7) return sign * (c / 256 % 2 == 0 ? 256.0f : std::nextafter(512.0f, 0.0f));
            return sign *
                   std::ldexp(static_cast<float>(2049 + 2 * (random_() % 1023)), -4 - static_cast<int>(random_() % 24));
        });
        add("blocks next to 2^-100", [](int64_t c, float v) {
            const float edge = c / 256 % 2 == 0 ? 0x1p-100f : std::nextafter(0x1p-100f, 0.0f);
            return c % 256 == 9 ? edge : c / 256 % 4 == 2 ? v : std::ldexp(std::tanh(v), -103);
        });
        add("one NaN", [=](int64_t c, float v) { return c == cols / 3 ? std::nanf("") : v; });
        add("one infinity", [=](int64_t c, float v) { return c == cols - 2 ? -INFINITY : v; });
    }
    int64_t count() const { return std::ssize(names); }
    std::span<const float> row(int64_t r) const {
        return std::span(x).subspan(static_cast<size_t>(r * cols_), static_cast<size_t>(cols_));
    }

  private:
    template <class F>
    void add(const char* name, const F& value) {
        std::normal_distribution<float> normal;
        names.push_back(name);
        for (int64_t c = 0; c < cols_; ++c) x.push_back(value(c, normal(random_)));
    }

    int64_t cols_;
    std::mt19937_64 random_;
};

/// One step of a tensor core: c + sum a b, lined up with the largest of them and cut off 25 bits below. A product
/// counts as large as its factors' exponents say. (On an H200 all bits agree; with 24 or 26 bits, or products' own
/// exponents, a half to nine tenths of the products do.)
inline float tensor_step(float c, std::span<const double> a, std::span<const double> b) {
    constexpr int kNone = -9999;
    int largest = c == 0 ? kNone : std::ilogb(c);
    for (size_t i = 0; i < a.size(); ++i)
        if (a[i] * b[i] != 0) largest = std::max(largest, std::ilogb(a[i]) + std::ilogb(b[i]));
    if (largest == kNone) return 0;
    const int unit = largest - 25;
    const auto cut = [](double v, int to) { return std::ldexp(std::trunc(std::ldexp(v, -to)), to); };
    double sum = cut(double{c}, unit);
    for (size_t i = 0; i < a.size(); ++i) sum += cut(a[i] * b[i], unit);
    if (sum == 0) return 0;
    return static_cast<float>(cut(sum, std::ilogb(sum) - 23));
}

/// 1 / rms of a row as all kernels that normalise whole rows have it: pieces of eight, every 256th to a thread.
inline float rms_factor(std::span<const float> x, float eps) {
    float lanes[8][32] = {};
    for (size_t t = 0; t < 256; ++t)
        for (size_t c = 8 * t; c < x.size(); c += 2048)
            for (size_t i = c; i < std::min(c + 8, x.size()); ++i)
                lanes[t / 32][t % 32] = std::fma(x[i], x[i], lanes[t / 32][t % 32]);
    float warps[8];
    for (size_t w = 0; w < 8; ++w) {
        for (size_t mask = 16; mask > 0; mask /= 2)
            for (size_t i = 0; i < mask; ++i) lanes[w][i] += lanes[w][i + mask];
        warps[w] = lanes[w][0];
    }
    const float squares =
        ((warps[0] + warps[4]) + (warps[2] + warps[6])) + ((warps[1] + warps[5]) + (warps[3] + warps[7]));
    return 1.0f / std::sqrt(squares / static_cast<float>(x.size()) + eps);
}

/// The product as kquant_f16_bound.h describes it, times 1 / rms.
inline float half_product(const TakenRow& w, const TakenInput& x, float factor = 1.0f) {
    float c[8] = {};
    for (size_t b = 0; b < w.d.size(); ++b) {
        std::vector<double> h(256), us(256), m(16), halves(16);
        for (size_t i = 0; i < 256; ++i) {
            h[i] = std::ldexp(x.rounded[256 * b + i], -x.exponent[b]);
            us[i] = to_f16(w.us[256 * b + i]);
        }
        float acc[2] = {}, least = 0;
        for (size_t step = 0; step < 16; ++step) {
            double by[2][16];
            for (size_t i = 0; i < 16; ++i) by[0][i] = us[step_column(step, i)], by[1][i] = h[step_column(step, i)];
            acc[step / 8] = tensor_step(acc[step / 8], by[0], by[1]);
        }
        if (w.minimums) {
            for (size_t j = 0; j < 8; ++j) {
                float part[4] = {};
                for (size_t i = 0; i < 32; ++i) part[i / 8] += static_cast<float>(h[32 * j + i]);
                const float sum = (part[0] + part[1]) + (part[2] + part[3]);
                m[2 * j] = m[2 * j + 1] = w.m[256 * b + 32 * j];
                halves[2 * j] = to_f16(sum);
                halves[2 * j + 1] = to_f16(sum - halves[2 * j]);
            }
            least = tensor_step(0, m, halves);
        }
        float v = static_cast<float>(w.d[b]) * (acc[0] + acc[1]);
        if (w.minimums) v = std::fma(-static_cast<float>(w.dmin[b]), least, v);
        c[b % 8] = std::fma(std::ldexp(1.0f, x.exponent[b]), v, c[b % 8]);
    }
    return (((c[0] + c[4]) + (c[1] + c[5])) + ((c[2] + c[6]) + (c[3] + c[7]))) * factor;
}

/// Of the judged products of one call: the largest shares of the two bounds.
struct Shares {
    double loose = 0, sharp = 0;
};

/// y[n, w.rows] against the bounds. norm: empty or a weight for each column.
inline Shares judge(const Weight& w, const AwkwardRows& rows, const std::vector<float>& norm, float eps,
                    const std::vector<float>& y, const std::string& what) {
    const Arithmetic arithmetic = expected_arithmetic(test_gpu(), w);
    std::vector<TakenInput> x;
    for (int64_t r = 0; r < rows.count(); ++r) x.emplace_back(arithmetic, rows.row(r), norm, eps);
    ThreadPool pool(test_gpu() == nullptr ? 2 : 0);
    std::vector<BoundCheck> loose(static_cast<size_t>(pool.size())), sharp(loose);
    std::vector<std::string> wrong(loose.size());
    pool.parallel_for(w.rows, 16, [&](int64_t begin, int64_t end, int thread) {
        const auto t = static_cast<size_t>(thread);
        for (int64_t o = begin; o < end; ++o) {
            const JudgeRow row(TakenRow(w, o), arithmetic);
            for (int64_t r = 0; r < rows.count(); ++r) {
                const TakenInput& in = x[static_cast<size_t>(r)];
                const float got = y[static_cast<size_t>(r * w.rows + o)];
                const auto complain = [&](const char* law, double expected, double allowed) {
                    if (wrong[t].empty())
                        wrong[t] =
                            fmt::format("{}: row {} ({}), output {} of {}: {} is {}, expected {} +- {}", what, r,
                                        rows.names[static_cast<size_t>(r)], o, w.rows, law, got, expected, allowed);
                };
                if (!in.finite) {
                    if (!std::isnan(got)) complain("not finite", NAN, 0);
                    continue;
                }
                if (!in.normalisable) {
                    if (got != 0) complain("squares beyond f32", 0, 0);
                    continue;
                }
                const Judged j = row(in);
                loose[t].add(got, j.exact, j.bound);
                if (!(std::abs(got - j.exact) <= j.bound)) complain("bound", j.exact, j.bound);
                if (!j.known) continue;
                sharp[t].add(got, j.sharp, j.sharp_bound);
                if (!(std::abs(got - j.sharp) <= j.sharp_bound)) complain("sharp bound", j.sharp, j.sharp_bound);
            }
        }
    });
    Shares all;
    for (size_t t = 0; t < loose.size(); ++t) {
        EXPECT_EQ(wrong[t], "");
        all.loose = std::max(all.loose, loose[t].worst());
        all.sharp = std::max(all.sharp, sharp[t].worst());
    }
    return all;
}

}  // namespace riptide::test
