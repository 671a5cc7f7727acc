// Decode attention: launches what plan.h says.
//
// Heads of 128. One row for each sequence (plain decoding): one kernel that also prepares and appends K and V, and so
// for a few rows of any sequences (trees, drafts) on Hopper. More rows: kv_append with norm and rope, then attention; a
// row's bits are the same.
#include "ops/cuda/attention/decode.cuh"

#include <numbers>

#include "ops/cuda/attention/plan.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/kv/append.cuh"

namespace riptide::ops::cuda::decode {

namespace {

DecodeAttentionArgs attention_args(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float scale) {
    const int64_t n = batch.rows(), heads = q.shape[1], d = view.head_dim;
    RT_ASSERT(n <= kMostDecodeRows && heads % view.num_kv_heads == 0);
    check_head_dim(d);
    DecodeAttentionArgs a;
    a.places = key_places(view, batch);
    a.q = q.row(0);
    a.q_stride = q.row_stride;
    a.k_cache = static_cast<unsigned char*>(view.k);
    a.v_cache = static_cast<unsigned char*>(view.v);
    a.k_dtype = view.k_dtype;
    a.v_dtype = view.v_dtype;
    a.k_slot_bytes = view.k_slot_bytes;
    a.v_slot_bytes = view.v_slot_bytes;
    a.scale = scale * std::numbers::log2e_v<float>;
    a.rows = static_cast<int>(n);
    a.heads = static_cast<int>(heads);
    a.q_head_stride = static_cast<int>(d);
    a.kv_heads = static_cast<int>(view.num_kv_heads);
    a.d = static_cast<int>(d);
    a.most_keys = view.window > 0 ? view.window : int64_t{batch.max_pages} * view.page_rows;
    a.most_chunks = most_chunks(a.most_keys);
    a.far = batch.far;
    a.counters = ctx.gpu->counters();
    return a;
}

/// The result, with its int8 twin if it is wanted and the width allows one.
Tensor make_output(Context& ctx, DecodeAttentionArgs& a, bool int8) {
    const int64_t cols = int64_t{a.heads} * a.d;
    Tensor o = ctx.alloc(DType::f32, {a.rows, cols});
    a.out = o.row(0);
    if (int8 && a.d % 32 == 0 && a.rows > 0) {
        a.out8 = static_cast<unsigned char*>(ctx.arena->allocate(a.rows * ActRow::bytes(cols)));
        o.int8 = a.out8;
    }
    return o;
}

/// K and V of the rows, prepared as `in` says.
KvAppendArgs append_args(const DecodeAttentionArgs& a, const AttentionInput& in, const KvView& view,
                         const Batch& batch) {
    KvAppendArgs append = kv_append_args(view, batch, in.k, in.v);
    append.rope = a.rope;
    append.norm = head_norm(in.k_norm, view.head_dim);
    return append;
}

attn::Case case_of(const Context& ctx, const DecodeAttentionArgs& a, const Batch& batch, bool appends) {
    return {.rows = a.rows,
            .sequences = batch.sequences(),
            .heads = a.heads,
            .kv_heads = a.kv_heads,
            .head_dim = a.d,
            .rotary_dim = 2 * a.rope.half,
            .k = a.k_dtype,
            .v = a.v_dtype,
            .aligned = a.k_slot_bytes % 16 == 0 && a.v_slot_bytes % 16 == 0,
            .window = a.places.window,
            .most_keys = a.most_keys,
            .appends = appends,
            .far = a.far,
            .chip = chip_of(*ctx.gpu)};
}

/// append: K and V of the rows, where they come with the call.
void attend(Context& ctx, DecodeAttentionArgs& a, const attn::Choice& choice, int64_t sequences,
            const KvAppendArgs* append) {
    using attn::Kernel;
    a.fused = choice.fused;
    a.apart = choice.kernel == Kernel::decode_d128_rows_sm80;
    if (a.fused) a.places.parent = nullptr;  // a single row has no ancestors in its step
    if (append != nullptr) {
        a.k_norm = append->norm;
        a.k = append->k;
        a.v = append->v;
        a.k_stride = append->k_stride;
        a.v_stride = append->v_stride;
        if (!choice.appends()) launch_kv_append(ctx, *append);
    }
    switch (choice.kernel) {
        case Kernel::decode_d128_verify_sm90:
            return launch_verify_d128(ctx, a);
        case Kernel::decode_d128_window_sm90:
            return launch_window_d128(ctx, a);
        case Kernel::decode_d128_row1_sm90:
            return launch_row1_d128(ctx, a);
        case Kernel::decode_d128_rows_sm80:
            launch_rows_d128(ctx, a);
            if (choice.apart) launch_split_d128(ctx, a);
            return;
        case Kernel::decode_d128_sm80:
            return launch_split_d128(ctx, a);
        case Kernel::decode_d256_row1_sm90:
            return launch_row1_d256(ctx, a);
        case Kernel::decode_d256_sm80:
            return launch_d256(ctx, a, sequences, append);
        default:
            return launch_any(ctx, a);
    }
}

}  // namespace

Tensor attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale) {
    DecodeAttentionArgs a = attention_args(ctx, q, view, batch, softmax_scale);
    Tensor o = make_output(ctx, a, true);
    if (a.rows > 0) attend(ctx, a, choose(case_of(ctx, a, batch, false)), batch.sequences(), nullptr);
    return o;
}

Tensor gated_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch) {
    DecodeAttentionArgs a = attention_args(ctx, in.q, view, batch, in.softmax_scale);
    a.rope = rope_params(in.rope);
    a.q_norm = head_norm(in.q_norm, view.head_dim);
    if (in.gate.data != nullptr) {
        a.gate = in.gate.row(0);
        a.gate_stride = in.gate.row_stride;
        a.gate_width = static_cast<int>(in.gate.row_elements() / a.heads);
        a.gate_head_stride = a.gate_width;
    }
    const KvAppendArgs append = append_args(a, in, view, batch);
    Tensor o = make_output(ctx, a, in.int8);
    if (a.rows == 0) return o;
    attend(ctx, a, choose(case_of(ctx, a, batch, true)), batch.sequences(), &append);
    return o;
}

bool has_sigmoid_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch) {
    if (batch.rows() == 0) return false;
    return choose(case_of(ctx, attention_args(ctx, in.q, view, batch, in.softmax_scale), batch, true)).wide();
}

Tensor sigmoid_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch) {
    DecodeAttentionArgs a = attention_args(ctx, in.q, view, batch, in.softmax_scale);
    RT_ASSERT(in.q.shape[2] == 2 * view.head_dim);
    a.rope = rope_params(in.rope);
    a.q_norm = head_norm(in.q_norm, view.head_dim);
    a.gate = a.q + a.d;
    a.gate_stride = a.q_stride;
    a.gate_width = a.d;
    a.q_head_stride = a.gate_head_stride = 2 * a.d;
    a.gate_sigmoid = true;
    const KvAppendArgs append = append_args(a, in, view, batch);
    Tensor o = make_output(ctx, a, in.int8);
    attend(ctx, a, choose(case_of(ctx, a, batch, true)), batch.sequences(), &append);
    return o;
}

}  // namespace riptide::ops::cuda::decode
