#include "ops/elementwise.h"

#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

/// Normal values and the extremes that a softplus or silu meets.
std::vector<float> hard_values(size_t n, uint64_t seed) {
    std::vector<float> x = normals(n, seed, 3.0f);
    const float extremes[] = {0.0f,  -0.0f,  1e-30f,  -1e-30f, 20.0f,    -20.0f,
                              87.0f, -87.0f, -103.0f, 1000.0f, -1000.0f, 1e37f};
    for (size_t i = 0; i < std::size(extremes) && i < n; ++i) x[i] = extremes[i];
    return x;
}

TEST(elementwise, add_rounds_each_sum_once) {
    OpContext op;
    const std::vector<float> x = normals(70001, 1), y = normals(70001, 2);
    Tensor sum = op.tensor(x, {1, 70001});
    ops::add(op.ctx, sum, op.tensor(y, {1, 70001}));
    const std::vector<float> found = values_of(sum);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(found[i], x[i] + y[i]);
}

TEST(elementwise, add_may_alias) {
    OpContext op;
    Tensor x = op.tensor({1, 2, 3}, {1, 3});
    ops::add(op.ctx, x, x);
    EXPECT_EQ(values_of(x), (std::vector<float>{2, 4, 6}));
}

TEST(elementwise, swiglu_stays_within_the_bound_of_the_double_reference) {
    OpContext op;
    const std::vector<float> gate = hard_values(33 * 515, 3), up = normals(33 * 515, 4);
    const std::vector<float> z = values_of(ops::swiglu(op.ctx, op.tensor(gate, {33, 515}), op.tensor(up, {33, 515})));
    std::vector<double> expected(gate.size());
    ops::swiglu_ref<double>(gate.data(), up.data(), static_cast<int64_t>(gate.size()), expected.data());
    BoundCheck check;
    // exp within 2 units, sum, quotient, product; below the normal range of f32 an absolute error remains.
    for (size_t i = 0; i < gate.size(); ++i)
        check.add(z[i], expected[i], kUnitF32 * 8 * std::abs(expected[i]) + 0x1p-120);
    EXPECT_LE(check.worst(), 1.0);
    EXPECT_GE(check.worst(), 0.02) << "the bound is too loose";
}

TEST(elementwise, swiglu_keeps_values_beyond_the_range_of_f16) {
    OpContext op;
    const std::vector<float> z =
        values_of(ops::swiglu(op.ctx, op.tensor({1000, -1000}, {1, 2}), op.tensor({900, 900}, {1, 2})));
    EXPECT_EQ(z[0], 900000.0f);
    EXPECT_NEAR(z[1], 0.0f, 1e-30f);
}

TEST(elementwise, mul_softplus_stays_within_the_bound_of_the_double_reference) {
    for (const int64_t repeat : {1, 24, 128}) {
        OpContext op;
        const int64_t n = 9, heads = 6, width = heads * 128;
        const std::vector<float> o = normals(static_cast<size_t>(n * width), 5);
        const std::vector<float> g = hard_values(static_cast<size_t>(n * width / repeat), 6);
        Tensor y = op.tensor(o, {n, width});
        ops::mul_softplus(op.ctx, y, op.tensor(g, {n, width / repeat}), width / repeat);
        std::vector<double> expected(o.size());
        ops::mul_softplus_ref<double>(o.data(), g.data(), n * width, repeat, expected.data());
        const std::vector<float> found = values_of(y);
        BoundCheck check;
        for (size_t i = 0; i < o.size(); ++i)
            check.add(found[i], expected[i], kUnitF32 * 8 * std::abs(expected[i]) + 0x1p-120);
        EXPECT_LE(check.worst(), 1.0) << repeat;
        EXPECT_GE(check.worst(), 0.02) << "the bound is too loose";
    }
}

TEST(elementwise, mul_softplus_per_element_equals_per_head_of_equal_gates) {
    OpContext op;
    const std::vector<float> o = normals(4 * 3 * 16, 7), g = normals(4 * 3, 8);
    std::vector<float> wide;
    for (const float x : g) wide.insert(wide.end(), 16, x);
    Tensor per_head = op.tensor(o, {4, 48}), per_element = op.tensor(o, {4, 48});
    ops::mul_softplus(op.ctx, per_head, op.tensor(g, {4, 3}), 3);
    ops::mul_softplus(op.ctx, per_element, op.tensor(wide, {4, 48}), 3);
    expect_same_bits(values_of(per_head), values_of(per_element), "gates");
}

}  // namespace
}  // namespace riptide
