// What the benches of prefill's products share: a device with random weights and rows, its clock, and rows as argument.
#pragma once

#include <benchmark/benchmark.h>

#include <memory>
#include <random>
#include <vector>

#include "ops/cuda/linear/gemm/gemm.h"
#include "ops/cuda/moe/moe_prefill.h"
#include "quant/random_fill.h"
#include "quant/weight_store.h"

namespace riptide::bench {

inline constexpr int64_t kHidden = 2048, kExperts = 256, kWidth = 512, kTopK = 8;

struct Device {
    std::unique_ptr<Gpu> gpu = Gpu::open();
    Arena arena{int64_t{5} << 30, gpu.get()};
    WeightStore store{gpu.get()};
    std::vector<std::vector<std::byte>> host;
    Context ctx;

    Device() {
        ctx.gpu = gpu.get();
        ctx.family = Family::prefill;
        ctx.arena = &arena;
    }
    Weight random_host(DType type, int64_t rows, int64_t cols) {
        Weight w;
        w.dtype = type;
        w.rows = rows;
        w.cols = cols;
        w.row_bytes = row_bytes(type, cols);
        host.emplace_back(static_cast<size_t>(w.bytes()));
        random_fill(type, host.back().data(), rows * cols, 0.02f, host.size());
        w.data = host.back().data();
        return w;
    }
    Weight matrix(DType type, int64_t rows, int64_t cols) {
        const Weight w = store.matrix(random_host(type, rows, cols));
        store.finish();
        return w;
    }
    /// All in memory of their own on the device; eight different contents.
    std::vector<Weight> experts(DType type, int64_t rows, int64_t cols) {
        std::vector<Weight> all;
        for (int64_t e = 0; e < kExperts; ++e)
            all.push_back(e < 8 ? random_host(type, rows, cols) : all[static_cast<size_t>(e % 8)]);
        all = store.experts(all);
        store.finish();
        return all;
    }
    Tensor rows(int64_t n, int64_t cols) {
        std::vector<float> values(static_cast<size_t>(n * cols));
        std::mt19937 random(7);
        for (float& v : values) v = static_cast<float>(random()) * 0x1p-31f - 1.0f;
        const Tensor x = ctx.alloc(DType::f32, {n, cols});
        gpu->to_device(x.data, values.data(), 4 * n * cols);
        return x;
    }
};

inline ops::Routing random_routing(Device& d, int64_t n) {
    std::vector<int32_t> chosen(static_cast<size_t>(n * kTopK));
    std::vector<float> weights(chosen.size(), 0.125f);
    std::mt19937 random(9);
    for (int32_t& e : chosen) e = static_cast<int32_t>(random() % kExperts);
    const ops::Routing r{kTopK, d.ctx.alloc(DType::i32, {n, kTopK}), d.ctx.alloc(DType::f32, {n, kTopK})};
    d.gpu->to_device(r.experts.data, chosen.data(), 4 * n * kTopK);
    d.gpu->to_device(r.weights.data, weights.data(), 4 * n * kTopK);
    return r;
}

/// Runs `body` under the device's clock; what it allocates is given back each time.
template <class Body>
void measure(benchmark::State& state, Device& d, const Body& body) {
    GpuTimer timer(*d.gpu);
    const auto run = [&] {
        const ArenaScope scope(d.arena);
        body();
    };
    for (int i = 0; i < 3; ++i) run();
    for (auto _ : state) {
        timer.start();
        run();
        timer.stop();
        state.SetIterationTime(timer.milliseconds() * 1e-3);
    }
}

inline void rate(benchmark::State& state, const char* name, double each) {
    state.counters[name] = benchmark::Counter(each * 1e-12, benchmark::Counter::kIsIterationInvariantRate);
}

template <class... Args>
void add(const char* name, Args... args) {
    benchmark::RegisterBenchmark(name, args...)->UseManualTime()->Iterations(20)->Unit(benchmark::kMicrosecond);
}
template <class... Args>
void add_rows(const char* name, Args... args) {
    benchmark::RegisterBenchmark(name, args...)
        ->UseManualTime()
        ->Iterations(20)
        ->Unit(benchmark::kMicrosecond)
        ->Arg(256)
        ->Arg(512)
        ->Arg(1024)
        ->Arg(2048)
        ->Arg(4096)
        ->Arg(8192)
        ->Arg(16384);
}

}  // namespace riptide::bench
