#include "ops/rope.h"

#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

struct YarnCase {
    const char* name;
    double factor, original_context, beta_fast;
    double expected[4];  // inv_freq[6], [10], [15], [31]
};

TEST(rope, yarn_frequencies_match_the_published_models) {
    const YarnCase cases[] = {
        {"XS.2 revision A", 32, 4096, 64, {0.0778763, 0.0092682, 2.54281e-4, 9.41831e-8}},
        {"XS.2 revision B", 64, 4096, 64, {0.077755, 0.00915058, 2.2401e-4, 4.70915e-8}},
        {"XS-2.1", 32, 8192, 64, {0.0853971, 0.0121851, 6.29649e-4, 9.41831e-8}},
    };
    for (const YarnCase& c : cases) {
        const ops::Rope rope = ops::make_yarn_rope(500000, 64, c.factor, c.original_context, c.beta_fast, 1, 1.5);
        ASSERT_EQ(rope.inv_freq.size(), 32u);
        EXPECT_EQ(rope.magnitude, 1.5f);
        const size_t places[] = {6, 10, 15, 31};
        for (size_t i = 0; i < 4; ++i)  // six digits are given
            EXPECT_NEAR(rope.inv_freq[places[i]] / c.expected[i], 1.0, 6e-6) << c.name << " [" << places[i] << "]";
    }
}

/// The ramp's corners in laguna's tables: up to `low` nothing is stretched, from `high` on everything.
void expect_ramp(double original_context, double beta_fast, size_t low, size_t high) {
    const ops::Rope plain = ops::make_rope(500000, 64);
    const ops::Rope yarn = ops::make_yarn_rope(500000, 64, 32, original_context, beta_fast, 1, 1);
    for (size_t i = 0; i < 32; ++i) {
        const double ratio = double{yarn.inv_freq[i]} / plain.inv_freq[i];
        if (i <= low) EXPECT_NEAR(ratio, 1.0, 2e-7) << i;
        else if (i >= high) EXPECT_NEAR(ratio, 1.0 / 32, 1e-8) << i;
        else EXPECT_TRUE(ratio > 1.0 / 32 && ratio < 1.0) << i;
    }
}

TEST(rope, yarn_ramp_has_its_corners_where_the_betas_put_them) {
    expect_ramp(4096, 64, 5, 16);  // XS.2
    expect_ramp(8192, 64, 7, 18);  // XS-2.1
    expect_ramp(8192, 32, 9, 18);  // S-2.1
}

TEST(rope, plain_frequencies_are_powers_of_theta) {
    const ops::Rope rope = ops::make_rope(10000, 128);
    EXPECT_EQ(rope.magnitude, 1.0f);
    for (size_t i = 0; i < 64; ++i)
        EXPECT_NEAR(rope.inv_freq[i] / std::pow(10000.0, -2.0 * static_cast<double>(i) / 128), 1.0, 4e-7) << i;
}

/// What a GPU may add: cos and sin within 2 ulp of the exact ones and the C library's within 1, all below 1; two more
/// roundings of the products with the magnitude; both numbers of a pair.
double trig_units() { return test_gpu() == nullptr ? 0.0 : std::sqrt(2.0) * 5; }

TEST(rope, rotates_pairs_half_a_slice_apart_and_leaves_the_rest) {
    OpContext op;
    const ops::Rope rope{{0.5f, 0.25f}, 2.0f, 4};
    Tensor x = op.tensor({1, 2, 3, 4, 5, 6}, {1, 1, 6});
    const int32_t position = 3;
    ops::rope(op.ctx, x, op.ints({&position, 1}), rope);
    const float c0 = 2 * std::cos(1.5f), s0 = 2 * std::sin(1.5f), c1 = 2 * std::cos(0.75f), s1 = 2 * std::sin(0.75f);
    const float expected[] = {c0 - 3 * s0, 2 * c1 - 4 * s1, 3 * c0 + s0, 4 * c1 + 2 * s1, 5, 6};
    const std::vector<float> found = values_of(x);
    for (size_t i = 0; i < 6; ++i)
        EXPECT_NEAR(found[i], expected[i], i < 4 ? trig_units() * kUnitF32 * 2 * std::hypot(2, 4) : 0.0) << i;
}

TEST(rope, stays_within_the_bound_of_the_double_reference) {
    for (const int64_t rotary : {24, 40, 64, 128}) {
        OpContext op;
        const int64_t n = 37, heads = 5, d = 128;
        const ops::Rope rope = ops::make_yarn_rope(500000, rotary, 32, 4096, 64, 1, 1.3466);
        const std::vector<float> x = normals(static_cast<size_t>(n * heads * d), 1);
        std::vector<int32_t> positions;
        for (int32_t r = 0; r < n; ++r) positions.push_back(r * 3541);
        Tensor y = op.tensor(x, {n, heads, d});
        ops::rope(op.ctx, y, op.ints(positions), rope);
        const std::vector<float> found = values_of(y);
        std::vector<double> expected(x.size());
        ops::rope_ref<double>(x.data(), n, heads, d, positions.data(), rope, expected.data());
        BoundCheck check;
        for (size_t i = 0; i < x.size(); ++i) {
            const size_t j = i % 128, half = static_cast<size_t>(rotary / 2), begin = i - j;
            const double pair =
                j >= static_cast<size_t>(rotary) ? 0 : std::hypot(x[begin + j % half], x[begin + j % half + half]);
            // Two products and a sum.
            check.add(found[i], expected[i], (2 + trig_units()) * kUnitF32 * rope.magnitude * pair);
        }
        EXPECT_LE(check.worst(), 1.0) << rotary;
        EXPECT_GE(check.worst(), 0.02) << "the bound is too loose";
    }
}

TEST(rope, rows_do_not_depend_on_their_company_or_on_threads) {
    OpContext many(3), one(1);
    const ops::Rope rope = ops::make_rope(10000, 64);
    const std::vector<float> x = normals(90 * 4 * 64, 2);
    std::vector<int32_t> positions;
    for (int32_t r = 0; r < 90; ++r) positions.push_back(r * r);
    Tensor all = many.tensor(x, {90, 4, 64});
    ops::rope(many.ctx, all, many.ints(positions), rope);
    const std::vector<float> rows = values_of(all);
    for (const size_t r : {0, 17, 89}) {
        const auto begin = x.begin() + static_cast<ptrdiff_t>(r * 256);
        Tensor alone = one.tensor({begin, begin + 256}, {1, 4, 64});
        ops::rope(one.ctx, alone, one.ints({&positions[r], 1}), rope);
        EXPECT_TRUE(same_bits(values_of(alone).data(), &rows[r * 256], 256)) << r;
    }
}

}  // namespace
}  // namespace riptide
