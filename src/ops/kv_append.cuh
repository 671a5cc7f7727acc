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

#ifdef __CUDACC__

/// K or V of one head of one row: prepared, encoded, stored. By a warp; `buffer`: kMostHeadDim floats of its own in
/// shared memory.
__device__ __forceinline__ void append_head(const KvAppendArgs& a, int row, int head, bool values, float* buffer) {
    const int sequence = a.places.row_sequence[row];
    const int index = a.places.committed[sequence] + row - a.places.row_begin[sequence];
    const int64_t slot = a.places.slot(sequence, a.places.ring_begin(sequence), index);
    const DType type = values ? a.v_dtype : a.k_dtype;
    const int64_t stride = values ? a.v_stride : a.k_stride;
    float x[kMostHeadDim / 32];
    load_head(x, (values ? a.v : a.k) + row * stride + int64_t{head} * a.d, a.d);
    if (!values) {
        norm_head(x, a.norm, a.d);
        rope_head(x, a.rope, a.rope.half == 0 ? 0 : a.places.rotary_position(row), a.d, buffer);
    }
    if (type == DType::tq3_0) kv_rotate_lanes(x, a.d, false);
    auto* rows = static_cast<unsigned char*>(values ? a.v_cache : a.k_cache);
    rows += slot * (values ? a.v_slot_bytes : a.k_slot_bytes) + head * kv_row_bytes(type, a.d);
    kv_encode_lanes(type, x, a.d, rows);
}

#endif

}  // namespace riptide::ops
