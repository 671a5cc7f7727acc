// The order in which reductions add: sixteen lanes, then pairs. One order on every instruction set.
#pragma once

#include <array>
#include <cstdint>

namespace riptide::ops {

inline constexpr int64_t kLanes = 16;

/// Adds lane i + 8 to lane i, then i + 4, i + 2, i + 1.
template <class Acc>
Acc add_lanes(std::array<Acc, kLanes>& lanes) {
    for (size_t half = kLanes / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}

/// sum_i f(i) for i in [0, n), term i in lane i % 16.
template <class Acc, class F>
Acc lane_sum(int64_t n, const F& f) {
    std::array<Acc, kLanes> lanes{};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        for (int64_t j = 0; j < kLanes; ++j) lanes[static_cast<size_t>(j)] += f(i + j);
    for (; i < n; ++i) lanes[static_cast<size_t>(i % kLanes)] += f(i);
    return add_lanes(lanes);
}

}  // namespace riptide::ops
