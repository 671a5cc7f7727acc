#include "engine/loop/recent_count.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace riptide::testing {
namespace {

TEST(RecentCount, is_what_came_in_the_last_parts) {
    constexpr unsigned kSeed = 7;
    constexpr int64_t kPart = 500'000;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    RecentCount recent;
    std::deque<std::pair<int64_t, int64_t>> all;
    int64_t now = 12'345'678;
    for (int i = 0; i < 5000; ++i) {
        now += static_cast<int64_t>(rng() % (i % 500 == 0 ? 20'000'000 : 100'000));
        if (rng() % 3 != 0) {
            all.emplace_back(now, 1 + static_cast<int64_t>(rng() % 4));
            recent.add(now, all.back().second);
        }
        const int64_t oldest = (now / kPart - 9) * kPart;
        while (!all.empty() && all.front().first < oldest) all.pop_front();
        int64_t count = 0;
        for (const auto& [at, more] : all) count += more;
        EXPECT_DOUBLE_EQ(recent.rate(now), 1e6 * static_cast<double>(count) / static_cast<double>(now - oldest));
    }
    EXPECT_EQ(recent.rate(now + 5'000'000), 0);
}

TEST(RecentCount, of_nothing_is_nothing) { EXPECT_EQ(RecentCount().rate(1'000'000'000), 0); }

}  // namespace
}  // namespace riptide::testing
