// The words of a router (ops/cuda/linear/shared/router_words.h): sums that no order shows in, and a code for what has
// none.
#include "ops/cuda/linear/shared/router_words.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/ops/op_fixture.h"

namespace riptide::ops::cuda::decode {
namespace {

constexpr int kShares = kWordCols / kWordGroup;

/// Shares of many sizes, none of which is a whole number of units.
std::vector<float> some_shares(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> shares(kShares);
    for (float& v : shares) v = std::ldexp(normal(random), static_cast<int>(random() % 30) - 20);
    return shares;
}

uint64_t sum_of(const std::vector<float>& shares) {
    uint64_t sum = 0;
    for (const float v : shares) sum += word_of(v);
    return sum;
}

TEST(RouterWords, a_sum_has_the_same_bits_in_any_order_and_in_any_sets) {
    std::mt19937_64 random(1);
    std::vector<float> shares = some_shares(2);
    const uint64_t first = sum_of(shares);
    for (int i = 0; i < (brief_counts() ? 1 << 10 : 1 << 20); ++i) {
        std::swap(shares[random() % kShares], shares[random() % kShares]);
        uint64_t sets[RouterWords::kSets] = {}, sum = 0;
        for (const float v : shares) sets[random() % RouterWords::kSets] += word_of(v);
        for (const uint64_t set : sets) sum += set;
        ASSERT_EQ(sum, first) << "order " << i;
    }
}

TEST(RouterWords, a_sum_is_off_by_half_a_unit_a_share_at_most) {
    for (uint64_t seed = 0; seed < 100; ++seed) {
        const std::vector<float> shares = some_shares(seed);
        double exact = 0;
        for (const float v : shares) exact += v;
        const double got = std::ldexp(static_cast<double>(static_cast<int64_t>(sum_of(shares)) >> 8), -28);
        EXPECT_LE(std::abs(got - exact), kShares * 0.5 * double{kWordUnit}) << seed;
        EXPECT_EQ(logit_of(sum_of(shares), 1.0f), static_cast<float>(got)) << seed;
    }
}

TEST(RouterWords, the_largest_shares_fit) {
    const float most = std::nextafter(kMostShare, 0.0f);
    for (const float sign : {1.0f, -1.0f}) {
        const uint64_t sum = sum_of(std::vector<float>(kShares, sign * most));
        EXPECT_EQ(logit_of(sum, 1.0f), sign * most * kShares);
        EXPECT_EQ(logit_of(sum, 0.5f), sign * most * kShares / 2);
    }
}

TEST(RouterWords, what_has_no_sum_is_known_to_the_reader_wherever_it_stands) {
    const float none[] = {NAN,
                          -NAN,
                          INFINITY,
                          -INFINITY,
                          kMostShare,
                          -kMostShare,
                          std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::lowest()};
    for (const float v : none)
        for (const int at : {0, 1, kShares - 1}) {
            std::vector<float> shares = some_shares(3);
            shares[static_cast<size_t>(at)] = v;
            EXPECT_TRUE(std::isnan(logit_of(sum_of(shares), 1.0f))) << v << " at " << at;
        }
    EXPECT_TRUE(std::isnan(logit_of(sum_of(std::vector<float>(kShares, NAN)), 1.0f)));  // and in any number
    for (const float v : {0.0f, -0.0f, std::numeric_limits<float>::denorm_min()})
        EXPECT_EQ(logit_of(sum_of(std::vector<float>(kShares, v)), 1.0f), 0.0f);
}

}  // namespace
}  // namespace riptide::ops::cuda::decode
