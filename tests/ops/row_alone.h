// The law that a row alone has the bits it has beside another row, for ops whose kernels for one row are others.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/ops/op_fixture.h"
#include "tests/ops/product_bound.h"
#include "tests/quant/random_weight.h"

namespace riptide {

inline constexpr test::WeightKind kBf16{DType::bf16}, kF16{DType::f16};

/// A random matrix on the device.
inline Weight place_random(OpContext& op, const test::WeightKind& kind, int64_t rows, int64_t cols, uint64_t seed) {
    const test::RandomWeight m(kind, rows, cols, seed);
    return op.weight(m.w);
}

/// Results of one call, each [n, width].
using Results = std::vector<std::vector<float>>;

/// run(x) for rows x[n][width]: the results of two to five rows are those of each alone.
inline void expect_alone(const std::string& what, int64_t width,
                         const std::function<Results(const std::vector<float>&)>& run) {
    const int64_t most = fewer(5, 2);
    const std::vector<float> x = test::random_rows(most, width, 71);
    std::vector<Results> alone;
    for (int64_t r = 0; r < most; ++r) {
        alone.push_back(run({x.begin() + r * width, x.begin() + (r + 1) * width}));
        for (const std::vector<float>& result : alone.back())
            for (const float v : result) ASSERT_TRUE(std::isfinite(v)) << what;
    }
    for (int64_t n = 2; n <= most; ++n) {
        const Results together = run({x.begin(), x.begin() + n * width});
        for (int64_t r = 0; r < n; ++r)
            for (size_t k = 0; k < together.size(); ++k) {
                const std::vector<float>& one = alone[static_cast<size_t>(r)][k];
                const int64_t columns = std::ssize(one);
                ASSERT_EQ(std::ssize(together[k]), n * columns);
                const auto first = together[k].begin() + r * columns;
                expect_same_bits(one, std::vector<float>(first, first + columns),
                                 fmt::format("{}, row {} of {}, result {}", what, r, n, k).c_str());
            }
    }
}

/// step() fills `results` and can be recorded: all replays of its graph give the same bits.
inline void expect_replays_agree(OpContext& op, const std::string& what, const std::vector<Tensor>& results,
                                 const std::function<void()>& step) {
    const Arena::Mark mark = op.ctx.arena->mark();
    step();
    op.ctx.arena->restore(mark);
    GpuGraph graph(*op.ctx.gpu, step);
    Results first;
    for (int replay = 0; replay < fewer(50, 1); ++replay) {
        graph.launch();
        for (size_t i = 0; i < results.size(); ++i) {
            const std::vector<float> values = values_of(results[i]);
            if (replay == 0) first.push_back(values);
            else expect_same_bits(values, first[i], fmt::format("{}, replay {}, result {}", what, replay, i).c_str());
        }
    }
}

}  // namespace riptide
