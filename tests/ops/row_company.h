// The law that a row's bits do not depend on the other rows of its step, however odd these are.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/ops/kquant_f16_world.h"
#include "tests/ops/row_alone.h"

namespace riptide {

/// Steps of which a row's bits must not depend on the other rows: those of the row alone.
class Company {
  public:
    static constexpr int64_t kMost = 40;

    explicit Company(int64_t cols) : cols_(cols), x_(test::random_rows(kMost, cols, 17)) {
        const test::AwkwardRows awkward(cols, 18);  // some of them between the others
        for (int64_t r = 0; r < awkward.count() && 3 * r + 1 < kMost; ++r)
            std::copy_n(awkward.row(r).begin(), cols, x_.begin() + (3 * r + 1) * cols);
        for (int64_t n = 1; n <= 24; ++n) counts_.push_back(n);
        counts_.insert(counts_.end(), {25, 33, 40});
        if (brief_counts()) counts_ = {2, 9, 17};
        if (test_gpu() == nullptr) counts_ = {2, 3, 8, 17, 40};
    }
    /// run(x, n): results, each [n, width], for x[n][cols]. The results of rows alone.
    std::map<int64_t, Results> check(const std::string& what,
                                     const std::function<Results(const std::vector<float>&, int64_t)>& run) const {
        std::map<int64_t, Results> alone;
        const int64_t most = counts_.back();
        for (const int64_t n : counts_) {
            const int64_t first = n == most ? 0 : 7 * n % (most - n + 1);
            const Results got = run(some(first, n), n);
            for (int64_t i = 0; i < n; i += brief_counts() ? n - 1 : 1) {
                if (!alone.contains(first + i)) alone[first + i] = run(some(first + i, 1), 1);
                for (size_t k = 0; k < got.size(); ++k) {
                    const std::vector<float>& one = alone[first + i][k];
                    const auto width = std::ssize(one);
                    const auto at = got[k].begin() + i * width;
                    expect_same({at, at + width}, one,
                                fmt::format("{}: row {} of {} from {}, result {}", what, i, n, first, k));
                    if (::testing::Test::HasFatalFailure()) return alone;
                }
            }
        }
        return alone;
    }
    /// The same bits, or both NaN.
    static void expect_same(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
        ASSERT_EQ(a.size(), b.size()) << what;
        for (size_t i = 0; i < a.size(); ++i)
            ASSERT_TRUE(same_bits(&a[i], &b[i], 1) || (std::isnan(a[i]) && std::isnan(b[i])))
                << what << ", element " << i << ": " << a[i] << " != " << b[i];
    }

  private:
    std::vector<float> some(int64_t first, int64_t n) const {
        return {x_.begin() + first * cols_, x_.begin() + (first + n) * cols_};
    }

    int64_t cols_;
    std::vector<float> x_;
    std::vector<int64_t> counts_;
};

}  // namespace riptide
