// How many of something came lately.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace riptide {

/// Counts of the last five seconds, in parts of half a second. Not thread-safe.
class RecentCount {
  public:
    /// `now_us`: of a clock that never goes back.
    void add(int64_t now_us, int64_t count = 1) {
        move_to(now_us);
        counts_[static_cast<size_t>(part_ % kParts)] += count;
    }

    /// How many a second since the oldest of the parts began, 4.5 to 5 s ago.
    double rate(int64_t now_us) const {
        RecentCount now = *this;
        now.move_to(now_us);
        int64_t all = 0;
        for (const int64_t count : now.counts_) all += count;
        return 1e6 * static_cast<double>(all) / static_cast<double>((kParts - 1) * kPartUs + now_us % kPartUs);
    }

  private:
    static constexpr int64_t kParts = 10, kPartUs = 500'000;

    /// What is older than all parts is forgotten.
    void move_to(int64_t now_us) {
        const int64_t part = now_us / kPartUs;
        if (part - part_ >= kParts) counts_ = {};
        else
            for (int64_t next = part_ + 1; next <= part; ++next) counts_[static_cast<size_t>(next % kParts)] = 0;
        part_ = std::max(part_, part);
    }

    std::array<int64_t, kParts> counts_{};
    int64_t part_ = 0;  // the newest
};

}  // namespace riptide
