// What CPU code of the ops shares: loops over independent pieces of work on the context's threads, and scratch memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/context.h"

namespace riptide::ops {

/// Calls body(begin, end, thread) over [0, n). `cost` is about the scalar operations of one item: pieces are sized so
/// that waking a thread pays, and small loops run on the caller. A result must not depend on the cutting.
template <class Body>
void parallel_rows(Context& ctx, int64_t n, int64_t cost, const Body& body) {
    constexpr int64_t kPieceCost = 1 << 14;  // a few microseconds
    const int64_t grain = std::max<int64_t>(1, kPieceCost / std::max<int64_t>(1, cost));
    if (n <= 0) return;
    if (ctx.threads == nullptr || ctx.threads->size() == 1 || n <= grain) body(int64_t{0}, n, 0);
    else ctx.threads->parallel_for(n, grain, body);
}

inline int thread_count(const Context& ctx) { return ctx.threads == nullptr ? 1 : ctx.threads->size(); }

/// Calls body(i, thread) for each of [0, n), whatever a piece costs.
template <class Body>
void for_each_item(Context& ctx, int64_t n, const Body& body) {
    const auto range = [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i) body(i, thread);
    };
    if (ctx.threads == nullptr) range(0, n, 0);
    else ctx.threads->parallel_for(n, 1, range);
}

/// n floats of the arena, until its scope ends.
inline float* floats(Context& ctx, int64_t n) {
    return static_cast<float*>(ctx.arena->allocate(n * static_cast<int64_t>(sizeof(float))));
}

}  // namespace riptide::ops
