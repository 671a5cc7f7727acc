// The attention of a layer from its projections to what the output projection reads.
#pragma once

#include "ops/batch.h"
#include "ops/kv/kv_view.h"
#include "ops/matmul.h"
#include "ops/rope.h"
#include "tensor/context.h"

namespace riptide::ops {

/// The projections of the rows, and how heads are prepared.
struct AttentionInput {
    Tensor q;             // f32 [n, H, d]
    Tensor k, v;          // f32 [n, Hkv, d]
    Tensor gate;          // f32 [n, H] or [n, H * d]; data == nullptr: no gate
    Norm q_norm, k_norm;  // over d, each head by itself; empty weight: none
    const Rope* rope = nullptr;
    float softmax_scale = 1;
    bool int8 = true;   // on a GPU o is wanted as int8 rows, too: wants_int8()
    bool bf16 = false;  // o may be bf16 rows in place of f32: gated_attention_add() of a GPU's prompts
};

/// q <- rope(RMSNorm(q)), k <- rope(RMSNorm(k)); k and v go into the cache; o = attention(q); o <- o * softplus(gate).
/// Returns o f32 [n, H * d] (or bf16, nearest even, if in.bf16), fresh. in.k may be overwritten; on a GPU in.q too.
/// The same bits as rms_norm, rope, kv_append, attention and mul_softplus. How many kernels: cuda/attention/plan.h.
Tensor gated_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch);

/// gated_attention of queries that lie beside their gates, with a sigmoid in the place of softplus: in.q f32
/// [n, H, 2 d], of each head d values and then d gates; in.gate is not read. The same bits as split_gates,
/// gated_attention without a gate, mul_sigmoid. On a GPU, decode family, heads of 256: three kernels in all, for one
/// row on Hopper one. Source: transformers, Qwen3_5Attention.
Tensor sigmoid_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch);

/// y = Wo o with o = gated_attention(in); x += y; returns y f32 [n, wo.rows]. The same bits as the two ops. On the CPU
/// o is quantised and x added to by the threads that made the values. next: as in matmul_add.
Tensor gated_attention_add(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch,
                           const Weight& wo, Tensor& x, const MoeLayer* next = nullptr);

}  // namespace riptide::ops
