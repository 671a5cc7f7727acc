// Percentiles, steady stretches, arrivals: against cases worked out by hand.
#include "apps/bench/load_figures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace riptide::apps {
namespace {

TEST(LoadFigures, a_percentile_is_the_value_that_so_many_do_not_exceed) {
    std::vector<double> hundred(100);
    std::iota(hundred.rbegin(), hundred.rend(), 1.0);
    Percentiles p = percentiles(hundred);
    EXPECT_EQ(p.count, 100);
    EXPECT_EQ(p.p50, 50);
    EXPECT_EQ(p.p90, 90);
    EXPECT_EQ(p.p99, 99);
    EXPECT_EQ(p.most, 100);
    hundred.push_back(1000);  // 99 % of 101 values is more than 99 of them
    EXPECT_EQ(percentiles(hundred).p99, 100);
    p = percentiles({3, 1, 2});
    EXPECT_EQ(p.p50, 2);
    EXPECT_EQ(p.p99, 3);
    EXPECT_EQ(percentiles({7}).p50, 7);
    EXPECT_EQ(percentiles({}).count, 0);
}

TEST(LoadFigures, repeats_have_a_median_and_a_spread) {
    Repeats repeats;
    for (const double value : {5.0, 1.0, 4.0}) repeats.add(value);
    EXPECT_EQ(repeats.median(), 4);
    EXPECT_EQ(repeats.spread(), 1);
    EXPECT_EQ(Repeats().spread(), 0);
}

TEST(LoadFigures, gaps_belong_to_the_token_that_ends_them) {
    const std::vector<TokenTimes> answers = {{1, 2, 4, 7}, {1.5, 3.5}};
    EXPECT_EQ(gaps(answers, 2, 4), (std::vector<double>{2, 2}));  // of the tokens at 4 and 3.5; not of that at 2
    EXPECT_TRUE(gaps(answers, 0, 1).empty());                     // a first token has no gap
    EXPECT_EQ(gaps(answers, 0, 9).size(), 4u);
}

/// Answers of one token a step, 0.1 s a step and 1 ms from one answer to the next, that begin at different steps.
std::vector<TokenTimes> stepwise(std::vector<std::pair<int, int>> steps) {
    std::vector<TokenTimes> answers(steps.size());
    for (size_t s = 0; s < steps.size(); ++s)
        for (int i = steps[s].first; i < steps[s].second; ++i)
            answers[s].push_back(0.1 * i + 0.001 * static_cast<double>(s));
    return answers;
}

TEST(LoadFigures, the_steady_part_is_where_all_answers_decode) {
    const auto answers = stepwise({{0, 100}, {10, 95}, {20, 90}});
    // All three decode from step 20 to step 89; the first answer's first token behind 2.002 s is that of step 21.
    const Repeats rates = steady_rates(answers, 0, 10, 100);
    ASSERT_EQ(rates.values.size(), 6u);  // 21 + 60 = 81; step 91 is over
    for (const double rate : rates.values) EXPECT_NEAR(rate, 30, 1e-9);
    EXPECT_EQ(steady_rates(answers, 0, 10, 2).values.size(), 2u);
    EXPECT_EQ(steady_rates(answers, 8.05, 5, 100).values.size(), 1u);  // steps 81 to 86
    EXPECT_TRUE(steady_rates(answers, 0, 80, 3).values.empty());
    EXPECT_TRUE(steady_rates(stepwise({{0, 100}, {50, 50}}), 0, 1, 1).values.empty());  // one never began
    EXPECT_TRUE(steady_rates(stepwise({{0, 20}, {30, 50}}), 0, 1, 1).values.empty());   // never together
    EXPECT_TRUE(steady_rates({}, 0, 1, 1).values.empty());
}

TEST(LoadFigures, a_slow_stretch_shows_in_its_own_rate_only) {
    auto answers = stepwise({{0, 31}, {0, 32}});
    for (TokenTimes& times : answers)
        for (size_t i = 0; i < times.size(); ++i) times[i] += i > 15 ? 1.0 : 0.0;  // one long step in the middle
    const Repeats rates = steady_rates(answers, 0.001, 10, 3);  // from step 1: step 16 is in the second stretch
    ASSERT_EQ(rates.values.size(), 2u);                         // step 31 of the first answer is not there
    EXPECT_NEAR(rates.values[0], 10, 1e-9);                     // 20 tokens in 2 s
    EXPECT_NEAR(rates.values[1], 20, 1e-9);
}

TEST(LoadFigures, spans_that_touch_do_not_overlap) {
    EXPECT_EQ(most_at_once({}), 0);
    EXPECT_EQ(most_at_once(std::vector<std::pair<double, double>>{{0, 1}, {1, 2}, {2, 3}}), 1);
    EXPECT_EQ(most_at_once(std::vector<std::pair<double, double>>{{0, 9}, {1, 3}, {2, 5}, {3, 4}}), 3);
}

TEST(LoadFigures, arrivals_come_at_the_asked_rate_and_the_same_for_the_same_seed) {
    const std::vector<double> times = poisson_arrivals(4, 20000, 1);
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
    EXPECT_GT(times.front(), 0);
    // The sum of n exponential variates of mean 1/4 has deviation sqrt(n) / 4: 3 % are 4.2 deviations.
    EXPECT_NEAR(times.back(), 5000, 150);
    std::vector<double> waits(times.size());
    std::adjacent_difference(times.begin(), times.end(), waits.begin());
    const auto long_ones = std::count_if(waits.begin(), waits.end(), [](double wait) { return wait > 0.25; });
    EXPECT_NEAR(static_cast<double>(long_ones) / 20000, 0.3679, 0.015);  // 1/e; deviation 0.0034
    EXPECT_EQ(poisson_arrivals(4, 20000, 1), times);
    EXPECT_NE(poisson_arrivals(4, 20000, 2), times);
}

TEST(LoadFigures, uneven_sizes_add_up_and_are_uneven) {
    for (const uint64_t seed : {1u, 2u, 3u}) {
        const std::vector<int64_t> sizes = uneven_sizes(50000, 29, 16, seed);
        ASSERT_EQ(sizes.size(), 29u);
        EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), 50000);
        EXPECT_GE(*std::min_element(sizes.begin(), sizes.end()), 16);
        EXPECT_GT(*std::max_element(sizes.begin(), sizes.end()), 3 * *std::min_element(sizes.begin(), sizes.end()));
    }
    EXPECT_EQ(uneven_sizes(48, 3, 16, 1), (std::vector<int64_t>{16, 16, 16}));
    EXPECT_EQ(uneven_sizes(7, 1, 0, 1), (std::vector<int64_t>{7}));
}

}  // namespace
}  // namespace riptide::apps
