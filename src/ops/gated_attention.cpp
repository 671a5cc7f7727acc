#include "ops/gated_attention.h"

#include "ops/attention.h"
#include "ops/cuda.h"
#include "ops/elementwise.h"
#include "ops/kv_append.h"
#include "ops/norm.h"
#include "ops/op_cost.h"

namespace riptide::ops {

Tensor gated_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch) {
    announce_attention(ctx, "gated_attention", in, view);
    if (ctx.gpu != nullptr) return cuda::gated_attention(ctx, in, view, batch);
    Tensor q = in.q_norm.weight.empty() ? in.q : rms_norm(ctx, in.q, in.q_norm.weight, in.q_norm.eps);
    Tensor k = in.k_norm.weight.empty() ? in.k : rms_norm(ctx, in.k, in.k_norm.weight, in.k_norm.eps);
    if (in.rope != nullptr) {
        rope(ctx, q, batch.positions, *in.rope);
        rope(ctx, k, batch.positions, *in.rope);
    }
    kv_append(ctx, view, k, in.v, batch);
    Tensor o = attention(ctx, q, view, batch, in.softmax_scale);
    if (in.gate.data != nullptr) mul_softplus(ctx, o, in.gate, in.q.shape[1]);
    return o;
}

}  // namespace riptide::ops
