// Grouped-query attention over paged or ring K/V.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/batch.h"
#include "ops/kv/kv_view.h"
#include "ops/matmul.h"
#include "tensor/context.h"

namespace riptide::ops {

/// Keys are reduced in pieces of this many positions: piece i holds the positions [i * 256, (i + 1) * 256).
inline constexpr int64_t kAttentionSplit = 256;

/// o[r, h] = sum_j p_j v_j,  p = softmax_j(softmax_scale * q[r, h] . k_j), over the keys j that row r sees (batch.h):
/// the committed tokens, its ancestors in this step and itself; on a window layer only the last `window` of them.
/// q f32 [n, H, head_dim], H a multiple of num_kv_heads: head h reads KV head h / (H / num_kv_heads).
/// Result f32 [n, H * head_dim], fresh. Call kv_append for the step first.
///
/// Determinism: the value of a row is a function of its query and of its keys in order of position, bit for bit: the
/// same in decode, in any chunk of prefill, in any batch, on any thread count and instruction set, and as a node of a
/// tree.
///   score    16 lanes over head_dim, element i fused into lane i % 16; lanes i + 8 onto i, then + 4, + 2, + 1; then
///            * softmax_scale
///   piece    (m, s, acc): m = max score; s = sum of exp(score - m) over 16 lanes by place in the piece, added
///   likewise;
///            acc = the sum of exp(score - m) * v in order of position, each product fused
///   row      pieces merged in order of position: (m, s, acc) + (m', s', acc') rescaled to the larger maximum
/// Error: f32 roundoff of these sums; exp within 2 ulp. K/V quantisation comes on top.
/// Only slots of keys that some row sees are read: what else lies in the storage (NaN even) has no effect.
/// Cost: n * H * keys * head_dim * 4 FLOPs; K/V is decoded once for up to 32 rows of a sequence and all heads of its
/// group. Source: Vaswani et al. 2017; Dao et al. 2022 (online softmax); transformers, LagunaAttention.
Tensor attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale);

/// What else happens to the heads, by the thread that has them at hand. Pointers and tensors may be null: not done.
struct HeadSteps {
    Norm q_norm;                  // each query head, before its scores
    const float* rope = nullptr;  // then its rotation by rope_table() ...
    int64_t rotary_dim = 0;       // ... of this many values
    Tensor gate;                  // f32 [n, H] or [n, H * head_dim]: o <- o * softplus(gate)
    std::byte* int8 = nullptr;    // o also as Int8Row rows. REQUIRES head_dim a multiple of 32
};

/// The same bits as rms_norm and rope of q, attention, mul_softplus. CPU only.
Tensor attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale,
                 const HeadSteps& steps);

/// The formula with a plain two-pass softmax in Acc, single-threaded: the judge. Also the same maths for Acc = float.
/// q as above, contiguous; y [n, H * head_dim].
template <class Acc>
void attention_ref(const float* q, int64_t heads, const KvView& view, const Batch& batch, float softmax_scale, Acc* y);

}  // namespace riptide::ops
