#include "base/memory_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

namespace riptide {

double measure_read_bandwidth(ThreadPool& threads, int64_t bytes) {
    const int64_t words = bytes / 8;
    std::vector<uint64_t> memory(static_cast<size_t>(words));
    constexpr int64_t kPiece = int64_t{1} << 17;
    threads.parallel_for(words, kPiece, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) memory[static_cast<size_t>(i)] = static_cast<uint64_t>(i);
    });
    std::atomic<uint64_t> sink{0};  // keeps the reads alive
    double best = 0;
    for (int pass = 0; pass < 3; ++pass) {
        const auto start = std::chrono::steady_clock::now();
        threads.parallel_for(words, kPiece, [&](int64_t begin, int64_t end, int) {
            uint64_t lanes[16] = {};
            int64_t i = begin;
            for (; i + 16 <= end; i += 16)
                for (int lane = 0; lane < 16; ++lane) lanes[lane] += memory[static_cast<size_t>(i + lane)];
            uint64_t sum = 0;
            for (uint64_t lane : lanes) sum += lane;
            for (; i < end; ++i) sum += memory[static_cast<size_t>(i)];
            sink.fetch_add(sum, std::memory_order_relaxed);
        });
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        best = std::max(best, static_cast<double>(words * 8) / seconds);
    }
    return best;
}

}  // namespace riptide
