// Decode attention on a GPU: how work is cut, and the kernel of plain decoding against that of trees and drafts. The
// laws that all kernels keep are in attention_test.cpp and gated_attention_test.cpp.
#include <bit>
#include <numeric>

#include "ops/cuda/device/key_chunks.h"
#include "ops/gated_attention.h"
#include "quant/act_rows.h"
#include "quant/kv_codec.h"
#include "tests/ops/attention_world.h"

namespace riptide {
namespace {

TEST(attention_work, chunks_hold_every_visible_key_once) {
    for (const int window : {0, 1, 5, 128, 129, 512, 5000})
        for (const int position : {0,    1,    126,  127,  128,   129,   510,   511,    512,    513,    2047,
                                   2048, 4095, 4096, 8192, 16383, 16384, 32768, 131071, 262143, 1000000}) {
            const int count = ops::visible_keys(position, window), chunks = ops::chunk_count(count);
            EXPECT_EQ(count, window == 0 ? position + 1 : std::min(position + 1, window));
            int next = position + 1 - count;
            for (int chunk = 0; chunk < chunks; ++chunk) {
                const ops::KeyChunk c = ops::key_chunk(position, window, chunk);
                EXPECT_EQ(c.first, next);
                EXPECT_GE(c.keys, 1);
                EXPECT_EQ(c.last, chunk == chunks - 1) << position << " " << window;
                next += c.keys;
            }
            EXPECT_EQ(next, position + 1);
            for (const int64_t capacity : {int64_t{count}, int64_t{count} + 1, int64_t{count} * 3})
                EXPECT_LE(chunks, ops::most_chunks(capacity)) << position << " " << window;
            EXPECT_LE(chunks, 32);
        }
}

TEST(attention_work, a_step_takes_every_key_once) {
    std::vector<int> keys;
    for (int t = 0; t < 4; ++t)
        for (int j = 0; j < 4; ++j) keys.push_back(ops::value_key(t, j));
    std::ranges::sort(keys);
    for (int i = 0; i < 16; ++i) EXPECT_EQ(keys[static_cast<size_t>(i)], i);
}

TEST(attention_work, slots_are_those_of_the_view) {
    const std::vector<int32_t> pages{5, 2, 9, 7, 1, 3}, slots{4, 2};
    KvView paged, ring;
    paged.page_rows = 24;
    ring.window = 7;
    ring.ring_rows = 50;
    Batch batch;
    batch.page_table = pages;
    batch.max_pages = 3;
    batch.state_slot = slots;
    for (const KvView& view : {paged, ring}) {
        ops::KeyPlaces places{};
        places.page_table = pages.data();
        places.state_slot = slots.data();
        places.max_pages = 3;
        places.page_rows = view.page_rows;
        places.window = view.window;
        places.ring_rows = view.ring_rows;
        for (int s = 0; s < 2; ++s)
            for (int i = 0; i < 72; ++i) EXPECT_EQ(places.slot(s, places.ring_begin(s), i), view.slot(batch, s, i));
    }
}

WorldShape decode_shape(int64_t group, DType k, DType v, int32_t window = 0) {
    return {.heads = 2 * group,
            .kv_heads = 2,
            .head_dim = 128,
            .k_dtype = k,
            .v_dtype = v,
            .window = window,
            .page_rows = 64,
            .ring_rows = window == 0 ? 0 : (window + 320) / 64 * 64,
            .capacity = window == 0 ? 70 : 6};
}

/// A layer's attention over a world: projections are a function of the token.
class AttentionLayer {
  public:
    AttentionLayer(const WorldShape& shape, uint64_t seed)
        : op(Family::decode), world(op, shape, seed), shape_(shape) {}

    Rows step(const std::vector<WorldSequence*>& sequences, const std::vector<std::vector<FedToken>>& fed) {
        world.place(sequences, fed);  // makes the batch; what it stores is overwritten
        ops::AttentionInput in;
        std::vector<float> q, k, v, gate;
        const auto add = [](std::vector<float>& to, int64_t count, uint64_t seed) {
            const std::vector<float> x = normals(static_cast<size_t>(count), seed);
            to.insert(to.end(), x.begin(), x.end());
        };
        for (const std::vector<FedToken>& tokens : fed)
            for (const FedToken& token : tokens) {
                add(q, shape_.heads * shape_.head_dim, token.id * 5);
                add(k, shape_.kv_heads * shape_.head_dim, token.id * 5 + 1);
                add(v, shape_.kv_heads * shape_.head_dim, token.id * 5 + 2);
                add(gate, shape_.heads, token.id * 5 + 3);
            }
        const int64_t n = world.batch.rows();
        in.q = op.tensor(q, {n, shape_.heads, shape_.head_dim});
        in.k = op.tensor(k, {n, shape_.kv_heads, shape_.head_dim});
        in.v = op.tensor(v, {n, shape_.kv_heads, shape_.head_dim});
        in.gate = op.tensor(gate, {n, shape_.heads});
        in.q_norm = {op.floats(normals(shape_.head_dim, 1)), 1e-6f};
        in.k_norm = {op.floats(normals(shape_.head_dim, 2)), 1e-6f};
        in.rope = &rope_;
        in.softmax_scale = world.scale();
        out = ops::gated_attention(op.ctx, in, world.view, world.device_batch);
        return AttentionWorld::rows_of(out);
    }

    /// As AttentionWorld::fill(): the K and V that the layer's own steps would leave, or others.
    void fill(WorldSequence& s, const std::vector<uint64_t>& ids, size_t chunk) {
        if (brief_counts()) world.fill(s, ids, chunk);
        else feed(s, ids, chunk);
    }
    Rows feed(WorldSequence& s, const std::vector<uint64_t>& ids, size_t chunk) {
        Rows rows;
        const size_t skip = brief_skip(ids.size(), 20);
        if (skip > 0) fill(s, {ids.begin(), ids.begin() + static_cast<ptrdiff_t>(skip)}, chunk);
        for (size_t begin = skip, count; begin < ids.size(); begin += count) {
            count = step_of(ids.size(), begin, chunk, world.room());
            std::vector<FedToken> fed;
            for (size_t i = 0; i < count; ++i) fed.push_back({ids[begin + i], static_cast<int32_t>(i) - 1});
            for (std::vector<float>& row : step({&s}, {fed})) rows.push_back(std::move(row));
            s.committed += static_cast<int32_t>(count);
        }
        return rows;
    }

    OpContext op;
    AttentionWorld world;
    Tensor out;

  private:
    WorldShape shape_;
    ops::Rope rope_ = ops::make_yarn_rope(500000, 64, 32, 4096, 64, 1, 1.3466);
};

/// The compiled pairs of types, and one that is not.
std::vector<std::pair<DType, DType>> type_pairs() {
    return brief<std::pair<DType, DType>>({{DType::f16, DType::f16},
                                           {DType::bf16, DType::bf16},
                                           {DType::f8_e4m3, DType::f8_e4m3},
                                           {DType::q8_0, DType::q8_0},
                                           {DType::q4_0, DType::q4_0},
                                           {DType::tq3_0, DType::tq3_0},
                                           {DType::q8_0, DType::q4_0},
                                           {DType::f8_e4m3, DType::q4_0}},
                                          2);
}

TEST(decode_attention, drafted_rows_equal_plain_decoding) {
    RT_GPU_ONLY();
    for (const auto& [k, v] : type_pairs())
        for (const int32_t window : {0, 512})
            for (const size_t start : brief<size_t>({120, 0, 505, 4091}, 1)) {
                if (window == 0 && start == 505) continue;
                const std::vector<uint64_t> ids = token_ids(start + 12, 7);
                const std::vector<uint64_t> prefix(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(start)),
                    next(ids.begin() + static_cast<ptrdiff_t>(start), ids.end());
                AttentionLayer plain(decode_shape(6, k, v, window), 1), draft(decode_shape(6, k, v, window), 2);
                WorldSequence a = plain.world.sequence(), b = draft.world.sequence();
                plain.fill(a, prefix, 256);
                draft.fill(b, prefix, 200);
                expect_same_rows(draft.feed(b, next, next.size()), plain.feed(a, next, 1),
                                 fmt::format("{}/{}, window {}, from {}", dtype_name(k), dtype_name(v), window, start));
            }
}

// Up to eight rows: K and V of the step's own rows are made by whoever needs them.
TEST(decode_attention, a_few_drafted_rows_and_trees_equal_plain_decoding) {
    RT_GPU_ONLY();
    const std::vector<int32_t> parents{-1, 0, 0, 2, 1, -1, 3, 6};
    const std::vector<std::pair<DType, DType>> types{{DType::f8_e4m3, DType::f8_e4m3},
                                                     {DType::q8_0, DType::q4_0},
                                                     {DType::f16, DType::f16},
                                                     {DType::tq3_0, DType::tq3_0}};
    for (const auto& [k, v] : brief(types, 1))
        for (const int32_t window : brief<int32_t>({512, 0}, 1))
            for (const size_t start : brief<size_t>({125, 0, size_t(window == 0 ? 4092 : 509)}, 1)) {
                const std::string what =
                    fmt::format("{}/{}, window {}, from {}", dtype_name(k), dtype_name(v), window, start);
                const std::vector<uint64_t> ids = token_ids(start + parents.size(), 7);
                const std::vector<uint64_t> prefix(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(start)),
                    next(ids.begin() + static_cast<ptrdiff_t>(start), ids.end());
                AttentionLayer plain(decode_shape(6, k, v, window), 1), draft(decode_shape(6, k, v, window), 2);
                WorldSequence a = plain.world.sequence(), b = draft.world.sequence();
                plain.fill(a, prefix, 256);
                draft.fill(b, prefix, 200);
                const auto alone = [&](const std::vector<uint64_t>& path) {
                    const Rows rows = plain.feed(a, path, 1);
                    a.committed = static_cast<int32_t>(start);
                    return rows;
                };
                const Rows chain = alone(next);
                for (const size_t rows : {2, 3, 8}) {
                    std::vector<FedToken> fed;
                    for (size_t i = 0; i < rows; ++i) fed.push_back({next[i], static_cast<int32_t>(i) - 1});
                    expect_same_rows(draft.step({&b}, {fed}), Rows(chain.begin(), chain.begin() + rows),
                                     fmt::format("{}, {} rows", what, rows));
                }
                std::vector<FedToken> tree;
                Rows expected;
                for (size_t i = 0; i < parents.size(); ++i) tree.push_back({next[i], parents[i]});
                const size_t step = fewer(1, 3), first = fewer(0, 1);
                for (size_t i = first; i < parents.size(); i += step) {
                    std::vector<uint64_t> path;
                    for (int32_t at = static_cast<int32_t>(i); at >= 0; at = parents[static_cast<size_t>(at)])
                        path.insert(path.begin(), next[static_cast<size_t>(at)]);
                    expected.push_back(alone(path).back());
                }
                const Rows rows = draft.step({&b}, {tree});
                Rows judged;
                for (size_t i = first; i < rows.size(); i += step) judged.push_back(rows[i]);
                expect_same_rows(judged, expected, what + ", tree");
                // K and V are where plain decoding leaves them.
                draft.feed(b, next, 4);
                plain.feed(a, next, 1);
                expect_same_rows(draft.step({&b}, {{{1, -1}, {2, 0}}}), plain.feed(a, {1, 2}, 1),
                                 what + ", behind eight rows");
            }
}

TEST(decode_attention, a_row_is_the_same_in_any_company) {
    RT_GPU_ONLY();
    // Several rows: a warp takes a chunk; one row: a CTA does.
    for (const int32_t window : {0, 512}) {
        AttentionLayer many(decode_shape(8, DType::f8_e4m3, DType::f8_e4m3, window), 1),
            one(decode_shape(8, DType::f8_e4m3, DType::f8_e4m3, window), 2);
        WorldSequence a = many.world.sequence(), b = many.world.sequence(), c = one.world.sequence();
        const std::vector<uint64_t> ids = token_ids(fewer(1301, 700), 9), other = token_ids(fewer(300, 150), 10);
        const std::vector<uint64_t> prefix(ids.begin(), ids.end() - 1);
        many.fill(a, prefix, 256);
        many.fill(b, other, 256);
        one.fill(c, prefix, 100);
        const Rows alone = one.step({&c}, {{{ids.back(), -1}}});
        for (const int32_t extra : brief<int32_t>({1, 3, 9, 7, 200, 69}, 3)) {
            std::vector<FedToken> fed;
            for (int32_t i = 0; i < extra; ++i) fed.push_back({static_cast<uint64_t>(i), i % 5 == 4 ? i / 2 : i - 1});
            const Rows before = many.step({&a, &b}, {{{ids.back(), -1}}, fed});
            expect_same_rows({before.front()}, alone, fmt::format("in front of {} rows, window {}", extra, window));
            const Rows behind = many.step({&b, &a}, {fed, {{ids.back(), -1}}});
            expect_same_rows({behind.back()}, alone, fmt::format("behind {} rows, window {}", extra, window));
        }
        expect_same_rows(many.step({&a, &b}, {{{ids.back(), -1}}, {{3, -1}}}),
                         many.step({&a, &b}, {{{ids.back(), -1}}, {{3, -1}}}), "again");
        expect_same_rows({many.step({&b, &a}, {{{3, -1}}, {{ids.back(), -1}}}).back()}, alone, "two sequences");
    }
}

TEST(decode_attention, short_and_long_rows_share_a_step) {
    RT_GPU_ONLY();
    for (const auto& [k, v] : type_pairs())
        for (const int32_t window : {0, 512}) {
            WorldShape shape = decode_shape(6, k, v, window);
            shape.capacity = window == 0 ? 190 : 8;
            AttentionLayer layer(shape, 1);
            // Around one and two rounds of chunks, and behind the last length that makes chunks of 128 keys.
            std::vector<WorldSequence> sequences;
            std::vector<WorldSequence*> pointers;
            std::vector<std::vector<FedToken>> fed;
            for (const size_t committed : brief<size_t>({0, 127, 511, 1023, 1024, 4095, 4096}, 3)) {
                sequences.push_back(layer.world.sequence());
                layer.fill(sequences.back(), token_ids(committed, 21 + committed), 256);
                fed.push_back({{committed + 5, -1}});
            }
            Rows alone;
            for (size_t i = 0; i < sequences.size(); ++i) {
                alone.push_back(layer.step({&sequences[i]}, {fed[i]}).front());
                pointers.push_back(&sequences[i]);
            }
            expect_same_rows(layer.step(pointers, fed), alone,
                             fmt::format("{}/{}, window {}", dtype_name(k), dtype_name(v), window));
        }
}

TEST(decode_attention, many_long_rows_equal_few) {
    RT_GPU_ONLY();
    // 140 rows of two KV heads: more than there are CTAs, so each takes all chunks of a row; 7 rows: a chunk.
    for (const DType type : brief<DType>({DType::f8_e4m3, DType::q8_0, DType::f16}, 1)) {
        AttentionLayer many(decode_shape(6, type, type), 1), few(decode_shape(6, type, type), 2);
        WorldSequence a = many.world.sequence(), b = few.world.sequence();
        const std::vector<uint64_t> prefix = token_ids(fewer(4300, 1100), 31), next = token_ids(fewer(140, 40), 32);
        many.fill(a, prefix, 256);
        few.fill(b, prefix, 200);
        expect_same_rows(many.feed(a, next, next.size()), few.feed(b, next, 7), dtype_name(type));
    }
}

/// Heads of 256: chunks of 512 keys, tiles of 64.
WorldShape wide_shape(int64_t group, DType k, DType v) {
    WorldShape shape = decode_shape(group, k, v);
    shape.head_dim = 256;
    return shape;
}

TEST(decode_attention, heads_of_256_drafted_rows_equal_plain_decoding) {
    RT_GPU_ONLY();
    for (const auto& [k, v] : brief(type_pairs(), 1))
        for (const size_t start : brief<size_t>({530, 0, 57, 505, 1030}, 1)) {
            const std::vector<uint64_t> ids = token_ids(start + 18, 7);
            const std::vector<uint64_t> prefix(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(start)),
                next(ids.begin() + static_cast<ptrdiff_t>(start), ids.end());
            const WorldShape shape = wide_shape(start == 505 ? 8 : 6, k, v);
            AttentionLayer plain(shape, 1), draft(shape, 2);
            WorldSequence a = plain.world.sequence(), b = draft.world.sequence();
            plain.fill(a, prefix, 256);
            draft.fill(b, prefix, 200);
            const Rows expected = plain.feed(a, next, 1);
            const std::string what = fmt::format("{}/{}, from {}", dtype_name(k), dtype_name(v), start);
            for (const size_t chunk : fewer<std::vector<size_t>>({18, 5, 2}, {18, 5})) {
                expect_same_rows(draft.feed(b, next, chunk), expected, what + fmt::format(", {} at once", chunk));
                b.committed = static_cast<int32_t>(start);
            }
        }
}

TEST(decode_attention, one_row_of_heads_of_256_over_many_chunks_equals_several) {
    RT_GPU_ONLY();  // eight KV heads: few clusters for each, so that one takes several chunks
    struct Case {
        int64_t group;
        DType type;
        size_t start;
    };
    for (const auto& [group, type, start] : fewer<std::vector<Case>>(
             {{3, DType::q8_0, 4606}, {2, DType::f8_e4m3, 4300}, {8, DType::q8_0, 510}, {1, DType::f8_e4m3, 1022}},
             {{3, DType::q8_0, 1022}})) {
        WorldShape shape = wide_shape(group, type, type);
        shape.kv_heads = 8;
        shape.heads = 8 * group;
        shape.capacity = 74;
        AttentionLayer one(shape, 1), many(shape, 2);
        WorldSequence a = one.world.sequence(), b = many.world.sequence();
        const std::vector<uint64_t> prefix = token_ids(start, 36), next = token_ids(4, 37);
        one.world.fill(a, prefix, 256);
        many.world.fill(b, prefix, 200);
        expect_same_rows(one.feed(a, next, 1), many.feed(b, next, 4),
                         fmt::format("{}, {} heads, from {}", dtype_name(type), shape.heads, start));
    }
}

TEST(decode_attention, heads_of_256_in_steps_of_each_kernel) {
    RT_GPU_ONLY();  // one row, up to 5, up to 16: small enough for a race checker
    AttentionLayer layer(wide_shape(6, DType::q8_0, DType::q8_0), 1);
    WorldSequence s = layer.world.sequence();
    layer.fill(s, token_ids(560, 35), 256);
    std::vector<FedToken> tree;
    for (int32_t i = 0; i < 16; ++i) tree.push_back({static_cast<uint64_t>(i), i % 5 == 4 ? i / 2 : i - 1});
    const Rows all = layer.step({&s}, {tree});
    for (const size_t rows : {1, 4})
        expect_same_rows(layer.step({&s}, {{tree.begin(), tree.begin() + static_cast<ptrdiff_t>(rows)}}),
                         {all.begin(), all.begin() + static_cast<ptrdiff_t>(rows)}, fmt::format("{} rows", rows));
}

TEST(decode_attention, heads_of_256_are_the_same_in_any_company) {
    RT_GPU_ONLY();
    for (const DType type : brief<DType>({DType::q8_0, DType::f16}, 1)) {
        AttentionLayer many(wide_shape(6, type, type), 1), one(wide_shape(6, type, type), 2);
        WorldSequence a = many.world.sequence(), b = many.world.sequence(), c = one.world.sequence();
        const std::vector<uint64_t> ids = token_ids(fewer(1301, 530), 9), other = token_ids(fewer(700, 100), 10);
        const std::vector<uint64_t> prefix(ids.begin(), ids.end() - 1);
        many.fill(a, prefix, 256);
        many.fill(b, other, 256);
        one.fill(c, prefix, 100);
        const Rows alone = one.step({&c}, {{{ids.back(), -1}}});
        for (const int32_t extra : fewer<std::vector<int32_t>>({1, 9, 40, 200}, {1, 17})) {
            std::vector<FedToken> fed;  // a tree
            for (int32_t i = 0; i < extra; ++i) fed.push_back({static_cast<uint64_t>(i), i % 5 == 4 ? i / 2 : i - 1});
            const Rows before = many.step({&a, &b}, {{{ids.back(), -1}}, fed});
            expect_same_rows({before.front()}, alone, fmt::format("in front of {} rows", extra));
            const Rows behind = many.step({&b, &a}, {fed, {{ids.back(), -1}}});
            expect_same_rows({behind.back()}, alone, fmt::format("behind {} rows", extra));
            fed.insert(fed.begin(), {ids.back(), -1});  // rows of its own sequence, each a child of the committed token
            for (size_t i = 1; i < fed.size(); ++i) fed[i].parent = -1;
            expect_same_rows({many.step({&a}, {fed}).front()}, alone, fmt::format("beside {} rows", extra));
        }
        expect_same_rows(many.step({&a, &b}, {{{ids.back(), -1}}, {{3, -1}}}),
                         many.step({&a, &b}, {{{ids.back(), -1}}, {{3, -1}}}), "again");
        expect_same_rows({many.step({&b, &a}, {{{3, -1}}, {{ids.back(), -1}}}).back()}, alone, "two sequences");
    }
}

TEST(decode_attention, many_long_rows_of_heads_of_256_equal_few) {
    RT_GPU_ONLY();
    const WorldShape wide = wide_shape(6, DType::q8_0, DType::q8_0);
    AttentionLayer many(wide, 1), few(wide, 2);
    WorldSequence a = many.world.sequence(), b = few.world.sequence();
    const std::vector<uint64_t> prefix = token_ids(fewer(2040, 1030), 33), next = token_ids(fewer(140, 40), 34);
    many.fill(a, prefix, 256);
    few.fill(b, prefix, 200);
    expect_same_rows(many.feed(a, next, next.size()), few.feed(b, next, 7), "heads of 256");
}

TEST(decode_attention, ring_wraps_change_nothing) {
    RT_GPU_ONLY();
    WorldShape tight = decode_shape(8, DType::f16, DType::f16, 512), wide = tight;
    tight.ring_rows = 528;
    wide.ring_rows = 2000;
    wide.capacity = tight.capacity = 1;
    AttentionLayer a(tight, 1), b(wide, 2);
    WorldSequence s = a.world.sequence(), t = b.world.sequence();
    const std::vector<uint64_t> ids = token_ids(fewer(1090, 590), 11);
    const std::vector<uint64_t> prefix(ids.begin(), ids.end() - fewer(50, 5)),
        rest(ids.end() - fewer(50, 5), ids.end());
    expect_same_rows(a.feed(s, prefix, 17), b.feed(t, prefix, 256), "chunks of 17");
    expect_same_rows(a.feed(s, rest, 1), b.feed(t, rest, 50), "one by one");
}

TEST(decode_attention, int8_rows_are_the_float_rows) {
    RT_GPU_ONLY();
    for (const int64_t d_group : {6, 9}) {  // both kernels
        AttentionLayer layer(decode_shape(d_group, DType::q8_0, DType::q8_0), 1);
        WorldSequence s = layer.world.sequence();
        const Rows rows = layer.feed(s, token_ids(fewer(200, 40), 12), 200);
        const int64_t cols = layer.out.row_elements(), bytes = ActRow::bytes(cols);
        ASSERT_NE(layer.out.int8, nullptr);
        std::vector<int8_t> all(static_cast<size_t>(bytes * layer.out.rows()));
        layer.op.ctx.gpu->to_host(all.data(), layer.out.int8, std::ssize(all));
        for (size_t r = 0; r < rows.size(); ++r) {
            const ActRow row{all.data() + static_cast<int64_t>(r) * bytes, cols};
            for (int64_t g = 0; g < cols / 32; ++g) {
                const float* x = &rows[r][static_cast<size_t>(32 * g)];
                float most = 0, sum = 0;
                for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(x[i]));
                for (int i = 0; i < 32; ++i) {
                    const float code = std::nearbyint(x[i] * (127.0f / most));
                    EXPECT_EQ(static_cast<float>(row.half(g, i / 16)[i % 16]), code) << "row " << r << " group " << g;
                    sum += code;
                }
                EXPECT_EQ(row.scale_and_sum(g)[0], most / 127.0f);
                EXPECT_EQ(row.scale_and_sum(g)[1], sum);
            }
        }
    }
}

}  // namespace
}  // namespace riptide
