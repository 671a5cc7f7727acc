// What benches of ops on a GPU share: arguments, rows of x, the time of a graph.
#pragma once

#include <algorithm>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tensor/context.h"
#include "tensor/gpu.h"

namespace riptide::bench {

inline std::vector<int64_t> numbers(const std::string& list) {
    std::vector<int64_t> out;
    std::istringstream in(list);
    for (std::string part; std::getline(in, part, ',');) out.push_back(std::stoll(part));
    return out;
}

inline Tensor random_tensor(Context& ctx, int64_t rows, int64_t cols) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& v : values) v = normal(random);
    const Tensor t = ctx.alloc(DType::f32, {rows, cols});
    ctx.gpu->to_device(t.data, values.data(), std::ssize(values) * 4);
    return t;
}

/// Microseconds of fifteen replays of `body`'s graph, behind three to warm up, ascending.
inline std::vector<double> replays_us(Gpu& gpu, const std::function<void()>& body) {
    body();
    gpu.synchronize();
    GpuGraph graph(gpu, body);
    GpuTimer timer(gpu);
    std::vector<double> us;
    for (int i = 0; i < 18; ++i) {
        timer.start();
        graph.launch();
        timer.stop();
        const double t = timer.milliseconds() * 1e3;
        if (i >= 3) us.push_back(t);
    }
    std::sort(us.begin(), us.end());
    return us;
}

/// Their median, of a body that begins with an empty arena.
inline double median_us(Gpu& gpu, Arena& arena, const std::function<void()>& body) {
    const std::vector<double> us = replays_us(gpu, [&] {
        arena.reset();
        body();
    });
    return us[us.size() / 2];
}

}  // namespace riptide::bench
