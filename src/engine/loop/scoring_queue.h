// Prompts that wait for the scorer, and the thread that asks it. Internal to the engine.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/compression/compressor.h"
#include "engine/loop/answer.h"

namespace riptide {

/// Scores one prompt after the other, the highest priority first, then in the order of coming, beside the engine's
/// steps: decoding does not wait for it. On the CPU it shares the cores with the steps, on a GPU the device, through a
/// stream of the scorer's own.
///
/// Jobs belong to the queue until they are taken. All functions are for the engine's thread.
class ScoringQueue {
  public:
    struct Scored {
        std::unique_ptr<Job> job;      // its plan is complete, unless
        std::optional<Failed> failed;  // the scorer failed, or the job's deadline has passed
    };

    /// `on_scored` is called on the queue's thread. The compressor must outlive the queue.
    ScoringQueue(Compressor& compressor, std::function<void()> on_scored);
    /// Waits until the scorer looks at `cancel`.
    ~ScoringQueue();
    ScoringQueue(const ScoringQueue&) = delete;
    ScoringQueue& operator=(const ScoringQueue&) = delete;

    /// REQUIRES job->plan.
    void add(std::unique_ptr<Job> job);
    /// At once, though the scorer may still be at it: whatever it says is dropped. Null if it is not here.
    std::unique_ptr<Job> remove(RequestId id);
    /// Also those whose deadline has passed, as remove() does.
    std::vector<Scored> take_scored(int64_t now_us);
    std::vector<std::unique_ptr<Job>> remove_all();
    int64_t size() const;
    /// Of all that are here; the largest number if none has one.
    int64_t nearest_deadline() const;

  private:
    struct Task {
        RequestId id = 0;
        int priority = 0;
        std::shared_ptr<CompressionPlan> plan;
        std::atomic<bool> cancel = false;
        bool begun = false, over = false;
        std::optional<Failed> failed;
    };
    void run();
    std::shared_ptr<Task> next() const;

    Compressor& compressor_;
    std::function<void()> on_scored_;
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    std::map<RequestId, std::pair<std::unique_ptr<Job>, std::shared_ptr<Task>>> jobs_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace riptide
