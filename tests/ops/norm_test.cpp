#include "ops/norm.h"

#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

TEST(rms_norm, stays_within_the_bound_of_the_double_reference) {
    for (const auto& [n, d] :
         {std::pair<int64_t, int64_t>{1, 64}, {7, 2048}, {33, 5120}, {512, 128}, {3, 24}, {5, 1}}) {
        OpContext op;
        std::vector<float> x = normals(static_cast<size_t>(n * d), 1), w = normals(static_cast<size_t>(d), 2);
        x[0] = 1e4f;  // an outlier channel
        const std::vector<float> y = values_of(ops::rms_norm(op.ctx, op.tensor(x, {n, d}), op.floats(w), 1e-6f));
        std::vector<double> expected(x.size());
        ops::rms_norm_ref<double>(x.data(), w.data(), n, d, 1e-6f, expected.data());
        BoundCheck check;
        // Squares and their sum: sqrt(d / 16 + 5) additions of random sign (fewer on a GPU), halved by the root; four
        // roundings after it.
        const double allowed = kUnitF32 * (4 + 3 * std::sqrt(static_cast<double>(d) / 16 + 5));
        for (size_t i = 0; i < expected.size(); ++i) check.add(y[i], expected[i], allowed * std::abs(expected[i]));
        EXPECT_LE(check.worst(), 1.0) << n << " x " << d;
        EXPECT_GE(check.worst(), d == 1 ? 0.0 : 0.02) << "the bound is too loose at " << n << " x " << d;
    }
}

TEST(rms_norm, heads_stay_within_the_bound_of_the_double_reference) {
    for (const int64_t d : {1, 24, 40, 64, 128, 256}) {
        OpContext op;
        const std::vector<float> x = normals(static_cast<size_t>(9 * 6 * d), 3), w = normals(static_cast<size_t>(d), 4);
        const std::vector<float> y = values_of(ops::rms_norm(op.ctx, op.tensor(x, {9, 6, d}), op.floats(w), 1e-6f));
        std::vector<double> expected(x.size());
        ops::rms_norm_ref<double>(x.data(), w.data(), 9 * 6, d, 1e-6f, expected.data());
        BoundCheck check;
        const double allowed = kUnitF32 * (4 + 3 * std::sqrt(static_cast<double>(d) / 16 + 5));
        for (size_t i = 0; i < expected.size(); ++i) check.add(y[i], expected[i], allowed * std::abs(expected[i]));
        EXPECT_LE(check.worst(), 1.0) << d;
    }
}

TEST(rms_norm, normalises_each_head_of_a_view_by_itself) {
    RT_CPU_ONLY("a warp adds up a head in another order than a block adds up a row");
    OpContext op;
    const std::vector<float> x = normals(3 * 5 * 40, 3), w = normals(40, 4);
    const Tensor heads = ops::rms_norm(op.ctx, op.tensor(x, {3, 5, 40}), op.floats(w), 1e-5f);
    const Tensor rows = ops::rms_norm(op.ctx, op.tensor(x, {15, 40}), op.floats(w), 1e-5f);
    EXPECT_EQ(heads.rank, 3);
    expect_same_bits(values_of(heads), values_of(rows), "heads against rows");
}

TEST(rms_norm, rows_do_not_depend_on_their_company_or_on_threads) {
    OpContext many(3), one(1);
    const std::vector<float> x = normals(257 * 130, 5), w = normals(130, 6);
    const std::vector<float> all =
        values_of(ops::rms_norm(many.ctx, many.tensor(x, {257, 130}), many.floats(w), 1e-6f));
    for (const size_t r : {0, 1, 100, 256}) {
        const std::vector<float> row(x.begin() + static_cast<ptrdiff_t>(r * 130),
                                     x.begin() + static_cast<ptrdiff_t>(r * 130 + 130));
        const std::vector<float> alone =
            values_of(ops::rms_norm(one.ctx, one.tensor(row, {1, 130}), one.floats(w), 1e-6f));
        EXPECT_TRUE(same_bits(alone.data(), &all[r * 130], 130)) << r;
    }
}

TEST(rms_norm, zero_rows_give_zeros) {
    OpContext op;
    const std::vector<float> w = normals(16, 7);
    for (const float y :
         values_of(ops::rms_norm(op.ctx, op.tensor(std::vector<float>(16), {1, 16}), op.floats(w), 1e-6f)))
        EXPECT_EQ(y, 0.0f);
}

}  // namespace
}  // namespace riptide
