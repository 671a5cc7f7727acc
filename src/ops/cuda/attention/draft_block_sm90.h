// The host's side of draft_block_sm90.cu. The rest of it: backend.h.
#pragma once

#include "ops/batch.h"
#include "ops/kv/kv_view.h"
#include "tensor/context.h"

namespace riptide::ops::cuda {

/// block_attention. REQUIRES has_block_tensor().
Tensor block_attention_tensor(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch,
                              float softmax_scale);

}  // namespace riptide::ops::cuda
