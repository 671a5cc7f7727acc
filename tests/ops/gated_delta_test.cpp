#include "ops/gated_delta.h"

#include "ops/delta_schedule.h"
#include "quant/act_rows.h"
#include "tests/ops/delta_world.h"

namespace riptide {
namespace {

using ops::delta_follows;
using ops::DeltaMode;

std::vector<DeltaShape> delta_shapes() {
    std::vector<DeltaShape> all;
    // Odd sizes; then gates that forget nothing, forget all, take nothing, take all.
    all.push_back({});
    all.push_back({.key_dim = 16, .value_dim = 24, .heads = DeltaHeads::tiled});
    all.push_back({.key_heads = 3, .value_heads = 3, .key_dim = 20, .value_dim = 7, .conv_width = 3});
    all.push_back({.key_heads = 1, .value_heads = 3, .key_dim = 64, .value_dim = 40, .conv_width = 1});
    all.push_back({.key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 128, .conv_width = 2});
    all.push_back({.key_heads = 1, .value_heads = 2, .key_dim = 256, .value_dim = 22});
    all.push_back({.decay = 1e-7f, .gate = 20.0f});
    all.push_back({.decay = 40.0f, .gate = 20.0f});
    return brief(std::move(all), 3);
}

std::vector<DeltaShape> real_shapes() {
    if (brief_counts())  // a head is a CTA's
        return {{.key_heads = 2, .value_heads = 6, .key_dim = 128, .value_dim = 128, .slots = 3},
                {.key_heads = 2, .value_heads = 2, .key_dim = 128, .value_dim = 128, .slots = 3}};
    return {{.key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128, .slots = 3},
            {.key_heads = 16, .value_heads = 16, .key_dim = 128, .value_dim = 128, .slots = 3}};
}

void expect_same_outputs(const DeltaRowsOut& a, const DeltaRowsOut& b, const std::string& what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t r = 0; r < a.size(); ++r) {
        expect_same_bits(a[r], b[r], fmt::format("{}, row {}", what, r).c_str());
        ASSERT_TRUE(std::all_of(a[r].begin(), a[r].end(), [](float x) { return std::isfinite(x); })) << what;
    }
}

std::vector<float> flat_rows(const DeltaRowsOut& rows) {
    std::vector<float> flat;
    for (const std::vector<float>& row : rows) flat.insert(flat.end(), row.begin(), row.end());
    return flat;
}

TEST(gated_delta, chunks_of_any_size_leave_the_same_rows_and_state) {
    for (const Family family : test_families())
        for (const DeltaShape& shape : delta_shapes()) {
            OpContext op;
            op.ctx.family = family;
            DeltaWorld world(op, shape, 1);
            const std::vector<uint64_t> ids = delta_ids(fewer(150, 40), 2);
            DeltaSequence whole = world.sequence();
            const DeltaRowsOut expected = world.feed(whole, ids, ids.size());
            const std::vector<float> state = world.slot_of(whole);
            for (const size_t chunk : brief<size_t>({1, 2, 3, 7, 17, 64}, 3)) {
                DeltaSequence s = world.sequence();
                const std::string what = fmt::format("{}, chunks of {}", shape_name(shape), chunk);
                expect_same_outputs(world.feed(s, ids, chunk), expected, what);
                expect_same_bits(world.slot_of(s), state, what.c_str());
                world.drop(s);
            }
        }
}

TEST(gated_delta, the_sizes_of_real_models_in_chunks_leave_the_same_rows_and_state) {
    for (const DeltaShape& shape : real_shapes()) {
        OpContext op(2, int64_t{16} << 20);
        DeltaWorld world(op, shape, 1);
        const std::vector<uint64_t> ids = delta_ids(fewer(40, 20), 2);
        DeltaSequence whole = world.sequence(), parts = world.sequence();
        const DeltaRowsOut expected = world.feed(whole, ids, ids.size());
        expect_same_outputs(world.feed(parts, ids, 1), expected, shape_name(shape));
        expect_same_bits(world.slot_of(parts), world.slot_of(whole), shape_name(shape).c_str());
    }
}

TEST(gated_delta, stash_writes_no_state_and_commit_makes_what_update_makes) {
    for (const DeltaShape& shape : delta_shapes())
        for (const size_t before : brief<size_t>({0, 1, 2, 3, 9}, 2)) {
            OpContext op;
            DeltaWorld world(op, shape, 3);
            DeltaSequence plain = world.sequence();
            world.feed(plain, delta_ids(before, 4), 5);
            DeltaSequence s = world.copy(plain);
            const std::vector<float> untouched = world.slot_of(s);
            const std::vector<uint64_t> ids = delta_ids(6, 5);
            const std::string what = fmt::format("{} behind {}", shape_name(shape), before);
            const DeltaRowsOut stashed = world.step({&s}, {delta_chain(ids)}, DeltaMode::stash);
            std::vector<float> now = world.slot_of(s);
            ASSERT_EQ(std::memcmp(now.data(), untouched.data(), 4 * now.size()), 0) << what;
            world.commit({&s}, {{0, 1, 2, 3}});
            const std::vector<float> stash = world.stash();
            const DeltaRowsOut rows = world.feed(plain, {ids.begin(), ids.begin() + 4}, 1);
            const std::vector<float> stash_after = world.stash();
            ASSERT_EQ(std::memcmp(stash.data(), stash_after.data(), 4 * stash.size()), 0) << "update wrote the stash";
            expect_same_outputs({stashed.begin(), stashed.begin() + 4}, rows, what);
            expect_same_bits(world.slot_of(s), world.slot_of(plain), what.c_str());
            now = world.slot_of(s);
            world.commit({&s}, {{}});
            expect_same_bits(world.slot_of(s), now, "an empty path");
        }
}

TEST(gated_delta, steps_that_follow_have_the_bits_of_steps_that_are_committed_one_by_one) {
    std::vector<DeltaShape> all = delta_shapes();
    for (const DeltaShape& shape : real_shapes()) all.push_back(shape);
    all.push_back({.key_heads = 1, .value_heads = 6, .key_dim = 96, .value_dim = 32, .heads = DeltaHeads::tiled});
    for (DeltaShape& shape : all)
        for (const size_t before : brief<size_t>({0, 1, 2, 3, 9}, 2)) {
            OpContext op(2, int64_t{16} << 20);
            shape.slots = 4;
            DeltaWorld world(op, shape, 3);
            if (!delta_follows(op.ctx.gpu, world.view)) continue;
            DeltaSequence a = world.sequence(), b = world.sequence();
            world.feed(a, delta_ids(before, 4), 5);
            world.feed(b, delta_ids(5, 6), 5);
            DeltaSequence plain_a = world.copy(a), plain_b = world.copy(b);
            const std::vector<uint64_t> ids = delta_ids(7, 5), others = delta_ids(7, 8);
            const std::string what = fmt::format("{} behind {}", shape_name(shape), before);
            std::vector<int32_t> held = {a.committed, b.committed};
            for (size_t i = 0; i < ids.size(); ++i) {
                const DeltaRowsOut rows =
                    world.step({&a, &b}, {{{ids[i], -1}}, {{others[i], -1}}}, DeltaMode::follow, held);
                if (plain_a.committed > 0) expect_same_bits(world.slot_of(a), world.slot_of(plain_a), what.c_str());
                const DeltaRowsOut expected_a = world.feed(plain_a, {ids[i]}, 1),
                                   expected_b = world.feed(plain_b, {others[i]}, 1);
                expect_same_outputs({rows[0]}, expected_a, what);
                expect_same_outputs({rows[1]}, expected_b, what);
                held = {a.committed++, b.committed++};
            }
            const auto last = [](int64_t s, DeltaSequence& of) {
                return std::vector{static_cast<int32_t>(ops::delta_follow_row(s, --of.committed))};
            };
            const std::vector<int32_t> last_a = last(0, a), last_b = last(1, b);
            world.commit({&a, &b}, {last_a, last_b});
            expect_same_bits(world.slot_of(a), world.slot_of(plain_a), what.c_str());
            expect_same_bits(world.slot_of(b), world.slot_of(plain_b), what.c_str());
        }
}

TEST(gated_delta, a_node_of_a_tree_has_the_bits_of_its_path_fed_alone) {
    std::mt19937_64 rng(6);
    for (const DeltaShape& shape : delta_shapes())
        for (const auto& [n, deep] :
             brief<std::pair<size_t, double>>({{2, 0.0}, {5, 0.3}, {23, 0.6}, {64, 0.0}, {40, 0.9}}, 3)) {
            OpContext op;
            DeltaWorld world(op, shape, 7);
            DeltaSequence s = world.sequence();
            world.feed(s, delta_ids(rng() % 6, 8), 3);
            const std::vector<DeltaToken> tree = delta_tree(n, deep, rng);
            const DeltaRowsOut rows = world.step({&s}, {tree}, DeltaMode::stash);
            for (const int32_t node : {static_cast<int32_t>(n) - 1, static_cast<int32_t>(rng() % n)}) {
                DeltaSequence plain = world.copy(s);
                std::vector<uint64_t> ids;
                DeltaRowsOut nodes;
                for (const int32_t i : delta_path(tree, node)) {
                    ids.push_back(tree[static_cast<size_t>(i)].id);
                    nodes.push_back(rows[static_cast<size_t>(i)]);
                }
                const std::string what = fmt::format("{}, {} nodes, path to {}", shape_name(shape), n, node);
                expect_same_outputs(nodes, world.feed(plain, ids, 1), what);
                world.drop(plain);
            }
        }
}

TEST(gated_delta, committing_random_trees_for_long_is_plain_decoding) {
    for (const DeltaShape& shape : delta_shapes()) {
        OpContext op;
        DeltaWorld world(op, shape, 9);
        std::mt19937_64 rng(10);
        DeltaSequence a = world.sequence(), b = world.sequence(), plain_a = world.sequence(),
                      plain_b = world.sequence();
        const int rounds = full_counts() ? 1500 : fewer(30, 2);  // 10,500 trees over all shapes
        for (int round = 0; round < rounds; ++round) {
            const std::vector<DeltaToken> tree = delta_tree(1 + rng() % 24, 0.5, rng);
            const auto seed = rng();
            const std::vector<DeltaToken> chain = delta_chain(delta_ids(1 + rng() % 5, seed));
            const DeltaRowsOut rows = world.step({&a, &b}, {tree, chain}, DeltaMode::stash);
            const auto first_b = static_cast<int32_t>(tree.size());
            const std::vector<int32_t> path_a = delta_path(tree, static_cast<int32_t>(rng() % tree.size()));
            std::vector<int32_t> path_b;
            for (int32_t i = 0; i < static_cast<int32_t>(rng() % (chain.size() + 1)); ++i)
                path_b.push_back(first_b + i);
            world.commit({&a, &b}, {path_a, path_b});
            std::vector<uint64_t> ids_a, ids_b;
            DeltaRowsOut rows_a;
            for (const int32_t i : path_a) {
                ids_a.push_back(tree[static_cast<size_t>(i)].id);
                rows_a.push_back(rows[static_cast<size_t>(i)]);
            }
            for (const int32_t i : path_b) ids_b.push_back(chain[static_cast<size_t>(i - first_b)].id);
            const std::string what = fmt::format("{}, round {}", shape_name(shape), round);
            expect_same_outputs(rows_a, world.feed(plain_a, ids_a, 1), what);
            world.feed(plain_b, ids_b, 1);
            ASSERT_EQ(a.committed, plain_a.committed);
            expect_same_bits(world.slot_of(a), world.slot_of(plain_a), what.c_str());
            if (b.committed > 0) expect_same_bits(world.slot_of(b), world.slot_of(plain_b), what.c_str());
        }
    }
}

TEST(gated_delta, rows_do_not_depend_on_their_company_or_on_threads) {
    for (const DeltaShape& shape : delta_shapes()) {
        std::vector<float> first;
        for (const int threads : thread_counts()) {
            OpContext op(threads);
            DeltaWorld world(op, shape, 11);
            std::vector<DeltaSequence> together(fewer<size_t>(5, 3)), alone(together.size());
            std::vector<DeltaSequence*> all;
            std::vector<std::vector<DeltaToken>> fed;
            for (size_t s = 0; s < together.size(); ++s) {
                together[s] = world.sequence();
                world.feed(together[s], delta_ids(s * s, 12 + s), 4);
                alone[s] = world.copy(together[s]);
                all.push_back(&together[s]);
                fed.push_back(delta_chain(delta_ids(1 + (s * 7) % 5, 20 + s)));
            }
            for (const DeltaMode mode : {DeltaMode::stash, DeltaMode::update}) {
                DeltaRowsOut rows;
                for (size_t s = 0; s < alone.size(); ++s)
                    for (std::vector<float>& row : world.step({&alone[s]}, {fed[s]}, mode))
                        rows.push_back(std::move(row));
                const DeltaRowsOut shared = world.step(all, fed, mode);
                expect_same_outputs(shared, rows, shape_name(shape));
                const std::vector<float> flat = flat_rows(shared);
                if (first.empty()) first = flat;
                expect_same_bits(flat, first, "threads");
            }
            for (size_t s = 0; s < alone.size(); ++s)
                expect_same_bits(world.slot_of(together[s]), world.slot_of(alone[s]), shape_name(shape).c_str());
        }
    }
}

TEST(gated_delta, one_row_of_each_sequence_is_a_step_like_any_other) {
    OpContext op;
    DeltaWorld world(op, {.key_heads = 2, .value_heads = 6}, 13);
    DeltaSequence a = world.sequence(), b = world.sequence(), lone = world.sequence();
    const std::vector<uint64_t> ids = delta_ids(9, 14), others = delta_ids(9, 15);
    const DeltaRowsOut expected = world.feed(lone, ids, 9);
    for (size_t i = 0; i < ids.size(); ++i) {
        const DeltaRowsOut rows = world.step({&b, &a}, {{{others[i], -1}}, {{ids[i], -1}}}, DeltaMode::update);
        expect_same_outputs({rows[1]}, {expected[i]}, "beside another sequence");
    }
    expect_same_bits(world.slot_of(a), world.slot_of(lone), "state");
}

TEST(gated_delta, rows_of_few_heads_and_of_many_have_the_same_bits) {
    // On a GPU a head has several CTAs where there are at most half as many heads as multiprocessors.
    for (const int64_t dim : brief<int64_t>({128, 96, 64, 32}, 2)) {
        OpContext op(2, int64_t{16} << 20);
        const int64_t keys = brief_counts() ? 2 : 16;
        DeltaWorld world(op, {.key_heads = keys, .value_heads = 3 * keys, .key_dim = dim, .value_dim = dim, .slots = 6},
                         18);
        std::vector<DeltaSequence> together, alone;
        for (int s = 0; s < 3; ++s) together.push_back(world.sequence()), alone.push_back(world.sequence());
        for (uint64_t i = 0; i < 5; ++i) {
            const DeltaRowsOut rows = world.step({&together[0], &together[1], &together[2]},
                                                 {{{i, -1}}, {{10 + i, -1}}, {{20 + i, -1}}}, DeltaMode::update);
            for (size_t s = 0; s < 3; ++s)
                expect_same_outputs({rows[s]}, world.feed(alone[s], {10 * s + i}, 1),
                                    fmt::format("{}, row {}", dim, s));
        }
        for (size_t s = 0; s < 3; ++s)
            expect_same_bits(world.slot_of(together[s]), world.slot_of(alone[s]), fmt::format("{}", dim).c_str());
    }
}

TEST(gated_delta, steps_of_few_heads_and_of_many_have_the_same_bits) {
    // On a GPU lanes have two columns of a state where heads are few, four where they are many.
    std::mt19937_64 rng(22);
    for (const bool trees : {false, true}) {
        OpContext op(2, int64_t{16} << 20);
        const int64_t keys = brief_counts() ? 2 : 16;
        DeltaWorld world(op, {.key_heads = keys, .value_heads = 3 * keys, .key_dim = 128, .value_dim = 128, .slots = 6},
                         23);
        std::vector<DeltaSequence> together, alone;
        std::vector<std::vector<DeltaToken>> fed;
        for (uint64_t s = 0; s < 3; ++s) {
            together.push_back(world.sequence());
            world.feed(together[s], delta_ids(3, 24 + s), 3);
            alone.push_back(world.copy(together[s]));
            fed.push_back(trees ? delta_tree(19, 0.5, rng) : delta_chain(delta_ids(16 + s, 27 + s)));
        }
        const DeltaMode mode = trees ? DeltaMode::stash : DeltaMode::update;
        DeltaRowsOut expected;
        for (size_t s = 0; s < 3; ++s)
            for (std::vector<float>& row : world.step({&alone[s]}, {fed[s]}, mode)) expected.push_back(std::move(row));
        expect_same_outputs(world.step({&together[0], &together[1], &together[2]}, fed, mode), expected,
                            trees ? "trees" : "chains");
        for (size_t s = 0; s < 3; ++s)
            expect_same_bits(world.slot_of(together[s]), world.slot_of(alone[s]), fmt::format("slot {}", s).c_str());
    }
}

TEST(gated_delta, few_rows_of_few_heads_have_the_bits_of_rows_fed_alone) {
    // On Hopper a step of up to 32 rows is one kernel, where a head's rows are at most four for each 16 columns of it.
    std::vector<DeltaShape> all = {
        {.key_heads = 2, .value_heads = 6, .key_dim = 128, .value_dim = 128},
        {.key_heads = 2, .value_heads = 4, .key_dim = 96, .value_dim = 112, .heads = DeltaHeads::tiled},
        {.key_heads = 1, .value_heads = 3, .key_dim = 64, .value_dim = 128},
        {.key_heads = 3, .value_heads = 3, .key_dim = 20, .value_dim = 64}};
    if (!brief_counts()) all.push_back({.key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128});
    std::mt19937_64 rng(31);
    for (DeltaShape& shape : all)
        for (const auto& [n, sequences, tree] : brief<std::tuple<size_t, size_t, bool>>({{2, 1, false},
                                                                                         {16, 1, false},
                                                                                         {13, 1, true},
                                                                                         {31, 1, true},
                                                                                         {32, 1, false},
                                                                                         {5, 3, true},
                                                                                         {9, 2, false}},
                                                                                        3)) {
            OpContext op(2, int64_t{16} << 20);
            shape.slots = 6;
            DeltaWorld world(op, shape, 32);
            const std::string what =
                fmt::format("{}, {} rows of {}{}", shape_name(shape), n, sequences, tree ? ", trees" : "");
            std::vector<DeltaSequence> all_of(sequences), plain(sequences);
            std::vector<DeltaSequence*> them;
            std::vector<std::vector<DeltaToken>> fed;
            for (size_t s = 0; s < sequences; ++s) {
                all_of[s] = world.sequence();
                world.feed(all_of[s], delta_ids((n + 2 * s) % 5, rng()), 3);  // also none
                plain[s] = world.copy(all_of[s]);
                them.push_back(&all_of[s]);
                // Not all sequences have rows.
                const size_t rows = s == 1 && sequences > 2 ? 0 : n;
                fed.push_back(tree && rows > 0 ? delta_tree(rows, 0.4, rng) : delta_chain(delta_ids(rows, rng())));
            }
            const DeltaRowsOut rows = world.step(them, fed, DeltaMode::stash);
            std::vector<std::vector<int32_t>> paths;
            size_t first = 0;
            for (size_t s = 0; s < sequences; ++s) {
                std::vector<int32_t> path;
                if (!fed[s].empty()) path = delta_path(fed[s], static_cast<int32_t>(rng() % fed[s].size()));
                DeltaRowsOut nodes;
                std::vector<uint64_t> ids;
                for (int32_t& i : path) {
                    ids.push_back(fed[s][static_cast<size_t>(i)].id);
                    i += static_cast<int32_t>(first);
                    nodes.push_back(rows[static_cast<size_t>(i)]);
                }
                expect_same_outputs(nodes, world.feed(plain[s], ids, 1), what);
                paths.push_back(path);
                first += fed[s].size();
            }
            world.commit(them, paths);
            for (size_t s = 0; s < sequences; ++s)
                if (all_of[s].committed > 0)
                    expect_same_bits(world.slot_of(all_of[s]), world.slot_of(plain[s]), what.c_str());
        }
}

TEST(gated_delta, rows_of_wider_matrices_are_the_same_rows) {
    OpContext op;
    DeltaWorld world(op, {}, 16);
    DeltaSequence s = world.sequence();
    const std::vector<uint64_t> ids = delta_ids(5, 17);
    const DeltaRowsOut expected = world.step({&s}, {delta_chain(ids)}, DeltaMode::stash);
    const Batch batch = op.batch(world.batch);
    op.poison();
    ops::GatedDeltaInput in = world.input(ids);
    for (Tensor* t_in : {&in.qkv, &in.z, &in.a, &in.b}) {
        const std::vector<float> narrow = values_of(*t_in);
        const int64_t width = t_in->shape[1];
        std::vector<float> wide(static_cast<size_t>(5 * (width + 3)), NAN);
        for (int64_t r = 0; r < 5; ++r) std::copy_n(narrow.begin() + r * width, width, wide.begin() + r * (width + 3));
        *t_in = op.tensor(wide, {5, width + 3});
        t_in->shape[1] = width;
    }
    const std::vector<float> rows = values_of(ops::gated_delta(op.ctx, in, world.view, batch, DeltaMode::stash));
    for (size_t r = 0; r < 5; ++r)
        EXPECT_TRUE(same_bits(&rows[r * expected[r].size()], expected[r].data(), expected[r].size())) << r;
}

TEST(gated_delta, int8_rows_are_the_float_rows) {
    RT_GPU_ONLY();
    for (const size_t rows : {1, 6, 40}) {  // each kernel
        OpContext op;
        DeltaWorld world(op, {.value_dim = 64}, 19);
        DeltaSequence s = world.sequence();
        world.feed(s, delta_ids(3, 20), 3);
        const std::vector<float> values =
            flat_rows(world.step({&s}, {delta_chain(delta_ids(rows, 21))}, DeltaMode::stash));
        const int64_t cols = world.out.row_elements(), bytes = ActRow::bytes(cols);
        ASSERT_NE(world.out.int8, nullptr);
        std::vector<int8_t> all(static_cast<size_t>(bytes) * rows);
        op.ctx.gpu->to_host(all.data(), world.out.int8, std::ssize(all));
        for (size_t r = 0; r < rows; ++r) {
            const ActRow row{all.data() + static_cast<int64_t>(r) * bytes, cols};
            for (int64_t g = 0; g < cols / 32; ++g) {
                const float* x = &values[r * static_cast<size_t>(cols) + static_cast<size_t>(32 * g)];
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

TEST(delta_schedule, visits_each_node_once_behind_its_parent_and_keeps_few_states) {
    std::mt19937_64 rng(18);
    for (int round = 0; round < 2000; ++round) {
        const auto n = static_cast<int32_t>(1 + rng() % 256);
        const std::vector<DeltaToken> tree =
            delta_tree(static_cast<size_t>(n), static_cast<double>(rng() % 10) / 10, rng);
        const auto parent = [&tree](int32_t i) { return tree[static_cast<size_t>(i)].parent; };
        std::vector<int32_t> numbers(4 * static_cast<size_t>(n + 1));
        std::vector<ops::DeltaVisit> visits(static_cast<size_t>(n), {-7, 0, 0});
        int32_t* at = numbers.data();
        const ops::DeltaSchedule<decltype(parent)> schedule{
            parent, n, at, at + n + 1, at + 2 * (n + 1), at + 3 * (n + 1), visits.data()};
        for (int32_t i = 0; i <= n; ++i) schedule.begin(i);
        for (int32_t i = 0; i < n; ++i) schedule.count(i, [](int32_t* to, int32_t x) { *to += x; });
        for (int32_t i = 0; i < n; ++i) schedule.choose(i, [](int32_t* to, int32_t x) { *to = std::max(*to, x); });
        for (int32_t i = 0; i < n; ++i) schedule.arrange(i);
        for (int32_t i = 0; i < n; ++i) schedule.place(i);
        std::vector<int32_t> kept(static_cast<size_t>(ops::delta_slots(n)), -2);  // whose state a slot has
        std::vector<bool> seen(static_cast<size_t>(n));
        int32_t at_hand = -1;
        if (schedule.saves_root()) kept.at(0) = -1;
        for (const ops::DeltaVisit& visit : visits) {
            ASSERT_GE(visit.node, 0);
            ASSERT_FALSE(seen[static_cast<size_t>(visit.node)]);
            seen[static_cast<size_t>(visit.node)] = true;
            if (visit.load >= 0) at_hand = kept.at(static_cast<size_t>(visit.load));
            ASSERT_EQ(at_hand, parent(visit.node)) << "node " << visit.node << " of " << n;
            at_hand = visit.node;
            if (visit.save >= 0) kept.at(static_cast<size_t>(visit.save)) = visit.node;
        }
    }
    EXPECT_EQ(ops::delta_slots(1), 0);
    EXPECT_EQ(ops::delta_slots(2), 1);
    EXPECT_EQ(ops::delta_slots(64), 5);
    EXPECT_EQ(ops::delta_slots(256), 7);
}

}  // namespace
}  // namespace riptide
