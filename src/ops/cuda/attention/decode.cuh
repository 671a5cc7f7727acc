// Decode attention on a GPU: arguments, and the tail that its kernels share.
#pragma once

#include "ops/cuda/device/heads.cuh"
#include "tensor/context.h"

namespace riptide::ops {

struct KvAppendArgs;

/// One call. q: f32, rows q_stride floats apart, heads d apart. `fused`: the rows are one for each sequence, and the
/// kernel itself appends k and v (see KvAppendArgs); otherwise they are in the cache already. Only
/// launch_wide_attention takes heads of q and gate that lie apart, and gates of sigmoid.
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
    bool apart = false;  // rows that see at most kMostShortKeys keys are launch_rows_attention's
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

/// True if decode_d128_sm80.cu has a kernel for the shapes and types.
bool has_tensor_attention(const Gpu& gpu, const DecodeAttentionArgs& a);
/// All rows, or (`apart`) those that launch_rows_attention leaves. REQUIRES has_tensor_attention.
void launch_tensor_attention(Context& ctx, DecodeAttentionArgs& a);
/// The rows that see at most kMostShortKeys keys. REQUIRES has_tensor_attention.
void launch_rows_attention(Context& ctx, const DecodeAttentionArgs& a);
/// One row for each sequence (`fused`), very few, over a short window, in clusters of CTAs. False: nothing was done.
/// REQUIRES has_tensor_attention.
bool launch_cluster_attention(Context& ctx, const DecodeAttentionArgs& a);
/// One row (`fused`) without a window, on Hopper. False: nothing was done. REQUIRES has_tensor_attention.
bool launch_one_attention(Context& ctx, DecodeAttentionArgs& a);
/// True if decode_d256_sm80.cu has a kernel for the shapes and types: heads of 256 without a window.
bool has_wide_attention(const Gpu& gpu, const DecodeAttentionArgs& a);
/// All rows; first stores k and v as `append` says, unless it is null. REQUIRES has_wide_attention.
void launch_wide_attention(Context& ctx, const DecodeAttentionArgs& a, int64_t sequences, const KvAppendArgs* append);
/// The same for one row, and two types of K/V, on Hopper. False: nothing was done. REQUIRES has_wide_attention.
bool launch_wide_one_attention(Context& ctx, const DecodeAttentionArgs& a, const KvAppendArgs& append);
/// Up to eight rows of any sequences, whose K and V it appends. False: nothing was done. REQUIRES has_tensor_attention;
/// k, v.
bool launch_step_attention(Context& ctx, const DecodeAttentionArgs& a);
/// Any shapes and types, one CTA for each head of each row. Ignores `fused`.
void launch_any_attention(Context& ctx, const DecodeAttentionArgs& a);

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
