#include "ops/matmul.h"

#include <gtest/gtest.h>

#include "ops/elementwise.h"
#include "tests/ops/op_fixture.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using test::RandomWeight;
using test::WeightKind;

int64_t some_columns(const WeightKind& kind) {
    return kind.granule() >= 32 ? std::max<int64_t>(kind.granule(), 96) * 2 / kind.granule() * kind.granule()
                                : 96 + kind.granule();
}

std::vector<float> run(const Weight& w, const std::vector<float>& x, int64_t n, int threads) {
    OpContext op(threads);
    return values_of(ops::matmul(op.ctx, w, op.tensor(x, {n, w.cols})));
}

class MatmulKinds : public testing::TestWithParam<WeightKind> {};

TEST_P(MatmulKinds, is_within_the_derived_bound_of_the_double_reference) {
    const int64_t cols = some_columns(GetParam()), n = 3;
    for (int64_t rows : {1, 3, 257}) {
        const RandomWeight m(GetParam(), rows, cols, 21);
        const std::vector<float> w = m.dequantized(), x = test::random_rows(n, cols, 22), y = run(m.w, x, n, 2);
        for (int64_t i = 0; i < n; ++i) {
            std::vector<double> exact(static_cast<size_t>(rows));
            ops::matmul_ref<double>(w.data(), x.data() + i * cols, rows, cols, exact.data());
            for (int64_t o = 0; o < rows; ++o) {
                const auto b = test::dot_bound(m.w, w.data() + o * cols, x.data() + i * cols);
                ASSERT_NEAR(y[static_cast<size_t>(i * rows + o)], exact[static_cast<size_t>(o)], b.bound)
                    << rows << " " << i << " " << o;
            }
        }
    }
}

TEST_P(MatmulKinds, rows_and_threads_do_not_change_a_bit) {
    const int64_t cols = some_columns(GetParam()), rows = 70;
    const RandomWeight m(GetParam(), rows, cols, 23);
    const std::vector<float> x = test::random_rows(64, cols, 24), all = run(m.w, x, 64, 1);
    for (int64_t n : {1, 2, 3, 4, 5, 8, 17, 64})
        for (int threads : {1, 2, 3}) {
            const int64_t first = 64 - n;
            const std::vector<float> part = run(m.w, {x.begin() + first * cols, x.end()}, n, threads);
            ASSERT_TRUE(same_bits(part.data(), all.data() + first * rows, part.size()))
                << n << " rows, " << threads << " threads";
        }
}

INSTANTIATE_TEST_SUITE_P(all, MatmulKinds, testing::ValuesIn(test::all_weight_kinds()),
                         [](const auto& kind) { return kind.param.name(); });

TEST(Matmul, a_thousand_rows_equal_one_by_one) {
    const RandomWeight m({DType::q4_k}, 40, 512, 31);
    const std::vector<float> x = test::random_rows(1000, 512, 32), all = run(m.w, x, 1000, 2);
    for (int64_t i : {0, 255, 256, 511, 999}) {
        const std::vector<float> one = run(m.w, {x.begin() + i * 512, x.begin() + (i + 1) * 512}, 1, 1);
        EXPECT_TRUE(same_bits(one.data(), all.data() + i * 40, 40)) << i;
    }
}

TEST(Matmul, a_group_equals_its_members) {
    const RandomWeight a({DType::q4_k}, 48, 256, 1), b({DType::f32}, 3, 256, 2), c({DType::q6_k}, 257, 256, 3),
        d({DType::bf16}, 16, 256, 4);
    for (int64_t n : {1, 5, 33}) {
        const std::vector<float> x = test::random_rows(n, 256, 5);
        OpContext op(3);
        const Weight* const group[] = {&a.w, &b.w, &c.w, &d.w};
        const std::vector<Tensor> y = ops::matmul_group(op.ctx, group, op.tensor(x, {n, 256}));
        ASSERT_EQ(y.size(), 4u);
        for (size_t i = 0; i < 4; ++i) expect_same_bits(values_of(y[i]), run(*group[i], x, n, 2), "group");
    }
}

TEST(Matmul, instruction_sets_agree_through_the_whole_op) {
    const RandomWeight a({DType::q5_k}, 50, 512, 1), b({DType::f16}, 21, 512, 2);
    const std::vector<float> x = test::random_rows(9, 512, 5);
    const Weight* const group[] = {&a.w, &b.w};
    std::vector<std::vector<float>> results;
    for (Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (!isa_available(isa)) continue;
        OpContext op(2);
        for (const Tensor& y : ops::matmul_group(op.ctx, dot_kernels(isa), group, op.tensor(x, {9, 512})))
            results.push_back(values_of(y));
    }
    for (size_t i = 2; i < results.size(); ++i) expect_same_bits(results[i], results[i % 2], "instruction set");
}

TEST(Matmul, repeating_it_gives_the_same_addresses_and_bits) {
    const RandomWeight m({DType::q8_0}, 100, 64, 1);
    const std::vector<float> x = test::random_rows(20, 64, 5);
    OpContext op(3);
    const Tensor first = ops::matmul(op.ctx, m.w, op.tensor(x, {20, 64}));
    const std::vector<float> expected = values_of(first);
    for (int i = 0; i < 10; ++i) {
        op.poison();
        const Tensor again = ops::matmul(op.ctx, m.w, op.tensor(x, {20, 64}));
        EXPECT_EQ(again.data, first.data);
        expect_same_bits(values_of(again), expected, "repeat");
    }
}

TEST(Matmul, no_rows_give_no_rows) {
    const RandomWeight m({DType::q4_0}, 10, 32, 1);
    OpContext op;
    EXPECT_EQ(ops::matmul(op.ctx, m.w, op.tensor({}, {0, 32})).rows(), 0);
}

TEST(Matmul, wrong_widths_and_types_are_refused_in_words) {
    RandomWeight m({DType::q4_0}, 10, 32, 1);
    OpContext op;
    const Tensor x = op.tensor(std::vector<float>(64), {1, 64});
    EXPECT_THROW(ops::matmul(op.ctx, m.w, x), Error);
    m.w.dtype = DType::i32;
    m.w.cols = 64;
    EXPECT_THROW(ops::matmul(op.ctx, m.w, x), Error);
}

TEST(SwigluFfn, equals_matmul_swiglu_matmul) {
    struct Case {
        WeightKind kind;
        int64_t hidden, width;
    };
    for (const Case& c : {Case{{DType::q4_k}, 512, 768}, Case{{DType::f32}, 24, 97}, Case{{DType::bf16}, 64, 40},
                          Case{{DType::q8_0}, 96, 160}, Case{{DType::nvfp4}, 64, 192}})
        for (int64_t n : {1, 3, 70, 300}) {
            const RandomWeight gate(c.kind, c.width, c.hidden, 1), up(c.kind, c.width, c.hidden, 2),
                down(c.kind, c.hidden, c.width, 3);
            const std::vector<float> x = test::random_rows(n, c.hidden, 4);
            OpContext op(3);
            const Tensor input = op.tensor(x, {n, c.hidden});
            const Tensor z = ops::swiglu(op.ctx, ops::matmul(op.ctx, gate.w, input), ops::matmul(op.ctx, up.w, input));
            const Tensor expected = ops::matmul(op.ctx, down.w, z);
            expect_same_bits(values_of(ops::swiglu_ffn(op.ctx, input, gate.w, up.w, down.w)), values_of(expected),
                             dtype_name(c.kind.type));
        }
}

}  // namespace
}  // namespace riptide
