#include "ops/kv/kv_compact.h"

#include "ops/cuda/backend.h"
#include "ops/kv/kv_append.h"
#include "ops/op_cost.h"

namespace riptide::ops {

void kv_compact(Context& ctx, std::span<const KvView> views, const Batch& batch, const int32_t* path,
                const int32_t* kept) {
    const OpScope told = announce(ctx, "kv_compact", batch.rows());
    RT_ASSERT(batch.sequences() == 1);
    if (ctx.gpu != nullptr) return cuda::kv_compact(ctx, views, batch, path, kept);
    for (const KvView& view : views) {
        if (view.num_kv_heads == 0) continue;
        // Row i of the path comes from index >= i, so going up never overwrites a row that is still to be moved.
        for (int32_t i = 0; i < *kept; ++i)
            kv_move(nullptr, view, view.slot(batch, 0, batch.committed[0] + path[i]),
                    view.slot(batch, 0, batch.committed[0] + i));
    }
}

void kv_compact(Gpu* gpu, std::span<const KvView> views, const KvWay& way) {
    if (gpu != nullptr) return cuda::kv_compact(*gpu, views, way);
    for (const KvView& view : views) {
        if (view.num_kv_heads == 0) continue;
        for (size_t i = 0; i < way.path.size(); ++i)
            kv_move(nullptr, view, view.slot(way.state_slot, way.pages, way.committed + way.path[i]),
                    view.slot(way.state_slot, way.pages, way.committed + static_cast<int64_t>(i)));
    }
}

}  // namespace riptide::ops
