// How much of a draft is checked: simulated acceptance and costs.
#include "engine/speculation/draft_width.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace riptide {
namespace {

/// A device whose steps cost 1 + slope * (rows - 1), and drafts that are right with a probability for each slot.
struct DraftingDevice {
    double slope, draft;
    std::vector<double> right;  // by slot
    double said = 0.8;          // what the drafter says, always
    uint32_t seed = 1;

    double seconds(int64_t rows) const { return 1e-3 * (1 + slope * static_cast<double>(rows - 1)); }
    /// Tokens a second with `nodes` drafts always.
    double speed(int64_t nodes) const {
        double tokens = 1, way = 1;
        for (int64_t d = 0; d < nodes; ++d) tokens += way *= right[static_cast<size_t>(d)];
        return tokens / (seconds(1 + nodes) + (nodes > 0 ? draft : 0));
    }
    double best() const {
        double most = 0;
        for (int64_t n = 0; n <= std::ssize(right); ++n) most = std::max(most, speed(n));
        return most;
    }
    /// Tokens a second of the last half of `steps` steps that the class chooses for; widths that it chose.
    double run(DraftWidth& width, int64_t steps, std::vector<int64_t>* chosen = nullptr) const {
        std::mt19937 random(seed);
        std::uniform_real_distribution<double> uniform(0, 1);
        double tokens = 0, spent = 0;
        for (int64_t step = 0; step < steps; ++step) {
            if (step == steps / 2) tokens = spent = 0;
            if (const int64_t idle = width.idle_steps(); idle > 0) {
                width.skip(1);
                width.stepped(1, seconds(1));
                tokens += 1, spent += seconds(1);
                if (chosen) chosen->push_back(0);
                continue;
            }
            width.drafted(draft);
            std::vector<double> chances;
            for (size_t d = 0; d < right.size(); ++d)
                chances.push_back((d == 0 ? 1 : chances.back()) * width.chance(static_cast<int32_t>(d), said));
            const int64_t n = width.choose(chances);
            if (chosen) chosen->push_back(n);
            width.stepped(1 + n, seconds(1 + n) * (1 + 0.05 * uniform(random)));
            tokens += 1;
            for (int64_t d = 0; d < n; ++d) {
                const bool hit = uniform(random) < right[static_cast<size_t>(d)];
                width.reached(static_cast<int32_t>(d), said, hit);
                if (!hit) break;
                width.gained(1);
                tokens += 1;
            }
            spent += seconds(1 + n) + draft;
        }
        return tokens / spent;
    }
};

TEST(DraftWidth, comes_near_the_best_fixed_width) {
    const std::vector<double> flat(15, 0.8), falling = {0.75, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05};
    for (const double slope : {0.05, 0.3})
        for (const double draft : {0.0, 0.2e-3})
            for (const auto& right : {flat, falling})
                for (const double said : {0.3, 0.8}) {
                    DraftingDevice world{slope, draft, right, said};
                    DraftWidth width(static_cast<int32_t>(right.size()));
                    EXPECT_GT(world.run(width, 2000), 0.93 * world.best())
                        << "slope " << slope << ", draft " << draft << ", said " << said;
                }
}

TEST(DraftWidth, below_break_even_costs_almost_nothing) {
    for (const double draft : {0.0, 0.3e-3}) {
        DraftingDevice world{0.4, draft, std::vector<double>(8, 0.1), 0.9};
        DraftWidth width(8);
        EXPECT_GT(world.run(width, 4000), 0.97 * world.speed(0)) << "a draft takes " << draft;
    }
}

TEST(DraftWidth, notices_when_drafts_become_good) {
    DraftingDevice world{0.2, 0.1e-3, std::vector<double>(8, 0.02), 0.9};
    DraftWidth width(8);
    world.run(width, 3000);
    world.right.assign(8, 0.9);
    EXPECT_GT(world.run(width, 6000), 0.9 * world.best());
}

TEST(DraftWidth, probes_seldom_while_nothing_is_gained) {
    DraftingDevice world{1, 0, std::vector<double>(4, 0), 0.9};
    DraftWidth width(4);
    std::vector<int64_t> chosen;
    world.run(width, 2000, &chosen);
    const auto probes = [&](size_t begin, size_t end) {
        return std::count_if(chosen.begin() + static_cast<ptrdiff_t>(begin),
                             chosen.begin() + static_cast<ptrdiff_t>(end), [](int64_t n) { return n > 0; });
    };
    EXPECT_LE(probes(1000, 2000), 5);  // each costs three steps more than one without drafts
    EXPECT_GE(probes(1000, 2000), 3);
}

TEST(DraftWidth, many_sequences_share_what_a_step_can_bear) {
    // Rows are free up to 16, and then cost what a step costs.
    DraftWidth width(8);
    for (int i = 0; i < 10; ++i)
        for (int64_t rows = 1; rows <= 72; ++rows)
            width.stepped(rows, 1e-3 * (rows <= 16 ? 1 : 1 + 0.5 * static_cast<double>(rows - 16)));
    std::vector<double> chances = {0.8, 0.64, 0.51, 0.41, 0.33, 0.26, 0.21, 0.17};
    EXPECT_EQ(width.choose(chances, 1), 8);
    EXPECT_EQ(width.choose(chances, 4), 3);
    EXPECT_EQ(width.choose(chances, 8), 1);
    EXPECT_EQ(width.choose(chances, 16), 3) << "a probe";
    EXPECT_EQ(width.choose(chances, 16), 0);
}

TEST(DraftWidth, a_crowd_pays_for_its_probes) {
    constexpr int64_t kSequences = 12;
    const auto seconds = [](int64_t rows) { return 1e-3 * (1 + 0.01 * static_cast<double>(rows - 1)); };
    DraftWidth width(8);
    double tokens = 0, spent = 0;
    for (int step = 0; step < 4000; ++step) {  // drafts are always right, and cost ever so much
        std::vector<int64_t> chosen(kSequences, 0);
        if (width.idle_steps() > 0) {
            width.skip(1);
        } else {
            width.drafted(20e-3), spent += 20e-3;
            for (int64_t& n : chosen) n = width.choose(std::vector<double>(8, 0.98), kSequences);
        }
        const int64_t rows = std::accumulate(chosen.begin(), chosen.end(), kSequences);
        for (const int64_t n : chosen) {
            for (int32_t d = 0; d < n; ++d) width.reached(d, 0.98, true);
            width.gained(n);
        }
        width.stepped(rows, seconds(rows));
        tokens += static_cast<double>(rows), spent += seconds(rows);
    }
    EXPECT_GT(tokens / spent, 0.97 * kSequences / seconds(kSequences));
}

TEST(StepCosts, are_monotone_and_between_what_was_measured) {
    StepCosts costs;
    EXPECT_EQ(costs.at(4), 0);
    const auto add = [&](int64_t rows, double seconds) {
        for (int i = 0; i < 8; ++i) costs.add(rows, i < 2 ? 100 * seconds : seconds);  // the first two do not count
    };
    const double row = StepCosts::kRowCost;
    add(1, 1.0);
    EXPECT_DOUBLE_EQ(costs.at(1), 1);
    EXPECT_NEAR(costs.at(8), 1 + 7 * row, 1e-12);
    add(8, 3.0);
    EXPECT_DOUBLE_EQ(costs.at(8), 3);
    EXPECT_NEAR(costs.at(4), 1 + 2 * 3.0 / 7, 1e-12);
    EXPECT_NEAR(costs.at(15), 3 * (1 + 14 * row) / (1 + 7 * row), 1e-12) << "cheap until it is known";
    add(6, 3.4);  // more than 8 rows cost: something else has slowed it down
    EXPECT_DOUBLE_EQ(costs.at(6), 3);
    add(4, 2.0);
    EXPECT_NEAR(costs.at(5), 2 * (1 + 4 * row) / (1 + 3 * row), 1e-12) << "one row more is cheap, too";
    add(16, 3.2);
    EXPECT_GE(costs.at(32), costs.at(16)) << "beyond the last a row costs something";
    double last = 0;
    for (int64_t rows = 1; rows < 100; ++rows) {
        EXPECT_GE(costs.at(rows), last);
        last = costs.at(rows);
    }
}

TEST(StepCosts, what_was_measured_long_ago_is_measured_again) {
    StepCosts costs;
    const auto add = [&](int64_t rows, int64_t times) {
        for (int64_t i = 0; i < times; ++i) costs.add(rows, static_cast<double>(rows));
    };
    add(1, 8), add(8, 8), add(2, 4 * StepCosts::kOld);
    EXPECT_EQ(costs.widest(), 8);
    add(1, 20 * StepCosts::kOld);  // steps without drafts say nothing of the others' age
    EXPECT_EQ(costs.widest(), 8);
    add(2, 2 * StepCosts::kOld);
    EXPECT_EQ(costs.widest(), 2);
    costs.add(8, 4), costs.add(8, 4);
    EXPECT_DOUBLE_EQ(costs.at(8), 4);
}

TEST(StepCosts, slow_moments_do_not_count) {
    StepCosts costs;
    for (int i = 0; i < 60; ++i) costs.add(3, i % 3 == 0 ? 9.0 : 1.0);
    EXPECT_DOUBLE_EQ(costs.at(3), 1);
}

}  // namespace
}  // namespace riptide
