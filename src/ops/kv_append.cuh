// Launching the kernel that writes K/V rows.
#pragma once

#include "ops/attention_heads.cuh"
#include "tensor/context.h"

namespace riptide::ops {

/// k, v: f32, rows `stride` floats apart, heads d apart. K goes through norm and rope first, if they are given.
struct KvAppendArgs {
    KeyPlaces places;
    RopeParams rope;
    HeadNorm norm;
    const float* k = nullptr;
    const float* v = nullptr;
    int64_t k_stride = 0;
    int64_t v_stride = 0;
    void* k_cache = nullptr;
    void* v_cache = nullptr;
    DType k_dtype = DType::f32;
    DType v_dtype = DType::f32;
    int64_t k_slot_bytes = 0;
    int64_t v_slot_bytes = 0;
    int rows = 0;
    int kv_heads = 0;
    int d = 0;
};

/// The arguments of the plain op. Throws Error if head_dim > 256. REQUIRES a multiple of 32 for block types.
KvAppendArgs kv_append_args(const KvView& view, const Batch& batch, const Tensor& k, const Tensor& v);
void launch_kv_append(Context& ctx, const KvAppendArgs& args);

}  // namespace riptide::ops
