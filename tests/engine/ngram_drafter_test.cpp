// The n-gram drafter: what stood there before comes again.
#include "engine/speculation/ngram_drafter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

namespace riptide {
namespace {

using Tokens = std::vector<int32_t>;

Tokens chain(NgramDrafter& drafter, int32_t slots, uint64_t sequence = 1) {
    const DraftRequest request{sequence, slots, 1};
    Draft draft;
    drafter.propose(std::span(&request, 1), std::span(&draft, 1));
    Tokens tokens;
    for (const auto& slot : draft.slots) {
        EXPECT_EQ(slot.size(), 1u);
        tokens.push_back(slot[0].token);
    }
    return tokens;
}

TEST(NgramDrafter, what_followed_the_longest_agreeing_place_follows_again) {
    NgramDrafter drafter;
    drafter.begin(1, Tokens{1, 2, 3, 4, 50, 51, 9, 3, 4, 60, 61, 9, 2, 3, 4});
    EXPECT_EQ(chain(drafter, 3), (Tokens{50, 51, 9})) << "2 3 4 agrees for longer than 3 4";
    drafter.extend(1, Tokens{50, 51, 9, 3, 4});
    EXPECT_EQ(chain(drafter, 2), (Tokens{60, 61})) << "51 9 3 4 stood there once";
}

TEST(NgramDrafter, of_equal_places_the_most_recent_counts) {
    NgramDrafter drafter;
    drafter.begin(1, Tokens{8, 1, 2, 30, 7, 1, 2, 40, 6, 1, 2});
    EXPECT_EQ(chain(drafter, 1), (Tokens{40}));
}

TEST(NgramDrafter, a_period_goes_on_beyond_the_end) {
    NgramDrafter drafter;
    drafter.begin(1, Tokens{1, 2, 3, 1, 2, 3, 1, 2});
    EXPECT_EQ(chain(drafter, 7), (Tokens{3, 1, 2, 3, 1, 2, 3}));
    drafter.begin(2, Tokens{5, 5, 5});
    EXPECT_EQ(chain(drafter, 4, 2), (Tokens{5, 5, 5, 5}));
}

TEST(NgramDrafter, new_text_has_no_draft) {
    NgramDrafter drafter;
    drafter.begin(1, Tokens{1, 2, 3, 4, 5, 6});
    EXPECT_TRUE(chain(drafter, 4).empty());
    drafter.begin(1, Tokens{});
    EXPECT_TRUE(chain(drafter, 4).empty());
    drafter.begin(1, Tokens{1});
    EXPECT_TRUE(chain(drafter, 4).empty());
    drafter.extend(1, {});
    EXPECT_TRUE(chain(drafter, 0).empty());
}

TEST(NgramDrafter, other_places_are_further_choices_and_are_less_probable) {
    NgramDrafter drafter;
    drafter.begin(1, Tokens{1, 2, 3, 40, 41, 2, 3, 50, 51, 9, 3, 60, 1, 2, 3});
    const DraftRequest request{1, 3, 4};
    Draft draft;
    drafter.propose(std::span(&request, 1), std::span(&draft, 1));
    ASSERT_EQ(draft.slots.size(), 3u);
    ASSERT_EQ(draft.slots[0].size(), 2u);
    EXPECT_EQ(draft.slots[0][0].token, 40);
    EXPECT_EQ(draft.slots[0][1].token, 50);
    EXPECT_EQ(draft.slots[1][0].token, 41);
    double sum = 0;
    for (const DraftToken& g : draft.slots[0]) sum += std::exp(double{g.logprob});
    EXPECT_LT(sum, 1);
    EXPECT_GT(draft.slots[0][0].logprob, draft.slots[0][1].logprob);
}

TEST(NgramDrafter, told_in_pieces_it_drafts_the_same) {
    std::mt19937 random(1);
    for (int round = 0; round < 50; ++round) {
        Tokens text;
        for (int i = 0; i < 300; ++i) text.push_back(static_cast<int32_t>(random() % 6));
        NgramDrafter whole, pieces;
        whole.begin(1, text);
        pieces.begin(1, std::span(text).first(17));
        for (size_t at = 17; at < text.size();) {
            const size_t n = std::min<size_t>(1 + random() % 9, text.size() - at);
            pieces.extend(1, std::span(text).subspan(at, n));
            at += n;
        }
        EXPECT_EQ(chain(whole, 8), chain(pieces, 8));
        pieces.begin(1, std::span(text).first(40));  // another answer to the same prompt
        whole.end(1);
        whole.begin(1, std::span(text).first(40));
        EXPECT_EQ(chain(whole, 8), chain(pieces, 8));
    }
}

TEST(NgramDrafter, sequences_do_not_know_of_each_other) {
    NgramDrafter drafter;
    drafter.begin(1, Tokens{1, 2, 3, 1, 2});
    drafter.begin(2, Tokens{1, 2, 4, 1, 2});
    EXPECT_EQ(chain(drafter, 1, 1), (Tokens{3}));
    EXPECT_EQ(chain(drafter, 1, 2), (Tokens{4}));
    drafter.end(2);
    EXPECT_EQ(chain(drafter, 1, 1), (Tokens{3}));
}

TEST(NgramDrafter, long_texts_are_remembered_from_their_end) {
    NgramOptions options;
    options.most_tokens = 64;
    NgramDrafter drafter(options);
    std::mt19937 random(2);
    Tokens text;
    drafter.begin(1, text);
    for (int i = 0; i < 2000; ++i) {
        const Tokens more = {static_cast<int32_t>(random() % 5), static_cast<int32_t>(random() % 5)};
        drafter.extend(1, more);
        chain(drafter, 4);
    }
    drafter.extend(1, Tokens{100, 101, 102, 100, 101});
    EXPECT_EQ(chain(drafter, 1), (Tokens{102}));
    Tokens endless(1000, 7);
    drafter.begin(1, endless);
    EXPECT_EQ(chain(drafter, 3), (Tokens{7, 7, 7}));
}

}  // namespace
}  // namespace riptide
