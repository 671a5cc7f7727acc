#include "ops/attention.h"

#include "quant/kv_codec.h"
#include "tests/ops/attention_world.h"

namespace riptide {
namespace {

/// Shapes over which the bitwise laws are checked: paged and ring, plain and padded widths, every way to store K/V.
std::vector<WorldShape> law_shapes() {
    std::vector<WorldShape> shapes;
    for (const int32_t window : {0, 5, 70, 300}) {
        const int32_t ring = (window - 1 + 150 + 63) / 64 * 64, capacity = window > 0 ? 8 : 200;
        shapes.push_back({.heads = 6,
                          .kv_heads = 2,
                          .head_dim = 40,
                          .k_dtype = DType::f32,
                          .v_dtype = DType::f32,
                          .window = window,
                          .ring_rows = ring,
                          .capacity = capacity});
        shapes.push_back({.heads = 8,
                          .kv_heads = 1,
                          .head_dim = 128,
                          .k_dtype = DType::tq3_0,
                          .v_dtype = DType::tq3_0,
                          .window = window,
                          .ring_rows = ring,
                          .capacity = capacity});
        shapes.push_back({.heads = 4,
                          .kv_heads = 4,
                          .head_dim = 64,
                          .k_dtype = DType::q8_0,
                          .v_dtype = DType::q4_0,
                          .window = window,
                          .ring_rows = ring,
                          .capacity = capacity});
    }
    shapes.push_back(
        {.heads = 6, .kv_heads = 1, .head_dim = 256, .k_dtype = DType::q8_0, .v_dtype = DType::q8_0, .capacity = 200});
    return brief(std::move(shapes), 4);
}

TEST(attention, chunked_equals_whole) {
    for (const Family family : test_families())
        for (const WorldShape& shape : law_shapes()) {
            OpContext one(family, 1), two(family, 2), three(family, 3);
            const std::vector<uint64_t> ids = token_ids(shape.window == 0 ? fewer(540, 200) : fewer(400, 180), 1);
            AttentionWorld whole_world(two, shape, 1), decode_world(one, shape, 2), world(three, shape, 3);
            WorldSequence a = whole_world.sequence(), b = decode_world.sequence();
            const Rows whole = whole_world.feed(a, ids, shape.window == 0 ? ids.size() : 150);
            const std::string what = shape_name(shape) + ", " + family_name(family);
            expect_same_rows(decode_world.feed(b, ids, 1), whole, what + ", chunks of 1");
            for (const size_t chunk : brief<size_t>({64, 7}, 1)) {
                WorldSequence c = world.sequence();
                expect_same_rows(world.feed(c, ids, chunk), whole, what + fmt::format(", chunks of {}", chunk));
            }
        }
}

TEST(attention, paged_equals_contiguous) {
    WorldShape paged{.page_rows = 16, .capacity = 64}, small{.page_rows = 1, .capacity = 800},
        contiguous{.page_rows = 1024, .capacity = 1};
    for (const Family family : test_families()) {
        OpContext op(family);
        const std::vector<uint64_t> ids = token_ids(fewer(600, 200), 2);
        AttentionWorld a(op, paged, 1), b(op, contiguous, 2), c(op, small, 3);
        WorldSequence sa = a.sequence(), sb = b.sequence(), sc = c.sequence();
        const Rows expected = b.feed(sb, ids, 90);
        expect_same_rows(a.feed(sa, ids, 90), expected, "pages of 16");
        expect_same_rows(c.feed(sc, ids, 90), expected, "pages of 1");
    }
}

TEST(attention, window_ring_equals_a_ring_that_never_wraps) {
    for (const Family family : test_families())
        for (const int32_t window : brief<int32_t>({1, 2, 33, 256, 300}, 2)) {
            OpContext op(family);
            const std::vector<uint64_t> ids = token_ids(fewer(700, 360), 3);
            AttentionWorld ring(op, {.window = window, .ring_rows = window - 1 + 20, .capacity = 1}, 1);
            AttentionWorld line(op, {.window = window, .ring_rows = 700, .capacity = 1}, 2);
            WorldSequence a = ring.sequence(), b = line.sequence();
            expect_same_rows(ring.feed(a, ids, 20), line.feed(b, ids, 400),
                             fmt::format("window {}, {}", window, family_name(family)));
        }
}

TEST(attention, a_window_wider_than_the_text_equals_full_attention) {
    OpContext op(Family::decode);  // prefill's kernels cut the two differently
    const std::vector<uint64_t> ids = token_ids(300, 4);
    AttentionWorld ring(op, {.window = 300, .ring_rows = 363, .capacity = 1}, 1), paged(op, {}, 2);
    WorldSequence a = ring.sequence(), b = paged.sequence();
    expect_same_rows(ring.feed(a, ids, 64), paged.feed(b, ids, 50), "window 300");
}

TEST(attention, batch_equals_each_alone) {
    for (const Family family : test_families())
        for (const WorldShape& shape : law_shapes()) {
            OpContext op(family, 3), single(family, 1);
            AttentionWorld together(op, shape, 1), alone(single, shape, 2);
            const size_t prefixes[] = {0, 3, 255, 256, 300}, rows[] = {5, 1, 2, fewer<size_t>(40, 6), 1};
            std::vector<WorldSequence> sequences;
            std::vector<WorldSequence*> pointers;
            std::vector<std::vector<FedToken>> fed;
            Rows expected;
            for (size_t s = 0; s < 5; ++s) {
                const std::vector<uint64_t> ids = token_ids(prefixes[s] + rows[s], 10 + s);
                const std::vector<uint64_t> prefix(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(prefixes[s]));
                sequences.push_back(together.sequence());
                together.fill(sequences.back(), prefix, 100);
                fed.emplace_back();
                for (size_t i = 0; i < rows[s]; ++i)
                    fed.back().push_back({ids[prefixes[s] + i], static_cast<int32_t>(i) - 1});
                WorldSequence own = alone.sequence();
                alone.fill(own, prefix, 33);
                const Rows all = alone.feed(own, {ids.begin() + static_cast<ptrdiff_t>(prefixes[s]), ids.end()}, 33);
                expected.insert(expected.end(), all.begin(), all.end());
            }
            for (WorldSequence& s : sequences) pointers.push_back(&s);
            expect_same_rows(together.step(pointers, fed), expected, shape_name(shape) + ", " + family_name(family));
        }
}

TEST(attention, tree_rows_equal_chains) {
    std::mt19937_64 rng(5);
    for (const WorldShape& shape : law_shapes())
        for (const size_t committed : brief<size_t>({0, 40, 250, 256, 330}, 3)) {
            OpContext op(kTreeFamily, 3), single(kTreeFamily, 1);
            AttentionWorld world(op, shape, 1);
            const std::vector<uint64_t> prefix = token_ids(committed, 20);
            WorldSequence s = world.sequence();
            world.fill(s, prefix, 100);
            std::vector<FedToken> tree;
            const int32_t nodes = static_cast<int32_t>(1 + rng() % 80);  // some of three tiles
            for (int32_t i = 0; i < nodes; ++i)                          // deep and wide ones, several roots
                tree.push_back({rng() % 1000003, rng() % 3 == 0
                                                     ? i - 1
                                                     : static_cast<int32_t>(rng() % static_cast<uint64_t>(i + 1)) - 1});
            const Rows rows = world.step({&s}, {tree});
            for (int32_t node = 0; node < nodes; node += fewer(1, 8) + static_cast<int32_t>(rng() % 4)) {
                std::vector<uint64_t> ids;
                for (int32_t i = node; i >= 0; i = tree[static_cast<size_t>(i)].parent)
                    ids.push_back(tree[static_cast<size_t>(i)].id);
                std::reverse(ids.begin(), ids.end());
                AttentionWorld chain_world(single, shape, 2);
                WorldSequence chain = chain_world.sequence();
                chain_world.fill(chain, prefix, 100);
                const Rows plain = chain_world.feed(chain, ids, 100);
                expect_same_rows({rows[static_cast<size_t>(node)]}, {plain.back()},
                                 shape_name(shape) + fmt::format(", {} committed, node {}", committed, node));
                if (::testing::Test::HasFatalFailure()) return;
            }
        }
}

TEST(attention, a_tree_beside_chains_changes_neither) {
    OpContext op(kTreeFamily, 3);
    AttentionWorld world(op, {}, 1), alone(op, {}, 2);
    const std::vector<FedToken> tree{{1, -1}, {2, 0}, {3, 0}, {4, -1}}, chain{{5, -1}, {6, 0}};
    const std::vector<uint64_t> prefix = token_ids(70, 30);
    WorldSequence a = world.sequence(), b = world.sequence(), c = alone.sequence(), d = alone.sequence();
    for (WorldSequence* s : {&a, &b}) world.fill(*s, prefix, 32);
    for (WorldSequence* s : {&c, &d}) alone.fill(*s, prefix, 32);
    Rows expected = alone.step({&c}, {tree});
    for (std::vector<float>& row : alone.step({&d}, {chain})) expected.push_back(std::move(row));
    expect_same_rows(world.step({&a, &b}, {tree, chain}), expected, "tree and chain");
}

/// With q = 0 all visible keys weigh the same; V rows one-hot by token id show which they were.
void expect_seen(Family family, int32_t window, const std::vector<FedToken>& fed) {
    const int64_t d = 64;
    OpContext op(family);
    AttentionWorld world(op,
                         {.heads = 1,
                          .kv_heads = 1,
                          .head_dim = d,
                          .k_dtype = DType::f32,
                          .v_dtype = DType::f32,
                          .window = window,
                          .page_rows = 8,
                          .ring_rows = 64},
                         1);
    WorldSequence s = world.sequence();
    world.fill(s, token_ids(20, 1), 20);
    world.step({&s}, {fed});
    for (size_t index = 0; index < 20 + fed.size(); ++index) {
        std::vector<float> one_hot(static_cast<size_t>(d));
        one_hot[index] = 1.0f;
        std::vector<std::byte> encoded(static_cast<size_t>(row_bytes(DType::f32, d)));
        encode_kv_row(DType::f32, one_hot.data(), encoded.data(), d);
        world.set_v_row(0, static_cast<int64_t>(index), 0, encoded);
    }
    const auto n = std::ssize(fed);
    const Tensor zeros = op.tensor(std::vector<float>(static_cast<size_t>(n * d)), {n, 1, d});
    const Rows o = AttentionWorld::rows_of(ops::attention(op.ctx, zeros, world.view, world.device_batch, 1.0f));
    // 1 / n in f32; prefill multiplies 1 by 1 and divides at the end too.
    for (size_t r = 0; r < fed.size(); ++r) {
        std::vector<int64_t> seen;
        for (int32_t i = static_cast<int32_t>(r); i >= 0; i = fed[static_cast<size_t>(i)].parent)
            seen.push_back(20 + i);
        for (int64_t i = 19; i >= 0; --i) seen.push_back(i);
        if (window > 0) seen.resize(static_cast<size_t>(window));
        std::vector<float> expected(static_cast<size_t>(d));
        for (const int64_t i : seen) expected[static_cast<size_t>(i)] = 1.0f / static_cast<float>(seen.size());
        for (size_t i = 0; i < expected.size(); ++i)
            EXPECT_NEAR(o[r][i], expected[i], 2 * kUnitF32)
                << family_name(family) << ", window " << window << ", row " << r << ", key " << i;
    }
}

TEST(attention, sees_exactly_the_committed_window_the_ancestors_and_itself) {
    for (const int32_t window : {0, 4, 9}) {
        expect_seen(kTreeFamily, window, {{0, -1}, {0, 0}, {0, 0}, {0, 2}, {0, -1}, {0, 4}, {0, 1}});
        for (const Family family : test_families()) expect_seen(family, window, chain_of(7));
    }
}

TEST(attention, a_long_context_cut_over_threads_equals_one_thread) {
    // Two tiles of 72 heads: too few for six threads, so pieces run apart, and two fill the buffer: five rounds.
    const WorldShape shape{
        .heads = fewer(72, 18), .kv_heads = fewer(8, 2), .head_dim = 64, .page_rows = 64, .capacity = 40};
    for (const Family family : test_families()) {
        OpContext many(family, 6), one(family, 1);
        AttentionWorld a(many, shape, 1), b(one, shape, 2);
        WorldSequence s = a.sequence(), t = b.sequence();
        std::vector<uint64_t> ids = token_ids(fewer(2400, 540), 50);
        a.fill(s, ids, 800);
        b.fill(t, ids, 800);
        ids = token_ids(fewer(64, 12), 51);
        expect_same_rows(a.feed(s, ids, 64), b.feed(t, ids, 1), "cut");
    }
}

TEST(attention, equals_itself_when_run_twice) {
    for (const Family family : test_families()) {
        OpContext op(family, 3);
        AttentionWorld world(op, {}, 1);
        WorldSequence s = world.sequence();
        const Rows first = world.step({&s}, {chain_of(3)});
        expect_same_rows(world.step({&s}, {chain_of(3)}), first, "again");
    }
}

TEST(attention, an_empty_step_gives_no_rows) {
    for (const Family family : test_families()) {
        OpContext op(family);
        AttentionWorld world(op, {}, 1);
        EXPECT_TRUE(world.step({}, {}).empty());
    }
}

}  // namespace
}  // namespace riptide
