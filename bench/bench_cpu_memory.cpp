// What a CPU's memory gives, and what the dot product kernels take of it.
//   reads  N threads read a share of 2 GiB each, as S streams side by side, with or without prefetch instructions
//   dot    one activation row times rows of weights: from the L2 cache (one thread, all), and from memory, where
//          every thread goes through its own share without meeting others
//   wakeup an empty loop over all threads, right behind the last one and after 20 us
//   types  block types from the L2 cache, one thread, one and eight activation rows, beside q4_k; many times in turn
//
// usage: bench_cpu_memory [--threads N] [--huge] | --types [avx2|baseline]
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/memory_bandwidth.h"
#include "base/thread_pool.h"
#include "bench/map_memory.h"
#include "quant/dot.h"
#include "quant/random_fill.h"

namespace {

using namespace riptide;

constexpr int64_t kMemory = int64_t{2} << 30;

typedef uint64_t Line __attribute__((vector_size(64)));

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// The least seconds of `repeat` runs.
double fastest(int repeat, const std::function<void()>& f) {
    double best = 1e9;
    for (int i = 0; i < repeat; ++i) {
        const double start = now();
        f();
        best = std::min(best, now() - start);
    }
    return best;
}

/// Reads `bytes` as `streams` streams, 256 bytes of each in turn; `ahead` > 0: prefetches so many bytes ahead.
uint64_t read_streams(const std::byte* base, int64_t bytes, int64_t streams, int64_t ahead, int locality) {
    const int64_t each = bytes / streams / 256 * 256;
    Line sum[4] = {};
    for (int64_t at = 0; at < each; at += 256)
        for (int64_t s = 0; s < streams; ++s) {
            const std::byte* p = base + s * each + at;
            if (ahead > 0)
                for (int i = 0; i < 4; ++i) {
                    if (locality == 3) __builtin_prefetch(p + ahead + 64 * i, 0, 3);
                    else __builtin_prefetch(p + ahead + 64 * i, 0, 2);
                }
            for (int i = 0; i < 4; ++i) sum[i] += *reinterpret_cast<const Line*>(p + 64 * i);
        }
    const Line all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    uint64_t total = 0;
    for (int i = 0; i < 8; ++i) total += all[i];
    return total;
}

void bench_reads(ThreadPool& threads, const std::byte* memory) {
    fmt::print("reads: probe {:.1f} GB/s\n{:>8} {:>10} {:>10}\n",
               measure_read_bandwidth(threads, int64_t{1} << 30) * 1e-9, "streams", "prefetch", "GB/s");
    const int64_t share = kMemory / threads.size() / 4096 * 4096;
    std::atomic<uint64_t> sink{0};
    struct Prefetch {
        int ahead, locality;
    };
    for (const Prefetch p : {Prefetch{0, 0}, {1024, 3}, {4096, 3}, {4096, 2}})
        for (const int64_t streams : {1, 2, 4, 8}) {
            const double time = fastest(4, [&] {
                threads.parallel_for(threads.size(), 1, [&](int64_t begin, int64_t, int) {
                    sink += read_streams(memory + begin * share, share, streams, p.ahead, p.locality);
                });
            });
            fmt::print("{:>8} {:>10} {:>10.1f}\n", streams,
                       p.ahead == 0 ? "none" : fmt::format("{} L{}", p.ahead, p.locality == 3 ? 1 : 2),
                       static_cast<double>(share * threads.size()) / time * 1e-9);
        }
}

/// A matrix over `memory`, filled.
Weight matrix(ThreadPool& threads, DType type, std::byte* memory, int64_t bytes, int64_t cols) {
    Weight w;
    w.dtype = type;
    w.data = memory;
    w.cols = cols;
    w.row_bytes = row_bytes(type, cols);
    w.rows = bytes / w.row_bytes;
    threads.parallel_for(w.rows, 256, [&](int64_t begin, int64_t end, int) {
        random_fill(type, memory + begin * w.row_bytes, (end - begin) * cols, 0.02f, static_cast<uint64_t>(begin));
    });
    return w;
}

/// Rows [begin, end) of w, 64 at a time.
void dot_rows(const Weight& w, const void* x, int64_t begin, int64_t end) {
    float y[64];
    alignas(64) static thread_local std::byte scratch[size_t{64} << 10];
    RT_ASSERT(dot_scratch_bytes(w) <= std::ssize(scratch));
    DotTask task;
    task.scratch = scratch;
    task.w = &w;
    task.x = x;
    task.n = 1;
    task.y = y;
    for (int64_t o = begin; o < end; o += 64) {
        task.row_begin = o;
        task.row_end = std::min(end, o + 64);
        dot_kernels().dot(task);
    }
}

void bench_dot(ThreadPool& threads, std::byte* memory, DType type, int64_t cols) {
    const Weight w = matrix(threads, type, memory, kMemory / 2, cols);
    std::vector<float> x(static_cast<size_t>(cols), 0.5f);
    std::vector<std::byte> quantised(static_cast<size_t>(Int8Row::bytes(cols)) + 64);
    const void* input = x.data();
    if (uses_int8_activations(type)) {
        dot_kernels().quantize(x.data(), 0, cols, cols, quantised.data());
        input = quantised.data();
    }
    const int64_t cached = (int64_t{512} << 10) / w.row_bytes, share = w.rows / threads.size();
    constexpr int64_t kTimes = 100;
    const auto from_cache = [&](int64_t thread) {
        for (int64_t i = 0; i < kTimes; ++i) dot_rows(w, input, thread * share, thread * share + cached);
    };
    const double one = fastest(3, [&] { from_cache(0); });
    const double all =
        fastest(3, [&] { threads.parallel_for(threads.size(), 1, [&](int64_t t, int64_t, int) { from_cache(t); }); });
    const double memory_time = fastest(4, [&] {
        threads.parallel_for(threads.size(), 1,
                             [&](int64_t t, int64_t, int) { dot_rows(w, input, t * share, (t + 1) * share); });
    });
    const auto rate = [&](int64_t rows, double time) { return static_cast<double>(rows * w.row_bytes) / time * 1e-9; };
    fmt::print("{:>8} {:>8} {:>14.1f} {:>14.1f} {:>14.1f}\n", dtype_name(type), cols, rate(cached * kTimes, one),
               rate(cached * kTimes, all), rate(share * threads.size(), memory_time));
}

/// Least seconds of a pass over 256 KiB of a type, for one and for eight activation rows.
struct TypeTimes {
    DType type;
    Weight w;
    std::vector<std::byte> memory;
    double seconds[2] = {1e9, 1e9};
};

void bench_types(Isa isa) {
    constexpr int64_t kBytes = int64_t{256} << 10, kCols = 2048, kRows[] = {1, 8};
    const DotKernels& kernels = dot_kernels(isa);
    ThreadPool one(1);
    std::vector<TypeTimes> all;
    for (const DType type :
         {DType::q4_k, DType::q2_k, DType::q3_k, DType::q8_0, DType::iq4_xs, DType::iq1_s, DType::iq1_m, DType::iq2_xxs,
          DType::iq2_xs, DType::iq2_s, DType::iq3_xxs, DType::iq3_s, DType::tq1_0, DType::tq2_0}) {
        std::vector<std::byte> memory(kBytes);
        const Weight w = matrix(one, type, memory.data(), kBytes, kCols);
        all.push_back({type, w, std::move(memory)});
    }
    std::vector<float> x(8 * kCols), y(8 * 64);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 101) - 50.0f;
    const int64_t stride = Int8Row::bytes(kCols);
    std::vector<std::byte> input(static_cast<size_t>(8 * stride)), scratch(size_t{256} << 10);
    for (int64_t r = 0; r < 8; ++r) kernels.quantize(x.data() + r * kCols, 0, kCols, kCols, input.data() + r * stride);
    DotTask task{.x = input.data(), .x_stride = stride, .y = y.data(), .y_stride = 64};
    task.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
    const auto pass = [&](const Weight& w) {
        task.w = &w;
        for (task.row_begin = 0; task.row_begin < w.rows; task.row_begin = task.row_end) {
            task.row_end = std::min(w.rows, task.row_begin + 64);
            kernels.dot(task);
        }
    };
    for (int round = 0; round < 200; ++round)
        for (TypeTimes& t : all)
            for (int i = 0; i < 2; ++i) {
                task.n = kRows[i];
                t.seconds[i] = std::min(t.seconds[i], fastest(3, [&] { pass(t.w); }));
            }
    fmt::print("types, kernels {}\n{:>8} {:>11} {:>9} {:>7} {:>12} {:>10} {:>8}\n", kernels.name, "type", "ns/256, 1",
               "GB/s, 1", "share", "ns/256, 8", "GB/s, 8", "share");
    const auto rate = [](const TypeTimes& t, int i) { return static_cast<double>(t.w.bytes()) / t.seconds[i] * 1e-9; };
    for (const TypeTimes& t : all) {
        fmt::print("{:>8}", dtype_name(t.type));
        for (int i = 0; i < 2; ++i)
            fmt::print(" {:>11.2f} {:>9.2f} {:>6.0f}%",
                       t.seconds[i] * 1e9 / static_cast<double>(t.w.rows * kCols / 256), rate(t, i),
                       100.0 * rate(t, i) / rate(all.front(), i));
        fmt::print("\n");
    }
}

void bench_wakeup(ThreadPool& threads) {
    constexpr int kTimes = 2000;
    for (const int gap_us : {0, 20}) {
        double time = 0;
        for (int i = 0; i < kTimes; ++i) {
            const double start = now();
            while (now() - start < gap_us * 1e-6) {
            }
            const double begin = now();
            threads.parallel_for(threads.size(), 1, [](int64_t, int64_t, int) {});
            time += now() - begin;
        }
        fmt::print("wakeup: {:.2f} us for an empty loop, {} us after the last\n", time / kTimes * 1e6, gap_us);
    }
}

}  // namespace

int main(int argc, char** argv) {
    int count = 0;
    bool huge = false;
    for (int i = 1; i < argc; ++i) {
        const std::string flag = argv[i];
        if (flag == "--huge") huge = true;
        else if (flag == "--types") {
            const std::string set = i + 1 < argc ? argv[i + 1] : "";
            const Isa isa = set == "avx2" ? Isa::avx2 : set == "baseline" ? Isa::baseline : dot_kernels().isa;
            return bench_types(isa), 0;
        } else if (flag == "--threads" && i + 1 < argc) count = std::atoi(argv[++i]);
        else return fmt::print(stderr, "unknown flag {}\n", flag), 64;
    }
    ThreadPool threads(count);
    fmt::print("{} threads, {} pages, kernels {}\n", threads.size(), huge ? "huge" : "4 KiB", dot_kernels().name);
    bench_wakeup(threads);
    std::byte* memory = map_memory(kMemory, huge);
    threads.parallel_for(kMemory, int64_t{1} << 20, [&](int64_t begin, int64_t end, int) {
        std::memset(memory + begin, static_cast<int>(begin >> 20 & 127), static_cast<size_t>(end - begin));
    });
    bench_reads(threads, memory);
    fmt::print("dot, GB/s of weights\n{:>8} {:>8} {:>14} {:>14} {:>14}\n", "type", "columns", "L2, 1 thread", "L2, all",
               "memory, all");
    for (const auto& [type, cols] :
         {std::pair{DType::q4_k, 2048}, std::pair{DType::q4_k, 512}, std::pair{DType::q6_k, 2048},
          std::pair{DType::q6_k, 512}, std::pair{DType::f32, 2048}, std::pair{DType::bf16, 2048},
          std::pair{DType::iq1_s, 2048}, std::pair{DType::iq2_xs, 2048}, std::pair{DType::iq3_s, 2048},
          std::pair{DType::tq1_0, 2048}})
        bench_dot(threads, memory, type, cols);
}
