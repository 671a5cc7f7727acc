// Products of any width (kquant_i8_wide_*.cu): the bits of the general kernels, however many rows a step has.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "ops/matmul.h"
#include "tests/ops/op_fixture.h"
#include "tests/ops/product_bound.h"
#include "tests/ops/row_alone.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using test::RandomWeight;
using test::WeightKind;

constexpr int64_t kDenseCounts[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 40};
constexpr int64_t kFewDenseCounts[] = {1, 2, 4, 8, 17};

/// Wide matrices that Hopper does not multiply in half precision (decode_kquant_f16_cuda_test.cpp: multiples of 1,024
/// columns), and some that fill no lane, chunk or stage; and enough rows that a CTA has whole tiles.
constexpr struct DenseShape {
    int64_t cols, rows;
} kDenseShapes[] = {{256, 101},  {768, 101},   {2304, 101},  {5376, 101},
                    {6144, 101}, {17664, 101}, {2304, 4213}, {6144, 2300}},
  kFewDenseShapes[] = {{768, 20}, {5376, 20}};

struct DenseWorld {
    OpContext op{1, int64_t{64} << 20};
    std::unique_ptr<Gpu> portable;
    Context general;
    std::span<const int64_t> counts;

    explicit DenseWorld(std::span<const int64_t> some = fewer<std::span<const int64_t>>(kDenseCounts, kFewDenseCounts))
        : counts(some) {
        GpuOptions options;
        options.portable = true;
        portable = Gpu::open(options);
        limit_multiprocessors(*portable);
        general = op.ctx;
        general.gpu = portable.get();
    }
    Weight weight(DType type, int64_t rows, int64_t cols, uint64_t seed) {
        const RandomWeight m(WeightKind{type}, rows, cols, seed);
        return op.weight(m.w);
    }
    /// run(ctx, x, n): results [n, width] for x[n][cols]. Steps of many rows of the general kernels judge all others.
    void compare(const std::string& what, int64_t cols,
                 const std::function<Results(Context&, const std::vector<float>&, int64_t)>& run) {
        const int64_t most = counts.back();
        const std::vector<float> x = test::random_rows(most, cols, 17);
        const Results expected = run(general, x, most);
        for (const std::vector<float>& values : expected)
            for (const float v : values) ASSERT_TRUE(std::isfinite(v)) << what;
        for (const int64_t n : counts) {
            const int64_t first = n == most ? 0 : 7 * n % (most - n + 1);
            const Results got = run(op.ctx, {x.begin() + first * cols, x.begin() + (first + n) * cols}, n);
            for (size_t k = 0; k < got.size(); ++k) {
                const int64_t width = std::ssize(expected[k]) / most;
                expect_same_bits(got[k],
                                 {expected[k].begin() + first * width, expected[k].begin() + (first + n) * width},
                                 fmt::format("{}: {} rows from {}, result {}", what, n, first, k).c_str());
                if (::testing::Test::HasFatalFailure()) return;
            }
        }
    }
    Tensor tensor(const std::vector<float>& values, int64_t rows) {
        return op.tensor(values, {rows, std::ssize(values) / rows});
    }
    std::vector<float> read(const Tensor& t) {
        portable->synchronize();
        return values_of(t);
    }
    void forget() {
        op.poison();
        op.ctx.gpu->synchronize();
    }
};

/// y = w x and r += y, of all numbers of rows, by both kinds of kernels.
void compare_products(DenseWorld& world, const std::string& name, const Weight& w, int64_t rows, int64_t cols) {
    world.compare(name, cols, [&](Context& ctx, const std::vector<float>& x, int64_t n) {
        world.forget();
        const Tensor t = world.tensor(x, n);
        Tensor r = world.tensor(std::vector<float>(static_cast<size_t>(n * rows), 0.75f), n);
        world.op.ctx.gpu->synchronize();
        const Tensor y = ops::matmul_add(ctx, w, t, r);
        return Results{world.read(y), world.read(r)};
    });
}

TEST(DecodeWide, products_of_any_width_have_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    DenseWorld world;
    for (const DType type : {DType::q4_k, DType::q5_k, DType::q6_k})
        for (const auto& [cols, rows] : fewer<std::span<const DenseShape>>(kDenseShapes, kFewDenseShapes)) {
            const Weight w = world.weight(type, rows, cols, 11);
            compare_products(world, fmt::format("{} {}", dtype_name(type), cols), w, rows, cols);
            if (::testing::Test::HasFatalFailure()) return;
        }
}

TEST(DecodeQ8, q8_0_products_have_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    DenseWorld world;
    constexpr DenseShape kEight[] = {{2048, 101}, {2048, 4213}, {8192, 101}, {10240, 33}}, kFewEight[] = {{2048, 20}};
    for (const auto& [cols, rows] : fewer<std::span<const DenseShape>>(kEight, kFewEight)) {
        const Weight w = world.weight(DType::q8_0, rows, cols, 11);
        compare_products(world, fmt::format("q8_0 {} x {}", rows, cols), w, rows, cols);
        if (::testing::Test::HasFatalFailure()) return;
    }
}

TEST(DecodeQ8, groups_and_feed_forward_layers_have_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    DenseWorld world;
    const int64_t cols = 2048;
    const Weight a = world.weight(DType::q8_0, fewer(515, 67), cols, 1), b = world.weight(DType::q8_0, 7, cols, 2),
                 q4 = world.weight(DType::q4_k, 33, cols, 3), beta = world.weight(DType::f32, 9, cols, 4);
    const ops::Norm norm = {world.op.floats(normals(static_cast<size_t>(cols), 8)), 1e-6f};
    const std::vector<std::vector<const Weight*>> groups = {{&a, &b}, {&b, &q4, &a, &beta}};
    for (const auto& group : groups)
        world.compare("group", cols, [&](Context& ctx, const std::vector<float>& x, int64_t n) {
            world.forget();
            const Tensor t = world.tensor(x, n);
            world.op.ctx.gpu->synchronize();
            Results out;
            for (const Tensor& y : ops::norm_matmul_group(ctx, t, norm, group)) out.push_back(world.read(y));
            return out;
        });
    static constexpr DenseShape kLayers[] = {{2048, 4096}, {4096, 2048}}, kFewLayers[] = {{2048, 2048}};
    for (const auto& [wide, hidden] : fewer<std::span<const DenseShape>>(kLayers, kFewLayers)) {
        const Weight up = world.weight(DType::q8_0, hidden, wide, 5), gate = world.weight(DType::q8_0, hidden, wide, 6),
                     down = world.weight(DType::q8_0, wide, hidden, 7);
        const ops::Norm scale = {world.op.floats(normals(static_cast<size_t>(wide), 8)), 1e-6f};
        world.compare("feed-forward", wide, [&](Context& ctx, const std::vector<float>& x, int64_t n) {
            world.forget();
            Tensor t = world.tensor(x, n);
            world.op.ctx.gpu->synchronize();
            const Tensor y = ops::swiglu_ffn_add(ctx, t, scale, gate, up, down);
            return Results{world.read(y), world.read(t)};
        });
    }
}

TEST(DecodeWide, groups_of_all_types_have_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    DenseWorld world;
    for (const int64_t cols : brief<int64_t>({1280, 5376}, 1)) {
        const Weight q4 = world.weight(DType::q4_k, fewer(515, 67), cols, 1),
                     q6 = world.weight(DType::q6_k, fewer(129, 33), cols, 2),
                     small = world.weight(DType::q4_k, 7, cols, 3), beta = world.weight(DType::f32, 9, cols, 4),
                     q5 = world.weight(DType::q5_k, 33, cols, 5), alpha = world.weight(DType::bf16, 48, cols, 6);
        const ops::Norm norm = {world.op.floats(normals(static_cast<size_t>(cols), 7)), 1e-6f};
        const std::vector<std::vector<const Weight*>> groups = {
            {&q4}, {&q4, &small, &q6}, {&q4, &small, &beta, &alpha}, {&q5, &q4, &q6, &small}, {&beta, &q6, &alpha}};
        for (size_t g = 0; g < groups.size(); ++g)
            for (const bool normed : {true, false}) {
                if (brief_counts() && normed != (g % 2 == 0)) continue;
                world.compare(
                    fmt::format("group {} of {}, norm {}", g, cols, normed), cols,
                    [&](Context& ctx, const std::vector<float>& x, int64_t n) {
                        world.forget();
                        const Tensor t = world.tensor(x, n);
                        world.op.ctx.gpu->synchronize();
                        Results out;
                        for (const Tensor& y : ops::norm_matmul_group(ctx, t, normed ? norm : ops::Norm{}, groups[g]))
                            out.push_back(world.read(y));
                        return out;
                    });
                if (::testing::Test::HasFatalFailure()) return;
            }
    }
}

TEST(DecodeWide, feed_forward_layers_have_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    static constexpr int64_t kFew[] = {1, 8, 12};
    DenseWorld world(fewer<std::span<const int64_t>>(kDenseCounts, kFew));
    struct Case {
        DType up, down;
        int64_t d, ff;
    };
    for (const Case& c : {Case{DType::q4_k, DType::q6_k, fewer(1280, 512), fewer(2816, 256)},
                          Case{DType::q4_k, DType::q4_k, fewer(1280, 256), fewer(2048, 256)},
                          Case{DType::q4_k, DType::q6_k, fewer(1024, 256), fewer(5376, 1024)},
                          Case{DType::q6_k, DType::q4_k, fewer(3328, 1024), fewer(6144, 256)},
                          Case{DType::q5_k, DType::q5_k, fewer(5120, 256), fewer(768, 256)},
                          Case{DType::q6_k, DType::q4_k, fewer(512, 256), fewer(17664, 768)}}) {
        const Weight gate = world.weight(c.up, c.ff, c.d, 21), up = world.weight(c.up, c.ff, c.d, 22),
                     down = world.weight(c.down, c.d, c.ff, 23);
        const ops::Norm norm = {world.op.floats(normals(static_cast<size_t>(c.d), 24)), 1e-6f};
        world.compare(fmt::format("{} -> {}", c.d, c.ff), c.d,
                      [&](Context& ctx, const std::vector<float>& x, int64_t n) {
                          world.forget();
                          Tensor t = world.tensor(x, n);
                          world.op.ctx.gpu->synchronize();
                          const Tensor y = ops::swiglu_ffn_add(ctx, t, norm, gate, up, down);
                          return Results{world.read(y), world.read(t)};
                      });
        if (::testing::Test::HasFatalFailure()) return;
    }
}

/// The kernels of a chain start before their predecessors end: the same bits in every replay.
TEST(DecodeWide, replays_of_a_graph_of_layers_agree) {
    RT_GPU_ONLY();
    const int64_t kHidden = fewer(1280, 512), kFf = fewer(4352, 768), kInner = fewer(2304, 512);
    OpContext op(1, int64_t{32} << 20);
    const auto placed = [&](DType type, int64_t rows, int64_t cols, uint64_t seed) {
        const RandomWeight m(WeightKind{type}, rows, cols, seed);
        return op.weight(m.w);
    };
    const Weight q = placed(DType::q4_k, kInner, kHidden, 31), beta = placed(DType::f32, 48, kHidden, 32),
                 o = placed(DType::q4_k, kHidden, kInner, 33), gate = placed(DType::q4_k, kFf, kHidden, 34),
                 up = placed(DType::q4_k, kFf, kHidden, 35), down = placed(DType::q6_k, kHidden, kFf, 36);
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
