// What may come next in answers of a given form, found out beside the engine's thread where it takes long. Internal to
// the engine.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "text/structured/token_masks.h"

namespace riptide {

/// One place of an answer, whose next tokens are looked for by another thread.
class MaskSearch {
  public:
    /// The place behind `tokens`, said from `state` on.
    MaskSearch(ConstraintState state, std::vector<int32_t> tokens)
        : state_(std::move(state)), tokens_(std::move(tokens)) {}

    /// The searching thread's. Throws nothing.
    void run();
    /// Nobody waits for it any more: it ends within a fraction of a millisecond, without a result.
    void stop() { stop_.request_stop(); }

    bool done() const { return done_.load(std::memory_order_acquire); }
    /// REQUIRES done(), as all that follows. Throws what ConstraintState::next has thrown.
    const NextTokens& next() const;
    const ConstraintState& state() const { return state_; }
    /// In steps of WorkBudget.
    int64_t steps() const { return steps_; }

  private:
    ConstraintState state_;
    std::vector<int32_t> tokens_;
    NextTokens next_;
    std::exception_ptr error_;
    int64_t steps_ = 0;
    std::stop_source stop_;
    std::atomic<bool> done_ = false;
};

/// One thread that runs searches in the order of their coming. It is started by the first.
class MaskWorker {
  public:
    MaskWorker() = default;
    /// Stops what it is at, and what waits.
    ~MaskWorker();
    MaskWorker(const MaskWorker&) = delete;
    MaskWorker& operator=(const MaskWorker&) = delete;

    void add(std::shared_ptr<MaskSearch> search);
    /// Until a search has ended that had not by the last call, but no longer than `most`.
    void wait(std::chrono::microseconds most);

  private:
    void run();

    std::mutex mutex_;
    std::condition_variable wake_, ended_;
    std::deque<std::shared_ptr<MaskSearch>> waiting_;
    std::shared_ptr<MaskSearch> running_;
    int64_t count_ = 0, seen_ = 0;  // of searches that have ended; at the last wait()
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace riptide
