// Attention of a drafter's block. For each row and head: 512 bytes of query and result (head_dim 128), and the K and V
// of every key that it sees.
//
// Bytes: K/V rows of a KV head are read once for each of its query heads and each row of the block, from L2 after the
// first: 8 rows of 16 heads over 8 KV heads and 8K tokens (Q8_0) are 17 MB of memory and 280 MB of L2, about 0.06 ms a
// layer; the floor, every row's keys once, is 4 us. Design: right before fast. One CTA of 16 warps takes one head of
// one row; a warp takes every sixteenth group of four keys, so that four rows of K and V are under way at once; states
// are merged in order of warps. What a row computes depends on the keys it sees alone. Limited by L2 reads that the
// rows of a block could share, and by kv_value(), which decodes value by value.
#include "ops/cuda/attention/draft_block_sm90.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/device/heads.cuh"

namespace riptide::ops {

namespace {

constexpr int kWarps = 16, kRegs = kMostHeadDim / 32, kKeys = 4;

struct BlockAttentionArgs {
    KeyPlaces places;
    const float* q;  // [n, heads, d]
    const unsigned char* k_cache;
    const unsigned char* v_cache;
    float* out;  // [n, heads * d]
    int64_t k_slot_bytes;
    int64_t v_slot_bytes;
    DType k_dtype;
    DType v_dtype;
    int heads;
    int kv_heads;
    int d;
    float scale;  // of scores in units of log2
};

struct Shared {
    float x[kWarps][kMostHeadDim];
    float2 ml[kWarps];
};

/// Groups warp, warp + 16, ... of the keys [begin, end), one key after the other. No key: l == 0.
__device__ __forceinline__ SoftmaxState<kRegs> attend(const BlockAttentionArgs& a, int sequence, int kv_head, int begin,
                                                      int end, const float (&q)[kRegs]) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int32_t ring = a.places.ring_begin(sequence);
    const int64_t k_row = kv_head * kv_row_bytes(a.k_dtype, a.d), v_row = kv_head * kv_row_bytes(a.v_dtype, a.d);
    SoftmaxState<kRegs> state = {-INFINITY, 0.0f, {}};
    for (int key = begin + kKeys * warp; key < end; key += kKeys * kWarps) {
        float score[kKeys], value[kKeys][kRegs];
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
            const int index = min(key + j, end - 1);  // beyond the end: the last one again, not used
            const int64_t slot = a.places.slot(sequence, ring, index);
            const unsigned char* k = a.k_cache + slot * a.k_slot_bytes + k_row;
            const unsigned char* v = a.v_cache + slot * a.v_slot_bytes + v_row;
            score[j] = 0.0f;
#pragma unroll
            for (int i = 0; i < kRegs; ++i) {
                const int e = 32 * i + lane;
                value[j][i] = 0.0f;
                if (e >= a.d) continue;
                score[j] = __fmaf_rn(q[i], kv_value(a.k_dtype, k, a.d, e), score[j]);
                value[j][i] = kv_value(a.v_dtype, v, a.d, e);
            }
        }
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
            if (key + j >= end) break;
            SoftmaxState<kRegs> one;
            one.m = __fmul_rn(warp_sum(score[j]), a.scale);
            one.l = 1.0f;
#pragma unroll
            for (int i = 0; i < kRegs; ++i) one.x[i] = value[j][i];
            if (state.l == 0.0f) state = one;
            else merge(state, one);
        }
    }
    return state;
}

/// CTA row * heads + head.
__global__ void __launch_bounds__(32 * kWarps) draft_block_kernel(const __grid_constant__ BlockAttentionArgs a) {
    pdl_trigger();
    __shared__ Shared s;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int row = static_cast<int>(blockIdx.x) / a.heads, head = static_cast<int>(blockIdx.x) % a.heads;
    pdl_wait();
    const int sequence = a.places.row_sequence[row], first = a.places.row_begin[sequence];
    const int committed = a.places.committed[sequence], own = committed + row - first;
    const int begin = a.places.window > 0 ? max(0, own - a.places.window + 1) : 0;
    const int end = committed + a.places.row_begin[sequence + 1] - first;
    float q[kRegs];
    load_head(q, a.q + int64_t{row} * a.heads * a.d + int64_t{head} * a.d, a.d);
    if (a.k_dtype == DType::tq3_0) kv_rotate_lanes(q, a.d, false);
    SoftmaxState<kRegs> state = attend(a, sequence, head / (a.heads / a.kv_heads), begin, end, q);
#pragma unroll
    for (int i = 0; i < kRegs; ++i) s.x[warp][32 * i + lane] = state.x[i];
    if (lane == 0) s.ml[warp] = {state.m, state.l};
    __syncthreads();
    if (warp != 0) return;
    for (int other = 1; other < kWarps; ++other) {
        SoftmaxState<kRegs> next = {s.ml[other].x, s.ml[other].y, {}};
        if (next.l == 0.0f) break;  // fewer groups of keys than warps
#pragma unroll
        for (int i = 0; i < kRegs; ++i) next.x[i] = s.x[other][32 * i + lane];
        merge(state, next);
    }
#pragma unroll
    for (int i = 0; i < kRegs; ++i) state.x[i] = __fdiv_rn(state.x[i], state.l);
    if (a.v_dtype == DType::tq3_0) kv_rotate_lanes(state.x, a.d, true);
    float* out = a.out + (int64_t{row} * a.heads + head) * a.d;
#pragma unroll
    for (int i = 0; i < kRegs; ++i)
        if (32 * i + lane < a.d) out[32 * i + lane] = state.x[i];
}

}  // namespace

namespace cuda {

Tensor block_attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale) {
    check_head_dim(view.head_dim);
    if (has_block_tensor(ctx, view, q.shape[1])) return block_attention_tensor(ctx, q, view, batch, softmax_scale);
    Tensor out = ctx.alloc(DType::f32, {q.rows(), q.shape[1] * q.shape[2]});
    if (out.elements() == 0) return out;
    const BlockAttentionArgs args = {
        .places = key_places(view, batch),
        .q = q.row(0),
        .k_cache = static_cast<const unsigned char*>(view.k),
        .v_cache = static_cast<const unsigned char*>(view.v),
        .out = out.row(0),
        .k_slot_bytes = view.k_slot_bytes,
        .v_slot_bytes = view.v_slot_bytes,
        .k_dtype = view.k_dtype,
        .v_dtype = view.v_dtype,
        .heads = static_cast<int>(q.shape[1]),
        .kv_heads = static_cast<int>(view.num_kv_heads),
        .d = static_cast<int>(view.head_dim),
        .scale = static_cast<float>(softmax_scale * 1.4426950408889634),
    };
    launch(*ctx.gpu, draft_block_kernel, dim3(static_cast<unsigned>(q.rows() * q.shape[1])), dim3(32 * kWarps), 0,
           args);
    return out;
}

}  // namespace cuda

}  // namespace riptide::ops
