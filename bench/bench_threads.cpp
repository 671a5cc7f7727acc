// What a parallel loop costs beyond its work: the time of a loop with one piece for each thread, where a piece spins
// for `body_us`, after a serial part of `gap_us`; the column "overhead_us" is that time less the two. Arguments:
// threads, body_us, gap_us. More threads than cores: pieces take turns, so the overhead holds whole pieces.
#include <benchmark/benchmark.h>

#include <chrono>

#include "base/thread_pool.h"

namespace {

using Clock = std::chrono::steady_clock;

void spin(std::chrono::nanoseconds time) {
    if (time.count() == 0) return;
    const auto end = Clock::now() + time;
    while (Clock::now() < end) {
    }
}

void loop(benchmark::State& state) {
    riptide::ThreadPool threads(static_cast<int>(state.range(0)));
    const std::chrono::microseconds body(state.range(1)), gap(state.range(2));
    const auto start = Clock::now();
    for (auto _ : state) {
        spin(gap);
        threads.parallel_for(threads.size(), 1, [&](int64_t, int64_t, int) { spin(body); });
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    state.counters["overhead_us"] =
        seconds * 1e6 / static_cast<double>(state.iterations()) - static_cast<double>(state.range(1) + state.range(2));
}

}  // namespace

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    auto* bench = benchmark::RegisterBenchmark("loop", loop)->UseRealTime()->Unit(benchmark::kMicrosecond);
    for (int threads : {1, 2, 4, 8, 16, 32})
        for (int body : {0, 20})
            for (int gap : {0, 40, 120}) bench->Args({threads, body, gap});
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
}
