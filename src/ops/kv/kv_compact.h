// Keeping the K/V of an accepted way of a draft tree.
#pragma once

#include <cstdint>
#include <span>

#include "ops/batch.h"
#include "ops/kv/kv_view.h"
#include "tensor/context.h"

namespace riptide::ops {

/// In every layer copies the stored K and V of index committed + path[i] to index committed + i, for i < *kept, bit for
/// bit: what SequenceState::commit(path) does on the host's word. batch: the step's, of one sequence. path i32,
/// ascending, path[i] >= i, and kept lie in the device's memory, like the batch. views: of all layers; empty ones are
/// passed over. Does not wait for the device. Cost: one launch for 64 layers (the host's way: two copies for each row
/// and layer), and nothing is moved where the path is 0, 1, 2, ...
void kv_compact(Context& ctx, std::span<const KvView> views, const Batch& batch, const int32_t* path,
                const int32_t* kept);

/// Rows of one sequence whose way the host knows. Spans are of the host.
struct KvWay {
    int32_t state_slot = 0;
    std::span<const int32_t> pages;  // of the sequence, at least up to its last row
    int64_t committed = 0;
    std::span<const int32_t> path;  // ascending, path[i] >= i
};
/// kv_compact on the host's word. `gpu`: where the storage lies, null for the host. Does not wait for the device. Cost:
/// one launch for each 16 rows and 64 layers, none where the path is 0, 1, 2, ...
void kv_compact(Gpu* gpu, std::span<const KvView> views, const KvWay& way);

}  // namespace riptide::ops
