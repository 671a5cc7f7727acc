// Encoding K and V rows into the cache, with the norm and the rotation of K in front where a caller wants them.
//
// Bytes: 8 d read and about 2..8 d written for each row and KV head. One warp takes one head of K or V of one row; a
// step of one row is one CTA's latency (~1 us), 16K rows of 8 heads of 128 (f16) are 201 MB = 0.05 ms at 4.5 TB/s.
#include "ops/cuda/kv/append.cuh"

namespace riptide::ops {

namespace {

constexpr int kWarps = 8;

__global__ void __launch_bounds__(32 * kWarps) kv_append_kernel(const __grid_constant__ KvAppendArgs a) {
    pdl_trigger();
    __shared__ float buffers[kWarps][kMostHeadDim];
    pdl_wait();
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int64_t item = int64_t{blockIdx.x} * kWarps + warp;
    const int row = static_cast<int>(item / (2 * a.kv_heads)), part = static_cast<int>(item % (2 * a.kv_heads));
    if (row >= a.rows) return;
    const bool values = part % 2 != 0;
    float weight[kMostHeadDim / 32];
    load_norm(weight, values ? HeadNorm{} : a.norm, a.d);
    const RopeTurns<kMostHeadDim / 32> turns(a.rope, values || a.rope.half == 0 ? 0 : a.places.rotary_position(row));
    append_head(a, row, append_slot<PlainLoad>(a, row), part / 2, values, weight, turns, buffers[warp]);
}

}  // namespace

void launch_kv_append(Context& ctx, const KvAppendArgs& a) {
    if (a.rows == 0) return;
    const int64_t items = int64_t{a.rows} * 2 * a.kv_heads;
    launch(*ctx.gpu, kv_append_kernel, dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), dim3(32 * kWarps), 0,
           a);
}

KvAppendArgs kv_append_args(const KvView& view, const Batch& batch, const Tensor& k, const Tensor& v) {
    check_head_dim(view.head_dim);
    KvAppendArgs a;
    a.places = key_places(view, batch);
    a.k = k.row(0);
    a.v = v.row(0);
    a.k_stride = k.row_stride;
    a.v_stride = v.row_stride;
    a.k_cache = view.k;
    a.v_cache = view.v;
    a.k_dtype = view.k_dtype;
    a.v_dtype = view.v_dtype;
    a.k_slot_bytes = view.k_slot_bytes;
    a.v_slot_bytes = view.v_slot_bytes;
    a.rows = static_cast<int>(batch.rows());
    a.kv_heads = static_cast<int>(view.num_kv_heads);
    a.d = static_cast<int>(view.head_dim);
    return a;
}

namespace cuda {

void kv_append(Context& ctx, const KvView& view, const Tensor& k, const Tensor& v, const Batch& batch) {
    launch_kv_append(ctx, kv_append_args(view, batch, k, v));
}

}  // namespace cuda

}  // namespace riptide::ops
