// Products with wide Q4_K and Q6_K matrices: within their bounds of the exact ones, in the arithmetic that the matrix
// should have, and a row's bits the same in any company. With kernels or without: on the CPU and before Hopper x is
// int8.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>

#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "quant/act_rows.h"
#include "tests/ops/row_alone.h"
#include "tests/ops/row_company.h"

namespace riptide {
namespace {

using test::AnyWeight;
using test::AwkwardRows;
using test::RandomWeight;
using test::WeightKind;

struct MatrixShape {
    int64_t cols, rows;
};

/// Shapes on both sides of every border between the two arithmetics; rows that fill no tile.
std::vector<MatrixShape> judged_shapes() {
    if (brief_counts()) return {{3072, 20}, {5120, 9}};
    if (test_gpu() == nullptr) return {{3072, 48}, {5120, 7}, {17408, 5}};
    return {{3072, 48},   {3072, 1000}, {3072, 1003}, {3072, 4101}, {4096, 4096}, {4096, 4095}, {5120, 1},
            {5120, 7},    {5120, 6144}, {6144, 4103}, {6144, 5120}, {6144, 4095}, {7168, 33},   {17408, 5120},
            {17408, 131}, {25600, 24},  {2048, 4100}, {2304, 4100}, {1024, 50}};
}

TEST(DecodeKquantF16, products_stay_within_their_bounds) {
    OpContext op(2, int64_t{64} << 20);
    const float eps = 1e-6f;
    double sharpest = 0;
    for (const DType type : {DType::q4_k, DType::q6_k})
        for (const auto& [cols, count] : judged_shapes()) {
            const AnyWeight m(type, count, cols, static_cast<uint64_t>(cols + count));
            const Weight w = op.weight(m.w);
            const AwkwardRows rows(cols, 5);
            const std::vector<float> weights = normals(static_cast<size_t>(cols), 6);
            const std::span<const float> scale = op.floats(weights);
            for (const bool normed : {false, true}) {
                op.poison();
                const Tensor x = op.tensor(rows.x, {rows.count(), cols});
                const ops::Norm norm = normed ? ops::Norm{scale, eps} : ops::Norm{};
                const Weight* const group[] = {&w};
                const std::vector<float> y =
                    values_of(normed ? ops::norm_matmul_group(op.ctx, x, norm, group)[0] : ops::matmul(op.ctx, w, x));
                const std::string what =
                    fmt::format("{} {} x {}{}", dtype_name(type), count, cols, normed ? ", norm" : "");
                const test::Shares used = test::judge(m.w, rows, normed ? weights : std::vector<float>(), eps, y, what);
                fmt::print("{}, {}: {:.3f} of the bound, {:.3f} of the sharp one\n", what,
                           expected_arithmetic(test_gpu(), m.w) == Arithmetic::half ? "half" : "int8", used.loose,
                           used.sharp);
                sharpest = std::max(sharpest, used.sharp);
                if (::testing::Test::HasFailure()) return;
            }
        }
    EXPECT_GE(sharpest, 0.02) << "the sharp bound is too loose";
}

/// To the bit: the host does what kquant_f16_bound.h says, in the order that it says.
TEST(DecodeKquantF16, products_have_the_bits_of_their_definition) {
    RT_GPU_ONLY();
    OpContext op(2, int64_t{64} << 20);
    ThreadPool pool(0);
    const float eps = 1e-6f;
    for (const DType type : {DType::q4_k, DType::q6_k})
        for (const MatrixShape& shape : fewer<std::vector<MatrixShape>>(
                 {{3072, 48}, {4096, 4096}, {5120, 21}, {6144, 4103}, {17408, 20}, {25600, 7}}, {{3072, 9}})) {
            const int64_t cols = shape.cols, count = shape.rows;
            const AnyWeight m(type, count, cols, static_cast<uint64_t>(cols + 7));
            if (expected_arithmetic(test_gpu(), m.w) == Arithmetic::int8)
                GTEST_SKIP() << "this chip multiplies in int8";
            const Weight w = op.weight(m.w);
            const AwkwardRows rows(cols, 9);
            const std::vector<float> weights = normals(static_cast<size_t>(cols), 10);
            const std::span<const float> scale = op.floats(weights);
            for (const bool normed : {false, true}) {
                op.poison();
                const Tensor x = op.tensor(rows.x, {rows.count(), cols});
                const Weight* const group[] = {&w};
                const std::vector<float> y =
                    values_of(normed ? ops::norm_matmul_group(op.ctx, x, {scale, eps}, group)[0]
                                     : ops::matmul_group(op.ctx, group, x)[0]);
                std::vector<std::pair<TakenInput, float>> in;  // and 1 / rms
                for (int64_t r = 0; r < rows.count(); ++r)
                    in.emplace_back(TakenInput(Arithmetic::half, rows.row(r), normed ? weights : std::vector<float>()),
                                    normed ? test::rms_factor(rows.row(r), eps) : 1.0f);
                std::atomic<int64_t> wrong = 0;
                const int64_t step = std::max<int64_t>(1, count / 50);  // of large matrices some rows
                pool.parallel_for((count + step - 1) / step, 1, [&](int64_t begin, int64_t, int) {
                    const int64_t o = begin * step;
                    const TakenRow row(m.w, o);
                    for (int64_t r = 0; r < rows.count(); ++r) {
                        const auto& [taken, factor] = in[static_cast<size_t>(r)];
                        if (!taken.finite) continue;
                        const float host = test::half_product(row, taken, factor);
                        wrong += same_bits(&host, &y[static_cast<size_t>(r * count + o)], 1) ? 0 : 1;
                    }
                });
                EXPECT_EQ(wrong, 0) << dtype_name(type) << ' ' << cols << (normed ? ", norm" : "");
            }
        }
}

struct KquantF16World {
    OpContext op{2, int64_t{64} << 20};

    Weight weight(DType type, int64_t rows, int64_t cols, uint64_t seed) {
        const RandomWeight m(WeightKind{type}, rows, cols, seed);
        if (op.ctx.gpu == nullptr) kept.push_back(std::make_unique<RandomWeight>(WeightKind{type}, rows, cols, seed));
        return op.weight(op.ctx.gpu == nullptr ? kept.back()->w : m.w);
    }
    Tensor tensor(const std::vector<float>& values, int64_t rows) {
        op.poison();
        return op.tensor(values, {rows, std::ssize(values) / rows});
    }
    std::vector<std::unique_ptr<RandomWeight>> kept;
};

/// Products and products that are added, of matrices of both types.
void rows_have_their_bits_in_any_company(const std::vector<MatrixShape>& shapes) {
    KquantF16World world;
    for (const DType type : {DType::q4_k, DType::q6_k})
        for (const MatrixShape& shape : shapes) {
            const int64_t cols = shape.cols, rows = shape.rows;
            if (test_gpu() == nullptr && rows > 1000) continue;
            const Weight w = world.weight(type, rows, cols, 11);
            const std::string what = fmt::format("{} {} x {}", dtype_name(type), rows, cols);
            const Company company(cols);
            const auto products = company.check(what, [&](const std::vector<float>& x, int64_t n) {
                const Tensor t = world.tensor(x, n);
                return Results{values_of(ops::matmul(world.op.ctx, w, t))};
            });
            if (::testing::Test::HasFatalFailure()) return;
            const auto sums = company.check(what + " and a residual", [&](const std::vector<float>& x, int64_t n) {
                const Tensor t = world.tensor(x, n);
                Tensor residual = world.op.tensor(std::vector<float>(static_cast<size_t>(n * rows), 0.75f), {n, rows});
                const Tensor y = ops::matmul_add(world.op.ctx, w, t, residual);
                return Results{values_of(y), values_of(residual)};
            });
            if (::testing::Test::HasFatalFailure()) return;
            for (const auto& [i, product] : products) {
                Company::expect_same(sums.at(i)[0], product[0], what + ": matmul_add and matmul");
                std::vector<float> added = product[0];
                for (float& v : added) v = 0.75f + v;
                Company::expect_same(sums.at(i)[1], added, what + ": the residual");
                if (::testing::Test::HasFatalFailure()) return;
            }
        }
}

TEST(DecodeKquantF16, a_row_of_a_product_has_its_bits_in_any_company) {
    rows_have_their_bits_in_any_company(fewer<std::vector<MatrixShape>>(
        {{3072, 48}, {3072, 1003}, {4096, 4096}, {5120, 101}, {6144, 4103}, {5120, 6144}}, {{3072, 20}, {5120, 9}}));
}

/// 17 rows and more of these, and 9 of the widest, take CTAs that have a chain each (kquant_f16_wgmma_sm90.cu).
TEST(DecodeKquantF16, a_wide_row_of_a_product_has_its_bits_in_any_company) {
    rows_have_their_bits_in_any_company(
        fewer<std::vector<MatrixShape>>({{9216, 4100}, {17408, 101}, {17408, 5120}, {25600, 131}}, {{17408, 456}}));
}

/// Groups of both arithmetics and of float matrices beside them: the members' bits are their own.
TEST(DecodeKquantF16, groups_have_the_bits_of_their_members) {
    KquantF16World world;
    for (const int64_t cols : brief<int64_t>({3072, 4096, 5120, 7168}, 1)) {
        if (test_gpu() == nullptr && cols != 3072) continue;  // there is one arithmetic there
        const int64_t many = cols == 4096 ? 4100 : fewer(515, 67);
        const Weight q4 = world.weight(DType::q4_k, many, cols, 1),
                     q6 = world.weight(DType::q6_k, fewer(129, 33), cols, 2),
                     small = world.weight(DType::q4_k, 7, cols, 3), q5 = world.weight(DType::q5_k, 33, cols, 5),
                     large6 = world.weight(DType::q6_k, many, cols, 8), beta = world.weight(DType::f32, 48, cols, 4),
                     alpha = world.weight(DType::bf16, 48, cols, 6),
                     many_floats = world.weight(DType::bf16, 300, cols, 9);
        const ops::Norm norm = {world.op.floats(normals(static_cast<size_t>(cols), 7)), 1e-6f};
        const std::vector<std::vector<const Weight*>> groups = {{&q4},
                                                                {&q6},
                                                                {&small},
                                                                {&q5},
                                                                {&beta},
                                                                {&many_floats},
                                                                {&alpha},
                                                                {&large6},
                                                                {&q4, &q6},
                                                                {&q4, &small, &q6, &large6},
                                                                {&q4, &small, &beta, &alpha},
                                                                {&beta, &q6, &alpha},
                                                                {&q5, &q4, &q6, &small},
                                                                {&q4, &many_floats, &beta},
                                                                {&q4, &q6, &small, &large6, &q4, &q6, &small},
                                                                {&q4, &q6, &small, &large6, &q5, &beta}};
        const Company company(cols);
        for (const bool normed : {true, false}) {
            std::map<const Weight*, std::map<int64_t, std::vector<float>>> alone;  // of groups of one: they come first
            for (size_t g = 0; g < groups.size(); ++g) {
                if (brief_counts() && groups[g].size() > 1 && normed != (g % 2 == 0)) continue;
                const std::string what = fmt::format("group {} of {}, norm {}", g, cols, normed);
                const auto rows = company.check(what, [&](const std::vector<float>& x, int64_t n) {
                    const Tensor t = world.tensor(x, n);
                    Results out;
                    for (const Tensor& y : normed ? ops::norm_matmul_group(world.op.ctx, t, norm, groups[g])
                                                  : ops::matmul_group(world.op.ctx, groups[g], t))
                        out.push_back(values_of(y));
                    return out;
                });
                if (::testing::Test::HasFatalFailure()) return;
                for (const auto& [r, results] : rows)
                    for (size_t k = 0; k < groups[g].size(); ++k) {
                        std::vector<float>& own = alone[groups[g][k]][r];
                        if (groups[g].size() == 1) own = results[k];
                        else Company::expect_same(results[k], own, fmt::format("{}, member {}, row {}", what, k, r));
                        if (::testing::Test::HasFatalFailure()) return;
                    }
            }
        }
    }
}

/// Matrices of any number of rows are shared out among CTAs and their warps in many ways.
TEST(DecodeKquantF16, groups_of_any_shape_give_a_row_alone_its_bits) {
    std::mt19937 random(71);
    const auto any = [&](int64_t least, int64_t most) {
        return least + static_cast<int64_t>(random()) % (most - least + 1);
    };
    for (int i = 0; i < (test_gpu() == nullptr ? 3 : fewer(80, 4)); ++i) {
        KquantF16World world;
        const int64_t cols =
            std::vector<int64_t>{3072, 5120, 7168, 9216, 17408}[static_cast<size_t>(any(0, fewer(4, 1)))];
        std::vector<Weight> weights;
        const int64_t wide = any(1, 4), floats = any(0, 3);
        for (int64_t k = 0; k < wide + floats; ++k) {
            const DType type = k < wide         ? any(0, 1) == 0 ? DType::q4_k : DType::q6_k
                               : any(0, 1) == 0 ? DType::f32
                                                : DType::bf16;
            const int64_t most = k >= wide                                 ? 64
                                 : test_gpu() == nullptr || brief_counts() ? 70
                                 : any(0, 2) == 0                          ? 4000
                                                                           : 300;
            weights.push_back(world.weight(type, any(1, most), cols, static_cast<uint64_t>(100 * i + k)));
        }
        std::shuffle(weights.begin(), weights.end(), random);
        std::vector<const Weight*> group;
        std::string what = fmt::format("{}: {} columns", i, cols);
        for (const Weight& w : weights) {
            group.push_back(&w);
            what += fmt::format(", {} {}", w.rows, dtype_name(w.dtype));
        }
        const ops::Norm norm = {world.op.floats(normals(static_cast<size_t>(cols), 72)), 1e-6f};
        const bool normed = any(0, 1) == 0;
        const int64_t n = any(2, 24);
        const std::vector<float> x = test::random_rows(n, cols, static_cast<uint64_t>(i));
        const auto run = [&](const std::vector<float>& rows) {
            const Tensor t = world.tensor(rows, std::ssize(rows) / cols);
            Results out;
            for (const Tensor& y : normed ? ops::norm_matmul_group(world.op.ctx, t, norm, group)
                                          : ops::matmul_group(world.op.ctx, group, t))
                out.push_back(values_of(y));
            return out;
        };
        const Results one = run({x.end() - cols, x.end()}), all = run(x);
        for (size_t k = 0; k < one.size(); ++k) {
            Company::expect_same({all[k].end() - weights[k].rows, all[k].end()}, one[k],
                                 fmt::format("{}{}, {} rows, matrix {}", what, normed ? ", norm" : "", n, k));
            if (::testing::Test::HasFatalFailure()) return;
        }
    }
}

/// Attention leaves its rows in int8, too: nobody may take those for a matrix that wants f16.
TEST(DecodeKquantF16, int8_rows_that_came_along_are_not_looked_at) {
    RT_GPU_ONLY();
    KquantF16World world;
    const AnyWeight m(DType::q4_k, 40, 3072, 61);
    if (expected_arithmetic(test_gpu(), m.w) == Arithmetic::int8) GTEST_SKIP() << "this chip wants int8 rows";
    const Weight w = world.op.weight(m.w);
    for (const int64_t n : fewer<std::vector<int64_t>>({1, 2, 5, 9, 17, 25}, {1, 3})) {
        Tensor x = world.tensor(test::random_rows(n, 3072, 62), n);
        Tensor a = world.op.tensor(std::vector<float>(static_cast<size_t>(n * 40), 0.75f), {n, 40});
        Tensor b = world.op.tensor(std::vector<float>(static_cast<size_t>(n * 40), 0.75f), {n, 40});
        const std::vector<float> expected = values_of(ops::matmul_add(world.op.ctx, w, x, a));
        x.int8 = upload(world.op, std::vector<int8_t>(static_cast<size_t>(n * ActRow::bytes(3072)), 77));
        expect_same_bits(values_of(ops::matmul_add(world.op.ctx, w, x, b)), expected, "y");
        expect_same_bits(values_of(b), values_of(a), "residual");
    }
}

/// gate, up and down by one op: a row's bits in any company, and those of the ops one by one.
TEST(DecodeKquantF16, feed_forward_layers_have_the_bits_of_their_parts) {
    KquantF16World world;
    struct Case {
        DType gate, up, down;
        int64_t d, ff;
    };
    constexpr DType kQ4 = DType::q4_k, kQ5 = DType::q5_k, kQ6 = DType::q6_k;
    const std::vector<Case> all = {{kQ4, kQ4, kQ6, 3072, 3072}, {kQ4, kQ4, kQ4, 3072, 4096},
                                   {kQ6, kQ6, kQ4, 5120, 3072}, {kQ4, kQ4, kQ6, 5120, 17408},
                                   {kQ4, kQ4, kQ6, 1280, 3072}, {kQ5, kQ5, kQ6, 3072, 5120},
                                   {kQ4, kQ4, kQ6, 4096, 4608}, {kQ6, kQ6, kQ6, 6144, 5120},
                                   {kQ4, kQ5, kQ6, 3072, 1024}, {kQ5, kQ6, kQ6, 5120, 1024},
                                   {kQ6, kQ4, kQ4, 5120, 2048}, {kQ4, kQ6, kQ4, 3072, 1024},
                                   {kQ4, kQ4, kQ4, 9216, 3072}, {kQ6, kQ6, kQ4, 17408, 3072}},
                            few = {{kQ6, kQ6, kQ4, 256, 3072}, {kQ4, kQ4, kQ4, 3072, 256}, {kQ4, kQ6, kQ4, 3072, 256}};
    for (const Case& c : fewer(all, few)) {
        if (test_gpu() == nullptr && c.d * c.ff > 3072 * 3072) continue;
        const Weight one = world.weight(c.gate, c.ff, c.d, 21), other = world.weight(c.up, c.ff, c.d, 22),
                     down = world.weight(c.down, c.d, c.ff, 23);
        // Not aligned to 16 bytes: norms lie in a file as they like.
        const ops::Norm norm = {world.op.floats(normals(static_cast<size_t>(c.d) + 1, 24)).subspan(1), 1e-6f};
        for (const bool swapped : {false, true}) {  // gate behind up in memory, too
            const Weight &gate = swapped ? other : one, &up = swapped ? one : other;
            const std::string what = fmt::format("{} {} {} -> {} {}", dtype_name(gate.dtype), dtype_name(up.dtype), c.d,
                                                 dtype_name(c.down), c.ff);
            const Company company(c.d);
            const auto whole = company.check(what, [&](const std::vector<float>& x, int64_t n) {
                Tensor t = world.tensor(x, n);
                const Tensor y = ops::swiglu_ffn_add(world.op.ctx, t, norm, gate, up, down);
                return Results{values_of(y), values_of(t)};
            });
            if (::testing::Test::HasFatalFailure()) return;
            const auto parts = company.check(what + ", parts", [&](const std::vector<float>& x, int64_t n) {
                Tensor t = world.tensor(x, n);
                const Weight* const group[] = {&gate, &up};
                const std::vector<Tensor> both = ops::norm_matmul_group(world.op.ctx, t, norm, group);
                const Tensor h = ops::swiglu(world.op.ctx, both[0], both[1]);
                const Tensor y = ops::matmul_add(world.op.ctx, down, h, t);
                return Results{values_of(y), values_of(t)};
            });
            for (const auto& [r, results] : whole)
                for (size_t k = 0; k < 2 && !::testing::Test::HasFatalFailure(); ++k)
                    Company::expect_same(results[k], parts.at(r)[k], fmt::format("{}, row {}, result {}", what, r, k));
            if (::testing::Test::HasFatalFailure()) return;
        }
    }
}

/// The kernels of a chain start before their predecessors end: the same bits in every replay.
TEST(DecodeKquantF16, replays_of_a_graph_of_layers_agree) {
    RT_GPU_ONLY();
    KquantF16World world;
    OpContext& op = world.op;
    const int64_t kHidden = fewer(5120, 3072), kFf = fewer(17408, 256), kInner = fewer(6144, 256);
    const Weight q = world.weight(DType::q4_k, kInner, kHidden, 31), beta = world.weight(DType::f32, 48, kHidden, 32),
                 o = world.weight(DType::q4_k, kHidden, kInner, 33), gate = world.weight(DType::q4_k, kFf, kHidden, 34),
                 up = world.weight(DType::q4_k, kFf, kHidden, 35), down = world.weight(DType::q6_k, kHidden, kFf, 36);
    const ops::Norm norm = {op.floats(normals(static_cast<size_t>(kHidden), 37)), 1e-6f};
    const Weight* const group[] = {&q, &beta};
    for (const int64_t n : fewer<std::vector<int64_t>>({1, 2, 3, 8, 16, 24, 40}, {1, 17})) {
        op.poison();
        const Tensor source = op.tensor(test::random_rows(n, kHidden, 91), {n, kHidden});
        Tensor x = op.ctx.alloc(DType::f32, {n, kHidden});
        std::vector<Tensor> results;
        const auto step = [&] {
            op.ctx.gpu->copy(x.data, source.data, n * kHidden * int64_t{sizeof(float)});
            results.clear();
            for (int layer = 0; layer < fewer(3, 2); ++layer) {
                for (const Tensor& y : ops::norm_matmul_group(op.ctx, x, norm, group)) results.push_back(y);
                ops::matmul_add(op.ctx, o, results[results.size() - 2], x);
                results.push_back(ops::swiglu_ffn_add(op.ctx, x, norm, gate, up, down));
            }
        };
        expect_replays_agree(op, fmt::format("{} rows", n), results, step);
    }
}

}  // namespace
}  // namespace riptide
