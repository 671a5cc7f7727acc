// What the work of one request may cost, and whether anybody still waits for it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <stop_token>

#include "base/error.h"

namespace riptide {

/// The work is beyond its budget: the request's own fault.
class TooMuchWork : public Error {
  public:
    using Error::Error;
};

/// Nobody waits for the result any more.
class WorkStopped : public Error {
  public:
    WorkStopped() : Error("the work was stopped: its client has gone, or the server ends", ErrorKind::unavailable) {}
};

/// The result would come too late.
class WorkLate : public Error {
  public:
    WorkLate() : Error("the deadline has passed before the request was understood", ErrorKind::unavailable) {}
};

/// Counts work in steps of well below a microsecond; 1 KiB of text that is gone through is a step. Whoever works counts
/// as he goes, not at the end. Not thread-safe; the stop may be asked for by any thread.
class WorkBudget {
  public:
    static constexpr int64_t kSteps = 2'000'000, kUnlimited = int64_t{1} << 50;

    explicit WorkBudget(int64_t steps = kSteps, std::stop_token stop = {})
        : steps_(steps), left_(steps * kStepBytes), next_look_(left_), stop_(std::move(stop)) {}
    /// The stop is a flag, as a signal's handler can set it; or null. It must outlive this.
    WorkBudget(int64_t steps, const std::atomic<bool>* stop) : WorkBudget(steps) { flag_ = stop; }

    /// From then on nobody wants the result.
    void end_at(std::chrono::steady_clock::time_point time) { end_ = time; }

    /// Throws TooMuchWork beyond the budget; WorkStopped or WorkLate, within a few hundred steps, once a stop is asked
    /// for or the end has come.
    void spend(int64_t steps = 1) { spend_bytes(std::min(steps, steps_ + 1) * kStepBytes); }
    /// The same for so many bytes.
    void spend_bytes(int64_t bytes) {
        left_ -= bytes;
        if (left_ <= next_look_) look();
    }
    /// The same for steps of some nanoseconds, 128 of which are one.
    void spend_small(int64_t steps) { spend_bytes(steps * kSmallBytes); }
    /// What spend() does now and then.
    void look();
    int64_t steps_spent() const { return steps_ - left_ / kStepBytes; }

  private:
    static constexpr int64_t kStepBytes = 1024, kSmallBytes = 8, kLookEvery = 128 * kStepBytes;

    int64_t steps_, left_, next_look_;  // left_ and next_look_ in bytes
    std::stop_token stop_;
    const std::atomic<bool>* flag_ = nullptr;
    std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::time_point::max();
};

}  // namespace riptide
