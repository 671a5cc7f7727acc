// Qwen3.5. Reference: transformers, models/qwen3_5/modeling_qwen3_5.py (Qwen3_5Attention, Qwen3_5GatedDeltaNet) and
// models/qwen3_5_moe (Qwen3_5MoeSparseMoeBlock).
// n rows, D hidden_size, V vocab_size; full attention: H query heads, Hkv key-value heads, d head_dim.
#include "models/qwen35.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/facts.h"
#include "ops/embed.h"
#include "ops/gated_attention.h"
#include "ops/gated_delta.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "quant/planes.h"

namespace riptide {

// ---- forward --------------------------------------------------------------------------------------------------------
// The formulas stand on the right margin.
// clang-format off

void Qwen35::attention(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const KvView& kv) const {
    const Layer& w = layers_[static_cast<size_t>(l)];
    const int64_t n = x.rows(), H = config_.num_attention_heads, Hkv = config_.num_key_value_heads,
                  d = config_.head_dim;
    const auto eps = static_cast<float>(config_.rms_norm_eps);

    const Weight* projections[] = {&w.wq, &w.wk, &w.wv};                   // h = RMSNorm(x)  [n, D]
    const std::vector<Tensor> p =                                          // [q | g] for each head, k, v = Wq h, Wk h, Wv h
        ops::norm_matmul_group(ctx, x, {w.attn_norm, eps}, projections);
    const ops::AttentionInput in{.q = p[0].view({n, H, 2 * d}),            // each head of q, k: RMSNorm, rotation R(p)
                                 .k = p[1].view({n, Hkv, d}),
                                 .v = p[2].view({n, Hkv, d}),
                                 .gate = {},
                                 .q_norm = {w.q_norm, eps},
                                 .k_norm = {w.k_norm, eps},
                                 .rope = &rope_,
                                 .softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d))),
                                 .int8 = ops::wants_int8(ctx.gpu, w.wo)};
    const Tensor o = ops::sigmoid_attention(ctx, in, kv, batch);           // o = softmax(q K^T / sqrt d) V * sigmoid(g)
    const ops::MoeLayer next = moe_layer(l);
    const Tensor y =                                                       // y = Wo o; x <- x + y  [n, D]
        ops::matmul_add(ctx, w.wo, o, x, config_.num_experts > 0 ? &next : nullptr);
    ctx.observe("attn_out", static_cast<int>(l), y);
}

void Qwen35::linear_attention(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const {
    const auto i = static_cast<size_t>(l);
    const Layer& w = layers_[i];
    const auto eps = static_cast<float>(config_.rms_norm_eps);

    const Weight* projections[] = {&w.in_qkv, &w.in_z, &w.in_b, &w.in_a};  // h = RMSNorm(x)
    const std::vector<Tensor> p =                                          // u, z, b, a = W h
        ops::norm_matmul_group(ctx, x, {w.attn_norm, eps}, projections);
    const ops::GatedDeltaInput in{.qkv = p[0],                             // q, k, v = silu(conv(u)), q and k normalised
                                  .z = p[1],
                                  .a = p[3],                               // g = softplus(a + dt_bias) * decay
                                  .b = p[2],                               // beta = sigmoid(b)
                                  .conv = w.conv,
                                  .decay = w.decay,
                                  .dt_bias = w.dt_bias,
                                  .norm = {w.delta_norm, eps},
                                  .int8 = ops::wants_int8(ctx.gpu, w.out)};
    const Tensor o =                                                       // S <- e^g S + k (beta (v - e^g S^T k))^T;
        ops::gated_delta(ctx, in, states.delta[i], batch, states.delta_mode,  // o = RMSNorm(S^T q) * silu(z)
                         states.held);
    const ops::MoeLayer next = moe_layer(l);
    const Tensor y =                                                       // y = Wo o; x <- x + y
        ops::matmul_add(ctx, w.out, o, x, config_.num_experts > 0 ? &next : nullptr);
    ctx.observe("attn_out", static_cast<int>(l), y);
}

ops::MoeLayer Qwen35::moe_layer(int64_t l) const {
    const Layer& w = layers_[static_cast<size_t>(l)];
    return {.norm = {w.ffn_norm, static_cast<float>(config_.rms_norm_eps)},    // h = RMSNorm(x)
            .router = {.w = &w.router, .bias = {}, .top_k = config_.num_experts_per_tok, .softmax = true},
                                                                           // the top k of Wr h; r = their softmax
            .experts = &w.experts,
            .shared = {&w.w_gate, &w.w_up, &w.w_down, &w.shared_gate}};
}

void Qwen35::feed_forward(Context& ctx, int64_t l, Tensor& x) const {
    const Layer& w = layers_[static_cast<size_t>(l)];
    Tensor y;                                                              // F(h) = Wd (silu(Wg h) * Wu h)
    if (config_.num_experts > 0) {
        const ops::MoeLayer s = moe_layer(l);
        const ops::MoeResult moe =                                         // y = sum_e r_e F_e(h)
            ops::moe_add(ctx, x, s.norm, s.router, *s.experts, s.shared);  //   + sigmoid(w h) F_shared(h); x <- x + y
        ctx.observe("router_logits", static_cast<int>(l), moe.logits);
        ctx.observe("router_experts", static_cast<int>(l), moe.routing.experts);
        y = moe.y;
    } else {
        const ops::Norm norm{w.ffn_norm, static_cast<float>(config_.rms_norm_eps)};
        y = ops::swiglu_ffn_add(ctx, x, norm, w.w_gate, w.w_up, w.w_down);  // y = F(h); x <- x + y
    }
    ctx.observe("ffn_out", static_cast<int>(l), y);
}

Tensor Qwen35::embed(Context& ctx, const Batch& batch) const {
    const Tensor x = ops::embed(ctx, embed_tokens_, batch.tokens);         // x: the residual stream, f32  [n, D]
    ctx.observe("embed", -1, x);
    return x;
}

void Qwen35::layer(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const {
    const ArenaScope scope(*ctx.arena);
    const auto i = static_cast<size_t>(l);
    if (config_.is_linear[i] != 0) linear_attention(ctx, l, x, batch, states);
    else attention(ctx, l, x, batch, states.kv[i]);
    feed_forward(ctx, l, x);
    ctx.observe("layer_out", static_cast<int>(l), x);
}

Tensor Qwen35::logits(Context& ctx, const Tensor& x, const Batch& batch) const {
    if (batch.logit_rows.empty()) return Tensor(nullptr, DType::f32, {0, info_.vocab_size});
    const Tensor last = ops::wanted_rows(ctx, x, batch.logit_rows);
    const ops::Norm norm{norm_, static_cast<float>(config_.rms_norm_eps)};
    if (ctx.tap) ctx.observe("norm", -1, ops::rms_norm(ctx, last, norm.weight, norm.eps));
    const Weight* head[] = {&lm_head_};
    return ops::norm_matmul_group(ctx, last, norm, head)[0];               // logits of the wanted rows  [m, V]
}
// clang-format on

// ---- weights --------------------------------------------------------------------------------------------------------

TensorNames Qwen35::names(int64_t l, std::string_view gguf, std::string_view hf) const {
    return {{fmt::format("blk.{}.{}", l, gguf)}, {fmt::format("{}layers.{}.{}", text_, l, hf)}};
}

/// Hugging Face stores w of RMSNorm's weight 1 + w, GGUF that weight. All of it times `factor`.
std::span<const float> Qwen35::norm(WeightLoader& bind, const TensorNames& names, int64_t size, float factor) const {
    std::vector<float> factors = bind.host_vector(names, size);
    for (float& value : factors) value = (gguf_ ? value : value + 1.0f) * factor;
    return bind.place(std::move(factors));
}

void Qwen35::bind_attention(WeightLoader& bind, int64_t l, KvScales& scales) {
    const int64_t D = config_.hidden_size, d = config_.head_dim;
    const int64_t H = config_.num_attention_heads, Hkv = config_.num_key_value_heads;
    Layer& w = layers_[static_cast<size_t>(l)];
    w.wq = bind.matrix(names(l, "attn_q.weight", "self_attn.q_proj.weight"), 2 * H * d, D);
    w.wk = bind.matrix(names(l, "attn_k.weight", "self_attn.k_proj.weight"), Hkv * d, D);
    const TensorNames wv = names(l, "attn_v.weight", "self_attn.v_proj.weight");
    const TensorNames wo = names(l, "attn_output.weight", "self_attn.o_proj.weight");
    const KvScale s = scales.next(bind, {names(l, "", "self_attn").hf, Hkv, wv, wo});
    w.wv = bind.matrix(wv, Hkv * d, D, 1 / s.v);
    w.wo = bind.matrix(wo, D, H * d, s.v);
    w.q_norm = norm(bind, names(l, "attn_q_norm.weight", "self_attn.q_norm.weight"), d, s.k);
    w.k_norm = norm(bind, names(l, "attn_k_norm.weight", "self_attn.k_norm.weight"), d, 1 / s.k);
}

void Qwen35::bind_delta(WeightLoader& bind, int64_t l) {
    const int64_t D = config_.hidden_size;
    const DeltaView& v = config_.delta;
    const int64_t Hv = v.value_heads, values = Hv * v.value_dim;
    Layer& w = layers_[static_cast<size_t>(l)];
    w.in_qkv = bind.matrix(names(l, "attn_qkv.weight", "linear_attn.in_proj_qkv.weight"), v.channels(), D);
    w.in_z = bind.matrix(names(l, "attn_gate.weight", "linear_attn.in_proj_z.weight"), values, D);
    w.in_b = bind.halved_matrix(names(l, "ssm_beta.weight", "linear_attn.in_proj_b.weight"), Hv, D);
    w.in_a = bind.halved_matrix(names(l, "ssm_alpha.weight", "linear_attn.in_proj_a.weight"), Hv, D);
    w.out = bind.matrix(names(l, "ssm_out.weight", "linear_attn.out_proj.weight"), D, values);
    w.conv = bind.values(names(l, "ssm_conv1d.weight", "linear_attn.conv1d.weight"), {v.channels(), v.conv_width});
    std::vector<float> decay = bind.host_vector(names(l, "ssm_a", "linear_attn.A_log"), Hv);
    if (!gguf_)  // GGUF has -exp(A_log)
        for (float& value : decay) value = -std::exp(value);
    w.decay = bind.place(std::move(decay));
    w.dt_bias = bind.vector(names(l, "ssm_dt.bias", "linear_attn.dt_bias"), Hv);
    w.delta_norm = bind.vector(names(l, "ssm_norm.weight", "linear_attn.norm.weight"), v.value_dim);  // the factor
}

void Qwen35::bind_feed_forward(WeightLoader& bind, int64_t l) {
    const int64_t D = config_.hidden_size;
    Layer& w = layers_[static_cast<size_t>(l)];
    const bool sparse = config_.num_experts > 0;
    const std::string suffix = sparse ? "_shexp.weight" : ".weight", mlp = sparse ? "mlp.shared_expert." : "mlp.";
    const int64_t F = sparse ? config_.shared_expert_intermediate_size : config_.intermediate_size;
    w.w_gate = bind.matrix(names(l, "ffn_gate" + suffix, mlp + "gate_proj.weight"), F, D);
    w.w_up = bind.matrix(names(l, "ffn_up" + suffix, mlp + "up_proj.weight"), F, D);
    w.w_down = bind.matrix(names(l, "ffn_down" + suffix, mlp + "down_proj.weight"), D, F);
    if (!sparse) return;
    const int64_t E = config_.num_experts, Fe = config_.moe_intermediate_size;
    w.router = bind.halved_matrix(names(l, "ffn_gate_inp.weight", "mlp.gate.weight"), E, D);
    w.shared_gate = bind.halved_matrix(names(l, "ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"), 1, D);
    const auto stack = [&](std::string_view kind, std::string_view stacked, int half) -> ExpertNames {
        const std::string hf = fmt::format("{}layers.{}.mlp.experts.", text_, l);
        return {.gguf = fmt::format("blk.{}.ffn_{}_exps.weight", l, kind),
                .gguf_both = half < 0 ? "" : fmt::format("blk.{}.ffn_gate_up_exps.weight", l),
                .hf_each = fmt::format("{}{{}}.{}_proj.weight", hf, kind),
                .hf_stack = fmt::format("{}{}", hf, stacked),
                .hf_half = half};
    };
    w.experts.gate = bind.experts(stack("gate", "gate_up_proj", 0), E, Fe, D);
    w.experts.up = bind.experts(stack("up", "gate_up_proj", 1), E, Fe, D);
    w.experts.down = bind.experts(stack("down", "down_proj", -1), E, D, Fe);
}

Qwen35::Qwen35(const Checkpoint& checkpoint, const ModelOptions& options)
    : config_(qwen35_config(checkpoint)),
      store_(options.gpu, options.on_progress),
      gguf_(checkpoint.format() == Checkpoint::Format::gguf) {
    if (options.yarn_attention_factor >= 0 && config_.rope.yarn())
        config_.rope.magnitude = options.yarn_attention_factor;
    rope_ = make_rope(config_.rope);
    config_.delta.by_chunks = options.delta_by_chunks;
    info_.attention_window = options.window_within(config_.max_position_embeddings);

    WeightLoader bind(checkpoint, store_);
    text_ = bind.has({{}, {"model.language_model.embed_tokens.weight"}}) ? "model.language_model." : "model.";
    const TensorNames embedding = {{"token_embd.weight"}, {text_ + "embed_tokens.weight"}};
    const TensorNames head = {{"output.weight"}, {"lm_head.weight"}};
    const int64_t V = config_.vocab_size > 0 ? config_.vocab_size : bind.rows_of(embedding), D = config_.hidden_size;
    config_.vocab_size = V;
    embed_tokens_ = bind.matrix(embedding, V, D);
    const bool tied = config_.tie_word_embeddings && !bind.has(head);
    lm_head_ = tied ? embed_tokens_ : bind.matrix(head, V, D);
    norm_ = norm(bind, {{"output_norm.weight"}, {text_ + "norm.weight"}}, D);
    layers_.resize(static_cast<size_t>(config_.num_hidden_layers));
    KvScales scales(checkpoint, options);
    for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
        Layer& w = layers_[static_cast<size_t>(l)];
        w.attn_norm = norm(bind, names(l, "attn_norm.weight", "input_layernorm.weight"), D);
        w.ffn_norm = norm(bind, names(l, "post_attention_norm.weight", "post_attention_layernorm.weight"), D);
        const bool linear = config_.is_linear[static_cast<size_t>(l)] != 0;
        if (linear) bind_delta(bind, l);
        else bind_attention(bind, l, scales);
        bind_feed_forward(bind, l);
        if (linear) specs_.push_back({.kind = StateSpec::Kind::delta, .delta = config_.delta});
        else
            specs_.push_back(
                StateSpec::attention(config_.num_key_value_heads, config_.head_dim, info_.attention_window));
    }
    for (int64_t l = 0; l < config_.mtp_layers; ++l) bind.skip(fmt::format("blk.{}.", config_.num_hidden_layers + l));
    if (!gguf_)
        for (const char* beside : {"model.visual.", "mtp.", "model.mtp."}) bind.skip(beside);
    bind.finish();
    if (options.prefill == PrefillKind::fp8) add_fp8();
    info_.name = model_name(checkpoint);
    count(bind.binder());
    info_.kv_scales = scales.text();
}

/// Router, norms and DeltaNet's decay and beta stay as they are, and so does the head, which few rows ask for.
void Qwen35::add_fp8() {
    for (Layer& w : layers_) {
        Weight* const matrices[] = {&w.wq,   &w.wk,  &w.wv,     &w.wo,   &w.in_qkv,
                                    &w.in_z, &w.out, &w.w_gate, &w.w_up, &w.w_down};
        store_.add_fp8(matrices);
        for (auto* stack : {&w.experts.gate, &w.experts.up, &w.experts.down}) store_.add_fp8(*stack);
    }
}

Workspace Qwen35::workspace() const {
    const Qwen35Config& c = config_;
    const int64_t D = c.hidden_size, qo = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
    const int64_t attention = 4 * (7 * qo + 2 * kv) + 2 * (D + 2 * qo);
    const int64_t values = c.delta.value_heads * c.delta.value_dim;
    const int64_t delta = 4 * (3 * c.delta.channels() + 3 * values + 4 * c.delta.value_heads) + 2 * (D + 2 * values);
    const int64_t shared = c.num_experts > 0 ? c.shared_expert_intermediate_size : c.intermediate_size;
    const int64_t k = c.num_experts_per_tok,
                  experts = 4 * 2 * c.num_experts + 2 * D + k * (2 * D + 6 * c.moe_intermediate_size + 16);
    const int64_t feed_forward = 2 * D + 10 * shared + 4 * 3 * D + experts;
    return {.fixed = kWorkspaceFixed + ops::delta_chunk_bytes(c.delta),
            .per_row = 4 * 2 * D + std::max({attention, delta, feed_forward}),
            .per_token = 2 * 2 * kv};
}

void Qwen35::count(const Binder& bind) {
    info_.architecture = config_.num_experts > 0 ? "qwen35moe" : "qwen35";
    describe(info_, config_, bind, store_);
    TokenCost cost;
    cost.add_row(embed_tokens_);
    cost.add(lm_head_);
    cost.add(norm_);
    for (const Layer& w : layers_) {
        for (const Weight* matrix : {&w.wq, &w.wk, &w.wv, &w.wo, &w.in_qkv, &w.in_z, &w.in_b, &w.in_a, &w.out,
                                     &w.w_gate, &w.w_up, &w.w_down, &w.router, &w.shared_gate})
            if (*matrix) cost.add(*matrix);
        for (const auto* values :
             {&w.attn_norm, &w.ffn_norm, &w.q_norm, &w.k_norm, &w.conv, &w.decay, &w.dt_bias, &w.delta_norm})
            cost.add(*values);
        if (config_.num_experts == 0) continue;
        for (const auto* stack : {&w.experts.gate, &w.experts.up, &w.experts.down})
            cost.add((*stack)[0], config_.num_experts_per_tok);
    }
    info_.active_parameters = cost.parameters;
    info_.bytes_per_token = cost.bytes;
}

}  // namespace riptide
