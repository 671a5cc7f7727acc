#include "apps/convert/convert.h"

#include <map>

#include "base/error.h"
#include "base/json.h"
#include "io/hf_config.h"
#include "models/laguna_config.h"
#include "models/qwen3.h"
#include "models/qwen35_config.h"
#include "models/task.h"

namespace riptide::apps {

namespace {

ConfigReader config_of(const Checkpoint& checkpoint) {
    const json::value* config = checkpoint.metadata().if_contains("config");
    RT_CHECK(config != nullptr && config->is_object(), "{}: no config.json", checkpoint.path());
    return {config->get_object(), checkpoint.path() + "/config.json"};
}

void set_rope(GgufLayout& s, const RopeConfig& rope) {
    s.rotary_dim = rope.rotary_dim;
    s.rope_theta = rope.theta;
    if (!rope.yarn()) return;
    s.yarn_factor = rope.factor;
    s.yarn_original = static_cast<int64_t>(rope.original_context);
    s.yarn_beta_fast = rope.beta_fast;
    s.yarn_beta_slow = rope.beta_slow;
    s.yarn_attn_factor = rope.magnitude / yarn_magnitude(rope.factor);
}

GgufLayout laguna_layout(const Checkpoint& checkpoint) {
    const LagunaConfig c = laguna_config(checkpoint);
    GgufLayout s;
    s.architecture = "laguna";
    s.vocab_size = c.vocab_size;
    s.hidden_size = c.hidden_size;
    s.num_hidden_layers = c.num_hidden_layers;
    s.max_position_embeddings = c.max_position_embeddings;
    s.heads = c.num_attention_heads_per_layer;
    s.num_key_value_heads = c.num_key_value_heads;
    s.head_dim = c.head_dim;
    s.intermediate_size = c.intermediate_size;
    s.rms_norm_eps = c.rms_norm_eps;
    s.sliding_window = c.sliding_window;
    s.is_sliding = c.is_sliding;
    s.num_experts = c.num_experts;
    s.num_experts_per_tok = c.num_experts_per_tok;
    s.moe_intermediate_size = c.moe_intermediate_size;
    s.shared_expert_intermediate_size = c.shared_expert_intermediate_size;
    for (char sparse : c.is_sparse) {
        if (sparse != 0) break;
        ++s.leading_dense;
    }
    for (int64_t layer = s.leading_dense; layer < c.num_hidden_layers; ++layer)
        RT_CHECK(c.is_sparse[static_cast<size_t>(layer)] != 0,
                 "{}: layer {} is dense after a sparse one; GGUF has no key for that", checkpoint.path(), layer);
    s.routed_scale = c.moe_routed_scaling_factor;
    s.norm_topk_prob = c.norm_topk_prob;
    set_rope(s, c.rope_full);
    RT_CHECK(!c.has_sliding() || !c.rope_sliding.yarn(),
             "{}: sliding layers with YaRN cannot be converted: GGUF has no key for that", checkpoint.path());
    s.window_rotary_dim = c.rope_sliding.rotary_dim;
    s.window_rope_theta = c.rope_sliding.theta;
    s.tie_word_embeddings = c.tie_word_embeddings;
    TensorNames gate;
    gate.hf = {"model.layers.0.self_attn.g_proj.weight"};
    const int64_t gate_rows = Binder(checkpoint).rows_of(gate);
    s.gate_per_element = gate_rows == s.heads[0] * s.head_dim;
    return s;
}

GgufLayout qwen3_layout(const Checkpoint& checkpoint) {
    const Qwen3Config c = qwen3_config_from_hf(hf_config(checkpoint));
    GgufLayout s;
    s.architecture = "qwen3";
    s.vocab_size = c.vocab_size;
    s.hidden_size = c.hidden_size;
    s.num_hidden_layers = c.num_hidden_layers;
    s.max_position_embeddings = c.max_position_embeddings;
    s.heads = {c.num_attention_heads};
    s.num_key_value_heads = c.num_key_value_heads;
    s.head_dim = c.head_dim;
    s.intermediate_size = c.intermediate_size;
    s.rms_norm_eps = c.rms_norm_eps;
    set_rope(s, c.rope);
    s.tie_word_embeddings = c.tie_word_embeddings;
    return s;
}

GgufLayout qwen35_layout(const Checkpoint& checkpoint) {
    const Qwen35Config c = qwen35_config(checkpoint);
    GgufLayout s;
    s.architecture = c.num_experts > 0 ? "qwen35moe" : "qwen35";
    s.vocab_size = c.vocab_size;
    s.hidden_size = c.hidden_size;
    s.num_hidden_layers = c.num_hidden_layers;
    s.max_position_embeddings = c.max_position_embeddings;
    s.heads = {c.num_attention_heads};
    s.num_key_value_heads = c.num_key_value_heads;
    s.head_dim = c.head_dim;
    s.intermediate_size = c.intermediate_size;
    s.rms_norm_eps = c.rms_norm_eps;
    s.num_experts = c.num_experts;
    s.num_experts_per_tok = c.num_experts_per_tok;
    s.moe_intermediate_size = c.moe_intermediate_size;
    s.shared_expert_intermediate_size = c.shared_expert_intermediate_size;
    s.rotary_dim = c.rope.rotary_dim;
    s.rope_theta = c.rope.theta;
    RT_CHECK(!c.rope.yarn(), "{}: YaRN in a Qwen3.5 model cannot be converted", checkpoint.path());
    s.tie_word_embeddings = c.tie_word_embeddings;
    s.is_linear = c.is_linear;
    s.delta = c.delta;
    return s;
}

/// The part of a GGUF name behind "blk.N.".
std::string suffix_of(const LayoutTensor& tensor) {
    return tensor.layer < 0 ? tensor.name : tensor.name.substr(tensor.name.find('.', 4) + 1);
}

}  // namespace

bool is_embedder(const Checkpoint& checkpoint) {
    return checkpoint.format() == Checkpoint::Format::safetensors &&
           (task_of(checkpoint, {}) == Task::embed || Binder(checkpoint).has({{}, {"embed_tokens.weight"}}));
}

GgufLayout layout_of(const Checkpoint& checkpoint, const std::string& name) {
    const auto type = config_of(checkpoint).get<std::string>("model_type");
    const bool hybrid = type.starts_with("qwen3_5");
    RT_CHECK(type == "laguna" || type == "qwen3" || hybrid,
             "{}: cannot convert model_type {}; known: laguna, qwen3, qwen3_5, qwen3_5_moe", checkpoint.path(), type);
    RT_CHECK(!is_embedder(checkpoint), "{}: an embedding model, which cannot be converted; expected one that generates",
             checkpoint.path());
    GgufLayout layout = hybrid             ? qwen35_layout(checkpoint)
                        : type == "laguna" ? laguna_layout(checkpoint)
                                           : qwen3_layout(checkpoint);
    layout.name = name;
    if (Binder(checkpoint).has({{}, {"lm_head.weight"}})) layout.tie_word_embeddings = false;
    return layout;
}

TensorNames source_names(const LayoutTensor& tensor) {
    static const std::map<std::string, std::vector<std::string>> known = {
        {"token_embd.weight", {"model.embed_tokens.weight"}},
        {"output_norm.weight", {"model.norm.weight"}},
        {"output.weight", {"lm_head.weight"}},
        {"attn_norm.weight", {"input_layernorm.weight"}},
        {"ffn_norm.weight", {"post_attention_layernorm.weight"}},
        {"attn_q.weight", {"self_attn.q_proj.weight"}},
        {"attn_k.weight", {"self_attn.k_proj.weight"}},
        {"attn_v.weight", {"self_attn.v_proj.weight"}},
        {"attn_output.weight", {"self_attn.o_proj.weight"}},
        {"attn_gate.weight", {"self_attn.g_proj.weight", "linear_attn.in_proj_z.weight"}},
        {"attn_q_norm.weight", {"self_attn.q_norm.weight"}},
        {"attn_k_norm.weight", {"self_attn.k_norm.weight"}},
        {"ffn_gate.weight", {"mlp.gate_proj.weight"}},
        {"ffn_up.weight", {"mlp.up_proj.weight"}},
        {"ffn_down.weight", {"mlp.down_proj.weight"}},
        {"ffn_gate_inp.weight", {"mlp.gate.weight"}},
        {"ffn_gate_inp_shexp.weight", {"mlp.shared_expert_gate.weight"}},
        {"post_attention_norm.weight", {"post_attention_layernorm.weight"}},
        {"attn_qkv.weight", {"linear_attn.in_proj_qkv.weight"}},
        {"ssm_conv1d.weight", {"linear_attn.conv1d.weight"}},
        {"ssm_a", {"linear_attn.A_log"}},
        {"ssm_alpha.weight", {"linear_attn.in_proj_a.weight"}},
        {"ssm_beta.weight", {"linear_attn.in_proj_b.weight"}},
        {"ssm_dt.bias", {"linear_attn.dt_bias"}},
        {"ssm_norm.weight", {"linear_attn.norm.weight"}},
        {"ssm_out.weight", {"linear_attn.out_proj.weight"}},
        {"exp_probs_b.bias", {"mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"}},
        {"ffn_gate_shexp.weight", {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"}},
        {"ffn_up_shexp.weight", {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"}},
        {"ffn_down_shexp.weight", {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"}},
    };
    TensorNames names;
    names.gguf = {tensor.name};
    const auto found = known.find(suffix_of(tensor));
    RT_ASSERT(found != known.end());
    for (const std::string& name : found->second)
        names.hf.push_back(tensor.layer < 0 ? name : fmt::format("model.layers.{}.{}", tensor.layer, name));
    for (size_t i = 0, count = names.hf.size(); i < count; ++i)  // beside a vision tower
        if (names.hf[i].starts_with("model.")) names.hf.push_back("model.language_model." + names.hf[i].substr(6));
    return names;
}

bool is_expert_stack(const LayoutTensor& tensor) { return tensor.name.find("_exps.") != std::string::npos; }

ExpertNames expert_names(const LayoutTensor& tensor, const std::string& text) {
    const std::string suffix = suffix_of(tensor);
    const std::string kind = suffix.substr(4, suffix.find("_exps") - 4);  // ffn_KIND_exps.weight
    const std::string experts = fmt::format("{}layers.{}.mlp.experts.", text, tensor.layer);
    ExpertNames names;
    names.gguf = tensor.name;
    names.hf_each = experts + "{}." + kind + "_proj.weight";
    names.hf_stack = experts + (kind == "down" ? "down_proj" : "gate_up_proj");
    names.hf_half = kind == "gate" ? 0 : kind == "up" ? 1 : -1;
    return names;
}

}  // namespace riptide::apps
