// Decode attention on a GPU: arguments, and the tail that its kernels share.
#pragma once

#include "ops/cuda/device/heads.cuh"
#include "tensor/context.h"

namespace riptide::ops {

struct KvAppendArgs;

/// One call. q: f32, rows q_stride floats apart, heads d apart. `fused`: the rows are one for each sequence, and the
/// kernel itself appends k and v (see KvAppendArgs); otherwise they are in the cache already. Only
/// launch_d256 takes heads of q and gate that lie apart, and gates of sigmoid.
struct DecodeAttentionArgs {
    KeyPlaces places;
    RopeParams rope;
    HeadNorm q_norm, k_norm;
    const float* q = nullptr;
    const float* k = nullptr;
    const float* v = nullptr;
    const float* gate = nullptr;  // null: none
    int64_t q_stride = 0;
    int64_t k_stride = 0;
    int64_t v_stride = 0;
    int64_t gate_stride = 0;
    int gate_width = 0;  // 1: a gate for each head; d: one for each element
    int q_head_stride = 0, gate_head_stride = 0;
    bool gate_sigmoid = false;  // o <- o * sigmoid(gate); otherwise softplus
    unsigned char* k_cache = nullptr;
    unsigned char* v_cache = nullptr;
    DType k_dtype = DType::f32;
    DType v_dtype = DType::f32;
    int64_t k_slot_bytes = 0;
    int64_t v_slot_bytes = 0;
    float scale = 1;  // of scores, to units of log2
    int rows = 0;
    bool apart = false;  // rows that see at most kMostShortKeys keys are launch_rows_d128's
    int heads = 0;
    int kv_heads = 0;
    int d = 0;
    bool fused = false;
    int64_t most_keys = 0;     // that a row can see
    bool far = false;          // Batch::far
    int most_chunks = 0;       // of a row
    float* partial = nullptr;  // [row, KV head][most_chunks][kPartialFloats]
    int* counters = nullptr;
    float* out = nullptr;           // [rows, heads * d]
    unsigned char* out8 = nullptr;  // ActRow rows, or null
};

// The launches of ../attention/plan.h, each of what the plan says. a: of heads of 128 with k, v and `fused` set.
void launch_verify_d128(Context& ctx, const DecodeAttentionArgs& a);
void launch_window_d128(Context& ctx, const DecodeAttentionArgs& a);
void launch_row1_d128(Context& ctx, DecodeAttentionArgs& a);
/// The rows that see at most kMostShortKeys keys.
void launch_rows_d128(Context& ctx, const DecodeAttentionArgs& a);
/// All rows, or (`apart`) those that launch_rows_d128 leaves.
void launch_split_d128(Context& ctx, DecodeAttentionArgs& a);
/// Appends k and v itself.
void launch_row1_d256(Context& ctx, const DecodeAttentionArgs& a);
/// First stores k and v as `append` says, unless it is null.
void launch_d256(Context& ctx, const DecodeAttentionArgs& a, int64_t sequences, const KvAppendArgs* append);
/// One CTA for each head of each row. Ignores `fused`.
void launch_any(Context& ctx, const DecodeAttentionArgs& a);

#ifdef __CUDACC__

/// The path of row `row` through its step: path[i] = storage index of its key at position committed + i. By one thread.
__device__ __forceinline__ void find_path(const KeyPlaces& p, int sequence, int row, const int32_t* parent,
                                          int32_t* path) {
    const int committed = p.committed[sequence], first = p.row_begin[sequence];
    for (int i = p.positions[row] - committed, r = row; i >= 0 && r >= first; --i, r = parent[r])
        path[i] = committed + r - first;
}

#endif

}  // namespace riptide::ops
