// The order in which reductions add: sixteen lanes, then pairs. One order on every instruction set.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

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

/// Four lanes in a register that every CPU has. Expressions of them round each element as scalars do.
typedef float Float4 __attribute__((vector_size(16)));
inline Float4 load4(const float* p) {
    Float4 v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void store4(float* p, Float4 v) { std::memcpy(p, &v, sizeof v); }

/// y[i] = f(i) for i in [0, n); f4(i) gives f(i) to f(i + 3). y may be what f reads at i.
template <class F4, class F>
void map4(int64_t n, float* y, const F4& f4, const F& f) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) store4(y + i, f4(i));
    for (; i < n; ++i) y[i] = f(i);
}

}  // namespace riptide::ops
