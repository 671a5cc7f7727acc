#include "ops/block_attention.h"

#include "ops/block_heads.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "tests/ops/attention_world.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

std::vector<WorldShape> block_shapes() {
    std::vector<WorldShape> out;
    for (const int32_t window : {0, 5, 70}) {
        const int32_t capacity = window > 0 ? 6 : 60;
        out.push_back({.heads = 6,
                       .kv_heads = 2,
                       .head_dim = 40,
                       .k_dtype = DType::f32,
                       .v_dtype = DType::f32,
                       .window = window,
                       .capacity = capacity});
        out.push_back({.heads = fewer<int64_t>(16, 4),
                       .kv_heads = fewer<int64_t>(8, 2),
                       .head_dim = 128,
                       .k_dtype = DType::q8_0,
                       .v_dtype = DType::f16,
                       .window = window,
                       .capacity = capacity});
        out.push_back({.heads = fewer<int64_t>(16, 4),
                       .kv_heads = fewer<int64_t>(8, 2),
                       .head_dim = 128,
                       .k_dtype = DType::f16,
                       .v_dtype = DType::f16,
                       .window = window,
                       .capacity = capacity});
        out.push_back({.heads = 12,
                       .kv_heads = 3,
                       .head_dim = 128,
                       .k_dtype = DType::f16,
                       .v_dtype = DType::f16,
                       .window = window,
                       .capacity = capacity,
                       .key_scale = 3.0f});
        out.push_back({.heads = 4,
                       .kv_heads = 4,
                       .head_dim = 64,
                       .k_dtype = DType::tq3_0,
                       .v_dtype = DType::tq3_0,
                       .window = window,
                       .capacity = capacity});
    }
    return brief(std::move(out), 5);
}

Rows block(OpContext& op, AttentionWorld& world) {
    return AttentionWorld::rows_of(
        ops::block_attention(op.ctx, world.query, world.view, world.device_batch, world.scale()));
}

// As in attention_bound_test.cpp: a score's d products are added up in any order, then scaled (on a GPU to powers of
// two, with an approximate exponential); the largest score's error comes in too. The sums run over n keys.
TEST(block_attention, stays_within_the_bound_of_the_double_reference) {
    std::vector<double> shares;
    for (const WorldShape& shape : block_shapes())
        for (const size_t committed : fewer<std::vector<size_t>>({0, 1, 3, 64, 300}, {80}))
            for (const size_t rows : fewer<std::vector<size_t>>({2, 8, 16, 35}, {8})) {
                OpContext op;
                AttentionWorld world(op, shape, 1);
                WorldSequence s = world.sequence();
                world.fill(s, token_ids(committed, 40), 50);
                world.step({&s}, {chain_of(rows)});
                const Rows out = block(op, world);
                const KvView stored = world.host_view();
                const std::vector<float> q = values_of(world.query);
                std::vector<double> expected(q.size());
                ops::block_attention_ref<double>(q.data(), shape.heads, stored, world.batch, world.scale(),
                                                 expected.data());
                const auto [query, key, value] = magnitudes(world, shape, committed, rows, q);
                const double d = static_cast<double>(shape.head_dim), n = static_cast<double>(committed + rows);
                const double product = world.scale() * query * key;
                const double rotations = kv_rotated(shape.k_dtype) ? 8 * (1 + product) : 0;
                const double allowed =
                    value * kUnitF32 * (2 * (std::sqrt(d) + 4) * product + 18 + 3 * std::sqrt(n) + rotations);
                BoundCheck check;
                for (size_t r = 0; r < out.size(); ++r)
                    for (size_t e = 0; e < out[r].size(); ++e)
                        check.add(out[r][e], expected[r * out[r].size() + e], allowed);
                EXPECT_LE(check.worst(), 1.0) << shape_name(shape) << ", " << committed << " + " << rows;
                shares.push_back(check.worst());
            }
    EXPECT_GE(*std::max_element(shares.begin(), shares.end()), 0.005) << "the bound is too loose";
}

TEST(block_attention, a_block_has_its_bits_in_any_company_and_any_pages) {
    for (const WorldShape& shape : block_shapes()) {
        WorldShape small = shape;
        small.page_rows = 4;
        small.capacity *= 4;
        OpContext op, one(1);
        AttentionWorld world(op, shape, 1), other(one, small, 2);
        WorldSequence a = world.sequence(), b = world.sequence(), alone = other.sequence();
        world.fill(a, token_ids(133, 3), 50);
        world.fill(b, token_ids(20, 4), 64);
        other.fill(alone, token_ids(133, 3), 37);
        other.step({&alone}, {chain_of(8)});
        const Rows expected = block(one, other);
        world.step({&b, &a}, {chain_of(5), chain_of(8)});
        Rows together = block(op, world);
        together.erase(together.begin(), together.begin() + 5);
        expect_same_rows(together, expected, shape_name(shape));
        expect_same_rows(block(one, other), expected, shape_name(shape) + ", again");
    }
}

TEST(block_attention, early_rows_see_late_ones) {
    OpContext op;
    AttentionWorld world(op, {}, 1);
    WorldSequence s = world.sequence();
    world.fill(s, token_ids(30, 5), 30);
    std::vector<FedToken> fed = chain_of(4);
    world.step({&s}, {fed});
    const Rows before = block(op, world);
    fed[3].id = 77;
    world.step({&s}, {fed});
    const Rows after = block(op, world);
    for (size_t r = 0; r < 3; ++r) EXPECT_FALSE(same_bits(before[r].data(), after[r].data(), before[r].size())) << r;
}

TEST(block_attention, long_contexts_stay_within_the_bound) {
    const WorldShape shape{.heads = 4,
                           .kv_heads = 2,
                           .head_dim = 128,
                           .k_dtype = DType::f16,
                           .v_dtype = DType::f16,
                           .page_rows = 64,
                           .capacity = 160};
    const size_t committed = fewer<size_t>(9'001, 700), rows = 8;
    OpContext op;
    AttentionWorld world(op, shape, 1);
    WorldSequence s = world.sequence();
    world.fill(s, token_ids(committed, 40), 256);
    world.step({&s}, {chain_of(rows)});
    const Rows out = block(op, world);
    const KvView stored = world.host_view();
    const std::vector<float> q = values_of(world.query);
    std::vector<double> expected(q.size());
    ops::block_attention_ref<double>(q.data(), shape.heads, stored, world.batch, world.scale(), expected.data());
    const auto [query, key, value] = magnitudes(world, shape, committed, rows, q);
    const double product = world.scale() * query * key, n = static_cast<double>(committed + rows);
    const double allowed = value * kUnitF32 * (2 * (std::sqrt(128.0) + 4) * product + 18 + 3 * std::sqrt(n));
    BoundCheck check;
    for (size_t r = 0; r < out.size(); ++r)
        for (size_t e = 0; e < out[r].size(); ++e) check.add(out[r][e], expected[r * out[r].size() + e], allowed);
    EXPECT_LE(check.worst(), 1.0);
}

TEST(block_heads, layers_together_have_the_bits_of_norm_rotation_and_append) {
    for (const WorldShape& shape : block_shapes()) {
        OpContext op;
        const int64_t n = 9, d = shape.head_dim, heads = shape.heads, kv = shape.kv_heads;
        const bool windowed = shape.window > 0;
        std::vector<AttentionWorld> fused, apart;  // two layers each, all with the same pages
        for (std::vector<AttentionWorld>* worlds : {&fused, &apart}) {
            worlds->reserve(2);
            for (int layer = 0; layer < 2; ++layer) {
                AttentionWorld& world = worlds->emplace_back(op, shape, 1);
                WorldSequence a = world.sequence(), b = world.sequence();
                world.fill(a, token_ids(windowed ? 90 : 37, 3), 50);
                world.step({&b, &a}, {chain_of(4), chain_of(5)});
            }
        }
        const ops::Rope rope = ops::make_rope(10000, d - d % 4);
        const auto random = [&](int64_t count, uint64_t seed) {
            return op.tensor(normals(static_cast<size_t>(n * count * d), seed), {n, count, d});
        };
        for (const bool with_queries : {true, false}) {
            std::vector<ops::BlockHeads> layers;
            std::vector<Tensor> queries;
            for (uint64_t layer = 0; layer < 2; ++layer) {
                const ops::Norm q_norm{op.floats(normals(static_cast<size_t>(d), 50 + layer)), 1e-6f},
                    k_norm{op.floats(normals(static_cast<size_t>(d), 60 + layer)), 1e-5f};
                const Tensor q = random(heads, 10 * layer + 1), k = random(kv, 10 * layer + 2),
                             v = random(kv, 10 * layer + 3);
                const Batch& batch = apart[layer].device_batch;
                Tensor key = ops::rms_norm(op.ctx, k, k_norm.weight, k_norm.eps);
                ops::rope(op.ctx, key, batch.positions, rope);
                ops::kv_append(op.ctx, apart[layer].view, key, v, batch);
                queries.push_back(ops::rms_norm(op.ctx, q, q_norm.weight, q_norm.eps));
                ops::rope(op.ctx, queries.back(), batch.positions, rope);
                layers.push_back({with_queries ? q : Tensor(), k, v, q_norm, k_norm, fused[layer].view});
            }
            ops::block_heads(op.ctx, layers, rope, fused[0].device_batch);
            for (size_t layer = 0; layer < 2; ++layer) {
                if (with_queries)
                    expect_same_rows(AttentionWorld::rows_of(layers[layer].q), AttentionWorld::rows_of(queries[layer]),
                                     shape_name(shape));
                const KvView a = fused[layer].host_view(), b = apart[layer].host_view();
                const auto slots = static_cast<size_t>(shape.capacity * (windowed ? shape.ring_rows : shape.page_rows));
                EXPECT_EQ(std::memcmp(a.k, b.k, slots * static_cast<size_t>(a.k_slot_bytes)), 0) << shape_name(shape);
                EXPECT_EQ(std::memcmp(a.v, b.v, slots * static_cast<size_t>(a.v_slot_bytes)), 0) << shape_name(shape);
            }
        }
    }
}

TEST(gated_block_attention, has_the_bits_of_heads_attention_and_gate) {
    for (const WorldShape& shape : block_shapes())
        for (const size_t rows : fewer<std::vector<size_t>>({1, 8, 20}, {20})) {
            if (brief_counts() && shape.k_dtype != DType::f16) continue;
            OpContext op(Family::decode);
            const int64_t n = 4 + static_cast<int64_t>(rows), d = shape.head_dim;
            std::vector<AttentionWorld> worlds;  // with the same pages: of the fused op, of the ops one by one
            worlds.reserve(2);
            for (int i = 0; i < 2; ++i) {
                AttentionWorld& world = worlds.emplace_back(op, shape, 1);
                WorldSequence a = world.sequence(), b = world.sequence();
                world.fill(a, token_ids(shape.window > 0 ? 90 : 37, 3), 50);
                world.step({&b, &a}, {chain_of(4), chain_of(rows)});
            }
            const ops::Rope rope = ops::make_rope(10000, d - d % 4);
            const ops::Norm q_norm{op.floats(normals(static_cast<size_t>(d), 50)), 1e-6f},
                k_norm{op.floats(normals(static_cast<size_t>(d), 60)), 1e-5f};
            const auto random = [&](int64_t count, uint64_t seed) {
                return op.tensor(normals(static_cast<size_t>(n * count * d), seed), {n, count, d});
            };
            for (const bool gated : fewer<std::vector<bool>>({true, false}, {true})) {
                const Tensor gate =
                    gated ? op.tensor(normals(static_cast<size_t>(n * shape.heads), 7), {n, shape.heads}) : Tensor();
                ops::BlockHeads heads[2];
                for (size_t i = 0; i < 2; ++i)
                    heads[i] = {
                        random(shape.heads, 1), random(shape.kv_heads, 2), random(shape.kv_heads, 3), q_norm, k_norm,
                        worlds[i].view};
                const Batch& batch = worlds[1].device_batch;
                ops::block_heads(op.ctx, {&heads[1], 1}, rope, batch);
                Tensor apart = ops::block_attention(op.ctx, heads[1].q, heads[1].kv, batch, worlds[1].scale());
                if (gated) ops::mul_softplus(op.ctx, apart, gate, shape.heads);
                Tensor fused =
                    ops::gated_block_attention(op.ctx, heads[0], rope, worlds[0].device_batch, worlds[0].scale(), gate);
                expect_same_rows(AttentionWorld::rows_of(fused), AttentionWorld::rows_of(apart), shape_name(shape));
                const KvView a = worlds[0].host_view(), b = worlds[1].host_view();
                const auto slots =
                    static_cast<size_t>(shape.capacity * (shape.window > 0 ? shape.ring_rows : shape.page_rows));
                EXPECT_EQ(std::memcmp(a.k, b.k, slots * static_cast<size_t>(a.k_slot_bytes)), 0) << shape_name(shape);
                EXPECT_EQ(std::memcmp(a.v, b.v, slots * static_cast<size_t>(a.v_slot_bytes)), 0) << shape_name(shape);
                if (fused.int8 == nullptr) continue;
                const test::RandomWeight matrix(test::WeightKind{DType::q8_0}, 24, shape.heads * d, 9);
                const Weight w = op.weight(matrix.w);
                const Tensor from_int8 = ops::matmul(op.ctx, w, fused);  // the int8 rows are those of the floats
                fused.int8 = nullptr;
                expect_same_rows(AttentionWorld::rows_of(from_int8),
                                 AttentionWorld::rows_of(ops::matmul(op.ctx, w, fused)), shape_name(shape));
            }
        }
}

}  // namespace
}  // namespace riptide
