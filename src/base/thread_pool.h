// A fixed team of threads for data-parallel loops.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace riptide {

/// `threads` workers, the caller being one of them. Workers spin for a few microseconds between loops, then sleep.
class ThreadPool {
  public:
    /// threads >= 1; 0 means one for each hardware thread this process may use.
    explicit ThreadPool(int threads = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const;

    /// Calls body(begin, end, thread) over [0, n) cut into pieces of `grain` (the last may be shorter); which thread takes
    /// which piece is not fixed, so a result must not depend on it. thread is in [0, size()). Returns when all are done.
    /// The first exception thrown by body is rethrown here. Not reentrant; one caller at a time.
    void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace riptide
