#include "ops/gated_attention.h"

#include "ops/attention.h"
#include "ops/cuda/backend.h"
#include "ops/elementwise.h"
#include "ops/kv/kv_append.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/op_cost.h"

namespace riptide::ops {

namespace {

/// Asks for the memory that the rows' keys and values will go to: it was last near a layer's worth of weights ago.
void fetch_slots(const KvView& view, const Batch& batch) {
    constexpr int64_t kFewRows = 4;
    if (batch.rows() > kFewRows) return;
    for (int64_t r = 0; r < batch.rows(); ++r) {
        const int64_t slot = view.slot(batch, batch.row_sequence[static_cast<size_t>(r)], batch.storage_index(r));
        const auto* k = static_cast<const char*>(view.k) + slot * view.k_slot_bytes;
        const auto* v = static_cast<const char*>(view.v) + slot * view.v_slot_bytes;
        for (int64_t i = 0; i < view.k_slot_bytes; i += 64) __builtin_prefetch(k + i, 1);
        for (int64_t i = 0; i < view.v_slot_bytes; i += 64) __builtin_prefetch(v + i, 1);
    }
}

/// Appends k and v, then attends. `int8`: see HeadSteps.
Tensor append_and_attend(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch,
                         std::byte* int8) {
    fetch_slots(view, batch);
    Tensor k = in.k_norm.weight.empty() ? in.k : rms_norm(ctx, in.k, in.k_norm.weight, in.k_norm.eps);
    HeadSteps steps{.q_norm = in.q_norm, .gate = in.gate, .int8 = int8};
    if (in.rope != nullptr) {
        const std::span<const int32_t> positions = rotary_positions(ctx, batch);
        rope(ctx, k, positions, *in.rope);
        steps.rope = rope_table(ctx, positions, *in.rope);
        steps.rotary_dim = in.rope->rotary_dim;
    }
    kv_append(ctx, view, k, in.v, batch);
    return attention(ctx, in.q, view, batch, in.softmax_scale, steps);
}

}  // namespace

Tensor gated_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch) {
    const OpScope told = announce_attention(ctx, "gated_attention", in, view);
    if (ctx.gpu != nullptr) return cuda::gated_attention(ctx, in, view, batch);
    return append_and_attend(ctx, in, view, batch, nullptr);
}

Tensor sigmoid_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch) {
    if (ctx.gpu != nullptr && cuda::has_sigmoid_attention(ctx, in, view, batch)) {
        const OpScope told = announce_attention(ctx, "sigmoid_attention", in, view);
        return cuda::sigmoid_attention(ctx, in, view, batch);
    }
    const int64_t n = in.q.rows(), heads = in.q.shape[1], d = in.q.shape[2] / 2;
    const HeadsAndGates parts = split_gates(ctx, in.q.view({n, heads * 2 * d}), heads);
    AttentionInput plain = in;
    plain.q = parts.heads.view({n, heads, d});
    plain.gate = {};
    Tensor o = gated_attention(ctx, plain, view, batch);
    mul_sigmoid(ctx, o, parts.gates, heads);
    return o;
}

Tensor gated_attention_add(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch,
                           const Weight& wo, Tensor& x, const MoeLayer* next) {
    if (ctx.gpu != nullptr) {
        AttentionInput rows = in;
        rows.bf16 = ctx.family == Family::prefill && wo.fp8 == nullptr && in.q.row_elements() % 64 == 0;
        return matmul_add(ctx, wo, gated_attention(ctx, rows, view, batch), x, next);
    }
    const int64_t n = in.q.rows(), cols = in.q.row_elements();
    std::byte* int8 = nullptr;
    if (uses_int8_activations(wo.dtype) && in.q.shape[2] % 32 == 0)
        int8 = static_cast<std::byte*>(ctx.arena->allocate(n * Int8Row::bytes(cols)));
    Tensor o;
    {
        const OpScope told = announce_attention(ctx, "gated_attention", in, view);
        o = append_and_attend(ctx, in, view, batch, int8);
    }
    const Weight* const only = &wo;
    const OpScope told = announce(ctx, "matmul_add", n, {&only, 1}, next);
    x.routed = note_of(wo, next);
    return matmul_add(ctx, wo, o, int8, x);
}

}  // namespace riptide::ops
