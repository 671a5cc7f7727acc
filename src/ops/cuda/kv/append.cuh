// Launching the kernel that writes K/V rows.
#pragma once

#include "ops/cuda/device/heads.cuh"
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

/// The slot of a row.
template <class Load>
__device__ __forceinline__ int64_t append_slot(const KvAppendArgs& a, int row) {
    const auto read = [](const int32_t* p) { return static_cast<int32_t>(Load::one(p)); };
    const int sequence = read(a.places.row_sequence + row);
    const int index = read(a.places.committed + sequence) + row - read(a.places.row_begin + sequence);
    const int32_t ring = a.places.window > 0 ? read(a.places.state_slot + sequence) * a.places.ring_rows : 0;
    return find_slot<Load>(a.places, sequence, ring, index);
}

/// KeyPlaces::rotary_position.
template <class Load>
__device__ __forceinline__ int find_rotary_position(const KeyPlaces& p, int row) {
    const auto position = static_cast<int32_t>(Load::one(p.positions + row));
    return position + (p.gaps != nullptr ? static_cast<int32_t>(Load::one(p.gaps + row)) : 0);
}

/// K or V of one head of one row: prepared, encoded, stored. By a warp; `buffer`: kMostHeadDim floats of its own in
/// shared memory. weight: load_norm of a.norm.
__device__ __forceinline__ void append_head(const KvAppendArgs& a, int row, int64_t slot, int head, bool values,
                                            const float (&weight)[kMostHeadDim / 32],
                                            const RopeTurns<kMostHeadDim / 32>& turns, float* buffer) {
    const DType type = values ? a.v_dtype : a.k_dtype;
    const int64_t stride = values ? a.v_stride : a.k_stride;
    float x[kMostHeadDim / 32];
    load_head(x, (values ? a.v : a.k) + row * stride + int64_t{head} * a.d, a.d);
    if (!values) {
        norm_head(x, weight, a.norm, a.d);
        rope_head(x, a.rope, turns, a.d, buffer);
    }
    if (type == DType::tq3_0) kv_rotate_lanes(x, a.d, false);
    auto* rows = static_cast<unsigned char*>(values ? a.v_cache : a.k_cache);
    rows += slot * (values ? a.v_slot_bytes : a.k_slot_bytes) + head * kv_row_bytes(type, a.d);
    kv_encode_lanes(type, x, a.d, rows);
}

#endif

}  // namespace riptide::ops
