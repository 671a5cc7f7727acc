#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace riptide {

namespace {

// Long enough to bridge the gaps between the ops of one step, short enough not to burn a core between requests.
constexpr auto kSpin = std::chrono::microseconds(50);

void pause_core() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/// Pauses until done() or until kSpin has passed; returns done().
template <class Done>
bool spin_until(const Done& done) {
    const auto start = std::chrono::steady_clock::now();
    do {
        for (int i = 0; i < 16; ++i) {
            if (done()) return true;
            pause_core();
        }
    } while (std::chrono::steady_clock::now() - start < kSpin);
    return done();
}

int usable_hardware_threads() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

constexpr uint64_t kOpen = uint64_t{1} << 63;

}  // namespace

// A loop is open from its start until the caller finds no piece left. Workers join by counting themselves into `gate`;
// one that comes while the gate is closed counts itself out again, so the caller never waits for a worker that sleeps.
struct ThreadPool::Impl {
    alignas(64) std::atomic<uint64_t> gate{0};   // kOpen | workers inside
    alignas(64) std::atomic<uint64_t> epoch{0};  // loops started so far
    alignas(64) std::atomic<int64_t> next{0};    // first index not handed out
    alignas(64) std::atomic<int> sleepers{0};
    std::atomic<bool> stop{false};

    // The loop; written only while no worker is inside.
    int64_t n = 0;
    int64_t grain = 1;
    const std::function<void(int64_t, int64_t, int)>* body = nullptr;

    std::mutex mutex;
    std::condition_variable wake;
    std::exception_ptr error;  // guarded by mutex
    std::vector<std::thread> threads;

    void take_pieces(int thread) {
        try {
            for (;;) {
                const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
                if (begin >= n) return;
                (*body)(begin, std::min(n, begin + grain), thread);
            }
        } catch (...) {
            next.store(n, std::memory_order_relaxed);
            std::lock_guard lock(mutex);
            if (!error) error = std::current_exception();
        }
    }

    void sleep(uint64_t seen) {
        std::unique_lock lock(mutex);
        sleepers.fetch_add(1);
        wake.wait(lock, [&] { return epoch.load() != seen || stop.load(); });
        sleepers.fetch_sub(1);
    }

    void work(int thread) {
        uint64_t seen = 0;
        for (;;) {
            const auto changed = [&] { return epoch.load(std::memory_order_acquire) != seen || stop.load(); };
            if (!spin_until(changed)) sleep(seen);
            if (stop.load()) return;
            seen = epoch.load(std::memory_order_acquire);
            if (gate.fetch_add(1, std::memory_order_acq_rel) & kOpen) take_pieces(thread);
            gate.fetch_sub(1, std::memory_order_acq_rel);
        }
    }

    void open() {
        gate.fetch_or(kOpen, std::memory_order_acq_rel);
        epoch.fetch_add(1);
        if (sleepers.load() == 0) return;
        { std::lock_guard lock(mutex); }  // a worker between its check and its wait holds the mutex
        wake.notify_all();
    }

    void close() {
        gate.fetch_and(~kOpen, std::memory_order_acq_rel);
        const auto empty = [&] { return gate.load(std::memory_order_acquire) == 0; };
        while (!spin_until(empty)) std::this_thread::yield();
    }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
    RT_CHECK(threads >= 0 && threads <= 4096, "{} threads asked for, expected 1 to 4096 (0 for all)", threads);
    if (threads == 0) threads = usable_hardware_threads();
    for (int i = 1; i < threads; ++i) impl_->threads.emplace_back([this, i] { impl_->work(i); });
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard lock(impl_->mutex);
        impl_->stop.store(true);
    }
    impl_->wake.notify_all();
    for (std::thread& thread : impl_->threads) thread.join();
}

int ThreadPool::size() const { return static_cast<int>(impl_->threads.size()) + 1; }

void ThreadPool::parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body) {
    RT_ASSERT(grain >= 1);
    if (n <= 0) return;
    if (n <= grain || size() == 1) {
        for (int64_t begin = 0; begin < n; begin += grain) body(begin, std::min(n, begin + grain), 0);
        return;
    }
    impl_->n = n;
    impl_->grain = grain;
    impl_->body = &body;
    impl_->next.store(0, std::memory_order_relaxed);
    impl_->open();
    impl_->take_pieces(0);
    impl_->close();
    if (impl_->error) std::rethrow_exception(std::exchange(impl_->error, nullptr));
}

}  // namespace riptide
