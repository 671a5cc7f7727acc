// The host's side of block_attention_tensor.cu. The rest of it: cuda.h.
#pragma once

#include "ops/batch.h"
#include "ops/kv_view.h"
#include "tensor/context.h"

namespace riptide::ops::cuda {

/// block_attention. REQUIRES has_block_tensor().
Tensor block_attention_tensor(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch,
                              float softmax_scale);

}  // namespace riptide::ops::cuda
