// Attention over the blocks that were chosen.
#include <limits>
#include <numeric>

#include "ops/norm.h"
#include "tests/ops/sparse_world.h"

namespace riptide::sparse {
namespace {

/// As in attention_bound_test.cpp: on the CPU sums of 16 lanes and of pieces of 128 keys; on a GPU sums in any order,
/// with weights and values in the type of the tiles.
double sparse_error(World& world, const Shape& shape, double n) {
    const int64_t d = shape.head_dim;
    double query = 0, key = 0, value = 0;
    for (size_t i = 0; i < world.q.size(); i += static_cast<size_t>(d))
        query = std::max(query, norm_of(&world.q[i], d));
    for (size_t i = 0; i < world.k.size(); i += static_cast<size_t>(d)) key = std::max(key, norm_of(&world.k[i], d));
    for (const float x : world.v) value = std::max(value, std::abs(double{x}));
    const double product = world.scale() * query * key * 1.01;  // 1.01: stored in 16 bits
    if (test_gpu() == nullptr) {
        const double lanes = kUnitF32 * (std::sqrt(static_cast<double>(d) / 16 + 5) + 1) * product;
        return 1.01 * value * (2 * lanes + kUnitF32 * (8 + 3 * std::sqrt(std::min(n, 128.0))));
    }
    const double half = operand_rounding(shape);
    const double score = kUnitF32 * (std::sqrt(static_cast<double>(d)) + 3) * product;
    const double sums = kUnitF32 * (18 + 3 * std::sqrt(n)), tensor_cores = half > 0 ? 0x1p-23 : 0;
    return 1.01 * value *
           (std::expm1(2 * (score + (half + static_cast<double>(d) * tensor_cores) * product)) + half +
            n * tensor_cores + sums);
}

TEST(sparse_attention, stays_within_the_bound_of_the_double_reference) {
    std::vector<double> shares;
    for (const Shape& shape : shapes())
        for (const int64_t n : {int64_t{1}, int64_t{128}, int64_t{129}, 7 * kSparseBlock + 55}) {
            World world(shape, n);
            const World::Result got = world.run(kTight);
            world.set_batch(0, n);
            const KvView stored = world.host_view();
            const int64_t blocks = world.blocks(), columns = 1 + blocks;
            std::vector<int32_t> flat(static_cast<size_t>(blocks * shape.heads * columns));
            for (size_t i = 0; i < got.lists.size(); ++i) {
                flat[i * static_cast<size_t>(columns)] = static_cast<int32_t>(got.lists[i].size());
                std::ranges::copy(got.lists[i], flat.begin() + static_cast<std::ptrdiff_t>(i) * columns + 1);
            }
            const Tensor lists(flat.data(), DType::i32, {blocks, shape.heads, columns});
            std::vector<double> expected(got.o.size());
            ops::sparse_attention_ref<double>(world.q.data(), shape.heads, stored, world.host_batch, lists,
                                              world.scale(), expected.data());
            const double allowed = sparse_error(world, shape, static_cast<double>(n));
            BoundCheck check;
            for (size_t i = 0; i < expected.size(); ++i) check.add(got.o[i], expected[i], allowed);
            EXPECT_LE(check.worst(), 1.0) << name_of(shape) << ", " << n;
            shares.push_back(check.worst());
        }
    EXPECT_GE(*std::ranges::max_element(shares), 0.005) << "the bound is too loose";
}

TEST(sparse_attention, with_everything_chosen_is_dense_attention) {
    for (const Shape& shape : shapes()) {
        World world(shape, 5 * kSparseBlock + 99);
        const World::Result got = world.run({.full_below = 1 << 20});
        const std::vector<float> dense = world.dense();
        const double allowed = 2 * sparse_error(world, shape, 128 * 6);
        BoundCheck check;
        for (size_t i = 0; i < dense.size(); ++i) check.add(got.o[i], dense[i], allowed);
        EXPECT_LE(check.worst(), 1.0) << name_of(shape);
    }
}

TEST(sparse_attention, chunks_have_the_bits_and_the_lists_of_the_whole) {
    for (const Shape& shape : shapes()) {
        const SparseOptions options{
            .sink_blocks = 1, .window_blocks = 2, .alpha = 0.1f, .most_blocks = 3, .full_below = 1, .full_from = 8};
        World world(shape, 9 * kSparseBlock + 70), alone(shape, 9 * kSparseBlock + 70, 1);
        const World::Result whole = world.run(options);
        for (const int64_t chunk : brief<int64_t>({3 * kSparseBlock, kSparseBlock, 8 * kSparseBlock}, 1)) {
            const World::Result parts = alone.run(options, chunk);
            EXPECT_EQ(parts.lists, whole.lists) << name_of(shape) << ", chunks of " << chunk;
            expect_same_bits(parts.o, whole.o, name_of(shape).c_str());
        }
        expect_same_bits(world.run(options).o, whole.o, "again");
    }
}

TEST(sparse_attention, blocks_that_are_not_read_have_no_effect) {
    for (const Shape& shape : shapes()) {
        World world(shape, 10 * kSparseBlock);
        const World::Result before = world.run(kTight);
        std::vector<bool> read(static_cast<size_t>(world.blocks() * shape.kv_heads));
        const int64_t m = world.blocks() - 1, group = shape.heads / shape.kv_heads;
        for (int64_t h = 0; h < shape.heads; ++h)
            for (const int32_t n : before.lists[static_cast<size_t>(m * shape.heads + h)])
                read[static_cast<size_t>(h / group * world.blocks() + n)] = true;
        int64_t changed = 0;
        for (int64_t h = 0; h < shape.kv_heads; ++h)
            for (int64_t n = 0; n < m; ++n) {
                if (read[static_cast<size_t>(h * world.blocks() + n)]) continue;
                for (int64_t j = n * kSparseBlock; j < (n + 1) * kSparseBlock; ++j, ++changed)
                    std::fill_n(world.value(j, h), shape.head_dim, std::numeric_limits<float>::quiet_NaN());
            }
        EXPECT_GT(changed, 0) << name_of(shape);
        const World::Result after = world.run(kTight);
        EXPECT_EQ(after.lists, before.lists);
        const auto from = static_cast<std::ptrdiff_t>(m * kSparseBlock * shape.heads * shape.head_dim);
        expect_same_bits({after.o.begin() + from, after.o.end()}, {before.o.begin() + from, before.o.end()},
                         name_of(shape).c_str());
    }
}

TEST(sparse_attention, norms_and_rotates_as_the_ops_do) {
    for (const Shape& shape : shapes()) {
        World world(shape, 3 * kSparseBlock + 5), plain(shape, 3 * kSparseBlock + 5);
        const auto weight = normals(static_cast<size_t>(shape.head_dim), 7);
        const ops::Rope rope = ops::make_rope(10000, shape.head_dim);
        world.q_norm = world.k_norm = {world.op.floats(weight), 1e-6f};
        world.rope = &rope;
        const World::Result fused = world.run(kTight);
        const std::span<const float> norm = plain.op.floats(weight);
        const int64_t n = std::ssize(plain.q) / (shape.heads * shape.head_dim);
        std::vector<int32_t> positions(static_cast<size_t>(n));
        std::iota(positions.begin(), positions.end(), 0);
        const auto prepared = [&](const std::vector<float>& x, int64_t heads) {
            Tensor y = ops::rms_norm(plain.op.ctx, plain.op.tensor(x, {n, heads, shape.head_dim}), norm, 1e-6f);
            ops::rope(plain.op.ctx, y, plain.op.ints(positions), rope);
            return values_of(y);
        };
        plain.q = prepared(plain.q, shape.heads);
        plain.k = prepared(plain.k, shape.kv_heads);
        const World::Result apart = plain.run(kTight);
        EXPECT_EQ(fused.lists, apart.lists) << name_of(shape);
        expect_same_bits(fused.o, apart.o, name_of(shape).c_str());
    }
}

}  // namespace
}  // namespace riptide::sparse
