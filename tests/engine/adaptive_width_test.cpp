// Drafting with a width of its own choice against the best fixed one: a simulated clock, drafters with a given chance
// for each slot, and costs as they were measured on GPUs (docs/results/speculation.md) or made up to be awkward.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <random>

#include "engine/speculation/speculation.h"

namespace riptide {
namespace {

/// Drafts nothing itself: the simulation says what comes of rounds.
class SilentDrafter final : public Drafter {
  public:
    explicit SilentDrafter(int32_t slots) : slots_(slots) {}
    int32_t slots() const override { return slots_; }
    void begin(uint64_t, std::span<const int32_t>) override {}
    void extend(uint64_t, std::span<const int32_t>) override {}
    void propose(std::span<const DraftRequest>, std::span<Draft>) override {}
    void end(uint64_t) override {}

  private:
    int32_t slots_;
};

using Chances = std::vector<double>;  // of each slot, where it is reached

/// What rounds cost, in any unit: `points` are drafts and cost, with straight lines between.
struct Costs {
    std::vector<std::pair<double, double>> points;
    double draft = 0;  // of them, in every round with drafts

    double at(int64_t drafts) const {
        const auto n = static_cast<double>(drafts);
        size_t i = 1;
        while (i + 1 < points.size() && points[i].first < n) ++i;
        const auto [x0, y0] = points[i - 1];
        const auto [x1, y1] = points[i];
        return y0 + (y1 - y0) * (n - x0) / (x1 - x0);
    }
};

double tokens_of(const Chances& right, int64_t drafts) {
    double tokens = 1, way = 1;
    for (int64_t d = 0; d < drafts; ++d) tokens += way *= right[static_cast<size_t>(d)];
    return tokens;
}

double fixed_speed(const Costs& costs, const Chances& right, int64_t drafts) {
    return tokens_of(right, drafts) / costs.at(drafts);
}

double best_speed(const Costs& costs, const Chances& right) {
    double most = 0;
    for (int64_t n = 0; n <= std::ssize(right); ++n) most = std::max(most, fixed_speed(costs, right, n));
    return most;
}

Chances flat(int64_t slots, double p) { return Chances(static_cast<size_t>(slots), p); }

/// How a run is disturbed.
struct Noise {
    double jitter = 0.03;     // steps take up to this share longer
    int64_t spike_every = 0;  // about so often
    double spike = 20;        // a step takes so many times as long (not charged: that is not the width's fault)
    double recording = 10;    // plain steps that the first two of a width take longer (not charged: once and for all)
};

/// An answer that goes on; the clock counts what the steps are worth.
class Simulation {
  public:
    Simulation(const Costs& costs, Chances right, uint32_t seed, Noise noise = {})
        : costs_(costs), right_(std::move(right)), noise_(noise), random_(seed) {}
    virtual ~Simulation() = default;

    void becomes(Chances right) { right_ = std::move(right); }
    void cost(const Costs& costs) { costs_ = costs; }
    /// Tokens a second of the next `tokens` tokens.
    double run(int64_t tokens) {
        const double t = tokens_, s = seconds_;
        run_until(tokens_ + static_cast<double>(tokens));
        return (tokens_ - t) / (seconds_ - s);
    }

  protected:
    virtual void run_until(double tokens) = 0;

    /// Whether the next draft is right.
    bool right(int64_t slot) {
        return std::uniform_real_distribution<double>(0, 1)(random_) < right_[static_cast<size_t>(slot)];
    }
    int64_t accepted(int64_t drafts) {
        int64_t n = 0;
        while (n < drafts && right(n)) ++n;
        return n;
    }
    /// Counts a step, and returns how long it took for who looks at the clock.
    double step(int64_t drafts, int64_t accepted) {
        const double cost = costs_.at(drafts);
        tokens_ += static_cast<double>(1 + accepted);
        seconds_ += cost;
        const int64_t ran = widths_[drafts]++;
        std::uniform_real_distribution<double> uniform(0, 1);
        const bool spike = noise_.spike_every > 0 && uniform(random_) * static_cast<double>(noise_.spike_every) < 1;
        return cost * (1 + noise_.jitter * uniform(random_)) * (spike ? noise_.spike : 1) +
               (ran < 2 ? noise_.recording * costs_.at(0) : 0);
    }
    void wait(double seconds) { seconds_ += seconds; }

    Costs costs_;
    Chances right_;
    Noise noise_;

  private:
    std::mt19937 random_;
    double tokens_ = 0, seconds_ = 0;
    std::map<int64_t, int64_t> widths_;  // how often each number of drafts was checked
};

/// Rounds of the device, two of them under way, as Session::run_rounds has them.
class DeviceRounds final : public Simulation {
  public:
    DeviceRounds(const Costs& costs, const Chances& right, uint32_t seed, Noise noise = {})
        : Simulation(costs, right, seed, noise),
          speculator_(std::make_shared<SilentDrafter>(static_cast<int32_t>(right.size())), {}) {}

  private:
    void run_until(double tokens) override {
        for (const double end = tokens; done_ < end;) some_rounds(end);
    }
    void some_rounds(double end) {
        constexpr int64_t kRoom = 256;
        ops::DraftPlan plan = speculator_.plan_ahead(kRoom - 1);
        const bool plain = plan.rows == 1;
        const int64_t room = plain ? std::min(kRoom, speculator_.plain_ahead()) : kRoom;
        int64_t fed = 0, claimed = 0;
        bool busy = false;
        std::deque<int64_t> pending;
        while (done_ < end) {
            while (pending.size() < 2 && (plan.rows == 1) == plain && fed + claimed + plan.rows <= room) {
                pending.push_back(plan.rows);
                claimed += plan.rows;
                if (!plain) plan = speculator_.plan_ahead(kRoom - 1);
            }
            if (pending.empty()) break;
            const int64_t rows = pending.front();
            pending.pop_front();
            const int64_t kept = accepted(rows - 1);
            double seconds = step(rows - 1, kept);
            if (!std::exchange(busy, !pending.empty())) seconds += 0.1 * costs_.at(0);  // launches count
            claimed -= rows;
            fed += 1 + kept;
            done_ += static_cast<double>(1 + kept);
            DraftTree tree;
            for (int64_t i = 1; i < rows; ++i) tree.add(static_cast<int32_t>(i) - 2, {static_cast<int32_t>(i), 0});
            std::vector<int32_t> path(static_cast<size_t>(1 + kept)), fresh(path.size());
            for (size_t i = 0; i < path.size(); ++i) path[i] = static_cast<int32_t>(i);
            if (plain) speculator_.ran_plain(1, fresh, seconds);
            else speculator_.ran_ahead(1, tree, path, fresh, rows, seconds);
        }
        wait(0.1 * costs_.at(0));  // a run has a beginning and an end
    }

    Speculator speculator_;
    double done_ = 0;
};

/// Steps of the host, which sees what the drafter says before it chooses.
class Steps final : public Simulation {
  public:
    Steps(const Costs& costs, const Chances& right, uint32_t seed, Noise noise = {}, double said = 0.8)
        : Simulation(costs, right, seed, noise), width_(static_cast<int32_t>(right.size())), said_(said) {}

  private:
    void run_until(double tokens) override {
        while (done_ < tokens) {
            if (width_.idle_steps() > 0) {
                width_.stepped(1, step(0, 0));
                width_.skip(1);
                done_ += 1;
                continue;
            }
            if (costs_.draft > 0) width_.drafted(costs_.draft);
            Chances chances;
            for (size_t d = 0; d < right_.size(); ++d)
                chances.push_back((d == 0 ? 1 : chances.back()) * width_.chance(static_cast<int32_t>(d), said_));
            const int64_t n = width_.choose(chances), kept = accepted(n);
            const double seconds = step(n, kept);
            if (n == 0) wait(costs_.draft);
            width_.stepped(1 + n, n > 0 ? seconds - costs_.draft : seconds);
            for (int64_t d = 0; d < n && d <= kept; ++d) width_.reached(static_cast<int32_t>(d), said_, d < kept);
            width_.gained(kept);
            done_ += static_cast<double>(1 + kept);
        }
    }

    DraftWidth width_;
    double said_;
    double done_ = 0;
};

struct Regime {
    const char* name;
    Costs costs;
    Chances right;
    double share = 0.95;  // of the best speed, to be had from 100 tokens on
};

/// Where one width is best all the time.
std::vector<Regime> steady() {
    // Drafter's pass included: the small trained hybrid, the demo model and Laguna XS.2 (predicted) on an H200.
    const Costs tied{{{0, 132}, {1, 230}, {3, 267}, {7, 305}}, 90};
    const Costs demo{{{0, 311}, {1, 719}, {3, 837}, {7, 1040}}, 350};
    const Costs laguna{{{0, 1083}, {1, 1914}, {3, 2524}, {7, 3425}, {15, 5264}}, 336};
    const Costs big{{{0, 40}, {1, 514}, {3, 530}, {7, 617}}, 450};    // a drafter as large as its model, CPU
    const Costs tiles{{{0, 100}, {7, 107}, {8, 190}, {15, 200}}, 5};  // rows are cheap up to a tile's end
    const Costs linear{{{0, 100}, {15, 1600}}, 2};                    // each row costs a step
    const Costs steep{{{0, 100}, {1, 130}, {4, 200}, {7, 350}, {15, 1200}}, 10};
    return {{"tied, 0.995", tied, flat(7, 0.995)},
            {"tied, 0.8", tied, flat(7, 0.8)},
            {"tied, 0.5", tied, flat(7, 0.5)},
            {"tied, none", tied, flat(7, 0)},
            {"demo", demo, {0.77, 0.58, 0.45, 0.4, 0.35, 0.3, 0.3}},
            {"demo, 0.9", demo, flat(7, 0.9)},
            {"laguna, 0.6", laguna, flat(15, 0.6)},
            {"laguna, 0.7", laguna, flat(15, 0.7)},
            {"laguna, 0.8", laguna, flat(15, 0.8)},
            {"laguna, 0.95", laguna, flat(15, 0.95)},
            {"laguna, 0.3", laguna, flat(15, 0.3)},
            {"big drafter, 0.985", big, flat(7, 0.985)},
            {"big drafter, none", big, flat(7, 0.02)},
            {"tiles, 0.9", tiles, flat(15, 0.9)},
            {"tiles, 0.99", tiles, flat(15, 0.99), 0.92},  // of 60 steps it takes ten to find that 8 and 15 are worse
            {"tiles, 0.3", tiles, flat(15, 0.3)},
            {"linear, 0.9", linear, flat(15, 0.9)},
            {"steep, 0.9", steep, flat(15, 0.9), 0.94},
            {"steep, first two slots", steep, {0.95, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1}},
            // Slots like the one before are what is expected, so what lies behind a bad one may be found late.
            {"tied, second slot bad", tied, {0.9, 0.3, 0.95, 0.95, 0.95, 0.95, 0.95}, 0.85}};
}

constexpr int kSeeds = 40;

/// The mean of what `measure(seed)` gives.
template <class Measure>
double mean(const Measure& measure) {
    double sum = 0;
    for (uint32_t seed = 1; seed <= kSeeds; ++seed) sum += measure(seed);
    return sum / kSeeds;
}

template <class Kind>
class AdaptiveWidth : public ::testing::Test {};
using Kinds = ::testing::Types<DeviceRounds, Steps>;
TYPED_TEST_SUITE(AdaptiveWidth, Kinds);

TYPED_TEST(AdaptiveWidth, comes_near_the_best_width_within_a_hundred_tokens) {
    for (const Regime& r : steady()) {
        const double best = best_speed(r.costs, r.right);
        const double share = mean([&](uint32_t seed) {
            TypeParam answer(r.costs, r.right, seed);
            answer.run(100);
            return answer.run(400) / best;
        });
        EXPECT_GT(share, r.share) << r.name;
    }
}

TYPED_TEST(AdaptiveWidth, is_never_slower_than_plain_decoding_by_more_than_3_percent) {
    for (const Regime& r : steady()) {
        const double plain = fixed_speed(r.costs, r.right, 0);
        double all = 0, later = 0;
        for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
            TypeParam answer(r.costs, r.right, seed);
            all += answer.run(3000) / plain / kSeeds;  // what is tried at first, once and for all, included
            later += answer.run(3000) / plain / kSeeds;
        }
        EXPECT_GT(all, 0.96) << r.name;
        EXPECT_GT(later, 0.97) << r.name;
    }
}

TYPED_TEST(AdaptiveWidth, slow_moments_change_nothing) {
    for (const Regime& r : steady()) {
        const double share = mean([&](uint32_t seed) {
            TypeParam answer(r.costs, r.right, seed, {.spike_every = 25});
            answer.run(200);
            return answer.run(1000) / best_speed(r.costs, r.right);
        });
        EXPECT_GT(share, r.share - 0.04) << r.name;
    }
}

TYPED_TEST(AdaptiveWidth, follows_what_changes) {
    const Regime tied = steady()[0], laguna = steady()[9];
    for (const Regime& r : {tied, laguna})
        for (const double other : {0.0, 0.6}) {
            const auto slots = std::ssize(r.right);
            const Chances worse = flat(slots, other);
            double down = 0, up = 0;
            for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
                TypeParam answer(r.costs, r.right, seed);
                answer.run(500);
                answer.becomes(worse);
                down += answer.run(500) / best_speed(r.costs, worse) / kSeeds;
                answer.run(2000);
                answer.becomes(r.right);
                answer.run(300);
                up += answer.run(500) / best_speed(r.costs, r.right) / kSeeds;
            }
            EXPECT_GT(down, other == 0 ? 0.83 : 0.9) << r.name << ", to " << other;
            EXPECT_GT(up, 0.95) << r.name << ", from " << other;
        }
}

TYPED_TEST(AdaptiveWidth, follows_costs_that_change) {
    const Costs flat_costs{{{0, 100}, {1, 120}, {15, 150}}, 10}, steep{{{0, 100}, {1, 130}, {15, 600}}, 10};
    const Chances right = flat(15, 0.9);
    double worse = 0, better = 0;
    for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
        TypeParam answer(flat_costs, right, seed);
        answer.run(500);
        answer.cost(steep);
        worse += answer.run(500) / best_speed(steep, right) / kSeeds;
        answer.run(2000);
        answer.cost(flat_costs);
        answer.run(3000);
        better += answer.run(500) / best_speed(flat_costs, right) / kSeeds;
    }
    EXPECT_GT(worse, 0.9);
    EXPECT_GT(better, 0.9);
}

}  // namespace
}  // namespace riptide
