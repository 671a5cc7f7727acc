#include "ops/matmul.h"

#include <gtest/gtest.h>

#include "ops/elementwise.h"
#include "ops/norm.h"
#include "tests/ops/op_fixture.h"
#include "tests/ops/product_bound.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using test::RandomWeight;
using test::WeightKind;

/// A few columns, not whole sub-blocks where the type allows it, and many.
std::vector<int64_t> some_columns(const WeightKind& kind) {
    const int64_t few = kind.granule() >= 32
                            ? std::max<int64_t>(kind.granule(), 96) * 2 / kind.granule() * kind.granule()
                            : 96 + kind.granule();
    return {few, 9 * 256};
}

class MatmulKinds : public ::testing::TestWithParam<WeightKind> {};

TEST_P(MatmulKinds, is_within_the_derived_bound_of_the_exact_product) {
    const int64_t n = 3;
    for (const Family family : test_families())
        for (const int64_t cols : some_columns(GetParam()))
            for (const int64_t rows : fewer<std::vector<int64_t>>({1, 3, 257}, {3, 67})) {
                const RandomWeight m(GetParam(), rows, cols, 21);
                const std::vector<float> x = test::random_rows(n, cols, 22);
                OpContext op;
                op.ctx.family = family;
                const Weight w = op.weight(m.w);
                const std::vector<float> y = values_of(ops::matmul(op.ctx, w, op.tensor(x, {n, cols})));
                const ProductBound bound(op.ctx, m.w, w);
                for (int64_t i = 0; i < n; ++i)
                    expect_near(y.data() + i * rows, bound(exactly(x.data() + i * cols, cols)),
                                fmt::format("{} as {}, {} x {}, row {}", family_name(family), dtype_name(w.dtype), rows,
                                            cols, i));
            }
}

/// A weight on the device, and its products with any rows.
struct Product {
    OpContext op;
    Weight w;

    Product(const Weight& host, int threads, Family family) : op(family, threads), w(op.weight(host)) {}
    std::vector<float> operator()(const std::vector<float>& x, int64_t n) {
        op.poison();
        return values_of(ops::matmul(op.ctx, w, op.tensor(x, {n, w.cols})));
    }
};

TEST_P(MatmulKinds, rows_and_threads_do_not_change_a_bit) {
    const bool gpu = test_gpu() != nullptr;
    const int64_t rows = fewer(70, 37), most = gpu ? fewer(256, 20) : 64;
    for (const Family family : test_families())
        for (const int64_t cols : some_columns(GetParam())) {
            if (!gpu && cols > 1000) continue;  // the CPU's kernels know only panels and lanes
            const RandomWeight m(GetParam(), rows, cols, 23);
            const std::vector<float> x = test::random_rows(most, cols, 24);
            std::vector<float> all;
            for (const int threads : thread_counts()) {
                Product product(m.w, threads, family);
                if (all.empty()) all = product(x, most);
                for (const int64_t n : {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 129, 256}) {
                    if (n > most || (brief_counts() && n != 1 && n != 3 && n != 17)) continue;  // each kernel's
                    const int64_t first = most - n;
                    const std::vector<float> part = product({x.begin() + first * cols, x.end()}, n);
                    ASSERT_TRUE(same_bits(part.data(), all.data() + first * rows, part.size()))
                        << family_name(family) << ": " << n << " rows, " << threads << " threads";
                }
            }
        }
}

INSTANTIATE_TEST_SUITE_P(all, MatmulKinds, ::testing::ValuesIn(test::all_weight_kinds()),
                         [](const auto& kind) { return kind.param.name(); });

TEST(Matmul, wide_matrices_stay_within_the_bound) {
    for (const Family family : test_families())
        for (const DType type : {DType::q4_k, DType::q6_k, DType::bf16}) {
            const RandomWeight m({type}, 40, 8192, 41);
            const std::vector<float> x = test::random_rows(17, 8192, 42);
            OpContext op;
            op.ctx.family = family;
            const Weight w = op.weight(m.w);
            const std::vector<float> y = values_of(ops::matmul(op.ctx, w, op.tensor(x, {17, 8192})));
            const ProductBound bound(op.ctx, m.w, w);
            for (const int64_t i : {0, 8, 16})
                expect_near(y.data() + i * 40, bound(exactly(x.data() + i * 8192, 8192)), dtype_name(type));
        }
}

TEST(Matmul, a_thousand_rows_equal_one_by_one) {
    const RandomWeight m({DType::q4_k}, 40, 512, 31);
    for (const Family family : test_families()) {
        Product product(m.w, 2, family);
        const int64_t n = std::min<int64_t>(1000, most_rows(product.op.ctx));
        const std::vector<float> x = test::random_rows(n, 512, 32), all = product(x, n);
        for (const int64_t i : {0, 255, 256, 511, 999}) {
            if (i >= n) continue;
            const std::vector<float> one = product({x.begin() + i * 512, x.begin() + (i + 1) * 512}, 1);
            EXPECT_TRUE(same_bits(one.data(), all.data() + i * 40, 40)) << family_name(family) << " " << i;
        }
    }
}

/// Weights of several types with 256 columns, and where they lie on the device.
struct MixedGroup {
    RandomWeight a{{DType::q4_k}, 48, 256, 1}, b{{DType::f32}, 3, 256, 2}, c{{DType::q6_k}, 257, 256, 3},
        d{{DType::bf16}, 16, 256, 4};
    Weight placed[4];
    const Weight* pointers[4];

    explicit MixedGroup(OpContext& op) {
        const RandomWeight* const all[] = {&a, &b, &c, &d};
        for (size_t i = 0; i < 4; ++i) {
            placed[i] = op.weight(all[i]->w);
            pointers[i] = &placed[i];
        }
    }
};

TEST(Matmul, a_group_equals_its_members) {
    for (const Family family : test_families())
        for (const int64_t n : {1, 5, 33}) {
            OpContext op(3);
            op.ctx.family = family;
            const MixedGroup group(op);
            const Tensor x = op.tensor(test::random_rows(n, 256, 5), {n, 256});
            const std::vector<Tensor> y = ops::matmul_group(op.ctx, group.pointers, x);
            ASSERT_EQ(y.size(), 4u);
            for (size_t i = 0; i < 4; ++i)
                expect_same_bits(values_of(y[i]), values_of(ops::matmul(op.ctx, group.placed[i], x)),
                                 family_name(family));
        }
}

TEST(Matmul, a_group_of_the_norm_equals_norm_and_group) {
    const std::vector<float> weight = normals(256, 6);
    for (const Family family : test_families())
        for (const int64_t n : {1, 2, 5, 33}) {
            OpContext op(3);
            op.ctx.family = family;
            const MixedGroup group(op);
            const ops::Norm norm{op.floats(weight), 1e-5f};
            const Tensor x = op.tensor(test::random_rows(n, 256, 5), {n, 256});
            const std::vector<Tensor> y = ops::norm_matmul_group(op.ctx, x, norm, group.pointers);
            const std::vector<Tensor> expected =
                ops::matmul_group(op.ctx, group.pointers, ops::rms_norm(op.ctx, x, norm.weight, norm.eps));
            for (size_t i = 0; i < 4; ++i)
                expect_same_bits(values_of(y[i]), values_of(expected[i]), family_name(family));
        }
}

TEST(Matmul, adding_to_the_residual_equals_matmul_and_add) {
    for (const DType type : {DType::q4_k, DType::q6_k, DType::bf16, DType::f32})
        for (const Family family : test_families())
            for (const int64_t n : fewer<std::vector<int64_t>>({1, 3, 40}, {1, 18})) {
                const RandomWeight m({type}, 200, 512, 1);
                OpContext op(3);
                op.ctx.family = family;
                const Weight w = op.weight(m.w);
                const std::vector<float> before = normals(static_cast<size_t>(n * 200), 7);
                const Tensor x = op.tensor(test::random_rows(n, 512, 5), {n, 512});
                Tensor residual = op.tensor(before, {n, 200}), expected = op.tensor(before, {n, 200});
                const Tensor y = ops::matmul_add(op.ctx, w, x, residual), product = ops::matmul(op.ctx, w, x);
                ops::add(op.ctx, expected, product);
                expect_same_bits(values_of(y), values_of(product), "product");
                expect_same_bits(values_of(residual), values_of(expected), "residual");
            }
}

TEST(Matmul, instruction_sets_agree_through_the_whole_op) {
    RT_CPU_ONLY("instruction sets of the CPU");
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
    for (const Family family : test_families()) {
        OpContext op(3);
        op.ctx.family = family;
        const Weight w = op.weight(m.w);
        const Tensor first = ops::matmul(op.ctx, w, op.tensor(x, {20, 64}));
        const std::vector<float> expected = values_of(first);
        for (int i = 0; i < fewer(10, 1); ++i) {
            op.poison();
            const Tensor again = ops::matmul(op.ctx, w, op.tensor(x, {20, 64}));
            EXPECT_EQ(again.data, first.data);
            expect_same_bits(values_of(again), expected, "repeat");
        }
    }
}

TEST(Matmul, no_rows_give_no_rows) {
    const RandomWeight m({DType::q4_0}, 10, 32, 1);
    for (const Family family : test_families()) {
        OpContext op;
        op.ctx.family = family;
        EXPECT_EQ(ops::matmul(op.ctx, op.weight(m.w), op.tensor({}, {0, 32})).rows(), 0);
    }
}

TEST(Matmul, wrong_widths_and_types_are_refused_in_words) {
    const RandomWeight m({DType::q4_0}, 10, 32, 1);
    OpContext op;
    Weight w = op.weight(m.w);
    const Tensor x = op.tensor(std::vector<float>(64), {1, 64});
    EXPECT_THROW(ops::matmul(op.ctx, w, x), Error);
    w.dtype = DType::i32;
    w.cols = 64;
    EXPECT_THROW(ops::matmul(op.ctx, w, x), Error);
}

struct FfnCase {
    WeightKind kind;
    int64_t hidden, width;
};

const FfnCase kFfnCases[] = {{{DType::q4_k}, 512, 768}, {{DType::f32}, 24, 97},    {{DType::bf16}, 64, 40},
                             {{DType::q8_0}, 96, 160},  {{DType::nvfp4}, 64, 192}, {{DType::q6_k}, 256, 512}};

/// A dense layer with random weights, on the device.
struct Ffn {
    RandomWeight gate, up, down;
    Weight placed_gate, placed_up, placed_down;

    Ffn(OpContext& op, const FfnCase& c)
        : gate(c.kind, c.width, c.hidden, 1), up(c.kind, c.width, c.hidden, 2), down(c.kind, c.hidden, c.width, 3) {
        placed_gate = op.weight(gate.w);
        placed_up = op.weight(up.w);
        placed_down = op.weight(down.w);
    }
    Tensor operator()(OpContext& op, const Tensor& x) const {
        return ops::swiglu_ffn(op.ctx, x, placed_gate, placed_up, placed_down);
    }
};

// Not so in prefill, whose GEMM applies a shorter exponential in front of bf16; see the bound below.
TEST(SwigluFfn, equals_matmul_swiglu_matmul) {
    for (const FfnCase& c : kFfnCases)
        for (const int64_t n : fewer<std::vector<int64_t>>({1, 3, 70, 256, 300}, {1, 18})) {
            const Family family = Family::decode;
            OpContext op(3);
            if (n > most_rows(op.ctx)) continue;
            const Ffn ffn(op, c);
            const Tensor x = op.tensor(test::random_rows(n, c.hidden, 4), {n, c.hidden});
            const Tensor z =
                ops::swiglu(op.ctx, ops::matmul(op.ctx, ffn.placed_gate, x), ops::matmul(op.ctx, ffn.placed_up, x));
            expect_same_bits(values_of(ffn(op, x)), values_of(ops::matmul(op.ctx, ffn.placed_down, z)),
                             fmt::format("{} {} {}", family_name(family), dtype_name(c.kind.type), n).c_str());
        }
}

TEST(SwigluFfn, is_within_the_derived_bound) {
    for (const FfnCase& c : kFfnCases)
        for (const Family family : test_families()) {
            const int64_t n = 3;
            OpContext op;
            op.ctx.family = family;
            const Ffn ffn(op, c);
            const std::vector<float> x = normals(static_cast<size_t>(n * c.hidden), 4, 0.3f);
            const std::vector<float> y = values_of(ffn(op, op.tensor(x, {n, c.hidden})));
            for (int64_t i = 0; i < n; ++i) {
                const std::vector<Near> in = exactly(x.data() + i * c.hidden, c.hidden);
                const std::vector<Near> gate = ProductBound(op.ctx, ffn.gate.w, ffn.placed_gate)(in),
                                        up = ProductBound(op.ctx, ffn.up.w, ffn.placed_up)(in);
                std::vector<Near> z;
                for (size_t j = 0; j < gate.size(); ++j) z.push_back(swiglu_near(gate[j], up[j]));
                expect_near(y.data() + i * c.hidden, ProductBound(op.ctx, ffn.down.w, ffn.placed_down)(z),
                            fmt::format("{} {}", family_name(family), dtype_name(c.kind.type)));
            }
        }
}

TEST(SwigluFfn, adding_to_the_stream_equals_norm_ffn_and_add) {
    for (const FfnCase& c : brief<FfnCase>({std::begin(kFfnCases), std::end(kFfnCases)}, 3))
        for (const Family family : test_families())
            for (const int64_t n : fewer<std::vector<int64_t>>({1, 3, 70}, {1, 18})) {
                OpContext op(3);
                op.ctx.family = family;
                const Ffn ffn(op, c);
                const ops::Norm norm{op.floats(normals(static_cast<size_t>(c.hidden), 6)), 1e-6f};
                const std::vector<float> values = test::random_rows(n, c.hidden, 4);
                Tensor x = op.tensor(values, {n, c.hidden}), expected = op.tensor(values, {n, c.hidden});
                const Tensor y = ops::swiglu_ffn_add(op.ctx, x, norm, ffn.placed_gate, ffn.placed_up, ffn.placed_down);
                const Tensor z = ffn(op, ops::rms_norm(op.ctx, expected, norm.weight, norm.eps));
                ops::add(op.ctx, expected, z);
                const std::string what = fmt::format("{} {} {}", family_name(family), dtype_name(c.kind.type), n);
                expect_same_bits(values_of(y), values_of(z), what.c_str());
                expect_same_bits(values_of(x), values_of(expected), what.c_str());
            }
}

}  // namespace
}  // namespace riptide
