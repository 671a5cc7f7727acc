// How many guesses a step should check.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace riptide {

/// Seconds that a step of so many rows takes, learnt from steps. For each number of rows the second-fastest of its last
/// six counts (what makes a step slower than that is not its rows); the first two are left out, since on a GPU the
/// first warms up and the second records a graph. Between numbers that have been measured it is a straight line, more
/// rows never cost less, and beyond them each row more costs at least kRowCost of a step of one row.
class StepCosts {
  public:
    void add(int64_t rows, double seconds);
    /// 0 before any step counts.
    double at(int64_t rows) const;
    /// What has been measured, smoothed: rows, seconds.
    const std::vector<std::pair<int64_t, double>>& curve() const { return curve_; }

    static constexpr double kRowCost = 0.15;

  private:
    struct Samples {
        int64_t seen = 0;  // those left out too
        std::array<double, 6> last{};
        double typical() const;
    };
    void smooth();

    std::map<int64_t, Samples> samples_;
    std::vector<std::pair<int64_t, double>> curve_;
};

/// Chooses how much of a draft to check, so that most tokens a second are expected:
///     tokens(n) = sequences * (1 + sum of the chances of the first n nodes)
///     seconds(n) = seconds to draft + StepCosts(rows of n nodes)
/// The chance of a node is the product, along its way, of what the drafter says times how that slot's guesses have
/// turned out lately: accepted against expected, over those that were reached; a slot that was reached seldom is taken
/// to be like the one before it. Below break-even nothing is checked,
/// except every so often a little, in order to learn: after 16 steps, then 32, up to 256. Nothing is checked either
/// before the cost of a step without drafts is known. The rule that a tree grows while that pays: CaDDTree, arXiv
/// 2606.01813. Not thread-safe. No clock, no randomness.
class DraftWidth {
  public:
    /// For drafts of at most `slots` slots.
    explicit DraftWidth(int32_t slots);

    /// The chance that a guess of this slot is right if it is reached.
    double chance(int32_t slot, double probability) const;
    /// A guess of the slot was reached, and was right or not. `probability` as the drafter said.
    void reached(int32_t slot, double probability, bool right);
    /// The same for a draft whose probabilities are not known: node i of `nodes` was checked, and was on the accepted
    /// way if row i + 1 is in `path`.
    void checked(int64_t nodes, std::span<const int32_t> path);
    /// How often each node has been on the way lately; one that was checked seldom is taken to be somewhat worse than
    /// the one before it.
    void usual(int64_t nodes, std::vector<double>& chances) const;
    /// Nodes to check for each of `sequences`, of at most chances.size(); chances[i]: that node i is on the accepted
    /// way. 0: none.
    int64_t choose(std::span<const double> chances, int64_t sequences = 1);
    /// Steps for which no draft need be made, because it would cost too much and not be checked; 0: make one.
    int64_t idle_steps() const;
    /// Steps without draft to run now that choose() has said 0: until the next probe, or until their cost is known.
    int64_t plain_steps() const;
    /// Steps without draft that ran instead.
    void skip(int64_t steps) { unchecked_ += steps; }

    /// What a draft took, and a step.
    void drafted(double seconds);
    void stepped(int64_t rows, double seconds) { costs_.add(rows, seconds); }
    const StepCosts& costs() const { return costs_; }

  private:
    struct Record {
        double expected = 0, right = 0;  // newer ones count more
    };
    std::vector<Record> slots_;
    std::vector<Record> nodes_;  // expected: how often checked
    StepCosts costs_;
    double draft_seconds_ = 0;
    int64_t unchecked_ = 0, probe_after_;
    bool below_ = false;  // the last choice was 0
};

}  // namespace riptide
