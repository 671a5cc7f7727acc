#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"

namespace riptide {
namespace {

TEST(ThreadPool, every_index_is_visited_exactly_once) {
    for (int threads : {1, 2, 3, 7}) {
        ThreadPool pool(threads);
        EXPECT_EQ(pool.size(), threads);
        for (int64_t n : {0, 1, 2, 63, 64, 1000})
            for (int64_t grain : {1, 3, 64, 5000}) {
                std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
                pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int thread) {
                    EXPECT_EQ(begin % grain, 0);
                    EXPECT_LE(end - begin, grain);
                    EXPECT_GE(thread, 0);
                    EXPECT_LT(thread, threads);
                    for (int64_t i = begin; i < end; ++i) visits[static_cast<size_t>(i)].fetch_add(1);
                });
                for (const auto& count : visits) ASSERT_EQ(count.load(), 1) << threads << " " << n << " " << grain;
            }
    }
}

// Plain memory written in one loop is read in the next: a missing happens-before edge shows under ThreadSanitizer.
TEST(ThreadPool, loops_in_a_row_see_what_the_loop_before_wrote) {
    ThreadPool pool(3);
    std::vector<int64_t> values(257, 0);
    for (int loop = 0; loop < 3000; ++loop)
        pool.parallel_for(257, 7, [&](int64_t begin, int64_t end, int) {
            for (int64_t i = begin; i < end; ++i) {
                auto& value = values[static_cast<size_t>(i)];
                ASSERT_EQ(value, loop);
                value = loop + 1;
            }
        });
    EXPECT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), 257 * 3000);
}

TEST(ThreadPool, two_pieces_never_run_on_one_thread_number_at_once) {
    ThreadPool pool(4);
    std::vector<std::atomic<int>> inside(4);
    for (int loop = 0; loop < 200; ++loop)
        pool.parallel_for(64, 1, [&](int64_t, int64_t, int thread) {
            auto& count = inside[static_cast<size_t>(thread)];
            EXPECT_EQ(count.fetch_add(1), 0);
            count.fetch_sub(1);
        });
}

TEST(ThreadPool, sleeping_workers_wake_up) {
    ThreadPool pool(2);
    for (int loop = 0; loop < 20; ++loop) {
        const auto asleep_by_then = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
        while (std::chrono::steady_clock::now() < asleep_by_then) std::this_thread::yield();
        // The caller holds its first piece until somebody else has taken the other one.
        std::atomic<int> started{0};
        pool.parallel_for(2, 1, [&](int64_t, int64_t, int) {
            started.fetch_add(1);
            while (started.load() < 2) std::this_thread::yield();
        });
        EXPECT_EQ(started.load(), 2);
    }
}

TEST(ThreadPool, an_exception_reaches_the_caller_and_the_pool_lives_on) {
    for (int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (int loop = 0; loop < 50; ++loop) {
            EXPECT_THROW(pool.parallel_for(100, 1,
                                           [&](int64_t begin, int64_t, int) {
                                               if (begin >= 17) throw std::runtime_error("piece");
                                           }),
                         std::runtime_error);
            std::atomic<int64_t> sum{0};
            pool.parallel_for(100, 9, [&](int64_t begin, int64_t end, int) { sum += end - begin; });
            EXPECT_EQ(sum.load(), 100);
        }
    }
}

TEST(ThreadPool, each_thread_begins_with_its_own_share) {
    ThreadPool pool(2);
    for (int loop = 0; loop < 20; ++loop) {
        std::atomic<int> started{0};
        std::vector<std::atomic<int64_t>> first(2);
        for (auto& begin : first) begin = -1;
        pool.parallel_for(16, 2, [&](int64_t begin, int64_t, int thread) {
            int64_t none = -1;
            if (!first[static_cast<size_t>(thread)].compare_exchange_strong(none, begin)) return;
            started.fetch_add(1);
            while (started.load() < 2) std::this_thread::yield();
        });
        EXPECT_EQ(first[0].load(), 0);
        EXPECT_EQ(first[1].load(), 8);
    }
}

// More threads than cores, and loops so short that workers come when later loops of other shapes run. Counts are plain
// memory: a piece that runs twice or in the wrong loop is a race under ThreadSanitizer.
TEST(ThreadPool, late_workers_touch_no_later_loop) {
    ThreadPool pool(16);
    for (int loop = 0; loop < 4000; ++loop) {
        std::vector<int> visits(static_cast<size_t>(2 + loop * 7 % 61));
        pool.parallel_for(std::ssize(visits), 1 + loop % 3, [&](int64_t begin, int64_t end, int) {
            for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        ASSERT_EQ(std::accumulate(visits.begin(), visits.end(), 0), std::ssize(visits)) << loop;
    }
}

TEST(ThreadPool, zero_means_at_least_one_and_absurd_counts_are_refused) {
    EXPECT_GE(ThreadPool(0).size(), 1);
    EXPECT_THROW(ThreadPool(-1), Error);
    EXPECT_THROW(ThreadPool(1 << 20), Error);
}

}  // namespace
}  // namespace riptide
