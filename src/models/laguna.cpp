// Laguna. Reference: transformers, models/laguna/modular_laguna.py (LagunaAttention, LagunaSparseMoeBlock).
// n rows, D hidden_size, V vocab_size; in layer l: H query heads, Hkv key-value heads, d head_dim.
#include "models/laguna.h"

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

void Laguna::attention(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const KvView& kv) const {
    const auto i = static_cast<size_t>(l);
    const Layer& w = layers_[i];
    const int64_t n = x.rows(), H = config_.num_attention_heads_per_layer[i], Hkv = config_.num_key_value_heads;
    const int64_t d = config_.head_dim;
    const auto eps = static_cast<float>(config_.rms_norm_eps);

    const Weight* projections[] = {&w.wq, &w.wk, &w.wv, &w.wg};            // h = RMSNorm(x)  [n, D]
    const std::vector<Tensor> p =                                          // q, k, v, g = Wq h, Wk h, Wv h, Wg h
        ops::norm_matmul_group(ctx, x, {w.attn_norm, eps}, projections);
    const ops::AttentionInput in{.q = p[0].view({n, H, d}),                // each head of q, k: RMSNorm, rotation R(p)
                                 .k = p[1].view({n, Hkv, d}),
                                 .v = p[2].view({n, Hkv, d}),
                                 .gate = p[3],
                                 .q_norm = {w.q_norm, eps},
                                 .k_norm = {w.k_norm, eps},
                                 .rope = config_.is_sliding[i] ? &rope_sliding_ : &rope_full_,
                                 .softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)))};
    const ops::MoeLayer next = moe_layer(l);
    const Tensor y = ops::gated_attention_add(                             // o = softmax(q K^T / sqrt d) V * softplus(g)
        ctx, in, kv, batch, w.wo, x, config_.is_sparse[i] ? &next : nullptr);  // y = Wo o; x <- x + y  [n, D]
    ctx.observe("attn_out", static_cast<int>(l), y);
}

ops::MoeLayer Laguna::moe_layer(int64_t l) const {
    const Layer& w = layers_[static_cast<size_t>(l)];
    return {.norm = {w.ffn_norm, static_cast<float>(config_.rms_norm_eps)},               // h = RMSNorm(x)
            .router = {&w.router, w.router_bias, config_.num_experts_per_tok,             // s = sigmoid(Wr h); the
                       static_cast<float>(config_.moe_routed_scaling_factor),             // top k of s + bias;
                       config_.norm_topk_prob},                            // r_e = scale * s_e / (sum of the k s)
            .experts = &w.experts,
            .shared = {&w.w_gate, &w.w_up, &w.w_down}};
}

void Laguna::feed_forward(Context& ctx, int64_t l, Tensor& x) const {
    const auto i = static_cast<size_t>(l);
    const Layer& w = layers_[i];

    Tensor y;                                                              // F(h) = Wd (silu(Wg h) * Wu h)
    if (config_.is_sparse[i]) {
        const ops::MoeLayer s = moe_layer(l);
        const ops::MoeResult moe =                                         // y = sum_e r_e F_e(h) + F_shared(h);
            ops::moe_add(ctx, x, s.norm, s.router, *s.experts, s.shared);  // x <- x + y
        ctx.observe("router_logits", static_cast<int>(l), moe.logits);
        ctx.observe("router_experts", static_cast<int>(l), moe.routing.experts);
        y = moe.y;
    } else {
        const ops::Norm norm{w.ffn_norm, static_cast<float>(config_.rms_norm_eps)};
        y = ops::swiglu_ffn_add(ctx, x, norm, w.w_gate, w.w_up, w.w_down);  // y = F(h); x <- x + y
    }
    ctx.observe("ffn_out", static_cast<int>(l), y);
}

Tensor Laguna::embed(Context& ctx, const Batch& batch) const {
    const Tensor x = ops::embed(ctx, embed_tokens_, batch.tokens);         // x: the residual stream, f32  [n, D]
    ctx.observe("embed", -1, x);
    return x;
}

void Laguna::layer(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const {
    const ArenaScope scope(*ctx.arena);
    attention(ctx, l, x, batch, states.kv[static_cast<size_t>(l)]);
    feed_forward(ctx, l, x);
    ctx.observe("layer_out", static_cast<int>(l), x);
}

Tensor Laguna::logits(Context& ctx, const Tensor& x, const Batch& batch) const {
    if (batch.logit_rows.empty()) return Tensor(nullptr, DType::f32, {0, info_.vocab_size});
    const Tensor last = ops::wanted_rows(ctx, x, batch.logit_rows);
    const ops::Norm norm{norm_, static_cast<float>(config_.rms_norm_eps)};
    if (ctx.tap) ctx.observe("norm", -1, ops::rms_norm(ctx, last, norm.weight, norm.eps));
    const Weight* head[] = {&lm_head_};
    return ops::norm_matmul_group(ctx, last, norm, head)[0];               // logits of the wanted rows  [m, V]
}
// clang-format on

// ---- weights --------------------------------------------------------------------------------------------------------

namespace {

/// Names of layer l's tensor: "blk.3.attn_q.weight" in GGUF, "model.layers.3.self_attn.q_proj.weight" in Hugging Face
/// folders.
TensorNames in_layer(int64_t l, std::initializer_list<std::string_view> gguf,
                     std::initializer_list<std::string_view> hf) {
    TensorNames names;
    for (const std::string_view name : gguf) names.gguf.push_back(fmt::format("blk.{}.{}", l, name));
    for (const std::string_view name : hf) names.hf.push_back(fmt::format("model.layers.{}.{}", l, name));
    return names;
}

ExpertNames experts_in_layer(int64_t l, std::string_view gguf, std::string_view hf, std::string_view hf_stack,
                             int half) {
    const std::string mlp = fmt::format("model.layers.{}.mlp.experts.", l);
    return {.gguf = fmt::format("blk.{}.{}", l, gguf),
            .hf_each = mlp + "{}." + std::string(hf),
            .hf_stack = mlp + std::string(hf_stack),
            .hf_half = half};
}

}  // namespace

void Laguna::bind_attention(WeightLoader& bind, int64_t l, KvScales& scales) {
    const auto i = static_cast<size_t>(l);
    const int64_t D = config_.hidden_size, d = config_.head_dim;
    const int64_t H = config_.num_attention_heads_per_layer[i], Hkv = config_.num_key_value_heads;
    Layer& w = layers_[i];
    w.attn_norm = bind.vector(in_layer(l, {"attn_norm.weight"}, {"input_layernorm.weight"}), D);
    w.wq = bind.matrix(in_layer(l, {"attn_q.weight"}, {"self_attn.q_proj.weight"}), H * d, D);
    w.wk = bind.matrix(in_layer(l, {"attn_k.weight"}, {"self_attn.k_proj.weight"}), Hkv * d, D);
    const TensorNames wv = in_layer(l, {"attn_v.weight"}, {"self_attn.v_proj.weight"});
    const TensorNames wo = in_layer(l, {"attn_output.weight"}, {"self_attn.o_proj.weight"});
    const KvScale s = scales.next(bind, {in_layer(l, {}, {"self_attn"}).hf, Hkv, wv, wo});
    w.wv = bind.matrix(wv, Hkv * d, D, 1 / s.v);
    w.wo = bind.matrix(wo, D, H * d, s.v);
    w.q_norm = bind.vector(in_layer(l, {"attn_q_norm.weight"}, {"self_attn.q_norm.weight"}), d, s.k);
    w.k_norm = bind.vector(in_layer(l, {"attn_k_norm.weight"}, {"self_attn.k_norm.weight"}), d, 1 / s.k);
    // One gate for each head (XS and S) or each element (M.1).
    const TensorNames gate = in_layer(l, {"attn_gate.weight", "attn_g.weight"}, {"self_attn.g_proj.weight"});
    const int64_t gates = bind.rows_of(gate);
    RT_CHECK(gates == H || gates == H * d,
             "{}: layer {} has {} attention gates, expected {} (one per head) or {} (one per element)", info_.name, l,
             gates, H, H * d);
    w.wg = bind.matrix(gate, gates, D);
}

void Laguna::bind_feed_forward(WeightLoader& bind, int64_t l) {
    const auto i = static_cast<size_t>(l);
    const int64_t D = config_.hidden_size;
    Layer& w = layers_[i];
    w.ffn_norm = bind.vector(in_layer(l, {"ffn_norm.weight"}, {"post_attention_layernorm.weight"}), D);
    if (!config_.is_sparse[i]) {
        const int64_t F = config_.intermediate_size;
        w.w_gate = bind.matrix(in_layer(l, {"ffn_gate.weight"}, {"mlp.gate_proj.weight"}), F, D);
        w.w_up = bind.matrix(in_layer(l, {"ffn_up.weight"}, {"mlp.up_proj.weight"}), F, D);
        w.w_down = bind.matrix(in_layer(l, {"ffn_down.weight"}, {"mlp.down_proj.weight"}), D, F);
        return;
    }
    const int64_t S = config_.shared_expert_intermediate_size, F = config_.moe_intermediate_size,
                  E = config_.num_experts;
    const auto shared = [&](std::string_view gguf, std::string_view hf) {  // singular on disk, plural in transformers
        return in_layer(l, {gguf}, {fmt::format("mlp.shared_expert.{}", hf), fmt::format("mlp.shared_experts.{}", hf)});
    };
    w.w_gate = bind.matrix(shared("ffn_gate_shexp.weight", "gate_proj.weight"), S, D);
    w.w_up = bind.matrix(shared("ffn_up_shexp.weight", "up_proj.weight"), S, D);
    w.w_down = bind.matrix(shared("ffn_down_shexp.weight", "down_proj.weight"), D, S);
    w.router = bind.halved_matrix(in_layer(l, {"ffn_gate_inp.weight"}, {"mlp.gate.weight"}), E, D);
    w.router_bias = bind.vector(
        in_layer(l, {"exp_probs_b.bias"}, {"mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"}),
        E);
    w.experts.gate =
        bind.experts(experts_in_layer(l, "ffn_gate_exps.weight", "gate_proj.weight", "gate_up_proj", 0), E, F, D);
    w.experts.up =
        bind.experts(experts_in_layer(l, "ffn_up_exps.weight", "up_proj.weight", "gate_up_proj", 1), E, F, D);
    w.experts.down =
        bind.experts(experts_in_layer(l, "ffn_down_exps.weight", "down_proj.weight", "down_proj", -1), E, D, F);
}

Laguna::Laguna(const Checkpoint& checkpoint, const ModelOptions& options)
    : config_(laguna_config(checkpoint)), store_(options.gpu, options.on_progress) {
    if (options.yarn_attention_factor >= 0 && config_.rope_full.yarn())
        config_.rope_full.magnitude = options.yarn_attention_factor;
    rope_full_ = make_rope(config_.rope_full);
    if (config_.has_sliding()) rope_sliding_ = make_rope(config_.rope_sliding);

    WeightLoader bind(checkpoint, store_);
    info_.name = model_name(checkpoint);
    info_.attention_window = options.window_within(config_.max_position_embeddings);
    const TensorNames embedding = {{"token_embd.weight"}, {"model.embed_tokens.weight"}};
    const TensorNames head = {{"output.weight"}, {"lm_head.weight"}};
    const int64_t V = config_.vocab_size > 0 ? config_.vocab_size : bind.rows_of(embedding), D = config_.hidden_size;
    config_.vocab_size = V;
    embed_tokens_ = bind.matrix(embedding, V, D);
    const bool tied = config_.tie_word_embeddings && !bind.has(head);
    lm_head_ = tied ? embed_tokens_ : bind.matrix(head, V, D);
    norm_ = bind.vector({{"output_norm.weight"}, {"model.norm.weight"}}, D);
    layers_.resize(static_cast<size_t>(config_.num_hidden_layers));
    KvScales scales(checkpoint, options);
    for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
        bind_attention(bind, l, scales);
        bind_feed_forward(bind, l);
        const bool sliding = config_.is_sliding[static_cast<size_t>(l)];
        specs_.push_back(StateSpec::attention(config_.num_key_value_heads, config_.head_dim,
                                              sliding ? config_.sliding_window : info_.attention_window));
    }
    bind.finish();
    if (options.prefill == PrefillKind::fp8) add_fp8();
    count(bind.binder());
    info_.kv_scales = scales.text();
}

/// Router and norms stay as they are, and so does the head, which few rows ask for.
void Laguna::add_fp8() {
    for (Layer& w : layers_) {
        Weight* const matrices[] = {&w.wq, &w.wk, &w.wv, &w.wo, &w.wg, &w.w_gate, &w.w_up, &w.w_down};
        store_.add_fp8(matrices);
        for (auto* stack : {&w.experts.gate, &w.experts.up, &w.experts.down}) store_.add_fp8(*stack);
    }
}

Workspace Laguna::workspace() const {
    const LagunaConfig& c = config_;
    const int64_t D = c.hidden_size, d = c.head_dim, Hkv = c.num_key_value_heads, k = c.num_experts_per_tok + 1;
    const int64_t H = *std::max_element(c.num_attention_heads_per_layer.begin(), c.num_attention_heads_per_layer.end());
    const int64_t attention = 4 * (3 * H * d + 2 * Hkv * d + H) + 2 * (D + 2 * H * d);
    const int64_t dense = 2 * D + 10 * c.intermediate_size + 4 * D;
    const int64_t sparse = 4 * 2 * c.num_experts + 2 * D + k * (2 * D + 6 * c.moe_intermediate_size + 16) + 4 * D;
    return {.fixed = kWorkspaceFixed,
            .per_row = 4 * 2 * D + std::max({attention, dense, sparse}),
            .per_token = 2 * 2 * Hkv * d};
}

void Laguna::count(const Binder& bind) {
    info_.architecture = "laguna";
    describe(info_, config_, bind, store_);
    TokenCost cost;
    cost.add_row(embed_tokens_);
    cost.add(lm_head_);
    cost.add(norm_);
    for (size_t i = 0; i < layers_.size(); ++i) {
        const Layer& w = layers_[i];
        for (const Weight* matrix : {&w.wq, &w.wk, &w.wv, &w.wo, &w.wg, &w.w_gate, &w.w_up, &w.w_down})
            cost.add(*matrix);
        for (const auto* values : {&w.attn_norm, &w.ffn_norm, &w.q_norm, &w.k_norm}) cost.add(*values);
        if (!config_.is_sparse[i]) continue;
        cost.add(w.router);
        cost.add(w.router_bias);
        for (const auto* stack : {&w.experts.gate, &w.experts.up, &w.experts.down})
            cost.add((*stack)[0], config_.num_experts_per_tok);
    }
    info_.active_parameters = cost.parameters;
    info_.bytes_per_token = cost.bytes;
}

}  // namespace riptide
