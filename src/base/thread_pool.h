// A fixed team of threads for data-parallel loops.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace riptide {

/// One turn of waiting for a thread that runs: the core pauses, and after some thousand turns others may have it.
void spin_pause(int64_t tries);

/// What one parallel loop took, in seconds of the steady clock.
struct LoopTimes {
    double begin = 0;    // the caller came
    double own_end = 0;  // the caller found no piece left
    double end = 0;      // all pieces were done
    double busy = 0;     // sum over threads: from seeing the loop to the end of the last piece taken
};

/// `threads` workers, the caller being one of them. A step of a model is hundreds of loops with short serial parts
/// between them: workers stay awake for 200 us after a loop, then sleep. Those beyond the number of hardware threads
/// sleep at once: they could only take another's time.
class ThreadPool {
  public:
    /// threads >= 1; 0 means one for each hardware thread this process may use.
    explicit ThreadPool(int threads = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const;

    /// Calls body(begin, end, thread) over [0, n) cut into pieces of `grain` (the last may be shorter). Thread t begins
    /// with the t-th share of the pieces, the same in loops of one shape, and then helps others; so which thread takes
    /// which piece is not fixed, and a result must not depend on it. thread is in [0, size()). Returns when all are
    /// done. The first exception thrown by body is rethrown here; pieces not begun by then are left out.
    /// REQUIRES at most 2^20 pieces for each thread. Not reentrant; one caller at a time.
    /// Cost beyond the work: a few microseconds.
    template <class Body>
    void parallel_for(int64_t n, int64_t grain, const Body& body) {
        run(
            n, grain,
            [](const void* f, int64_t begin, int64_t end, int thread) {
                (*static_cast<const Body*>(f))(begin, end, thread);
            },
            &body);
    }

    /// From now on every loop on more than one thread appends its times to `log`; nullptr: no longer. For benches.
    void log_loops(std::vector<LoopTimes>* log);

  private:
    using Piece = void (*)(const void* body, int64_t begin, int64_t end, int thread);
    void run(int64_t n, int64_t grain, Piece piece, const void* body);

    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace riptide
