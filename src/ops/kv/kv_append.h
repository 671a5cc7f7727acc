// Writing K/V rows into a layer's storage.
#pragma once

#include <cstdint>

#include "ops/batch.h"
#include "ops/kv/kv_view.h"
#include "tensor/context.h"

namespace riptide::ops {

/// Encodes the K and V of every row of the step into view.slot(batch, sequence, storage index).
/// k, v f32 [n, num_kv_heads, head_dim], after norm and rope. Types that live in a rotated domain (kv_rotated) are
/// rotated here. REQUIRES pages reserved for the rows; on a ring, at most ring_rows - (window - 1) rows of one
/// sequence. Row-exact; rows write disjoint slots.
void kv_append(Context& ctx, const KvView& view, const Tensor& k, const Tensor& v, const Batch& batch);

/// Copies the stored K and V of one token, bit for bit: what keeps an accepted tree path. Slots as KvView::slot counts
/// them. `gpu`: where the storage lies, null for the host.
void kv_move(Gpu* gpu, const KvView& view, int64_t from_slot, int64_t to_slot);

}  // namespace riptide::ops
