#include "engine/draft_width.h"

#include <algorithm>

#include "base/error.h"

namespace riptide {

namespace {

constexpr int64_t kLeftOut = 2;
constexpr int64_t kFirstProbe = 16, kLastProbe = 256, kProbeNodes = 2;
constexpr double kForget = 0.99;  // of a slot's record, with every new guess of it
constexpr double kFade = 0.998;   // and with every step, reached or not: what went wrong once is tried again
constexpr double kPrior = 2;      // expected guesses that count as having turned out as the slot before
constexpr double kMostChance = 0.98;
constexpr double kWorthIt = 1.02;                      // faster than without drafts by this, or it is not worth it
constexpr double kFirstUsual = 0.7, kNextUsual = 0.8;  // a node that nobody has checked; the next one, of that
constexpr int64_t kMeasured = 8;                       // steps that show what one costs
constexpr double kCheapDraft = 0.02;                   // of a step: then drafts may be made in vain

}  // namespace

double StepCosts::Samples::typical() const {
    std::vector<double> sorted(last.begin(), last.begin() + std::min<int64_t>(seen - kLeftOut, std::ssize(last)));
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() > 2 ? 1 : 0];
}

void StepCosts::add(int64_t rows, double seconds) {
    RT_ASSERT(rows >= 1);
    Samples& samples = samples_[rows];
    if (++samples.seen <= kLeftOut) return;
    samples.last[static_cast<size_t>((samples.seen - kLeftOut - 1) % std::ssize(samples.last))] = seconds;
    smooth();
}

/// Pool adjacent violators: the nearest curve that never falls.
void StepCosts::smooth() {
    struct Pool {
        double sum;
        int64_t count;
        double mean() const { return sum / static_cast<double>(count); }
    };
    std::vector<Pool> pools;
    std::vector<int64_t> rows;
    for (const auto& [n, samples] : samples_) {
        if (samples.seen <= kLeftOut) continue;
        rows.push_back(n);
        pools.push_back({samples.typical(), 1});
        while (pools.size() > 1 && pools.back().mean() < pools[pools.size() - 2].mean()) {
            const Pool last = pools.back();
            pools.pop_back();
            pools.back().sum += last.sum;
            pools.back().count += last.count;
        }
    }
    curve_.clear();
    for (const Pool& pool : pools)
        for (int64_t i = 0; i < pool.count; ++i) curve_.emplace_back(rows[curve_.size()], pool.mean());
}

double StepCosts::at(int64_t rows) const {
    if (curve_.empty()) return 0;
    const auto shape = [](int64_t n) { return 1 + kRowCost * static_cast<double>(n - 1); };
    const auto above = std::lower_bound(curve_.begin(), curve_.end(), rows,
                                        [](const auto& point, int64_t n) { return point.first < n; });
    if (above == curve_.begin()) return above->second * shape(rows) / shape(above->first);
    const auto below = above - 1;
    const auto line = [&](const auto& a, const auto& b) {
        return a.second +
               (b.second - a.second) * static_cast<double>(rows - a.first) / static_cast<double>(b.first - a.first);
    };
    if (above != curve_.end()) return line(*below, *above);
    const double least = below->second * shape(rows) / shape(below->first);
    return below == curve_.begin() ? least : std::max(least, line(*(below - 1), *below));
}

DraftWidth::DraftWidth(int32_t slots) : slots_(static_cast<size_t>(slots)), probe_after_(kFirstProbe) {}

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
    record.expected = kForget * record.expected + probability;
    record.right = kForget * record.right + (right ? 1 : 0);
}

void DraftWidth::checked(int64_t nodes, std::span<const int32_t> path) {
    if (std::ssize(nodes_) < nodes) nodes_.resize(static_cast<size_t>(nodes));
    for (int64_t i = 0; i < nodes; ++i) {
        Record& record = nodes_[static_cast<size_t>(i)];
        const bool on_way = std::binary_search(path.begin(), path.end(), static_cast<int32_t>(i) + 1);
        record.expected = kForget * record.expected + 1;
        record.right = kForget * record.right + (on_way ? 1 : 0);
    }
}

void DraftWidth::usual(int64_t nodes, std::vector<double>& chances) const {
    chances.clear();
    for (int64_t i = 0; i < nodes; ++i) {
        const double like = i == 0 ? kFirstUsual : kNextUsual * chances.back();
        const Record record = i < std::ssize(nodes_) ? nodes_[static_cast<size_t>(i)] : Record{};
        chances.push_back(std::min(kMostChance, (kPrior * like + record.right) / (kPrior + record.expected)));
    }
}

int64_t DraftWidth::choose(std::span<const double> chances, int64_t sequences) {
    const double plain = costs_.at(sequences);
    const auto available = std::ssize(chances);
    if (available == 0 || plain == 0) return 0;  // first what a step costs without drafts
    const auto speed = [&](int64_t nodes, double gain) {
        return (1 + gain) / (draft_seconds_ + costs_.at(sequences * (1 + nodes)));
    };
    for (Record& record : nodes_) record.expected *= kFade, record.right *= kFade;
    for (Record& record : slots_) record.expected *= kFade, record.right *= kFade;
    int64_t best = 0;
    double most = kWorthIt / plain, gain = 0;
    for (int64_t n = 1; n <= available; ++n) {
        gain += chances[static_cast<size_t>(n - 1)];
        if (const double s = speed(n, gain); s > most) {
            most = s;
            best = n;
        }
    }
    below_ = best == 0;
    if (best > 0) {
        unchecked_ = 0;
        probe_after_ = kFirstProbe;
    } else if (++unchecked_ > probe_after_) {
        unchecked_ = 0;
        probe_after_ = std::min(2 * probe_after_, kLastProbe);
        return std::min(available, kProbeNodes);
    }
    return best;
}

int64_t DraftWidth::idle_steps() const {
    if (!below_ || draft_seconds_ < kCheapDraft * costs_.at(1)) return 0;
    return std::max<int64_t>(0, probe_after_ - unchecked_);
}

int64_t DraftWidth::plain_steps() const {
    if (costs_.at(1) == 0) return kMeasured;
    return below_ ? std::max<int64_t>(1, probe_after_ - unchecked_) : 1;
}

void DraftWidth::drafted(double seconds) {
    draft_seconds_ = draft_seconds_ == 0 ? seconds : 0.9 * draft_seconds_ + 0.1 * seconds;
}

}  // namespace riptide
