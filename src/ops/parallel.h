// Loops over independent pieces of work, on the context's threads when there is enough of it.
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

}  // namespace riptide::ops
