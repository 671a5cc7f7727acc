// Qwen3. Reference: transformers, models/qwen3/modeling_qwen3.py (Qwen3Attention, Qwen3MLP).
// n rows, D hidden_size, V vocab_size, H query heads, Hkv key-value heads, d head_dim.
#include "models/qwen3.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/facts.h"
#include "ops/embed.h"
#include "ops/gated_attention.h"
#include "ops/matmul.h"
#include "ops/norm.h"

namespace riptide {

// ---- forward --------------------------------------------------------------------------------------------------------
// The formulas stand on the right margin.
// clang-format off

void Qwen3::attention(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const KvView& kv) const {
    const Layer& w = layers_[static_cast<size_t>(l)];
    const int64_t n = x.rows(), H = config_.num_attention_heads, Hkv = config_.num_key_value_heads,
                  d = config_.head_dim;
    const auto eps = static_cast<float>(config_.rms_norm_eps);

    const Weight* projections[] = {&w.wq, &w.wk, &w.wv};                   // h = RMSNorm(x)  [n, D]
    const std::vector<Tensor> p =                                          // q, k, v = Wq h, Wk h, Wv h
        ops::norm_matmul_group(ctx, x, {w.attn_norm, eps}, projections);
    const ops::AttentionInput in{.q = p[0].view({n, H, d}),                // each head of q, k: RMSNorm, rotation R(p)
                                 .k = p[1].view({n, Hkv, d}),
                                 .v = p[2].view({n, Hkv, d}),
                                 .gate = {},
                                 .q_norm = {w.q_norm, eps},
                                 .k_norm = {w.k_norm, eps},
                                 .rope = &rope_,
                                 .softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)))};
    const Tensor y =                                                       // o = softmax(q K^T / sqrt d) V
        ops::gated_attention_add(ctx, in, kv, batch, w.wo, x);             // y = Wo o; x <- x + y  [n, D]
    ctx.observe("attn_out", static_cast<int>(l), y);
}

void Qwen3::feed_forward(Context& ctx, int64_t l, Tensor& x) const {
    const Layer& w = layers_[static_cast<size_t>(l)];
    const ops::Norm norm{w.ffn_norm, static_cast<float>(config_.rms_norm_eps)};
    const Tensor y =                                                       // y = Wd (silu(Wg h) * Wu h); x <- x + y
        ops::swiglu_ffn_add(ctx, x, norm, w.w_gate, w.w_up, w.w_down);
    ctx.observe("ffn_out", static_cast<int>(l), y);
}

Tensor Qwen3::embed(Context& ctx, const Batch& batch) const {
    const Tensor x = ops::embed(ctx, embed_tokens_, batch.tokens);         // x: the residual stream, f32  [n, D]
    ctx.observe("embed", -1, x);
    return x;
}

void Qwen3::layer(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const {
    const ArenaScope scope(*ctx.arena);
    attention(ctx, l, x, batch, states.kv[static_cast<size_t>(l)]);
    feed_forward(ctx, l, x);
    ctx.observe("layer_out", static_cast<int>(l), x);
}

Tensor Qwen3::logits(Context& ctx, const Tensor& x, const Batch& batch) const {
    const int64_t width = info_.task == Task::embed ? info_.hidden_size : info_.vocab_size;
    if (batch.logit_rows.empty()) return Tensor(nullptr, DType::f32, {0, width});
    const Tensor last = ops::wanted_rows(ctx, x, batch.logit_rows);
    const ops::Norm norm{norm_, static_cast<float>(config_.rms_norm_eps)};
    if (info_.task == Task::embed) return ops::rms_norm(ctx, last, norm.weight, norm.eps);
    if (ctx.tap) ctx.observe("norm", -1, ops::rms_norm(ctx, last, norm.weight, norm.eps));
    const Weight* head[] = {&lm_head_};
    return ops::norm_matmul_group(ctx, last, norm, head)[0];               // logits of the wanted rows  [m, V]
}
// clang-format on

// ---- weights --------------------------------------------------------------------------------------------------------

void Qwen3::bind_layer(WeightLoader& bind, int64_t l, KvScales& scales) {
    const int64_t D = config_.hidden_size, F = config_.intermediate_size, d = config_.head_dim;
    const int64_t H = config_.num_attention_heads, Hkv = config_.num_key_value_heads;
    const auto names = [&](std::string_view gguf, std::string_view hf) {
        return TensorNames{
            {fmt::format("blk.{}.{}.weight", l, gguf)},
            {fmt::format("model.layers.{}.{}.weight", l, hf), fmt::format("layers.{}.{}.weight", l, hf)}};
    };
    Layer& w = layers_[static_cast<size_t>(l)];
    w.attn_norm = bind.vector(names("attn_norm", "input_layernorm"), D);
    w.wq = bind.matrix(names("attn_q", "self_attn.q_proj"), H * d, D);
    w.wk = bind.matrix(names("attn_k", "self_attn.k_proj"), Hkv * d, D);
    const TensorNames wv = names("attn_v", "self_attn.v_proj"), wo = names("attn_output", "self_attn.o_proj");
    const std::vector<std::string> attention = {fmt::format("model.layers.{}.self_attn", l),
                                                fmt::format("layers.{}.self_attn", l)};
    const KvScale s = scales.next(bind, {attention, Hkv, wv, wo});
    w.wv = bind.matrix(wv, Hkv * d, D, 1 / s.v);
    w.wo = bind.matrix(wo, D, H * d, s.v);
    w.q_norm = bind.vector(names("attn_q_norm", "self_attn.q_norm"), d, s.k);
    w.k_norm = bind.vector(names("attn_k_norm", "self_attn.k_norm"), d, 1 / s.k);
    w.ffn_norm = bind.vector(names("ffn_norm", "post_attention_layernorm"), D);
    w.w_gate = bind.matrix(names("ffn_gate", "mlp.gate_proj"), F, D);
    w.w_up = bind.matrix(names("ffn_up", "mlp.up_proj"), F, D);
    w.w_down = bind.matrix(names("ffn_down", "mlp.down_proj"), D, F);
}

Qwen3::Qwen3(const Checkpoint& checkpoint, const ModelOptions& options)
    : config_(checkpoint.format() == Checkpoint::Format::gguf
                  ? qwen3_config_from_gguf(gguf_config(checkpoint, "qwen3."))
                  : qwen3_config_from_hf(hf_config(checkpoint))),
      store_(options.gpu, options.on_progress) {
    if (options.yarn_attention_factor >= 0 && config_.rope.yarn())
        config_.rope.magnitude = options.yarn_attention_factor;
    rope_ = make_rope(config_.rope);

    WeightLoader bind(checkpoint, store_);
    info_.task = options.task.value_or(Task::generate);
    const TensorNames embedding = {{"token_embd.weight"}, {"model.embed_tokens.weight", "embed_tokens.weight"}};
    const TensorNames head = {{"output.weight"}, {"lm_head.weight"}};
    const int64_t V = config_.vocab_size > 0 ? config_.vocab_size : bind.rows_of(embedding), D = config_.hidden_size;
    config_.vocab_size = V;
    embed_tokens_ = bind.matrix(embedding, V, D);
    const bool tied = config_.tie_word_embeddings && !bind.has(head);
    if (info_.task != Task::embed) lm_head_ = tied ? embed_tokens_ : bind.matrix(head, V, D);
    else
        for (const char* name : {"output.weight", "lm_head."}) bind.skip(name);
    norm_ = bind.vector({{"output_norm.weight"}, {"model.norm.weight", "norm.weight"}}, D);
    layers_.resize(static_cast<size_t>(config_.num_hidden_layers));
    KvScales scales(checkpoint, options);
    for (int64_t l = 0; l < config_.num_hidden_layers; ++l) bind_layer(bind, l, scales);
    info_.attention_window = options.window_within(config_.max_position_embeddings);
    specs_.assign(layers_.size(),
                  StateSpec::attention(config_.num_key_value_heads, config_.head_dim, info_.attention_window));
    bind.finish();
    if (options.prefill == PrefillKind::fp8) add_fp8();
    info_.name = model_name(checkpoint);
    count(bind.binder());
    info_.kv_scales = scales.text();
}

/// Norms stay as they are, and so does the head, which few rows ask for.
void Qwen3::add_fp8() {
    for (Layer& w : layers_) {
        Weight* const matrices[] = {&w.wq, &w.wk, &w.wv, &w.wo, &w.w_gate, &w.w_up, &w.w_down};
        store_.add_fp8(matrices);
    }
}

Workspace Qwen3::workspace() const {
    const Qwen3Config& c = config_;
    const int64_t D = c.hidden_size, qo = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
    const int64_t attention = 4 * (3 * qo + 2 * kv) + 2 * (D + 2 * qo),
                  dense = 2 * D + 10 * c.intermediate_size + 4 * D;
    return {.fixed = kWorkspaceFixed, .per_row = 4 * 2 * D + std::max(attention, dense), .per_token = 2 * 2 * kv};
}

void Qwen3::count(const Binder& bind) {
    info_.architecture = "qwen3";
    describe(info_, config_, bind, store_);
    TokenCost cost;
    cost.add_row(embed_tokens_);
    if (info_.task != Task::embed) cost.add(lm_head_);
    cost.add(norm_);
    for (const Layer& w : layers_) {
        for (const Weight* matrix : {&w.wq, &w.wk, &w.wv, &w.wo, &w.w_gate, &w.w_up, &w.w_down}) cost.add(*matrix);
        for (const auto* values : {&w.attn_norm, &w.ffn_norm, &w.q_norm, &w.k_norm}) cost.add(*values);
    }
    info_.active_parameters = cost.parameters;
    info_.bytes_per_token = cost.bytes;
}

}  // namespace riptide
