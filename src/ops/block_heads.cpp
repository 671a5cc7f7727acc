#include "ops/block_heads.h"

#include "ops/cuda/backend.h"
#include "ops/kv/kv_append.h"
#include "ops/norm.h"
#include "ops/op_cost.h"

namespace riptide::ops {

void block_heads(Context& ctx, std::span<BlockHeads> layers, const Rope& rope, const Batch& batch) {
    RT_ASSERT(!layers.empty() && layers.size() <= kMostBlockHeads);
    for (const BlockHeads& l : layers) {
        RT_ASSERT(l.k.rank == 3 && l.k.contiguous() && l.k.rows() == batch.rows() && l.v.contiguous());
        RT_ASSERT(l.k.shape[1] == l.kv.num_kv_heads && l.k.shape[2] == l.kv.head_dim && l.v.shape == l.k.shape);
        RT_ASSERT(l.q.data == nullptr || (l.q.rank == 3 && l.q.contiguous() && l.q.rows() == batch.rows()));
    }
    const OpScope told = announce(ctx, "block_heads", batch.rows());
    if (ctx.gpu != nullptr) return cuda::block_heads(ctx, layers, rope, batch);
    const auto prepared = [&](const Tensor& x, const Norm& norm) {
        Tensor y = rms_norm(ctx, x, norm.weight, norm.eps);
        ops::rope(ctx, y, batch.positions, rope);
        return y;
    };
    for (BlockHeads& l : layers) {
        if (l.q.data != nullptr) l.q = prepared(l.q, l.q_norm);
        const ArenaScope scope(*ctx.arena);
        kv_append(ctx, l.kv, prepared(l.k, l.k_norm), l.v, batch);
    }
}

}  // namespace riptide::ops
