#include "ops/draft_round.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "ops/kv/kv_compact.h"
#include "tests/ops/attention_world.h"

namespace riptide {
namespace {

constexpr int32_t kMost = ops::kMostRoundRows;

/// The arrays of a round on the device that the tests run on, full of nonsense at first.
class RoundWorld {
  public:
    RoundWorld() : memory_(op.ctx.gpu, (8 * kMost + 32) * 4, "round") {
        if (op.ctx.gpu != nullptr) op.ctx.gpu->fill(memory_.data(), 0x5A, memory_.bytes());
        else std::memset(memory_.data(), 0x5A, static_cast<size_t>(memory_.bytes()));
        auto take = [next = reinterpret_cast<int32_t*>(memory_.data())](int64_t words) mutable {
            return std::exchange(next, next + words);
        };
        step = reinterpret_cast<int64_t*>(take(2));
        state.length = take(1), state.token = take(1), state.origin = take(1);
        state.committed = take(1), state.behind = take(1), state.kept = take(1);
        state.line = take(kMost), state.line_rows = kMost;
        state.block_tokens = take(kMost), state.path = take(kMost);
        state.rows = {take(kMost), take(kMost), take(kMost), reinterpret_cast<float*>(take(kMost)), take(1)};
        if (op.ctx.gpu != nullptr) pinned_ = PinnedMemory(*op.ctx.gpu, kRing * ops::RoundRing::kEntryWords * 8);
        else ring_ = DeviceMemory(nullptr, kRing * ops::RoundRing::kEntryWords * 8, "ring");
        entries = reinterpret_cast<uint64_t*>(op.ctx.gpu != nullptr ? pinned_.data() : ring_.data());
        std::fill_n(entries, kRing * ops::RoundRing::kEntryWords, 0);
    }
    template <class T>
    void set(T* at, const std::vector<T>& values) {
        const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
        if (op.ctx.gpu != nullptr) op.ctx.gpu->to_device(at, values.data(), bytes);
        else std::memcpy(at, values.data(), static_cast<size_t>(bytes));
    }
    template <class T>
    std::vector<T> get(const T* at, int64_t count) {
        std::vector<T> values(static_cast<size_t>(count));
        const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
        if (op.ctx.gpu != nullptr) op.ctx.gpu->to_host(values.data(), at, bytes);
        else std::memcpy(values.data(), at, static_cast<size_t>(bytes));
        return values;
    }

    static constexpr int64_t kRing = 3;
    OpContext op;
    ops::RoundState state;
    int64_t* step = nullptr;
    uint64_t* entries = nullptr;

  private:
    DeviceMemory memory_, ring_;
    PinnedMemory pinned_;
};

struct DraftedRows {
    std::vector<int32_t> tokens, positions, parents;
    std::vector<float> logprobs;
    int32_t count = 0;

    explicit DraftedRows(int32_t rows, int32_t position = 0)
        : tokens(static_cast<size_t>(rows), 9),
          positions(static_cast<size_t>(rows), position),
          parents(static_cast<size_t>(rows)),
          logprobs(static_cast<size_t>(rows)) {}
    ops::DraftRows view() { return {tokens.data(), positions.data(), parents.data(), logprobs.data(), &count}; }
};

TEST(begin_round, sets_what_depends_on_where_it_begins) {
    RoundWorld w;
    w.set(w.state.length, {77, 5, 70});  // token and origin lie behind it
    ops::begin_round(w.op.ctx, w.state);
    EXPECT_EQ(w.get(w.state.committed, 1)[0], 77);
    EXPECT_EQ(w.get(w.state.behind, 1)[0], 7);
    const std::vector<int32_t> line = w.get(w.state.line, kMost);
    for (int32_t i = 0; i < kMost; ++i) EXPECT_EQ(line[static_cast<size_t>(i)], 77 + i);
    EXPECT_EQ(w.get(w.state.block_tokens, 2), (std::vector<int32_t>{5, 0x5A5A5A5A}));
    EXPECT_EQ(w.get(w.state.rows.tokens, 1)[0], 5);
    EXPECT_EQ(w.get(w.state.rows.positions, 1)[0], 77);
    EXPECT_EQ(w.get(w.state.rows.parents, 1)[0], -1);
    EXPECT_EQ(w.get(w.state.rows.count, 1)[0], 1);
    EXPECT_EQ(w.get(w.state.length, 3), (std::vector<int32_t>{77, 5, 70}));
}

TEST(choice_logprobs, are_those_of_a_softmax_over_the_choices) {
    for (const int64_t k : {1, 2, 16, 32}) {
        OpContext op;
        constexpr int64_t kRows = 9;
        std::vector<float> values = normals(static_cast<size_t>(kRows * k), 1, 5.0f);
        for (int64_t r = 0; r < kRows; ++r)
            std::sort(values.begin() + r * k, values.begin() + (r + 1) * k, std::greater<>());
        ops::TopK best{k, {}, op.tensor(values, {kRows, k})};
        const std::vector<float> got = values_of(ops::choice_logprobs(op.ctx, best));
        for (int64_t r = 0; r < kRows; ++r) {
            double sum = 0;
            for (int64_t c = 0; c < k; ++c)
                sum += std::exp(double{values[static_cast<size_t>(r * k + c)]} -
                                double{values[static_cast<size_t>(r * k)]});
            for (int64_t c = 0; c < k; ++c) {
                const auto i = static_cast<size_t>(r * k + c);
                const double exact = double{values[i]} - double{values[static_cast<size_t>(r * k)]} - std::log(sum);
                EXPECT_LE(std::abs(got[i] - exact), 2 * kUnitF32 * std::abs(exact)) << k << " " << r << " " << c;
            }
        }
    }
}

/// What is promised of a tree, whoever made it.
void expect_tree(const DraftedRows& rows, const std::vector<int32_t>& indices, const std::vector<float>& logprobs,
                 int64_t k, const ops::DraftPlan& plan, const std::vector<int32_t>& words) {
    ASSERT_GE(rows.count, 1);
    ASSERT_LE(rows.count, plan.rows);
    std::set<std::pair<int32_t, int32_t>> seen;
    int64_t chain = 0;  // no longer than there are slots with a first choice
    while (chain < std::min(plan.chain, plan.slots) && chain * k < std::ssize(logprobs) &&
           !std::isnan(logprobs[static_cast<size_t>(chain * k)]))
        ++chain;
    for (int32_t i = 1; i < rows.count; ++i) {
        const auto at = static_cast<size_t>(i);
        const int32_t parent = rows.parents[at];
        ASSERT_TRUE(parent >= 0 && parent < i);
        ASSERT_EQ(rows.positions[at], rows.positions[static_cast<size_t>(parent)] + 1);
        ASSERT_TRUE(seen.emplace(parent, rows.tokens[at]).second) << "no draft twice";
        const int64_t slot = rows.positions[at] - rows.positions[0] - 1;
        ASSERT_LT(slot, plan.slots);
        if (i <= chain) {
            ASSERT_EQ(parent, i - 1);
        }
        bool found = false;
        for (int64_t c = 0; c < plan.choices; ++c) {
            const auto choice = static_cast<size_t>(slot * k + c);
            const int32_t word = indices[choice], token = words.empty() ? word : words[static_cast<size_t>(word)];
            found = found || (token == rows.tokens[at] && logprobs[choice] == rows.logprobs[at]);
        }
        ASSERT_TRUE(found);
    }
}

TEST(draft_rows, the_device_makes_the_tree_of_the_definition) {
    std::mt19937 random(4);
    std::vector<int32_t> words(5000);
    for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<int32_t>(3 * i + 1);
    for (int round = 0; round < fewer(60, 6); ++round) {
        const int64_t slots = 1 + random() % 20, k = 1 + random() % 16;
        std::vector<int32_t> indices;
        std::vector<float> logprobs;
        for (int64_t s = 0; s < slots; ++s) {
            float last = -0.01f * static_cast<float>(random() % 100);
            for (int64_t c = 0; c < k; ++c) {
                indices.push_back(static_cast<int32_t>(s * 37 + c * 101) % 5000);
                // Steps of 1/8 make many equals; some choices are none.
                last -=
                    round % 2 == 0 ? static_cast<float>(random() % 3) / 8 : static_cast<float>(random() % 1000) / 700;
                logprobs.push_back(round % 5 == 4 && random() % 7 == 0 ? std::nanf("") : last);
            }
        }
        for (const int32_t rows : {1, 2, 5, 17, 64}) {
            ops::DraftPlan plan;
            plan.rows = rows;
            plan.chain = static_cast<int32_t>(random() % static_cast<uint32_t>(rows));
            plan.slots = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(slots + 3));
            plan.choices = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(k));
            const std::vector<int32_t>& map = round % 3 == 0 ? std::vector<int32_t>() : words;
            DraftedRows expected(rows, 40);
            ops::draft_rows_ref(indices, logprobs, slots, k, map, plan, expected.view());
            expect_tree(expected, indices, logprobs, k, plan, map);
            RoundWorld w;
            w.set(w.state.rows.tokens, {9});
            w.set(w.state.rows.positions, {40});
            ops::draft_rows(w.op.ctx, w.op.int_tensor(indices, {slots, k}), w.op.tensor(logprobs, {slots, k}),
                            w.op.ints(map), plan, w.state.rows);
            ASSERT_EQ(w.get(w.state.rows.count, 1)[0], expected.count) << round << ", rows " << rows;
            ASSERT_EQ(w.get(w.state.rows.tokens, rows), expected.tokens) << round << ", rows " << rows;
            ASSERT_EQ(w.get(w.state.rows.positions, rows), expected.positions);
            ASSERT_EQ(w.get(w.state.rows.parents, rows), expected.parents);
            const std::vector<float> got = w.get(w.state.rows.logprobs, rows);
            ASSERT_TRUE(same_bits(got.data(), expected.logprobs.data(), got.size()));
        }
    }
}

TEST(draft_rows, no_other_tree_of_its_size_is_likelier) {
    std::mt19937 random(8);
    for (int round = 0; round < 20; ++round) {
        constexpr int64_t kSlots = 3, kChoices = 3;
        std::vector<int32_t> indices;
        std::vector<float> logprobs;
        for (int64_t s = 0; s < kSlots; ++s) {
            float last = 0;
            for (int32_t c = 0; c < kChoices; ++c) {
                indices.push_back(c);
                logprobs.push_back(last -= 0.05f + static_cast<float>(random() % 1000) / 500);
            }
        }
        std::vector<double> all;  // of every prefix
        const auto collect = [&](auto&& self, int64_t slot, double before) -> void {
            for (int64_t c = 0; slot < kSlots && c < kChoices; ++c) {
                const double way = before + double{logprobs[static_cast<size_t>(slot * kChoices + c)]};
                all.push_back(std::exp(way));
                self(self, slot + 1, way);
            }
        };
        collect(collect, 0, 0);
        std::sort(all.begin(), all.end(), std::greater<>());
        for (const int32_t rows : {2, 4, 9, 20, 39}) {  // of 39 prefixes at most 38
            DraftedRows tree(rows);
            ops::draft_rows_ref(indices, logprobs, kSlots, kChoices, {}, {rows, 0, kSlots, kChoices}, tree.view());
            std::vector<double> ways(static_cast<size_t>(rows), 0);
            double sum = 0, best = 0;
            for (size_t i = 1; i < static_cast<size_t>(rows); ++i) {
                ways[i] = ways[static_cast<size_t>(tree.parents[i])] + double{tree.logprobs[i]};
                sum += std::exp(ways[i]);
                best += all[i - 1];
            }
            EXPECT_NEAR(sum, best, 1e-12 * rows);
        }
    }
}

TEST(accept_rows, goes_where_what_was_drawn_was_drafted) {
    std::mt19937 random(6);
    const auto any = [&](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
    RoundWorld w;
    w.set(w.step, {int64_t{0}});
    int64_t longest = 0;
    for (int64_t round = 0; round < fewer(200, 30); ++round) {
        const int32_t n = 1 + any(kMost), used = n > 1 && round % 4 == 0 ? 1 + any(n) : n;
        DraftedRows rows(n);
        std::vector<int32_t> drawn;
        for (int32_t i = 0; i < n; ++i) {
            rows.parents[static_cast<size_t>(i)] = i == 0 ? -1 : round % 3 == 0 ? i - 1 : any(i);
            rows.tokens[static_cast<size_t>(i)] = any(round % 2 == 0 ? 2 : 6);  // also the same twice below a parent
            rows.logprobs[static_cast<size_t>(i)] = -0.5f * static_cast<float>(i);
            drawn.push_back(any(20) == 0 ? -1 : any(2));
        }
        std::vector<int32_t> path = {0};
        for (bool more = true; more;) {
            more = false;
            const int32_t row = path.back();
            for (int32_t c = row + 1; c < used && !more; ++c)
                if (rows.parents[static_cast<size_t>(c)] == row && drawn[static_cast<size_t>(row)] >= 0 &&
                    rows.tokens[static_cast<size_t>(c)] == drawn[static_cast<size_t>(row)])
                    path.push_back(c), more = true;
        }
        longest = std::max(longest, std::ssize(path));
        w.set(w.state.length, {100, 3, 90});
        w.set(w.state.rows.tokens, rows.tokens);
        w.set(w.state.rows.parents, rows.parents);
        w.set(w.state.rows.logprobs, rows.logprobs);
        w.set(w.state.rows.count, {used});
        ops::accept_rows(w.op.ctx, w.op.int_tensor(drawn, {n}), w.state, {w.entries, RoundWorld::kRing, w.step});
        const auto kept = static_cast<int32_t>(path.size());
        ASSERT_EQ(w.get(w.state.kept, 1)[0], kept);
        const int32_t next = std::max(0, drawn[static_cast<size_t>(path.back())]);
        ASSERT_EQ(w.get(w.state.length, 3), (std::vector<int32_t>{100 + kept, next, 90}));
        path.resize(kMost, 0);
        ASSERT_EQ(w.get(w.state.path, kMost), path);
        ASSERT_EQ(w.get(w.step, 1)[0], round + 1);
        for (int32_t i = 0; i < n; ++i) {
            const auto at = static_cast<size_t>(i);
            const uint64_t* const words =
                w.entries + round % RoundWorld::kRing * ops::RoundRing::kEntryWords + i * ops::RoundRing::kWords;
            const uint32_t expected[] = {static_cast<uint32_t>(drawn[at]), static_cast<uint32_t>(rows.tokens[at]),
                                         static_cast<uint32_t>((rows.parents[at] + 1) | kept << 8 | used << 16),
                                         std::bit_cast<uint32_t>(rows.logprobs[at])};
            for (int j = 0; j < 4; ++j)
                ASSERT_EQ(words[j], static_cast<uint64_t>(round + 1) << 32 | expected[j]) << i << " " << j;
        }
        w.op.poison();
    }
    EXPECT_GT(longest, 5);
}

TEST(store_rows, writes_its_rows_and_nothing_else) {
    for (const int64_t width : {1, 65, 300}) {
        OpContext op;
        const std::vector<float> x = normals(static_cast<size_t>(3 * width), 1),
                                 before = normals(static_cast<size_t>(10 * width), 2);
        Tensor out = op.tensor(before, {10, width});
        const std::vector<int32_t> at = {4};
        ops::store_rows(op.ctx, op.tensor(x, {3, width}), op.ints(at).data(), out);
        std::vector<float> expected = before;
        std::copy(x.begin(), x.end(), expected.begin() + 4 * width);
        expect_same_bits(values_of(out), expected, "rows");
    }
}

TEST(kv_compact, moves_what_moving_each_row_moves) {
    struct Types {
        DType k, v;
        int64_t head_dim;
    };
    enum class By { row, device, host };
    for (const Types& types : brief<Types>({{DType::f32, DType::f16, 64},
                                            {DType::q8_0, DType::q4_0, 128},
                                            {DType::q8_0, DType::q8_0, 32},
                                            {DType::f16, DType::f16, 6}},
                                           2))
        for (const int32_t window : {0, 7})
            for (const std::vector<int32_t>& path :
                 {std::vector<int32_t>{0, 1, 2},
                  {0, 2, 3, 7, 20},
                  {0},
                  {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 19, 21},
                  {0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21}}) {
                const auto kept = static_cast<int32_t>(path.size());
                const auto result = [&](By by) {
                    OpContext op;
                    AttentionWorld world(op,
                                         {.heads = 1,
                                          .kv_heads = 1,
                                          .head_dim = types.head_dim,
                                          .k_dtype = types.k,
                                          .v_dtype = types.v,
                                          .window = window,
                                          .page_rows = 4,
                                          .ring_rows = 32,
                                          .capacity = 16},
                                         3);
                    WorldSequence s = world.sequence();
                    if (window == 0)
                        for (const int32_t page : {7, 2, 11, 5, 0, 9, 14, 3}) s.pages.push_back(page);
                    s.committed = 5;
                    // What is stored need not be numbers: bytes that tell their place.
                    const int64_t slots = window > 0 ? 16 * 32 : 16 * 4;
                    std::vector<unsigned char> bytes(
                        static_cast<size_t>(slots * std::max(world.view.k_slot_bytes, world.view.v_slot_bytes)));
                    std::mt19937 random(9);
                    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
                    for (const auto& [base, size] : {std::pair(world.view.k, world.view.k_slot_bytes),
                                                     std::pair(world.view.v, world.view.v_slot_bytes)}) {
                        if (op.ctx.gpu != nullptr) op.ctx.gpu->to_device(base, bytes.data(), slots * size);
                        else std::memcpy(base, bytes.data(), static_cast<size_t>(slots * size));
                    }
                    Batch batch;
                    const std::vector<int32_t> committed = {5}, slot = {s.slot}, begin = {0, 22};
                    std::vector<int32_t> tokens(22, 0);
                    batch.tokens = tokens;
                    batch.row_begin = begin, batch.committed = committed, batch.state_slot = slot;
                    batch.page_table = s.pages;
                    batch.max_pages = static_cast<int32_t>(s.pages.size());
                    const Batch placed = op.batch(batch);
                    const KvView views[] = {KvView{}, world.view};
                    if (by == By::device) {
                        const std::vector<int32_t> count = {kept};
                        ops::kv_compact(op.ctx, views, placed, op.ints(path).data(), op.ints(count).data());
                    } else if (by == By::host) {
                        ops::kv_compact(op.ctx.gpu, views, {s.slot, s.pages, 5, path});
                    } else {
                        for (int32_t i = 0; i < kept; ++i)
                            ops::kv_move(op.ctx.gpu, world.view,
                                         world.view.slot(batch, 0, 5 + path[static_cast<size_t>(i)]),
                                         world.view.slot(batch, 0, 5 + i));
                    }
                    const KvView stored = world.host_view();
                    return std::string(static_cast<const char*>(stored.k),
                                       static_cast<size_t>(slots * stored.k_slot_bytes)) +
                           std::string(static_cast<const char*>(stored.v),
                                       static_cast<size_t>(slots * stored.v_slot_bytes));
                };
                const std::string expected = result(By::row), by_device = result(By::device),
                                  by_host = result(By::host);
                EXPECT_TRUE(expected == by_device && expected == by_host)
                    << dtype_name(types.k) << ", window " << window << ", " << kept << " rows";
            }
}

}  // namespace
}  // namespace riptide
