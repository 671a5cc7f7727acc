// How many drafts a step should check.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace riptide {

/// The second-fastest of the last five times that something took: what makes it slower than that is not its own.
class TypicalTime {
  public:
    /// The first `left_out` do not count (on a GPU the first warms up); it is known when so many more do, of which one
    /// may be slow, too (it records a graph).
    TypicalTime(int64_t left_out, int64_t needed) : left_out_(left_out), needed_(needed) {}
    void add(double seconds);
    bool known() const { return seen_ >= left_out_ + needed_; }
    /// How many times it rests on.
    int64_t counted() const { return std::clamp<int64_t>(seen_ - left_out_, 0, std::ssize(last_)); }
    /// 0 if not known.
    double seconds() const;

  private:
    int64_t left_out_, needed_, seen_ = 0;  // seen: those left out too
    std::array<double, 5> last_{};
};

/// Seconds that a step of so many rows takes, learnt from steps. Between numbers of rows that have been measured it is
/// a straight line, and more rows never cost less. Beyond them, and up to a quarter more than one of them, each row
/// costs kRowCost of a step of one row, which is little: a number that looks good is tried, and then known, where one
/// that looks bad would stay unknown. For the same reason a time is old, and counts no more, when kOld steps for each
/// step it rests on have followed, of more than the fewest rows; that of the fewest rows always counts.
class StepCosts {
  public:
    void add(int64_t rows, double seconds);
    /// 0 before any step counts.
    double at(int64_t rows) const;
    /// The most rows that have been measured; 0 before.
    int64_t widest() const { return curve_.empty() ? 0 : curve_.back().first; }

    static constexpr double kRowCost = 0.05;
    static constexpr int64_t kOld = 60;

  private:
    static constexpr int64_t kNeeded = 2;
    struct Samples {
        TypicalTime time{1, kNeeded};
        int64_t step = 0;  // the last
    };
    bool is_old(int64_t rows, const Samples& samples) const;
    void smooth();

    std::map<int64_t, Samples> samples_;
    int64_t steps_ = 0;
    std::vector<std::pair<int64_t, double>> curve_;  // rows, seconds of what is known
};

/// Chooses how much of a draft to check, so that most tokens a second are expected:
///     tokens(n) = sequences * (1 + sum of the chances of the first n nodes)
///     seconds(n) = seconds to draft + StepCosts(rows of n nodes)
/// (after CaDDTree, arXiv 2606.01813). The chance of a node is the product, along its way, of what the drafter says
/// times how that slot's drafts have turned out lately: accepted against expected, over those that were reached. What
/// has not been tried is taken to be as good as what has: a slot like the one before it, a row as cheap as StepCosts
/// says; so a width that pays is followed by trying up to twice as many rows.
///
/// Below break-even nothing is drafted, except for probes. A probe goes into debt by what it costs more than a step
/// without drafts, what it gains is paid back, and every step pays kAllowance of a step: the next one comes when there
/// is no debt, so that probing costs no more than that share of the time, and goes on while it pays. Nothing is checked
/// either before the cost of a step without drafts is known. Not thread-safe. No clock, no randomness.
class DraftWidth {
  public:
    /// For drafts of at most `slots` slots. Checks only these numbers of nodes (ascending; empty: any).
    explicit DraftWidth(int32_t slots, std::vector<int64_t> sizes = {});

    /// The chance that a draft of this slot is right if it is reached.
    double chance(int32_t slot, double probability) const;
    /// A draft of the slot was reached, and was right or not. `probability` as the drafter said.
    void reached(int32_t slot, double probability, bool right);
    /// The same for a draft whose probabilities are not known: node i of `nodes` was checked, and was on the accepted
    /// way if row i + 1 is in `path`.
    void checked(int64_t nodes, std::span<const int32_t> path);
    /// How often each node has been on the way lately.
    void usual(int64_t nodes, std::vector<double>& chances) const;
    /// Nodes to check for each of `sequences`, of at most chances.size(); chances[i]: that node i is on the accepted
    /// way. 0: none.
    int64_t choose(std::span<const double> chances, int64_t sequences = 1);
    /// Drafts of the last choice that were right, of one sequence.
    void gained(int64_t tokens);
    /// Steps for which no draft need be made, because it would cost too much and not be checked; 0: make one.
    int64_t idle_steps() const;
    /// Steps without draft to run now that choose() has said 0: until the next probe, or until their cost is known.
    int64_t plain_steps() const;
    /// Steps without draft that ran instead.
    void skip(int64_t steps);

    /// What a draft took, and a step.
    void drafted(double seconds) { draft_.add(seconds); }
    void stepped(int64_t rows, double seconds) { costs_.add(rows, seconds); }
    const StepCosts& costs() const { return costs_; }

    static constexpr double kAllowance = 0.0125;

  private:
    struct Record {
        double expected = 0, right = 0;  // newer ones count more
    };
    void forget(double share);
    void pay(double steps);
    int64_t steps_in_debt() const;
    bool drafts_are_cheap() const;
    bool below() const;  // break-even

    std::vector<int64_t> sizes_;
    std::vector<Record> slots_;
    std::vector<Record> nodes_;  // expected: how often checked
    StepCosts costs_;
    TypicalTime draft_{1, 1};
    std::optional<double> profit_;  // of a draft, lately, in steps without drafts
    double debt_ = 0;               // in the same
    double sequences_ = 1;          // of the last choice
};

}  // namespace riptide
