#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace riptide {

namespace {

using Clock = std::chrono::steady_clock;

// Long enough to bridge the serial parts of a step and the drawing of a token, short enough not to burn a core between
// requests. The first part pauses only; then whoever else wants the core gets it.
constexpr auto kPause = std::chrono::microseconds(50);
constexpr auto kStayAwake = std::chrono::microseconds(200);

void pause_core() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/// Waits until done() or until `limit` has passed; returns done().
template <class Done>
bool spin_until(const Done& done, Clock::duration limit) {
    Clock::duration waited{0};
    for (const auto start = Clock::now(); waited < limit; waited = Clock::now() - start) {
        if (waited > kPause) std::this_thread::yield();
        for (int i = 0; i < 16; ++i) {
            if (done()) return true;
            pause_core();
        }
    }
    return done();
}

int usable_hardware_threads() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

constexpr int kClaimBits = 20;
constexpr uint64_t kStop = ~uint64_t{1};  // an epoch that no loop has: even and larger than all

}  // namespace

// How a loop runs. The caller describes it in `shared` and publishes it by its epoch. Whoever sees the epoch claims
// pieces: first those of its own share, then those of others, each by a compare-and-swap on the share's claim word. A
// word holds the epoch of its last claim and the number of pieces handed out; a word of an older epoch means that none
// is. So nothing is reset between loops, and nobody waits for a worker that comes late or sleeps: once all pieces are
// done (the only thing the caller waits for) every share that has pieces bears the loop's epoch and is used up, and a
// late worker can claim nothing, neither of this loop nor, with this epoch, of a later one.
struct ThreadPool::Impl {
    /// What a loop is; a worker's private copy.
    struct Loop {
        uint64_t epoch = 0;
        int64_t n = 0, grain = 1, pieces = 0;
        Piece piece = nullptr;
        const void* body = nullptr;
        bool timed = false;
    };
    /// One cache line, written by the caller only, under a sequence lock: epoch is odd while the rest changes.
    struct alignas(64) SharedLoop {
        std::atomic<uint64_t> epoch{0};
        std::atomic<int64_t> n{0}, grain{1}, pieces{0};
        std::atomic<Piece> piece{nullptr};
        std::atomic<const void*> body{nullptr};
        std::atomic<bool> timed{false};
    };
    struct alignas(128) Share {           // 128: neighbours in pairs are fetched together
        std::atomic<uint64_t> claims{0};  // epoch << kClaimBits | pieces handed out
        std::atomic<int64_t> busy_ns{0};  // of the thread, in timed loops
    };

    SharedLoop shared;
    alignas(128) std::atomic<int64_t> done{0};  // pieces of the loop
    alignas(128) std::atomic<bool> failed{false};
    std::mutex mutex;
    std::exception_ptr error;  // guarded by mutex
    alignas(128) std::atomic<int> sleepers{0};
    std::atomic<uint32_t> bell{0};  // changes when sleepers are woken
    std::vector<Share> shares;
    std::vector<LoopTimes>* log = nullptr;
    int hardware = usable_hardware_threads();
    std::vector<std::thread> threads;

    explicit Impl(int size) : shares(static_cast<size_t>(size)) {}

    // ---- the description ----

    void publish(const Loop& loop) {
        done.store(0, std::memory_order_relaxed);
        failed.store(false, std::memory_order_relaxed);
        shared.epoch.store(loop.epoch - 1, std::memory_order_relaxed);
        shared.n.store(loop.n, std::memory_order_release);  // release: who sees one of these sees the odd epoch too
        shared.grain.store(loop.grain, std::memory_order_release);
        shared.pieces.store(loop.pieces, std::memory_order_release);
        shared.piece.store(loop.piece, std::memory_order_release);
        shared.body.store(loop.body, std::memory_order_release);
        shared.timed.store(loop.timed, std::memory_order_release);
        shared.epoch.store(loop.epoch);
    }

    /// False: it is just being written.
    bool read(Loop& loop) const {
        loop.epoch = shared.epoch.load(std::memory_order_acquire);
        loop.n = shared.n.load(std::memory_order_acquire);
        loop.grain = shared.grain.load(std::memory_order_acquire);
        loop.pieces = shared.pieces.load(std::memory_order_acquire);
        loop.piece = shared.piece.load(std::memory_order_acquire);
        loop.body = shared.body.load(std::memory_order_acquire);
        loop.timed = shared.timed.load(std::memory_order_acquire);
        return loop.epoch % 2 == 0 && shared.epoch.load(std::memory_order_relaxed) == loop.epoch;
    }

    // ---- the pieces ----

    /// The next piece of a share of `count`, or -1.
    static int64_t claim(Share& share, uint64_t epoch, int64_t count) {
        uint64_t word = share.claims.load(std::memory_order_relaxed);
        for (;;) {
            const uint64_t last = word >> kClaimBits;
            const uint64_t taken = last == epoch ? word - (last << kClaimBits) : 0;
            if (last > epoch || static_cast<int64_t>(taken) >= count) return -1;
            const uint64_t next = (epoch << kClaimBits) + taken + 1;
            if (share.claims.compare_exchange_weak(word, next, std::memory_order_relaxed))
                return static_cast<int64_t>(taken);
        }
    }

    void run_piece(const Loop& loop, int64_t index, int thread) {
        if (failed.load(std::memory_order_relaxed)) return;
        try {
            const int64_t begin = index * loop.grain;
            loop.piece(loop.body, begin, std::min(loop.n, begin + loop.grain), thread);
        } catch (...) {
            std::lock_guard lock(mutex);
            if (!error) error = std::current_exception();
            failed.store(true, std::memory_order_relaxed);
        }
    }

    /// Claims and runs pieces until none is left.
    void take_pieces(const Loop& loop, int thread) {
        const auto size = static_cast<int>(shares.size());
        auto last = loop.timed ? Clock::now() : Clock::time_point{};
        const int64_t each = loop.pieces / size, more = loop.pieces % size;  // the first `more` shares have one more
        for (int i = 0; i < size; ++i) {
            const int owner = thread + i < size ? thread + i : thread + i - size;
            const int64_t first = owner * each + std::min<int64_t>(owner, more), count = each + (owner < more ? 1 : 0);
            int64_t taken = 0;
            for (int64_t k; (k = claim(shares[static_cast<size_t>(owner)], loop.epoch, count)) >= 0; ++taken)
                run_piece(loop, first + k, thread);
            if (loop.timed && taken > 0) {
                const auto now = Clock::now();
                shares[static_cast<size_t>(thread)].busy_ns.fetch_add(
                    std::chrono::nanoseconds(now - std::exchange(last, now)).count(), std::memory_order_relaxed);
            }
            if (taken > 0) done.fetch_add(taken, std::memory_order_release);
        }
    }

    // ---- waiting and waking ----

    void sleep(uint64_t seen) {
        sleepers.fetch_add(1);
        const uint32_t heard = bell.load();
        if (shared.epoch.load() == seen) bell.wait(heard);  // the caller looks at sleepers after it changed the epoch
        sleepers.fetch_sub(1);
    }

    void wake(int64_t wanted) {
        const int asleep = sleepers.load();
        const int64_t missing = wanted - (std::ssize(threads) - asleep);
        if (asleep == 0 || missing <= 0) return;
        bell.fetch_add(1);
        if (missing >= asleep) return bell.notify_all();
        for (int64_t i = 0; i < missing; ++i) bell.notify_one();
    }

    void work(int thread) {
        const auto patience = thread < hardware ? kStayAwake : Clock::duration(0);
        Loop loop;
        for (uint64_t seen = 0;;) {
            const auto changed = [&] { return shared.epoch.load(std::memory_order_relaxed) != seen; };
            if (!spin_until(changed, patience)) sleep(seen);
            if (!read(loop) || loop.epoch == seen) continue;
            if (loop.epoch == kStop) return;
            seen = loop.epoch;
            take_pieces(loop, thread);
        }
    }

    static double seconds(Clock::time_point t) { return std::chrono::duration<double>(t.time_since_epoch()).count(); }

    int64_t busy_ns() const {
        int64_t sum = 0;
        for (const Share& share : shares) sum += share.busy_ns.load(std::memory_order_relaxed);
        return sum;
    }

    void run(Loop loop) {
        if (log == nullptr) return run(loop, [] {});
        loop.timed = true;
        LoopTimes times;
        const int64_t busy = busy_ns();
        times.begin = seconds(Clock::now());
        run(loop, [&] { times.own_end = seconds(Clock::now()); });
        times.end = seconds(Clock::now());
        times.busy = static_cast<double>(busy_ns() - busy) * 1e-9;
        log->push_back(times);
    }

    template <class OwnEnd>
    void run(Loop loop, const OwnEnd& own_end) {
        loop.epoch = shared.epoch.load(std::memory_order_relaxed) + 2;
        publish(loop);
        wake(std::min<int64_t>(loop.pieces, std::clamp<int64_t>(hardware, 2, std::ssize(shares))) - 1);
        take_pieces(loop, 0);
        own_end();
        const auto finished = [&] { return done.load(std::memory_order_acquire) == loop.pieces; };
        spin_until(finished, Clock::duration::max());
        if (failed.load(std::memory_order_relaxed)) std::rethrow_exception(std::exchange(error, nullptr));
    }
};

void spin_pause(int64_t tries) {
    if (tries > 4000) std::this_thread::yield();
    else pause_core();
}

ThreadPool::ThreadPool(int threads) {
    RT_CHECK(threads >= 0 && threads <= 4096, "{} threads asked for, expected 1 to 4096 (0 for all)", threads);
    impl_ = std::make_unique<Impl>(threads == 0 ? usable_hardware_threads() : threads);
    impl_->threads.reserve(impl_->shares.size());
    for (int i = 1; i < size(); ++i) impl_->threads.emplace_back([impl = impl_.get(), i] { impl->work(i); });
}

ThreadPool::~ThreadPool() {
    impl_->shared.epoch.store(kStop);
    impl_->bell.fetch_add(1);
    impl_->bell.notify_all();
    for (std::thread& thread : impl_->threads) thread.join();
}

void ThreadPool::log_loops(std::vector<LoopTimes>* log) { impl_->log = log; }

int ThreadPool::size() const { return static_cast<int>(impl_->shares.size()); }

void ThreadPool::run(int64_t n, int64_t grain, Piece piece, const void* body) {
    RT_ASSERT(grain >= 1);
    if (n <= 0) return;
    if (n <= grain || size() == 1) {
        for (int64_t begin = 0; begin < n; begin += grain) piece(body, begin, std::min(n, begin + grain), 0);
        return;
    }
    const int64_t pieces = (n - 1) / grain + 1;
    RT_ASSERT((pieces - 1) / size() + 1 < int64_t{1} << kClaimBits);
    impl_->run({0, n, grain, pieces, piece, body, false});
}

}  // namespace riptide
