#include "cache/batch_builder.h"

#include <gtest/gtest.h>

namespace riptide {
namespace {

using Ints = std::vector<int32_t>;

Ints ints(std::span<const int32_t> x) { return {x.begin(), x.end()}; }

struct Cache {
    KvCache cache{std::vector<StateSpec>{{StateSpec::Kind::paged, 1, 2, 0}, {StateSpec::Kind::window, 1, 2, 4}},
                  {.page_rows = 4, .pages = 20, .max_sequences = 4, .max_step_rows = 16}};
    SequenceState sequence(int64_t length) {
        SequenceState s(cache);
        while (s.length() < length) {
            const int64_t rows = std::min<int64_t>(16, length - s.length());
            EXPECT_TRUE(s.try_reserve(rows));
            s.commit_prefix(rows);
        }
        return s;
    }
};

TEST(batch_builder, chains_of_several_sequences) {
    Cache c;
    SequenceState a = c.sequence(5), b = c.sequence(0);
    ASSERT_TRUE(a.try_reserve(4));
    ASSERT_TRUE(b.try_reserve(2));
    BatchBuilder builder;
    const Ints ta{10, 11, 12, 13}, tb{20};
    const StepRows steps[] = {{.sequence = &a, .tokens = ta},
                              {.sequence = &b, .tokens = tb, .logits = StepRows::Logits::all}};
    const Batch& batch = builder.build(steps);
    EXPECT_EQ(ints(batch.tokens), (Ints{10, 11, 12, 13, 20}));
    EXPECT_EQ(ints(batch.positions), (Ints{5, 6, 7, 8, 0}));
    EXPECT_EQ(ints(batch.row_sequence), (Ints{0, 0, 0, 0, 1}));
    EXPECT_TRUE(batch.parent.empty());
    EXPECT_EQ(ints(batch.row_begin), (Ints{0, 4, 5}));
    EXPECT_EQ(ints(batch.committed), (Ints{5, 0}));
    EXPECT_EQ(batch.max_pages, 3);
    EXPECT_EQ(ints(batch.page_table), (Ints{a.pages()[0], a.pages()[1], a.pages()[2], b.pages()[0], -1, -1}));
    EXPECT_EQ(ints(batch.state_slot), (Ints{a.slot(), b.slot()}));
    EXPECT_EQ(ints(batch.logit_rows), (Ints{3, 4}));
    EXPECT_EQ(batch.storage_index(2), 7);
    EXPECT_EQ(batch.storage_index(4), 0);
}

TEST(batch_builder, a_tree_beside_a_chain) {
    Cache c;
    SequenceState a = c.sequence(3), b = c.sequence(7);
    ASSERT_TRUE(a.try_reserve(2));
    ASSERT_TRUE(b.try_reserve(5));
    BatchBuilder builder;
    const Ints ta{1, 2}, tb{5, 6, 7, 8, 9}, parents{-1, 0, 0, 2, -1}, wanted{0, 3};
    const StepRows steps[] = {
        {.sequence = &a, .tokens = ta, .logits = StepRows::Logits::none},
        {.sequence = &b, .tokens = tb, .parents = parents, .logits = StepRows::Logits::list, .logit_list = wanted}};
    const Batch& batch = builder.build(steps);
    EXPECT_EQ(ints(batch.positions), (Ints{3, 4, 7, 8, 8, 9, 7}));
    EXPECT_EQ(ints(batch.parent), (Ints{-1, 0, -1, 2, 2, 4, -1}));
    EXPECT_EQ(ints(batch.logit_rows), (Ints{2, 5}));
    EXPECT_EQ(batch.storage_index(6), 11);
}

TEST(batch_builder, a_second_build_forgets_the_first) {
    Cache c;
    SequenceState a = c.sequence(40), b = c.sequence(1);
    ASSERT_TRUE(a.try_reserve(3));
    ASSERT_TRUE(b.try_reserve(1));
    BatchBuilder builder;
    const Ints three{1, 2, 3}, parents{-1, -1, -1}, one{9};
    const StepRows tree{.sequence = &a, .tokens = three, .parents = parents}, chain{.sequence = &b, .tokens = one};
    builder.build({&tree, 1});
    const Batch& batch = builder.build({&chain, 1});
    EXPECT_EQ(ints(batch.tokens), one);
    EXPECT_TRUE(batch.parent.empty());
    EXPECT_EQ(batch.max_pages, 1);
    EXPECT_EQ(ints(batch.row_begin), (Ints{0, 1}));
    EXPECT_EQ(builder.build({}).rows(), 0);
}

}  // namespace
}  // namespace riptide
