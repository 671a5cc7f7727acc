// Attention of a drafter's block: rows that see the context and each other.
#pragma once

#include "ops/batch.h"
#include "ops/block_heads.h"
#include "ops/kv/kv_view.h"
#include "tensor/context.h"

namespace riptide::ops {

/// o[r, h] = sum_j p_j v_j,  p = softmax_j(softmax_scale * q[r, h] . k_j), over the committed tokens of the row's
/// sequence and ALL rows of the sequence in this step, also those behind row r; on a window layer only over those whose
/// position is greater than the row's own - window. REQUIRES chains (batch.parent empty); call kv_append for the step
/// first. q f32 [n, H, head_dim], normalised and rotated, H a multiple of num_kv_heads: head h reads KV head h / (H /
/// num_kv_heads). Result f32 [n, H * head_dim], fresh. Determinism: a row's value is a function of its query and of the
/// keys that it sees, bit for bit: of its sequence and the length of its block, not of other sequences, threads or the
/// layout of pages. CPU: two passes, scores over 16 lanes, values added in order of position. GPU: see
/// draft_block.cu. Cost: n * H * keys * head_dim * 4 FLOPs; for blocks of up to some 16 rows. Source: DFlash
/// (z-lab), the block's mask.
/// GPU: REQUIRES that the batch, and K and V of the committed tokens, were complete before the step's first kernel
/// (embed): they are read above the kernel's wait.
Tensor block_attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale);

/// block_heads() of one layer, block_attention() of its queries and, with a gate (f32 [n, H]; without data: none),
/// mul_softplus(): the same bits. in.q's memory may be written. On a GPU with heads of 128 and K and V in f16 (Hopper):
/// one kernel, which also makes the result's int8 rows.
Tensor gated_block_attention(Context& ctx, BlockHeads& in, const Rope& rope, const Batch& batch, float softmax_scale,
                             const Tensor& gate);

/// The formula with a plain two-pass softmax in Acc, single-threaded: the judge. y [n, H * head_dim].
template <class Acc>
void block_attention_ref(const float* q, int64_t heads, const KvView& view, const Batch& batch, float softmax_scale,
                         Acc* y);

}  // namespace riptide::ops
