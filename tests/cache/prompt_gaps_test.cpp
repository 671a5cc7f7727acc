// Where tokens of a prompt were left out: sums, keys, and what batches say of them.
#include "cache/prompt_gaps.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "cache/batch_builder.h"
#include "cache/sequence_state.h"

namespace riptide::testing {
namespace {

TEST(PromptGaps, sums_are_what_was_left_out_before_a_token) {
    //                               0     1            2     3            4
    const PromptGaps gaps({true, true, false, false, true, true, false, true, false, false}, 1);
    for (const auto& [index, sum] : std::map<int64_t, int32_t>{{0, 0}, {1, 0}, {2, 2}, {3, 2}, {4, 3}, {5, 3}, {99, 3}})
        EXPECT_EQ(gaps.at(index), sum) << index;
    EXPECT_EQ(gaps.last(), 3);
    EXPECT_TRUE(PromptGaps({true, true, false}, 1).empty()) << "nothing stands behind it";
    EXPECT_EQ(PromptGaps().at(5), 0);
}

TEST(PromptGaps, in_steps_positions_keep_their_order_and_are_less_than_a_step_too_small) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
        std::mt19937_64 rng(seed);
        std::vector<bool> kept;
        for (int i = 0; i < 400; ++i) kept.push_back(rng() % (1 + seed % 7) == 0);
        for (const int64_t step : {1, 4, 32}) {
            const PromptGaps gaps(kept, step);
            int64_t index = 0, last = -1;
            for (size_t i = 0; i < kept.size(); ++i) {
                if (!kept[i]) continue;
                const int64_t position = index + gaps.at(index);
                ASSERT_GT(position, last);
                ASSERT_LE(position, static_cast<int64_t>(i));
                ASSERT_GT(position, static_cast<int64_t>(i) - step);
                last = position;
                ++index;
            }
        }
    }
}

TEST(PromptGaps, keys_name_token_and_place_and_fit) {
    for (const auto& [vocab, positions] :
         {std::pair<int64_t, int64_t>{256, 1024}, {100352, 262144}, {151936, 131072}, {248320, int64_t{1} << 20}}) {
        const int64_t step = PromptGaps::step_for(vocab, positions);
        EXPECT_LE(vocab * (positions / step + 1), int64_t{1} << 31);
        EXPECT_TRUE(step == 1 || vocab * (positions / (step / 2) + 1) > int64_t{1} << 31) << "no larger than needed";
        std::mt19937_64 rng(static_cast<uint64_t>(vocab));
        std::map<int32_t, std::pair<int32_t, int32_t>> known;
        for (int round = 0; round < 20; ++round) {
            std::vector<bool> kept(static_cast<size_t>(positions));
            std::vector<int32_t> tokens;
            for (auto&& keep : kept) {
                keep = rng() % 50 == 0;
                if (keep) tokens.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab)));
            }
            kept.back() = true;
            tokens.push_back(static_cast<int32_t>(vocab - 1));
            const PromptGaps gaps(kept, step);
            const std::vector<int32_t> keys = gaps.keys(tokens, vocab);
            ASSERT_EQ(keys.size(), tokens.size());
            for (size_t i = 0; i < keys.size(); ++i) {
                ASSERT_GE(keys[i], 0);
                const std::pair named{tokens[i], gaps.at(static_cast<int64_t>(i))};
                ASSERT_EQ(known.emplace(keys[i], named).first->second, named);
            }
        }
    }
    EXPECT_EQ(PromptGaps().keys(std::vector<int32_t>{3, 5}, 10), (std::vector<int32_t>{3, 5}));
}

TEST(PromptGaps, a_batch_has_sums_for_all_rows_if_some_sequence_has_gaps) {
    const StateSpec spec{.kind = StateSpec::Kind::paged, .num_kv_heads = 1, .head_dim = 32};
    KvCache cache(std::vector<StateSpec>{spec}, {.page_rows = 4, .pages = 16, .max_sequences = 4, .max_step_rows = 8});
    SequenceState whole(cache), gapped(cache);
    gapped.set_gaps(std::make_shared<const PromptGaps>(std::vector<bool>{true, false, false, true, true}, 1));
    BatchBuilder builder;
    const std::vector<int32_t> tokens = {1, 2, 3};
    ASSERT_TRUE(whole.try_reserve(3) && gapped.try_reserve(3));
    const std::vector<StepRows> alone = {{&whole, tokens}};
    EXPECT_TRUE(builder.build(alone).gaps.empty());
    const std::vector<StepRows> both = {{&whole, tokens}, {&gapped, tokens}};
    const Batch& batch = builder.build(both);
    EXPECT_EQ(std::vector(batch.gaps.begin(), batch.gaps.end()), (std::vector<int32_t>{0, 0, 0, 0, 2, 2}));
    EXPECT_EQ(std::vector(batch.positions.begin(), batch.positions.end()), (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
    EXPECT_EQ(batch.rotary_position(5), 4);
    gapped.commit_prefix(2);
    whole.commit_prefix(0);
    const SequenceState fork = gapped.fork();
    EXPECT_EQ(fork.gaps(), gapped.gaps());
    ASSERT_TRUE(gapped.try_reserve(2));
    const std::vector<int32_t> roots = {-1, -1};  // two children of the last token stand at the same place
    const std::vector<StepRows> tree = {{&gapped, std::span(tokens).first(2), roots}};
    EXPECT_EQ(builder.build(tree).rotary_position(1), 4);
}

}  // namespace
}  // namespace riptide::testing
