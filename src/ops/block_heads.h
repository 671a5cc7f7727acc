// Queries, keys and values of a drafter's layers, made ready for attention.
#pragma once

#include <span>

#include "ops/batch.h"
#include "ops/kv/kv_view.h"
#include "ops/matmul.h"
#include "ops/rope.h"

namespace riptide::ops {

/// One layer: what its projections gave.
struct BlockHeads {
    Tensor q;     // f32 [n, H, head_dim]; without data: none
    Tensor k, v;  // f32 [n, num_kv_heads, head_dim]
    Norm q_norm, k_norm;
    KvView kv;
};

inline constexpr size_t kMostBlockHeads = 8;

/// For each of up to kMostBlockHeads layers with one rotation R: q <- R(p) RMSNorm(q), per head; K and V of the step's
/// rows, R(p) RMSNorm(k) and v, to their places in the cache. The same bits as rms_norm, rope (by batch.positions) and
/// kv_append; REQUIRES what these do. q's memory may be written. On a GPU: one kernel.
void block_heads(Context& ctx, std::span<BlockHeads> layers, const Rope& rope, const Batch& batch);

}  // namespace riptide::ops
