// What op tests share: a context whose memory is poisoned, random rows, comparison against derived bounds.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tensor/context.h"

namespace riptide {

/// A CPU context. Arena memory reads as NaN until an op writes it.
class OpContext {
  public:
    explicit OpContext(int threads = 2, int64_t bytes = int64_t{4} << 20)
        : pool_(threads), arena_(bytes), bytes_(bytes) {
        ctx.threads = &pool_;
        ctx.arena = &arena_;
        poison();
    }
    /// Forgets all tensors and poisons their memory.
    void poison() {
        arena_.reset();
        std::memset(arena_.allocate(bytes_ - 4096), 0xFF, static_cast<size_t>(bytes_ - 4096));
        arena_.reset();
    }
    Tensor tensor(const std::vector<float>& values, std::initializer_list<int64_t> shape) {
        Tensor t = ctx.alloc(DType::f32, shape);
        EXPECT_EQ(t.elements(), static_cast<int64_t>(values.size()));
        std::copy(values.begin(), values.end(), t.row(0));
        return t;
    }
    Context ctx;

  private:
    ThreadPool pool_;
    Arena arena_;
    int64_t bytes_;
};

inline std::vector<float> normals(size_t n, uint64_t seed, float scale = 1.0f) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> x(n);
    for (float& v : x) v = normal(rng);
    return x;
}

inline std::vector<float> values_of(const Tensor& t) { return {t.row(0), t.row(0) + t.elements()}; }

inline bool same_bits(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

inline void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i)
        ASSERT_TRUE(same_bits(&a[i], &b[i], 1)) << what << ": element " << i << ": " << a[i] << " != " << b[i];
}

constexpr double kUnitF32 = 0x1p-24;

/// The largest error over its allowance; NaN counts as infinite.
class BoundCheck {
  public:
    void add(double value, double reference, double allowed) {
        const double error = std::abs(value - reference);
        const double share = error == 0 ? 0 : error / allowed;
        worst_ = std::isnan(share) ? std::numeric_limits<double>::infinity() : std::max(worst_, share);
    }
    double worst() const { return worst_; }

  private:
    double worst_ = 0;
};

}  // namespace riptide
