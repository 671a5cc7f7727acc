#include "engine/speculation/draft_width.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace riptide {

namespace {

constexpr double kForget = 0.96, kForgetAtProbe = 0.8;  // of all records, with every draft that is checked
constexpr double kPrior = 1;         // expected drafts that count as having turned out as the slot before
constexpr double kFirstUsual = 0.7;  // the first node's chance, if nobody knows
constexpr double kMostChance = 0.98;
constexpr double kWorthIt = 0.02;      // of a step: what a draft must gain
constexpr double kProfitMemory = 0.8;  // of the drafts before
constexpr int64_t kFirstRows = 4;      // checked before more rows are tried
constexpr int64_t kProbeNodes = 3;
constexpr double kMostDebt = 16;      // steps, of one probe
constexpr int64_t kMeasured = 5;      // steps that show what one costs
constexpr double kCheapDraft = 0.01;  // of a step: then drafts may be made in vain

}  // namespace

void TypicalTime::add(double seconds) {
    if (++seen_ > left_out_) last_[static_cast<size_t>((seen_ - left_out_ - 1) % std::ssize(last_))] = seconds;
}

double TypicalTime::seconds() const {
    if (!known()) return 0;
    const int64_t n = counted();
    std::array<double, 5> sorted = last_;
    std::sort(sorted.begin(), sorted.begin() + n);
    return sorted[n > 2 ? 1 : 0];
}

void StepCosts::add(int64_t rows, double seconds) {
    RT_ASSERT(rows >= 1);
    Samples& samples = samples_[rows];
    if (is_old(rows, samples)) samples.time = TypicalTime(0, kNeeded);
    steps_ += rows > samples_.begin()->first ? 1 : 0;
    samples.time.add(seconds);
    samples.step = steps_;
    if (samples.time.known()) smooth();
}

bool StepCosts::is_old(int64_t rows, const Samples& samples) const {
    return rows > samples_.begin()->first && samples.time.known() &&
           samples.step + kOld * samples.time.counted() < steps_;
}

/// What slows a step down is often not its rows, so where fewer rows took longer the time of more is right.
void StepCosts::smooth() {
    curve_.clear();
    double least = std::numeric_limits<double>::max();
    for (auto at = samples_.rbegin(); at != samples_.rend(); ++at) {
        const auto& [rows, samples] = *at;
        if (!samples.time.known() || is_old(rows, samples)) continue;
        least = std::min(least, samples.time.seconds());
        curve_.emplace_back(rows, least);
    }
    std::reverse(curve_.begin(), curve_.end());
}

double StepCosts::at(int64_t rows) const {
    if (curve_.empty()) return 0;
    const auto shape = [](int64_t n) { return 1 + kRowCost * static_cast<double>(n - 1); };
    const auto above = std::lower_bound(curve_.begin(), curve_.end(), rows,
                                        [](const auto& point, int64_t n) { return point.first < n; });
    if (above == curve_.begin()) return above->second * shape(rows) / shape(above->first);
    const auto below = above - 1;
    const double least = below->second * shape(rows) / shape(below->first);
    if (above == curve_.end()) return least;
    const double share = static_cast<double>(rows - below->first) / static_cast<double>(above->first - below->first);
    const double line = below->second + (above->second - below->second) * share;
    return rows < above->first && 4 * rows <= 5 * below->first ? std::min(line, least) : line;
}

DraftWidth::DraftWidth(int32_t slots, std::vector<int64_t> sizes)
    : sizes_(std::move(sizes)), slots_(static_cast<size_t>(slots)) {}

double DraftWidth::chance(int32_t slot, double probability) const {
    double ratio = 1;
    for (int32_t d = 0; d <= slot; ++d) {
        const Record& record = slots_.at(static_cast<size_t>(d));
        ratio = (kPrior * ratio + record.right) / (kPrior + record.expected);
    }
    return std::min(kMostChance, probability * ratio);
}

void DraftWidth::reached(int32_t slot, double probability, bool right) {
    Record& record = slots_.at(static_cast<size_t>(slot));
    record.expected += probability;
    record.right += right ? 1 : 0;
}

void DraftWidth::checked(int64_t nodes, std::span<const int32_t> path) {
    if (std::ssize(nodes_) < nodes) nodes_.resize(static_cast<size_t>(nodes));
    for (int64_t i = 0; i < nodes; ++i) {
        Record& record = nodes_[static_cast<size_t>(i)];
        record.expected += 1;
        record.right += std::binary_search(path.begin(), path.end(), static_cast<int32_t>(i) + 1) ? 1 : 0;
    }
}

void DraftWidth::forget(double share) {
    for (Record& record : nodes_) record.expected *= share, record.right *= share;
    for (Record& record : slots_) record.expected *= share, record.right *= share;
}

void DraftWidth::usual(int64_t nodes, std::vector<double>& chances) const {
    chances.clear();
    double last = 1, step = kFirstUsual;  // the node before, and how likely it was where its own was right
    for (int64_t i = 0; i < nodes; ++i) {
        const Record record = i < std::ssize(nodes_) ? nodes_[static_cast<size_t>(i)] : Record{};
        const double chance = std::min(kMostChance, (kPrior * last * step + record.right) / (kPrior + record.expected));
        step = std::min(1.0, chance / last);
        chances.push_back(last = chance);
    }
}

int64_t DraftWidth::choose(std::span<const double> chances, int64_t sequences) {
    const double plain = costs_.at(sequences);
    const auto available = std::ssize(chances);
    if (available == 0 || plain == 0) return 0;  // first what a step costs without drafts
    sequences_ = static_cast<double>(sequences);
    pay(kAllowance / sequences_);           // this is asked for each of them
    const auto cost = [&](int64_t nodes) {  // in steps without drafts; the draft has been made
        return (draft_.seconds() + costs_.at(sequences * (1 + nodes))) / plain;
    };
    const int64_t most_rows = std::max(kFirstRows * sequences, 2 * costs_.widest());
    int64_t best = 0, probe = 0;
    double fastest = (1 + kWorthIt) / cost(0), gain = 0, profit = 1 - cost(0);
    for (int64_t n = 1; n <= available && sequences * (1 + n) <= most_rows; ++n) {
        gain += chances[static_cast<size_t>(n - 1)];
        if (!sizes_.empty() && !std::binary_search(sizes_.begin(), sizes_.end(), n)) continue;
        if (n <= kProbeNodes) probe = n;
        if (const double speed = (1 + gain) / cost(n); speed > fastest) {
            fastest = speed;
            best = n;
            profit = 1 + gain - cost(n);
        }
    }
    profit_ = !profit_ || drafts_are_cheap() ? profit : kProfitMemory * *profit_ + (1 - kProfitMemory) * profit;
    if (below() && debt_ == 0) {
        forget(kForgetAtProbe);
        best = std::max(best, probe);
        debt_ = std::min(kMostDebt, cost(best) - 1);
    } else if (best > 0) forget(kForget);
    return best;
}

void DraftWidth::gained(int64_t tokens) {
    if (below()) pay(static_cast<double>(tokens) / sequences_);
}

void DraftWidth::skip(int64_t steps) { pay(kAllowance * static_cast<double>(steps)); }

void DraftWidth::pay(double steps) { debt_ = std::max(0.0, debt_ - steps); }

bool DraftWidth::below() const { return profit_ && *profit_ < kWorthIt; }

bool DraftWidth::drafts_are_cheap() const { return draft_.seconds() < kCheapDraft * costs_.at(1); }

int64_t DraftWidth::steps_in_debt() const { return below() ? static_cast<int64_t>(std::ceil(debt_ / kAllowance)) : 0; }

int64_t DraftWidth::idle_steps() const { return drafts_are_cheap() ? 0 : steps_in_debt(); }

int64_t DraftWidth::plain_steps() const {
    return costs_.at(1) == 0 ? kMeasured : std::max<int64_t>(1, steps_in_debt());
}

}  // namespace riptide
