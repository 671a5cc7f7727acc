// The host's side of block_attention_tensor.cu.
#pragma once

#include "ops/attention_work.h"
#include "ops/batch.h"
#include "ops/kv_view.h"
#include "tensor/context.h"

namespace riptide::ops {

struct BlockTensorArgs {
    KeyPlaces places;
    const float* q;  // [n, heads, 128]
    const unsigned char* k_cache;
    const unsigned char* v_cache;
    float* out;  // [n, heads * 128]
    int64_t k_slot_bytes;
    int64_t v_slot_bytes;
    int heads, kv_heads;
    int tiles;    // of 16 pairs, of a sequence with all rows
    float scale;  // of scores in units of log2
};

namespace cuda {

/// block_attention to `out`, where there is a kernel for it; else false, with nothing done.
bool block_attention_tensor(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale,
                            Tensor& out);

}  // namespace cuda

}  // namespace riptide::ops
