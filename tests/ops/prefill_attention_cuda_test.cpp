// The tensor-core kernels of prefill attention: tiles, windows, fragments, types. The laws that all kernels keep are in
// attention_test.cpp.

#include "ops/attention.h"
#include "ops/cuda/attention/prefill_layout.h"
#include "quant/kv_codec.h"
#include "tests/ops/attention_world.h"

namespace riptide {
namespace {

using ops::cuda::prefill::image_offset;
using ops::cuda::prefill::kTile;
using ops::cuda::prefill::query_offset;

std::string label(const WorldShape& s) {
    return fmt::format("{}/{} heads of {}, {}/{}, window {}", s.heads, s.kv_heads, s.head_dim, dtype_name(s.k_dtype),
                       dtype_name(s.v_dtype), s.window);
}

std::vector<FedToken> chain_with(const std::vector<uint64_t>& ids) {
    std::vector<FedToken> fed;
    for (size_t i = 0; i < ids.size(); ++i) fed.push_back({ids[i], static_cast<int32_t>(i) - 1});
    return fed;
}

WorldShape prefill_shape(int64_t group, int64_t d, DType k, DType v, int32_t window, int32_t ring = 0) {
    return {.heads = 2 * group,
            .kv_heads = 2,
            .head_dim = d,
            .k_dtype = k,
            .v_dtype = v,
            .window = window,
            .page_rows = 64,
            .ring_rows = ring,
            .capacity = window > 0 ? 2 : 40,
            .key_scale = 3.0f};  // softmax chooses few keys: errors of scores show
}

TEST(prefill_attention, layouts_are_permutations) {
    for (const int d : {64, 128}) {
        std::vector<int> seen(static_cast<size_t>(kTile * d));
        for (int key = 0; key < kTile; ++key)
            for (int e = 0; e < d; ++e) {
                const int at = image_offset(key, e);
                ASSERT_TRUE(at >= 0 && at < kTile * d);
                ++seen[static_cast<size_t>(at)];
                // Eight keys read at one column meet eight different groups of four banks.
                if (key % 8 != 0) {
                    ASSERT_NE(at / 8 % 8, image_offset(key - 1, e) / 8 % 8);
                }
            }
        EXPECT_EQ(std::ranges::count(seen, 1), kTile * d);
        for (int row = 0; row < 2; ++row) {
            std::vector<int> places(static_cast<size_t>(d));
            for (int e = 0; e < d; ++e) ++places.at(static_cast<size_t>(query_offset(row, e)));
            EXPECT_EQ(std::ranges::count(places, 1), d);
        }
    }
}

/// Keys of `unit` that are rounded again on their way to the tensor cores.
double second_rounding(DType stored, bool bf16, double unit) {
    const bool exact = bf16 || stored == DType::f16 || stored == DType::f8_e4m3;
    return exact ? 0.0 : unit;
}

/// Error over the largest |v|. A score is off by the roundings of q and k to 16 bits, which add up like a random walk
/// over d columns (4 / sqrt(d) of the worst case is seven standard deviations), and by f32 sums that tensor cores
/// truncate; that moves each weight by at most twice as much, relative. Then roundings of weights and v, f32 sums, 2^x.
double prefill_error(const WorldShape& shape, double scale, double largest_dot, int64_t keys) {
    const bool bf16 = shape.k_dtype == DType::bf16 && shape.v_dtype == DType::bf16;
    const double unit = bf16 ? 0x1p-8 : 0x1p-11, walk = 4 / std::sqrt(static_cast<double>(shape.head_dim));
    const double f32 = static_cast<double>(shape.head_dim) * 0x1p-23 + 0x1p-21;
    const double score = scale * largest_dot * (walk * (unit + second_rounding(shape.k_dtype, bf16, unit)) + f32);
    const double smallest =
        bf16 ? 0.0 : static_cast<double>(std::min<int64_t>(keys, 2048)) * 0x1p-25;  // f16 subnormals
    return 2 * score + unit + second_rounding(shape.v_dtype, bf16, unit) + smallest + 0x1p-18;
}

/// Feeds `committed` tokens in chunks of 128, then `rows` more, and judges these. Returns the share of the bound used.
double share_of_bound(const WorldShape& shape, size_t committed, size_t rows) {
    OpContext op(Family::prefill);
    AttentionWorld world(op, shape, 1);
    WorldSequence s = world.sequence();
    world.fill(s, token_ids(committed, 40), 128);
    world.step({&s}, {chain_with(token_ids(rows, 41))});
    const KvView stored = world.host_view();
    const std::vector<float> q = values_of(world.query), out = values_of(world.out);
    std::vector<double> expected(out.size());
    ops::attention_ref<double>(q.data(), shape.heads, stored, world.batch, world.scale(), expected.data());
    const auto keys = static_cast<int64_t>(committed + rows);
    const auto [query, key, largest_v] = magnitudes(world, shape, committed, rows, q);
    const double allowed = largest_v * prefill_error(shape, world.scale(), key * query, keys);
    BoundCheck check;
    for (size_t i = 0; i < expected.size(); ++i) check.add(out[i], expected[i], allowed);
    EXPECT_LE(check.worst(), 1.0) << label(shape) << ", " << committed << " committed, " << rows << " rows";
    return check.worst();
}

TEST(prefill_attention, stays_within_the_bound_of_the_double_reference) {
    RT_GPU_ONLY();
    const DType types[] = {DType::f16, DType::bf16, DType::f8_e4m3, DType::q8_0, DType::q4_0, DType::tq3_0};
    double most = 0;
    for (const int64_t d : {64, 128})
        for (const DType type : types)
            for (const int32_t window : {0, 512}) {
                const int64_t group = type == DType::f16 ? 6 : type == DType::bf16 ? 8 : type == DType::q8_0 ? 1 : 2;
                if (brief_counts() && (window == 0) != (static_cast<int>(type) % 2 == 0)) continue;
                // The ring wraps; the last tile of rows and of keys is not full.
                most = std::max(most, share_of_bound(prefill_shape(group, d, type, type, window, 511 + 140),
                                                     fewer<size_t>(600, window == 0 ? 200 : 600), 140));
            }
    EXPECT_GE(most, 0.02) << "the bound is too loose";
}

TEST(prefill_attention, mixed_types_and_generic_shapes_stay_within_the_bound) {
    RT_GPU_ONLY();
    share_of_bound(prefill_shape(3, 128, DType::q8_0, DType::q4_0, 0), 200, 70);
    share_of_bound(prefill_shape(2, 128, DType::bf16, DType::f8_e4m3, 130, 400), 300, 70);
    share_of_bound(prefill_shape(2, 128, DType::f32, DType::f16, 0), 200, 70);
    share_of_bound(prefill_shape(3, 96, DType::tq3_0, DType::q8_0, 0), 130, 40);
    share_of_bound(prefill_shape(1, 256, DType::f16, DType::f16, 90, 200), 130, 40);
    share_of_bound(prefill_shape(6, 256, DType::q8_0, DType::q8_0, 0), 300, 133);
    share_of_bound(prefill_shape(2, 256, DType::bf16, DType::bf16, 0), 100, 70);
    share_of_bound(prefill_shape(5, 24, DType::bf16, DType::f16, 0), 130, 40);
}

TEST(prefill_attention, window_edges_fall_anywhere_in_a_tile) {
    RT_GPU_ONLY();
    for (const int32_t window : brief<int32_t>({1, 2, 127, 128, 129, 300}, 3))
        for (const size_t committed : brief<size_t>({0, 1, 127, 128, 200}, 3))
            share_of_bound(prefill_shape(1, 64, DType::f16, DType::f16, window, window + 200), committed, 133);
}

TEST(prefill_attention, a_row_does_not_depend_on_the_chunking) {
    RT_GPU_ONLY();
    const std::vector<WorldShape> shapes = {
        prefill_shape(6, 128, DType::f16, DType::f16, 0),
        prefill_shape(fewer(8, 4), 128, DType::bf16, DType::bf16, 512, 511 + 129),
        prefill_shape(2, 64, DType::tq3_0, DType::q4_0, 0),
        prefill_shape(fewer(6, 3), 256, DType::q8_0, DType::q8_0, 0),
        prefill_shape(1, 128, DType::f8_e4m3, DType::q8_0, 200, 199 + 129),
        prefill_shape(2, 40, DType::f32, DType::f32, 200, 199 + 129),
    };
    for (const WorldShape& shape : brief(shapes, 4)) {
        const size_t n = shape.window == 512 ? 720 : fewer(420, 300);
        const std::vector<uint64_t> ids = token_ids(n, 7);
        OpContext op(Family::prefill), other(Family::prefill);
        WorldShape wide = shape;
        if (wide.window > 0) wide.ring_rows = static_cast<int32_t>(n) + wide.window;
        AttentionWorld world(op, wide, 1);
        WorldSequence s = world.sequence();
        const Rows whole = world.feed(s, ids, n);
        for (const size_t chunk : fewer<std::vector<size_t>>({1, 7, 64, 128, 129}, {1, 64})) {
            AttentionWorld cut(other, shape, 2);
            WorldSequence t = cut.sequence();
            expect_same_rows(cut.feed(t, ids, chunk), whole, label(shape) + fmt::format(", chunks of {}", chunk));
            if (::testing::Test::HasFatalFailure()) return;
        }
    }
}

TEST(prefill_attention, sequences_of_a_step_do_not_meet) {
    RT_GPU_ONLY();
    for (const int32_t window : brief<int32_t>({150, 0}, 1)) {
        const WorldShape shape = [&] {
            WorldShape w = prefill_shape(4, 128, DType::f16, DType::f16, window, 149 + 300);
            w.capacity = window > 0 ? 40 : 200;
            return w;
        }();
        OpContext op(Family::prefill), single(Family::prefill);
        AttentionWorld together(op, shape, 1), alone(single, shape, 2);
        std::vector<WorldSequence> sequences;
        std::vector<std::vector<FedToken>> fed;
        Rows expected;
        std::vector<size_t> judged;
        size_t row = 0;
        for (size_t i = 0; i < 36; ++i) {  // more than a warp counts at once
            const size_t prefix = i == 3 ? 300 : i * 5 % 17, rows = i == 7 ? fewer<size_t>(270, 70) : 1 + i * 11 % 5;
            const std::vector<uint64_t> before = token_ids(prefix, 100 + i), now = token_ids(rows, 200 + i);
            sequences.push_back(together.sequence());
            together.fill(sequences.back(), before, 200);
            fed.push_back(chain_with(now));
            row += rows;
            if (brief_counts() && i % 8 != 3 && i != 7) continue;
            for (size_t r = row - rows; r < row; ++r) judged.push_back(r);
            WorldSequence own = alone.sequence();
            alone.fill(own, before, 100);
            const Rows out = alone.feed(own, now, 150);
            expected.insert(expected.end(), out.begin(), out.end());
        }
        std::vector<WorldSequence*> pointers;
        for (WorldSequence& s : sequences) pointers.push_back(&s);
        const Rows all = together.step(pointers, fed);
        Rows some;
        for (const size_t r : judged) some.push_back(all[r]);
        expect_same_rows(some, expected, label(shape));
    }
}

/// More query tiles than the chip has multiprocessors, many key tiles: rings turn, blocks take several tiles.
TEST(prefill_attention, many_tiles_equal_the_cpu) {
    RT_GPU_ONLY();
    for (const int32_t window : {0, 512}) {
        const int64_t group = fewer(24, 4);
        const size_t before = fewer(1100, 500), rows = fewer(900, 300);
        WorldShape shape = prefill_shape(group, 128, DType::f16, DType::f16, window, 511 + 900);
        OpContext op(Family::prefill), cpu(4, int64_t{4} << 20, nullptr);
        AttentionWorld world(op, shape, 1);
        WorldSequence s = world.sequence();
        world.fill(s, token_ids(before, 60), 900);
        world.step({&s}, {chain_with(token_ids(rows, 61))});
        const KvView stored = world.host_view();
        const std::vector<float> q = values_of(world.query), out = values_of(world.out);
        const Tensor query = cpu.tensor(q, {static_cast<int64_t>(rows), shape.heads, shape.head_dim});
        const Tensor expected = ops::attention(cpu.ctx, query, stored, world.batch, world.scale());
        // |q||k| is near d for normal values; 1.6 covers the largest of these draws.
        const double allowed = 6.0 * prefill_error(shape, world.scale(), 3 * 1.6 * 128, 2000);  // |v| < 6
        BoundCheck check;
        for (size_t i = 0; i < out.size(); ++i) check.add(out[i], expected.row(0)[i], allowed);
        EXPECT_LE(check.worst(), 1.0) << label(shape);
    }
}

TEST(prefill_attention, equals_itself_when_run_twice) {
    RT_GPU_ONLY();
    const WorldShape shape = prefill_shape(6, 128, DType::f16, DType::f16, 0);
    OpContext op(Family::prefill);
    AttentionWorld world(op, shape, 1);
    WorldSequence s = world.sequence();
    world.fill(s, token_ids(500, 8), 500);
    const std::vector<FedToken> fed = chain_with(token_ids(300, 9));
    const Rows first = world.step({&s}, {fed});
    for (int i = 0; i < fewer(5, 1); ++i) expect_same_rows(world.step({&s}, {fed}), first, "again");
}

TEST(prefill_attention, all_families_refuse_heads_that_are_too_wide) {
    RT_GPU_ONLY();
    for (const Family family : test_families()) {
        OpContext op(family);
        AttentionWorld world(op, prefill_shape(1, 288, DType::f16, DType::f16, 0), 1);
        WorldSequence s = world.sequence();
        EXPECT_THROW(world.step({&s}, {chain_with(token_ids(3, 1))}), Error) << family_name(family);  // kv_append
        EXPECT_THROW(ops::attention(op.ctx, world.query, world.view, world.device_batch, world.scale()), Error)
            << family_name(family);
    }
}

}  // namespace
}  // namespace riptide
