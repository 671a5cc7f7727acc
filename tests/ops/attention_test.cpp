#include "ops/attention.h"

#include <numeric>

#include "ops/attention_kernels.h"
#include "quant/kv_codec.h"
#include "tests/ops/attention_world.h"

namespace riptide {
namespace {

using Rows = std::vector<std::vector<float>>;

std::string label(const WorldShape& s) {
    return fmt::format("{}/{} heads of {}, {}/{}, window {}", s.heads, s.kv_heads, s.head_dim, dtype_name(s.k_dtype),
                       dtype_name(s.v_dtype), s.window);
}

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
    return shapes;
}

TEST(attention, chunked_equals_whole) {
    for (const WorldShape& shape : law_shapes()) {
        OpContext one(1), two(2), three(3);
        const std::vector<uint64_t> ids = token_ids(shape.window == 0 ? 540 : 400, 1);
        AttentionWorld whole_world(two, shape, 1), decode_world(one, shape, 2), world(three, shape, 3);
        WorldSequence a = whole_world.sequence(), b = decode_world.sequence();
        const Rows whole = whole_world.feed(a, ids, shape.window == 0 ? ids.size() : 150);
        expect_same_rows(decode_world.feed(b, ids, 1), whole, label(shape) + ", chunks of 1");
        for (const size_t chunk : {7, 64}) {
            WorldSequence c = world.sequence();
            expect_same_rows(world.feed(c, ids, chunk), whole, label(shape) + fmt::format(", chunks of {}", chunk));
        }
    }
}

TEST(attention, paged_equals_contiguous) {
    WorldShape paged{.page_rows = 16, .capacity = 64}, small{.page_rows = 1, .capacity = 800},
        contiguous{.page_rows = 1024, .capacity = 1};
    OpContext op;
    const std::vector<uint64_t> ids = token_ids(600, 2);
    AttentionWorld a(op, paged, 1), b(op, contiguous, 2), c(op, small, 3);
    WorldSequence sa = a.sequence(), sb = b.sequence(), sc = c.sequence();
    const Rows expected = b.feed(sb, ids, 90);
    expect_same_rows(a.feed(sa, ids, 90), expected, "pages of 16");
    expect_same_rows(c.feed(sc, ids, 90), expected, "pages of 1");
}

TEST(attention, window_ring_equals_a_ring_that_never_wraps) {
    for (const int32_t window : {1, 2, 33, 256, 300}) {
        OpContext op;
        const std::vector<uint64_t> ids = token_ids(700, 3);
        AttentionWorld ring(op, {.window = window, .ring_rows = window - 1 + 20, .capacity = 1}, 1);
        AttentionWorld line(op, {.window = window, .ring_rows = 700, .capacity = 1}, 2);
        WorldSequence a = ring.sequence(), b = line.sequence();
        expect_same_rows(ring.feed(a, ids, 20), line.feed(b, ids, 400), fmt::format("window {}", window));
    }
}

TEST(attention, a_window_wider_than_the_text_equals_full_attention) {
    OpContext op;
    const std::vector<uint64_t> ids = token_ids(300, 4);
    AttentionWorld ring(op, {.window = 300, .ring_rows = 363, .capacity = 1}, 1), paged(op, {}, 2);
    WorldSequence a = ring.sequence(), b = paged.sequence();
    expect_same_rows(ring.feed(a, ids, 64), paged.feed(b, ids, 50), "window 300");
}

TEST(attention, batch_equals_each_alone) {
    for (const WorldShape& shape : law_shapes()) {
        OpContext op(3), single(1);
        AttentionWorld together(op, shape, 1), alone(single, shape, 2);
        const size_t prefixes[] = {0, 3, 255, 256, 300}, rows[] = {5, 1, 2, 40, 1};
        std::vector<WorldSequence> sequences;
        std::vector<WorldSequence*> pointers;
        std::vector<std::vector<FedToken>> fed;
        Rows expected;
        for (size_t s = 0; s < 5; ++s) {
            const std::vector<uint64_t> ids = token_ids(prefixes[s] + rows[s], 10 + s);
            const std::vector<uint64_t> prefix(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(prefixes[s]));
            sequences.push_back(together.sequence());
            together.feed(sequences.back(), prefix, 100);
            fed.emplace_back();
            for (size_t i = 0; i < rows[s]; ++i)
                fed.back().push_back({ids[prefixes[s] + i], static_cast<int32_t>(i) - 1});
            WorldSequence own = alone.sequence();
            const Rows all = alone.feed(own, ids, 33);
            expected.insert(expected.end(), all.begin() + static_cast<ptrdiff_t>(prefixes[s]), all.end());
        }
        for (WorldSequence& s : sequences) pointers.push_back(&s);
        expect_same_rows(together.step(pointers, fed), expected, label(shape));
    }
}

TEST(attention, tree_rows_equal_chains) {
    std::mt19937_64 rng(5);
    for (const WorldShape& shape : law_shapes())
        for (const size_t committed : {0, 40, 250, 256, 330}) {
            OpContext op(3), single(1);
            AttentionWorld world(op, shape, 1);
            const std::vector<uint64_t> prefix = token_ids(committed, 20);
            WorldSequence s = world.sequence();
            world.feed(s, prefix, 100);
            std::vector<FedToken> tree;
            const int32_t nodes = static_cast<int32_t>(1 + rng() % 30);
            for (int32_t i = 0; i < nodes; ++i)  // deep and wide ones, several roots
                tree.push_back({rng() % 1000003, rng() % 3 == 0
                                                     ? i - 1
                                                     : static_cast<int32_t>(rng() % static_cast<uint64_t>(i + 1)) - 1});
            const Rows rows = world.step({&s}, {tree});
            for (int32_t node = 0; node < nodes; node += 1 + static_cast<int32_t>(rng() % 4)) {
                std::vector<uint64_t> ids;
                for (int32_t i = node; i >= 0; i = tree[static_cast<size_t>(i)].parent)
                    ids.push_back(tree[static_cast<size_t>(i)].id);
                ids.insert(ids.end(), prefix.rbegin(), prefix.rend());
                std::reverse(ids.begin(), ids.end());
                AttentionWorld chain_world(single, shape, 2);
                WorldSequence chain = chain_world.sequence();
                const Rows plain = chain_world.feed(chain, ids, 100);
                expect_same_rows({rows[static_cast<size_t>(node)]}, {plain.back()},
                                 label(shape) + fmt::format(", {} committed, node {}", committed, node));
                if (testing::Test::HasFatalFailure()) return;
            }
        }
}

TEST(attention, a_tree_beside_chains_changes_neither) {
    OpContext op(3);
    AttentionWorld world(op, {}, 1), alone(op, {}, 2);
    const std::vector<FedToken> tree{{1, -1}, {2, 0}, {3, 0}, {4, -1}}, chain{{5, -1}, {6, 0}};
    const std::vector<uint64_t> prefix = token_ids(70, 30);
    WorldSequence a = world.sequence(), b = world.sequence(), c = alone.sequence(), d = alone.sequence();
    for (WorldSequence* s : {&a, &b}) world.feed(*s, prefix, 32);
    for (WorldSequence* s : {&c, &d}) alone.feed(*s, prefix, 32);
    Rows expected = alone.step({&c}, {tree});
    for (std::vector<float>& row : alone.step({&d}, {chain})) expected.push_back(std::move(row));
    expect_same_rows(world.step({&a, &b}, {tree, chain}), expected, "tree and chain");
}

/// With q = 0 all visible keys weigh the same; V rows one-hot by token id show which they were.
TEST(attention, sees_exactly_the_committed_window_the_ancestors_and_itself) {
    const int64_t d = 64;
    for (const int32_t window : {0, 4, 9}) {
        OpContext op;
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
        world.feed(s, token_ids(20, 1), 20);
        const std::vector<FedToken> tree{{0, -1}, {0, 0}, {0, 0}, {0, 2}, {0, -1}, {0, 4}, {0, 1}};
        world.step({&s}, {tree});
        std::vector<float> one_hot(static_cast<size_t>(d));
        const auto mark = [&](int64_t index) {
            one_hot.assign(one_hot.size(), 0.0f);
            one_hot[static_cast<size_t>(index)] = 1.0f;
            encode_kv_row(DType::f32, one_hot.data(),
                          const_cast<char*>(world.view.v_row(world.view.slot(world.batch, 0, index), 0)), d);
        };
        for (int64_t index = 0; index < 27; ++index) mark(index);
        std::fill_n(world.query.row(0), world.query.elements(), 0.0f);
        const Tensor o = ops::attention(op.ctx, world.query, world.view, world.batch, 1.0f);
        for (size_t r = 0; r < tree.size(); ++r) {
            std::vector<int64_t> seen;
            for (int32_t i = static_cast<int32_t>(r); i >= 0; i = tree[static_cast<size_t>(i)].parent)
                seen.push_back(20 + i);
            for (int64_t i = 19; i >= 0; --i) seen.push_back(i);
            if (window > 0) seen.resize(static_cast<size_t>(window));
            std::vector<float> expected(static_cast<size_t>(d));
            for (const int64_t i : seen) expected[static_cast<size_t>(i)] = 1.0f / static_cast<float>(seen.size());
            for (size_t i = 0; i < expected.size(); ++i)
                EXPECT_NEAR(o.row(static_cast<int64_t>(r))[i], expected[i], 2 * kUnitF32)
                    << "window " << window << " row " << r << " key " << i;
        }
    }
}

/// Largest norms of the queries and the stored keys, and the largest stored |v|: what the error bound is made of.
double bound_of(const AttentionWorld& world, int64_t keys, double key_norm, double query_norm, double largest_v) {
    const auto d = static_cast<double>(world.view.head_dim);
    // Random-walk rounding of a dot product and its scale; it moves every weight by at most twice that, relative. Then
    // exp (2 ulp), the sums over up to 256 keys and their merging.
    const double score = kUnitF32 * (std::sqrt(d / 16 + 5) + 1) * world.scale() * key_norm * query_norm;
    return largest_v * (2 * score + kUnitF32 * (8 + 3 * std::sqrt(static_cast<double>(std::min<int64_t>(keys, 256)))));
}

void expect_within_bound(const WorldShape& shape, size_t committed, size_t rows, std::vector<double>& shares) {
    OpContext op;
    AttentionWorld world(op, shape, 1);
    WorldSequence s = world.sequence();
    world.feed(s, token_ids(committed, 40), 64);
    std::vector<FedToken> tree;
    for (size_t i = 0; i < rows; ++i)
        tree.push_back({i, static_cast<int32_t>(i) - 1 - static_cast<int32_t>(i % 3 == 2)});
    world.step({&s}, {tree});
    std::vector<double> expected(static_cast<size_t>(world.out.elements()));
    ops::attention_ref<double>(world.query.row(0), shape.heads, world.view, world.batch, world.scale(),
                               expected.data());
    double key = 0, query = 0, largest_v = 0;
    std::vector<float> row(static_cast<size_t>(shape.head_dim));
    const auto norm = [&](const float* x) { return std::sqrt(std::inner_product(x, x + shape.head_dim, x, 0.0)); };
    const auto keys = static_cast<int64_t>(committed + rows);
    for (int64_t i = shape.window > 0 ? keys - std::min<int64_t>(keys, shape.window) : 0; i < keys; ++i)
        for (int64_t h = 0; h < shape.kv_heads; ++h) {
            const int64_t slot = world.view.slot(world.batch, 0, i);
            decode_kv_row(shape.k_dtype, world.view.k_row(slot, h), row.data(), shape.head_dim);
            key = std::max(key, norm(row.data()));
            decode_kv_row(shape.v_dtype, world.view.v_row(slot, h), row.data(), shape.head_dim);
            if (kv_rotated(shape.v_dtype)) kv_unrotate(row.data(), shape.head_dim);
            for (const float v : row) largest_v = std::max(largest_v, std::abs(double{v}));
        }
    for (int64_t i = 0; i < world.query.elements(); i += shape.head_dim)
        query = std::max(query, norm(world.query.row(0) + i));
    double allowed = bound_of(world, keys, key, query, largest_v);
    // Rotations add log2(128) butterflies to the query, to the output, and to each of the reference's values.
    if (kv_rotated(shape.k_dtype) || kv_rotated(shape.v_dtype))
        allowed += largest_v * kUnitF32 * 8 * (1 + world.scale() * key * query);
    BoundCheck check;
    for (size_t i = 0; i < expected.size(); ++i) check.add(world.out.row(0)[i], expected[i], allowed);
    EXPECT_LE(check.worst(), 1.0) << label(shape) << ", " << committed << " committed";
    shares.push_back(check.worst());
}

TEST(attention, stays_within_the_bound_of_the_double_reference) {
    std::vector<double> shares;
    const DType types[] = {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::q8_0, DType::q4_0, DType::tq3_0};
    for (const int64_t group : {1, 3, 6, 8, 9})
        for (const int64_t d : {24, 40, 64, 128})
            for (const DType type : types) {
                if (d % dtype_info(type).block_elements != 0) continue;
                for (const int32_t window : {0, 50})
                    expect_within_bound({.heads = 2 * group,
                                         .kv_heads = 2,
                                         .head_dim = d,
                                         .k_dtype = type,
                                         .v_dtype = type,
                                         .window = window,
                                         .capacity = 32,
                                         .key_scale = 3.0f},
                                        280, 19, shares);
            }
    EXPECT_GE(*std::max_element(shares.begin(), shares.end()), 0.02) << "the bound is too loose";
}

TEST(attention, huge_and_equal_scores_stay_finite) {
    std::vector<double> shares;
    expect_within_bound({.k_dtype = DType::f32, .v_dtype = DType::f32, .key_scale = 3000.0f}, 280, 3, shares);
    expect_within_bound({.k_dtype = DType::f32, .v_dtype = DType::f32, .key_scale = 0.0f}, 280, 3, shares);
}

TEST(attention, a_long_context_cut_over_threads_equals_one_thread) {
    // Two tiles of 72 heads: too few for six threads, so pieces run apart, and five fill the buffer: two rounds.
    const WorldShape shape{.heads = 72, .kv_heads = 8, .head_dim = 64, .page_rows = 64, .capacity = 40};
    OpContext many(6), one(1);
    AttentionWorld a(many, shape, 1), b(one, shape, 2);
    WorldSequence s = a.sequence(), t = b.sequence();
    std::vector<uint64_t> ids = token_ids(2400, 50);
    a.feed(s, ids, 800);
    b.feed(t, ids, 800);
    ids = token_ids(32, 51);
    expect_same_rows(a.feed(s, ids, 32), b.feed(t, ids, 1), "2400 keys");
}

TEST(attention, instruction_sets_agree_bit_for_bit) {
    const ops::AttentionKernels* base = ops::attention_kernels("base");
    ASSERT_NE(base, nullptr);
    for (const char* name : {"avx2", "avx512"}) {
        const ops::AttentionKernels* other = ops::attention_kernels(name);
        if (other == nullptr) continue;
        for (const int64_t dp : {16, 32, 48, 64, 112, 128, 256}) {
            const auto size = static_cast<size_t>(dp);
            constexpr int64_t n = 7;  // whole groups of queries and some over
            alignas(64) static float q[n * 256], k[64 * 256], s[2][n * 256], state[2][n * 272], merged[2][272];
            std::ranges::copy(normals(n * size, 1), q);
            std::ranges::copy(normals(64 * size, 2, 4.0f), k);
            const ops::AttentionKernels* sets[] = {base, other};
            for (size_t i = 0; i < 2; ++i) {
                std::fill_n(merged[i], 272, 0.0f);
                sets[i]->scores(q, n, k, 64, dp, 0.3f, s[i] + 64);
                for (int64_t r = 0; r < n; ++r)
                    sets[i]->softmax(s[i] + r * 256, 67, 121, dp, state[i] + r * ops::attention_state_floats(dp));
                sets[i]->accumulate(s[i] + 67, n, k, 54, dp, state[i]);
                for (int64_t r = 0; r < n; ++r)
                    sets[i]->merge(merged[i], state[i] + r * ops::attention_state_floats(dp), dp);
            }
            for (int64_t r = 0; r < n; ++r) {
                EXPECT_TRUE(same_bits(s[0] + r * 256 + 67, s[1] + r * 256 + 67, 54)) << name << " " << dp;
                const int64_t at = r * ops::attention_state_floats(dp);
                EXPECT_TRUE(same_bits(state[0] + at, state[1] + at, size + 2)) << name << " " << dp;
            }
            EXPECT_TRUE(same_bits(merged[0], merged[1], size + 2)) << name << " " << dp;
            EXPECT_GT(merged[0][dp + 1], 1.0f);
        }
    }
}

TEST(attention, fast_f16_decoding_is_exact) {
    std::vector<uint16_t> all(65536);
    std::iota(all.begin(), all.end(), uint16_t{0});
    std::vector<float> expected(65536), found(65536);
    decode_kv_row(DType::f16, all.data(), expected.data(), 65536);
    for (const char* name : {"base", "avx2", "avx512"}) {
        const ops::AttentionKernels* kernels = ops::attention_kernels(name);
        if (kernels == nullptr || kernels->decode_f16 == nullptr) continue;
        for (size_t begin = 0; begin < all.size(); begin += 37)
            kernels->decode_f16(&all[begin], &found[begin],
                                static_cast<int64_t>(std::min<size_t>(37, all.size() - begin)));
        for (size_t i = 0; i < all.size(); ++i)
            ASSERT_TRUE(same_bits(&found[i], &expected[i], 1) || (std::isnan(found[i]) && std::isnan(expected[i])))
                << name << " " << i;
    }
}

TEST(attention, equals_itself_when_run_twice) {
    OpContext op(3);
    AttentionWorld world(op, {}, 1);
    WorldSequence s = world.sequence();
    const std::vector<FedToken> tree{{1, -1}, {2, 0}, {3, 0}};
    const Rows first = world.step({&s}, {tree});
    expect_same_rows(world.step({&s}, {tree}), first, "again");
}

TEST(attention, an_empty_step_gives_no_rows) {
    OpContext op;
    AttentionWorld world(op, {}, 1);
    EXPECT_TRUE(world.step({}, {}).empty());
}

}  // namespace
}  // namespace riptide
