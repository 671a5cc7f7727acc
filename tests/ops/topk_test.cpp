#include "ops/topk.h"

#include <algorithm>
#include <numeric>

#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

TEST(topk, argmax_takes_the_first_of_equals_and_leaves_nan_for_last) {
    EXPECT_EQ(ops::argmax(std::vector<float>{1, 3, 3, 2}), 1);
    EXPECT_EQ(ops::argmax(std::vector<float>{kNan, -kInf, kNan}), 1);
    EXPECT_EQ(ops::argmax(std::vector<float>{kNan, kNan}), 0);
    EXPECT_EQ(ops::argmax(std::vector<float>{0.0f, -0.0f}), 0);
    EXPECT_EQ(ops::argmax(std::vector<float>{-kInf, kNan, kInf}), 2);
}

TEST(topk, equals_a_stable_sort_of_the_whole_row) {
    std::mt19937_64 rng(1);
    for (int round = 0; round < 200; ++round) {
        std::vector<float> row(1 + rng() % 300);
        for (float& x : row) {  // many ties
            x = static_cast<float>(rng() % 40);
            if (rng() % 50 == 0) x = kNan;
        }
        std::vector<int32_t> order(row.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            const float x = row[static_cast<size_t>(a)], y = row[static_cast<size_t>(b)];
            return std::isnan(y) ? !std::isnan(x) : x > y;
        });
        const int64_t k = static_cast<int64_t>(1 + rng() % row.size());
        const std::vector<ops::Scored> best = ops::top_k(row, k);
        ASSERT_EQ(best.size(), static_cast<size_t>(k));
        for (size_t i = 0; i < best.size(); ++i) {
            ASSERT_EQ(best[i].index, order[i]) << "round " << round << " rank " << i;
            ASSERT_TRUE(same_bits(&best[i].value, &row[static_cast<size_t>(order[i])], 1));
        }
        EXPECT_EQ(ops::argmax(row), order[0]);
    }
}

TEST(topk, k_beyond_the_row_gives_the_row) {
    EXPECT_EQ(ops::top_k(std::vector<float>{2, 5}, 9).size(), 2u);
    EXPECT_TRUE(ops::top_k(std::vector<float>{2, 5}, 0).empty());
}

struct RowsOf {
    const char* name;
    float (*value)(std::mt19937_64& rng);
};

TEST(topk, tensor_forms_equal_the_row_forms_on_hard_rows) {
    const RowsOf kinds[] = {
        {"normal", [](std::mt19937_64& rng) { return std::normal_distribution<float>()(rng); }},
        {"few levels", [](std::mt19937_64& rng) { return static_cast<float>(rng() % 5) - 2.0f; }},
        {"zeros of both signs", [](std::mt19937_64& rng) { return rng() % 2 == 0 ? 0.0f : -0.0f; }},
        {"NaN and infinities",
         [](std::mt19937_64& rng) {
             const float values[] = {kNan, -kNan, kInf, -kInf, 1e-45f, -1e-45f, 3e38f, -3e38f};
             return values[rng() % 8];
         }},
        {"NaN", [](std::mt19937_64&) { return kNan; }},
        {"-infinity", [](std::mt19937_64&) { return -kInf; }},
        {"-infinity and numbers", [](std::mt19937_64& rng) { return rng() % 9 == 0 ? -1e38f : -kInf; }},
        {"a rare NaN", [](std::mt19937_64& rng) { return rng() % 3000 == 0 ? kNan : static_cast<float>(rng() % 99); }},
        {"a rare infinity",
         [](std::mt19937_64& rng) { return rng() % 3000 == 0 ? kInf : -static_cast<float>(rng() % 99); }},
    };
    std::mt19937_64 rng(4);
    for (const RowsOf& kind : std::span(kinds).first(fewer(std::size(kinds), size_t{4})))
        for (const auto& [n, m] : {std::pair<int64_t, int64_t>{3, 1},
                                   {5, 7},
                                   {2, 256},
                                   {3, 2047},
                                   {2, 2049},
                                   {33, 5000},
                                   {1, 100352},
                                   {3, 20001}}) {
            if (brief_counts() && (n > 5 || m > (&kind == kinds ? 50000 : 300))) continue;
            OpContext op(2, int64_t{8} << 20);
            std::vector<float> x(static_cast<size_t>(n * m));
            for (float& v : x) v = kind.value(rng);
            const Tensor t = op.tensor(x, {n, m});
            const std::vector<int32_t> first = values_of<int32_t>(ops::argmax(op.ctx, t));
            const std::vector<int32_t> likely = values_of<int32_t>(ops::most_likely(op.ctx, t));
            for (int64_t r = 0; r < n; ++r) {
                const std::span<const float> row(x.data() + r * m, static_cast<size_t>(m));
                const int32_t best = ops::argmax(row);
                const bool possible = std::all_of(row.begin(), row.end(), [](float v) { return v < kInf; }) &&
                                      row[static_cast<size_t>(best)] > -kInf;
                ASSERT_EQ(likely[static_cast<size_t>(r)], possible ? best : -1) << kind.name << " " << m;
            }
            for (const int64_t k : brief<int64_t>({1, 8, 40, 256}, 2)) {
                if (k > m) continue;
                const ops::TopK best = ops::top_k(op.ctx, t, k);
                const std::vector<int32_t> indices = values_of<int32_t>(best.indices);
                const std::vector<float> values = values_of(best.values);
                for (int64_t r = 0; r < n; ++r) {
                    const std::vector<ops::Scored> expected = ops::top_k({x.data() + r * m, static_cast<size_t>(m)}, k);
                    ASSERT_EQ(first[static_cast<size_t>(r)], expected[0].index) << kind.name << " " << m;
                    for (size_t i = 0; i < expected.size(); ++i) {
                        const size_t at = static_cast<size_t>(r * k) + i;
                        ASSERT_EQ(indices[at], expected[i].index) << kind.name << " " << m << " rank " << i;
                        ASSERT_TRUE(same_bits(&values[at], &expected[i].value, 1)) << kind.name << " " << m;
                    }
                }
            }
        }
}

TEST(topk, argmax_of_more_rows_than_there_are_counters) {
    OpContext op;
    const std::vector<float> x = normals(5000 * 40, 5);
    const std::vector<int32_t> first = values_of<int32_t>(ops::argmax(op.ctx, op.tensor(x, {5000, 40})));
    for (size_t r = 0; r < first.size(); ++r) ASSERT_EQ(first[r], ops::argmax({&x[r * 40], 40})) << r;
}

TEST(topk, tensor_forms_equal_the_row_forms) {
    OpContext op;
    const std::vector<float> x = normals(20 * 3000, 2);
    const Tensor t = op.tensor(x, {20, 3000});
    const std::vector<int32_t> first = values_of<int32_t>(ops::argmax(op.ctx, t));
    const ops::TopK best = ops::top_k(op.ctx, t, 7);
    const std::vector<int32_t> indices = values_of<int32_t>(best.indices);
    const std::vector<float> values = values_of(best.values);
    for (int64_t r = 0; r < 20; ++r) {
        const std::vector<ops::Scored> expected = ops::top_k({x.data() + r * 3000, 3000}, 7);
        EXPECT_EQ(first[static_cast<size_t>(r)], expected[0].index);
        for (size_t i = 0; i < 7; ++i) {
            EXPECT_EQ(indices[static_cast<size_t>(r * 7) + i], expected[i].index);
            EXPECT_EQ(values[static_cast<size_t>(r * 7) + i], expected[i].value);
        }
    }
}

TEST(topk, log_sum_exp_agrees_in_both_precisions) {
    const std::vector<float> x = normals(100352, 3, 4.0f);
    const double exact = ops::log_sum_exp<double>(x);
    long double sum = 0;
    for (const float v : x) sum += std::exp(static_cast<long double>(v));
    EXPECT_NEAR(exact, static_cast<double>(std::log(sum)), 1e-13 * std::abs(exact));
    // exp within 2 units, random-walk error of 100352 / 16 additions, one rounding of the result.
    const double allowed = kUnitF32 * (2 + 6 * std::sqrt(100352.0 / 16) + 2 * std::abs(exact));
    EXPECT_NEAR(ops::log_sum_exp<float>(x), exact, allowed);
}

TEST(topk, log_sum_exp_of_extremes) {
    EXPECT_EQ(ops::log_sum_exp<float>(std::vector<float>{-kInf, -kInf}), -kInf);
    EXPECT_EQ(ops::log_sum_exp<double>(std::vector<float>{3e38f, -3e38f}), 3e38f);
    EXPECT_DOUBLE_EQ(ops::log_sum_exp<double>(std::vector<float>{-kInf, 1.0f}), 1.0);
    EXPECT_TRUE(std::isnan(ops::log_sum_exp<float>(std::vector<float>{1.0f, kNan})));
}

}  // namespace
}  // namespace riptide
