#include "ops/block_attention.h"

#include "tests/ops/attention_world.h"

namespace riptide {
namespace {

std::vector<WorldShape> shapes() {
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
        out.push_back({.heads = 16,
                       .kv_heads = 8,
                       .head_dim = 128,
                       .k_dtype = DType::q8_0,
                       .v_dtype = DType::f16,
                       .window = window,
                       .capacity = capacity});
        out.push_back({.heads = 4,
                       .kv_heads = 4,
                       .head_dim = 64,
                       .k_dtype = DType::tq3_0,
                       .v_dtype = DType::tq3_0,
                       .window = window,
                       .capacity = capacity});
    }
    return brief(std::move(out), 3);
}

Rows block(OpContext& op, AttentionWorld& world) {
    return AttentionWorld::rows_of(
        ops::block_attention(op.ctx, world.query, world.view, world.device_batch, world.scale()));
}

// As in attention_bound_test.cpp: a score's d products are added up in any order, then scaled (on a GPU to powers of
// two, with an approximate exponential); the largest score's error comes in too. The sums run over n keys.
TEST(block_attention, stays_within_the_bound_of_the_double_reference) {
    std::vector<double> shares;
    for (const WorldShape& shape : shapes())
        for (const size_t committed : fewer<std::vector<size_t>>({0, 1, 3, 64, 300}, {3, 80}))
            for (const size_t rows : brief<size_t>({2, 8, 16}, 2)) {
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
    for (const WorldShape& shape : shapes()) {
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

}  // namespace
}  // namespace riptide
