#include "apps/convert/gguf_layout.h"

#include "base/json.h"

#include <fmt/core.h>

namespace riptide::apps {

namespace {

void add_attention(const GgufLayout& s, int64_t layer, std::vector<LayoutTensor>& out) {
    const std::string p = fmt::format("blk.{}.", layer);
    const int64_t q = s.layer_heads(layer) * s.head_dim, kv = s.num_key_value_heads * s.head_dim;
    out.push_back({p + "attn_norm.weight", {s.hidden_size}, layer});
    out.push_back({p + "attn_q.weight", {q, s.hidden_size}, layer});
    out.push_back({p + "attn_k.weight", {kv, s.hidden_size}, layer});
    out.push_back({p + "attn_v.weight", {kv, s.hidden_size}, layer});
    out.push_back({p + "attn_output.weight", {s.hidden_size, q}, layer});
    if (s.architecture == "laguna")
        out.push_back({p + "attn_gate.weight", {s.gate_per_element ? q : s.layer_heads(layer), s.hidden_size}, layer});
    out.push_back({p + "attn_q_norm.weight", {s.head_dim}, layer});
    out.push_back({p + "attn_k_norm.weight", {s.head_dim}, layer});
    out.push_back({p + "ffn_norm.weight", {s.hidden_size}, layer});
}

/// Gated DeltaNet, or attention with gates beside the queries.
void add_hybrid(const GgufLayout& s, int64_t layer, std::vector<LayoutTensor>& out) {
    const std::string p = fmt::format("blk.{}.", layer);
    out.push_back({p + "attn_norm.weight", {s.hidden_size}, layer});
    out.push_back({p + "post_attention_norm.weight", {s.hidden_size}, layer});
    if (s.is_linear[static_cast<size_t>(layer)] == 0) {
        const int64_t q = s.layer_heads(layer) * s.head_dim, kv = s.num_key_value_heads * s.head_dim;
        out.push_back({p + "attn_q.weight", {2 * q, s.hidden_size}, layer});
        out.push_back({p + "attn_k.weight", {kv, s.hidden_size}, layer});
        out.push_back({p + "attn_v.weight", {kv, s.hidden_size}, layer});
        out.push_back({p + "attn_output.weight", {s.hidden_size, q}, layer});
        out.push_back({p + "attn_q_norm.weight", {s.head_dim}, layer});
        out.push_back({p + "attn_k_norm.weight", {s.head_dim}, layer});
        return;
    }
    const int64_t heads = s.delta.value_heads, values = heads * s.delta.value_dim;
    out.push_back({p + "attn_qkv.weight", {s.delta.channels(), s.hidden_size}, layer});
    out.push_back({p + "attn_gate.weight", {values, s.hidden_size}, layer});
    out.push_back({p + "ssm_conv1d.weight", {s.delta.channels(), s.delta.conv_width}, layer});
    out.push_back({p + "ssm_a", {heads}, layer});
    out.push_back({p + "ssm_alpha.weight", {heads, s.hidden_size}, layer});
    out.push_back({p + "ssm_beta.weight", {heads, s.hidden_size}, layer});
    out.push_back({p + "ssm_dt.bias", {heads}, layer});
    out.push_back({p + "ssm_norm.weight", {s.delta.value_dim}, layer});
    out.push_back({p + "ssm_out.weight", {s.hidden_size, values}, layer});
}

void write_hybrid_metadata(const GgufLayout& s, GgufWriter& w) {
    const std::string p = s.architecture + ".";
    const auto u32 = [&](const std::string& key, int64_t value) { w.set_u32(p + key, static_cast<uint32_t>(value)); };
    int64_t interval = 1;
    while (interval < std::ssize(s.is_linear) && s.is_linear[static_cast<size_t>(interval - 1)] != 0) ++interval;
    json::array linear;
    bool regular = true;
    for (size_t layer = 0; layer < s.is_linear.size(); ++layer) {
        linear.push_back(s.is_linear[layer] != 0);
        regular = regular && (s.is_linear[layer] != 0) == ((static_cast<int64_t>(layer) + 1) % interval != 0);
    }
    if (regular) u32("full_attention_interval", interval);
    else w.set_array(p + "attention.recurrent_layers", GgufType::boolean, linear);
    u32("ssm.conv_kernel", s.delta.conv_width);
    u32("ssm.state_size", s.delta.key_dim);
    u32("ssm.group_count", s.delta.key_heads);
    u32("ssm.time_step_rank", s.delta.value_heads);
    u32("ssm.inner_size", s.delta.value_heads * s.delta.value_dim);
    // M-RoPE: pairs for time, height and width, as the releases share them out.
    const int64_t pairs = s.rotary_dim / 2, third = pairs / 3, rest = pairs - 3 * third;
    w.set_array(p + "rope.dimension_sections", GgufType::i32,
                {third + (rest > 0 ? 1 : 0), third + (rest > 1 ? 1 : 0), third, 0});
}

void add_feed_forward(const GgufLayout& s, int64_t layer, std::vector<LayoutTensor>& out) {
    const std::string p = fmt::format("blk.{}.", layer);
    if (s.num_experts == 0 || layer < s.leading_dense) {
        out.push_back({p + "ffn_gate.weight", {s.intermediate_size, s.hidden_size}, layer});
        out.push_back({p + "ffn_up.weight", {s.intermediate_size, s.hidden_size}, layer});
        out.push_back({p + "ffn_down.weight", {s.hidden_size, s.intermediate_size}, layer});
        return;
    }
    const int64_t e = s.num_experts, width = s.moe_intermediate_size, shared = s.shared_expert_intermediate_size;
    out.push_back({p + "ffn_gate_inp.weight", {e, s.hidden_size}, layer});
    if (s.hybrid()) out.push_back({p + "ffn_gate_inp_shexp.weight", {s.hidden_size}, layer});
    else out.push_back({p + "exp_probs_b.bias", {e}, layer});
    out.push_back({p + "ffn_gate_exps.weight", {e, width, s.hidden_size}, layer});
    out.push_back({p + "ffn_up_exps.weight", {e, width, s.hidden_size}, layer});
    out.push_back({p + "ffn_down_exps.weight", {e, s.hidden_size, width}, layer});
    out.push_back({p + "ffn_gate_shexp.weight", {shared, s.hidden_size}, layer});
    out.push_back({p + "ffn_up_shexp.weight", {shared, s.hidden_size}, layer});
    out.push_back({p + "ffn_down_shexp.weight", {s.hidden_size, shared}, layer});
}

}  // namespace

std::vector<LayoutTensor> layout_tensors(const GgufLayout& s) {
    std::vector<LayoutTensor> out = {{"token_embd.weight", {s.vocab_size, s.hidden_size}, -1},
                                     {"output_norm.weight", {s.hidden_size}, -1}};
    if (!s.tie_word_embeddings) out.push_back({"output.weight", {s.vocab_size, s.hidden_size}, -1});
    for (int64_t layer = 0; layer < s.num_hidden_layers; ++layer) {
        if (s.hybrid()) add_hybrid(s, layer, out);
        else add_attention(s, layer, out);
        add_feed_forward(s, layer, out);
    }
    return out;
}

void write_layout_metadata(const GgufLayout& s, GgufWriter& w) {
    const std::string p = s.architecture + ".";
    const auto u32 = [&](const std::string& key, int64_t value) { w.set_u32(p + key, static_cast<uint32_t>(value)); };
    const auto f32 = [&](const std::string& key, double value) { w.set_f32(p + key, static_cast<float>(value)); };
    w.set_string("general.architecture", s.architecture);
    w.set_string("general.name", s.name);
    w.set_u32("general.quantization_version", 2);
    u32("block_count", s.num_hidden_layers);
    u32("context_length", s.max_position_embeddings);
    u32("embedding_length", s.hidden_size);
    u32("feed_forward_length", s.intermediate_size);
    u32("vocab_size", s.vocab_size);
    if (s.hybrid()) write_hybrid_metadata(s, w);
    if (s.architecture == "qwen3" || s.hybrid()) {
        u32("attention.head_count", s.heads[0]);
    } else {
        json::array heads;
        for (int64_t layer = 0; layer < s.num_hidden_layers; ++layer) heads.push_back(s.layer_heads(layer));
        w.set_array(p + "attention.head_count", GgufType::i32, heads);
    }
    u32("attention.head_count_kv", s.num_key_value_heads);
    u32("attention.key_length", s.head_dim);
    u32("attention.value_length", s.head_dim);
    f32("attention.layer_norm_rms_epsilon", s.rms_norm_eps);
    u32("rope.dimension_count", s.rotary_dim);
    f32("rope.freq_base", s.rope_theta);
    if (s.sliding_window > 0) {
        u32("attention.sliding_window", s.sliding_window);
        json::array pattern;  // written only where the default of the format (every fourth layer is full) does not hold
        bool usual = true;
        for (size_t layer = 0; layer < s.is_sliding.size(); ++layer) {
            pattern.push_back(s.is_sliding[layer] != 0);
            usual = usual && (s.is_sliding[layer] != 0) == (layer % 4 != 0);
        }
        if (!usual) w.set_array(p + "attention.sliding_window_pattern", GgufType::boolean, pattern);
        u32("rope.dimension_count_swa", s.window_rotary_dim);
        f32("rope.freq_base_swa", s.window_rope_theta);
    }
    if (s.yarn_factor > 0) {
        w.set_string(p + "rope.scaling.type", "yarn");
        f32("rope.scaling.factor", s.yarn_factor);
        u32("rope.scaling.original_context_length", s.yarn_original);
        f32("rope.scaling.yarn_attn_factor", 1.0);
        f32("rope.scaling.yarn_beta_fast", s.yarn_beta_fast);
        f32("rope.scaling.yarn_beta_slow", s.yarn_beta_slow);
        if (s.yarn_attn_factor != 1.0) f32("rope.scaling.attn_factor", s.yarn_attn_factor);
    }
    if (s.num_experts > 0) {
        u32("expert_count", s.num_experts);
        u32("expert_used_count", s.num_experts_per_tok);
        u32("expert_feed_forward_length", s.moe_intermediate_size);
        u32("expert_shared_feed_forward_length", s.shared_expert_intermediate_size);
        u32("expert_gating_func", s.hybrid() ? 1 : 2);  // softmax, sigmoid
        w.set_bool(p + "expert_weights_norm", s.norm_topk_prob);
        f32("expert_weights_scale", s.routed_scale);
        u32("leading_dense_block_count", s.leading_dense);
    }
}

}  // namespace riptide::apps
