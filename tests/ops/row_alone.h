// The law that a row alone has the bits it has beside another row, for ops whose kernels for one row are others.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/ops/op_fixture.h"
#include "tests/ops/product_bound.h"
#include "tests/quant/random_weight.h"

namespace riptide {

/// Results of one call, each [n, width].
using Results = std::vector<std::vector<float>>;

/// run(x) for rows x[n][width]: the results of two rows are those of each alone.
inline void expect_alone(const std::string& what, int64_t width,
                         const std::function<Results(const std::vector<float>&)>& run) {
    const std::vector<float> x = test::random_rows(2, width, 71);
    const Results both = run(x);
    for (int64_t r = 0; r < 2; ++r) {
        const Results one = run({x.begin() + r * width, x.begin() + (r + 1) * width});
        for (size_t k = 0; k < both.size(); ++k) {
            const int64_t columns = std::ssize(one[k]);
            ASSERT_EQ(std::ssize(both[k]), 2 * columns);
            for (const float v : one[k]) ASSERT_TRUE(std::isfinite(v)) << what;
            const std::vector<float> row(both[k].begin() + r * columns, both[k].begin() + (r + 1) * columns);
            expect_same_bits(one[k], row, fmt::format("{}, row {}, result {}", what, r, k).c_str());
        }
    }
}

}  // namespace riptide
