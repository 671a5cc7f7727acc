// Decode attention for any head size up to 256, any K/V types and any number of query heads for each KV head: small
// models and chips without the tensor instructions of decode_attention_tensor.cu. Right, not fast: a CTA of four warps
// takes all keys of one head of one row, a key for each warp at a time.
#include "ops/decode_attention.cuh"

namespace riptide::ops {

namespace {

constexpr int kWarps = 4, kRegs = kMostHeadDim / 32;

struct Shared {
    float x[kWarps][kMostHeadDim];
    float2 ml[kWarps];
    int32_t path[kMostDecodeRows];
};

/// Keys warp, warp + 4, ... by rank, one after the other.
__device__ __forceinline__ SoftmaxState<kRegs> attend(const DecodeAttentionArgs& a, const Shared& s, int row, int head,
                                                      const float (&q)[kRegs]) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int sequence = a.places.row_sequence[row], position = a.places.positions[row];
    const int count = visible_keys(position, a.places.window), begin = position + 1 - count;
    const int committed = a.places.committed[sequence];
    const int32_t ring = a.places.ring_begin(sequence);
    const int64_t k_row = kv_row_bytes(a.k_dtype, a.d), v_row = kv_row_bytes(a.v_dtype, a.d);
    SoftmaxState<kRegs> state = {-INFINITY, 0.0f, {}};
    for (int key = warp; key < count; key += kWarps) {
        int32_t index = begin + key;
        if (a.places.parent != nullptr && index >= committed) index = s.path[index - committed];
        const int64_t slot = a.places.slot(sequence, ring, index);
        const unsigned char* k = a.k_cache + slot * a.k_slot_bytes + head * k_row;
        const unsigned char* v = a.v_cache + slot * a.v_slot_bytes + head * v_row;
        float score = 0.0f;
        SoftmaxState<kRegs> one;
#pragma unroll
        for (int i = 0; i < kRegs; ++i) {
            const int e = 32 * i + lane;
            if (e < a.d) score = __fmaf_rn(q[i], kv_value(a.k_dtype, k, a.d, e), score);
            one.x[i] = e < a.d ? kv_value(a.v_dtype, v, a.d, e) : 0.0f;
        }
        one.m = __fmul_rn(warp_sum(score), a.scale);
        one.l = 1.0f;
        if (key == warp) state = one;
        else merge(state, one);
    }
    return state;
}

/// o = x / l, out of the stored domain, times the gate; as floats and as int8. By one warp.
__device__ __forceinline__ void finish(const DecodeAttentionArgs& a, int row, int head, SoftmaxState<kRegs>& state) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kRegs; ++i) state.x[i] = __fdiv_rn(state.x[i], state.l);
    if (a.v_dtype == DType::tq3_0) kv_rotate_lanes(state.x, a.d, true);
    const int64_t cols = int64_t{a.heads} * a.d;
    const float* gate = a.gate + row * a.gate_stride + head * a.gate_width;
#pragma unroll
    for (int i = 0; i < kRegs; ++i) {
        const int e = 32 * i + lane;
        if (32 * i >= a.d) break;
        float o = state.x[i];
        if (a.gate != nullptr && e < a.d) o = __fmul_rn(o, softplus(gate[a.gate_width == 1 ? 0 : e]));
        if (e < a.d) a.out[row * cols + head * a.d + e] = o;
        // With int8 rows a.d is a multiple of 32: a register of all lanes is a group.
        if (a.out8 != nullptr) put_act_group(a.out8 + row * ActRow::bytes(cols), cols, head * (a.d / 32) + i, o);
    }
}

__global__ void __launch_bounds__(32 * kWarps) any_attention_kernel(const __grid_constant__ DecodeAttentionArgs a) {
    pdl_trigger();
    __shared__ Shared s;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int row = static_cast<int>(blockIdx.x) / a.heads, head = static_cast<int>(blockIdx.x) % a.heads;
    pdl_wait();
    if (a.places.parent != nullptr) {
        if (threadIdx.x == 0) find_path(a.places, a.places.row_sequence[row], row, a.places.parent, s.path);
        __syncthreads();
    }
    float q[kRegs];
    load_head(q, a.q + row * a.q_stride + int64_t{head} * a.d, a.d);
    norm_head(q, a.q_norm, a.d);
    rope_head(q, a.rope, a.places.positions[row], a.d, s.x[warp]);
    if (a.k_dtype == DType::tq3_0) kv_rotate_lanes(q, a.d, false);
    SoftmaxState<kRegs> state = attend(a, s, row, head / (a.heads / a.kv_heads), q);
    __syncwarp();
    for (int i = 0; i < kRegs; ++i) s.x[warp][32 * i + lane] = state.x[i];
    if (lane == 0) s.ml[warp] = {state.m, state.l};
    __syncthreads();
    if (warp != 0) return;
    for (int other = 1; other < kWarps; ++other) {
        SoftmaxState<kRegs> next = {s.ml[other].x, s.ml[other].y, {}};
        if (next.l == 0.0f) break;  // fewer than four keys
#pragma unroll
        for (int i = 0; i < kRegs; ++i) next.x[i] = s.x[other][32 * i + lane];
        merge(state, next);
    }
    finish(a, row, head, state);
}

}  // namespace

void launch_any_attention(Context& ctx, const DecodeAttentionArgs& a) {
    launch(*ctx.gpu, any_attention_kernel, dim3(static_cast<unsigned>(a.rows * a.heads)), dim3(32 * kWarps), 0, a);
}

}  // namespace riptide::ops
