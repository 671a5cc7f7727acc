// Queries, keys and values of a drafter's layers: norm, rotation and storage in one kernel.
//
// Bytes: for each of 8 rows of a layer of Laguna XS.2's drafter 16 KB read and 12 KB written, from and to L2: latency.
// Measured (H200, 2026-11-22, op by op): 9 us, 4 of them the profile's. One warp takes one head of q, k or v of one
// row.
#include "ops/block_heads.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/kv/append.cuh"

namespace riptide::ops {

namespace {

constexpr int kWarps = 4, kRegs = kMostHeadDim / 32;

struct HeadsLayer {
    float* q;
    const float* k;
    const float* v;
    HeadNorm q_norm, k_norm;
    unsigned char* k_cache;
    unsigned char* v_cache;
    int64_t k_slot_bytes, v_slot_bytes;
    int32_t window, ring_rows, page_rows;
    DType k_dtype, v_dtype;
};

struct HeadsArgs {
    HeadsLayer layers[kMostBlockHeads];
    KeyPlaces places;  // but for what layers say
    RopeParams rope;
    int rows, heads, kv_heads, d;
    int64_t items;
};

/// Item (layer * rows + row) * (heads + 2 kv_heads) + part.
__global__ void __launch_bounds__(32 * kWarps) draft_block_heads_kernel(const __grid_constant__ HeadsArgs a) {
    __shared__ float buffers[kWarps][kMostHeadDim];
    pdl_trigger();
    const int warp = static_cast<int>(threadIdx.x / 32), parts = a.heads + 2 * a.kv_heads;
    const int64_t item = int64_t{blockIdx.x} * kWarps + warp;
    if (item >= a.items) return pdl_wait();
    const int part = static_cast<int>(item % parts), row = static_cast<int>(item / parts % a.rows);
    const HeadsLayer& l = a.layers[item / parts / a.rows];
    const bool query = part < a.heads, values = part >= a.heads + a.kv_heads;
    const int head = query ? part : part - a.heads - (values ? a.kv_heads : 0);
    const HeadNorm norm = query ? l.q_norm : l.k_norm;
    float weight[kRegs];
    load_norm(weight, values ? HeadNorm{} : norm, a.d);
    pdl_wait();
    float* const q = l.q + (int64_t{row} * a.heads + head) * a.d;
    const int position = a.places.positions[row], sequence = a.places.row_sequence[row];
    float x[kRegs];
    load_head(x, query ? q : (values ? l.v : l.k) + (int64_t{row} * a.kv_heads + head) * a.d, a.d);
    const int index = a.places.committed[sequence] + row - a.places.row_begin[sequence];
    if (!values) {
        norm_head(x, weight, norm, a.d);
        rope_head(x, a.rope, RopeTurns<kRegs>(a.rope, position), a.d, buffers[warp]);
    }
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (query) {
#pragma unroll
        for (int i = 0; i < kRegs; ++i)
            if (32 * i + lane < a.d) q[32 * i + lane] = x[i];
        return;
    }
    KeyPlaces places = a.places;
    places.window = l.window, places.ring_rows = l.ring_rows, places.page_rows = l.page_rows;
    const int64_t slot = places.slot(sequence, places.ring_begin(sequence), index);
    const DType type = values ? l.v_dtype : l.k_dtype;
    if (type == DType::tq3_0) kv_rotate_lanes(x, a.d, false);
    unsigned char* const to = values ? l.v_cache + slot * l.v_slot_bytes : l.k_cache + slot * l.k_slot_bytes;
    kv_encode_lanes(type, x, a.d, to + head * kv_row_bytes(type, a.d));
}

}  // namespace

namespace cuda {

void block_heads(Context& ctx, std::span<BlockHeads> layers, const Rope& rope, const Batch& batch) {
    const BlockHeads& first = layers[0];
    check_head_dim(first.kv.head_dim);
    HeadsArgs a = {};
    a.places = key_places(first.kv, batch);
    a.places.gaps = nullptr;
    a.rope = rope_params(&rope);
    a.rows = static_cast<int>(batch.rows());
    a.heads = first.q.data == nullptr ? 0 : static_cast<int>(first.q.shape[1]);
    a.kv_heads = static_cast<int>(first.kv.num_kv_heads);
    a.d = static_cast<int>(first.kv.head_dim);
    for (size_t i = 0; i < layers.size(); ++i) {
        const BlockHeads& l = layers[i];
        RT_ASSERT(l.k.shape == first.k.shape && (a.heads == 0) == (l.q.data == nullptr));
        HeadsLayer& to = a.layers[i];
        if (l.q.data != nullptr) to.q = l.q.row(0), to.q_norm = head_norm(l.q_norm, a.d);
        to.k = l.k.row(0), to.v = l.v.row(0);
        to.k_norm = head_norm(l.k_norm, a.d);
        to.k_cache = static_cast<unsigned char*>(l.kv.k), to.v_cache = static_cast<unsigned char*>(l.kv.v);
        to.k_slot_bytes = l.kv.k_slot_bytes, to.v_slot_bytes = l.kv.v_slot_bytes;
        to.window = l.kv.window, to.ring_rows = l.kv.ring_rows, to.page_rows = l.kv.page_rows;
        to.k_dtype = l.kv.k_dtype, to.v_dtype = l.kv.v_dtype;
    }
    a.items = static_cast<int64_t>(layers.size()) * a.rows * (a.heads + 2 * a.kv_heads);
    if (a.items == 0) return;
    launch(*ctx.gpu, draft_block_heads_kernel, dim3(static_cast<unsigned>((a.items + kWarps - 1) / kWarps)),
           dim3(32 * kWarps), 0, a);
}

}  // namespace cuda

}  // namespace riptide::ops
