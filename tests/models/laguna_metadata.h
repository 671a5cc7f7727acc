// Metadata of released Laguna checkpoints, as their files have it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/json.h"

namespace riptide::testing {

/// `first`, then `others` three times, and so on.
inline json::array every_fourth(int layers, const json::value& first, const json::value& others) {
    json::array values;
    for (int l = 0; l < layers; ++l) values.push_back(l % 4 == 0 ? first : others);
    return values;
}

inline json::array dense_then_sparse(int layers, int dense) {
    json::array values;
    for (int l = 0; l < layers; ++l) values.push_back(l < dense ? "dense" : "sparse");
    return values;
}

/// config.json of XS.2, April 2026.
inline json::object hf_xs2() {
    json::object c = parse_json(R"({
        "architectures": ["LagunaForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_laguna.LagunaConfig",
                     "AutoModelForCausalLM": "modeling_laguna.LagunaForCausalLM"},
        "model_type": "laguna", "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 40, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 131072, "attention_bias": false, "attention_dropout": 0.0, "rms_norm_eps": 1e-06,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "router_aux_loss_coef": 0.0, "bos_token_id": 2, "eos_token_id": [2, 24], "pad_token_id": 9,
        "tie_word_embeddings": false, "use_cache": true, "torch_dtype": "bfloat16", "gating": true,
        "sliding_window": 512,
        "rope_parameters": {
            "full_attention": {"rope_theta": 500000.0, "rope_type": "yarn", "factor": 32.0,
                               "original_max_position_embeddings": 4096, "beta_slow": 1.0, "beta_fast": 64.0,
                               "attention_factor": 1.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
            "original_max_position_embeddings": 4096},
        "moe_apply_router_weight_on_input": false, "partial_rotary_factor": 0.5, "moe_routed_scaling_factor": 2.5})",
                                "config.json")
                         .as_object();
    c["layer_types"] = every_fourth(40, "full_attention", "sliding_attention");
    c["mlp_layer_types"] = dense_then_sparse(40, 1);
    c["num_attention_heads_per_layer"] = every_fourth(40, 48, 64);
    return c;
}

inline json::object& full_rope(json::object& config) {
    return config["rope_parameters"].as_object()["full_attention"].as_object();
}

/// config.json of XS.2, June 2026.
inline json::object hf_xs2_b() {
    json::object c = hf_xs2();
    c["max_position_embeddings"] = 262144;
    full_rope(c)["factor"] = 64.0;
    return c;
}

inline json::object hf_xs21() {
    json::object c = hf_xs2();
    c["max_position_embeddings"] = 262144;
    c["norm_topk_prob"] = true;
    c["decoder_sparse_step"] = 1;
    c["mlp_only_layers"] = json::array{0};
    c["gating"] = "per-head";
    c["gating_types"] = json::array(40, "per_head");
    c.erase("partial_rotary_factor");
    c["rope_parameters"].as_object().erase("original_max_position_embeddings");
    full_rope(c)["original_max_position_embeddings"] = 8192;
    full_rope(c)["attention_factor"] = 1.3465735902799727;
    return c;
}

inline json::object hf_s21() {
    json::object c = hf_xs21();
    c["hidden_size"] = 3072;
    c["num_hidden_layers"] = 48;
    c["intermediate_size"] = 12288;
    c["num_experts_per_tok"] = 10;
    c["moe_intermediate_size"] = 1024;
    c["shared_expert_intermediate_size"] = 1024;
    c["max_position_embeddings"] = 1048576;
    c["gating_types"] = json::array(48, "per_head");
    c["layer_types"] = every_fourth(48, "full_attention", "sliding_attention");
    c["mlp_layer_types"] = dense_then_sparse(48, 1);
    c["num_attention_heads_per_layer"] = every_fourth(48, 48, 72);
    full_rope(c)["factor"] = 128.0;
    full_rope(c)["beta_fast"] = 32.0;
    full_rope(c)["attention_factor"] = 1.4852030263919618;
    return c;
}

inline json::object hf_m1() {
    json::object c = hf_xs21();
    c["hidden_size"] = 4096;
    c["num_hidden_layers"] = 70;
    c["num_attention_heads"] = 64;
    c["num_experts_per_tok"] = 16;
    c["moe_intermediate_size"] = 1024;
    c["shared_expert_intermediate_size"] = 1024;
    c["moe_routed_scaling_factor"] = 1.0;
    c["sliding_window"] = 0;
    c["gating"] = "per-element";
    c["mlp_layer_types"] = dense_then_sparse(70, 3);
    c["mlp_only_layers"] = json::array{0, 1, 2};
    for (const char* key : {"gating_types", "layer_types", "num_attention_heads_per_layer"}) c.erase(key);
    c["rope_parameters"].as_object().erase("sliding_attention");
    full_rope(c)["factor"] = 64.0;
    full_rope(c)["original_max_position_embeddings"] = 4096;
    full_rope(c)["partial_rotary_factor"] = 1.0;
    full_rope(c).erase("attention_factor");
    return c;
}

/// The keys that Ollama's converter spells in its own way. It has no vocab_size: its engine counted the tokens.
inline void add_ollama_keys(json::object& k, const json::object& m) {
    const json::object& rope = m.at("rope_parameters").at("full_attention").as_object();
    json::array dense, kinds, flags;
    for (size_t l = 0; l < m.at("layer_types").as_array().size(); ++l) {
        if (m.at("mlp_layer_types").as_array()[l] == "dense") dense.push_back(static_cast<int64_t>(l));
        const bool sliding = m.at("layer_types").as_array()[l] == "sliding_attention";
        kinds.push_back(sliding ? 1 : 0);
        flags.push_back(sliding);
    }
    const auto set = [&](const char* key, const json::value& value) { k["laguna." + std::string(key)] = value; };
    set("rope.scaling.beta_fast", rope.at("beta_fast"));
    set("rope.scaling.beta_slow", rope.at("beta_slow"));
    set("rope.scaling.attn_factor", rope.at("attention_factor"));
    set("rope.partial_rotary_factor", rope.at("partial_rotary_factor"));
    set("rope.swa.freq_base", m.at("rope_parameters").at("sliding_attention").at("rope_theta"));
    set("rope.swa.scaling.type", "default");
    set("rope.swa.scaling.factor", 1.0);
    set("rope.swa.partial_rotary_factor", 1.0);
    set("rope.swa.dimension_count", m.at("head_dim"));
    set("attention.layer_types", kinds);
    set("attention.sliding_window_pattern", flags);
    set("attention.gating_type", 1);
    set("attention.qk_norm", true);
    set("attention.sink_enabled", false);
    set("dense_layers", dense);
    set("decoder_sparse_step", 1);
    set("expert_shared_count", 1);
}

/// The keys of llama.cpp's spelling and of the forks that followed it.
inline void add_upstream_keys(json::object& k, const json::object& m, char dialect) {
    const json::object& rope = m.at("rope_parameters").at("full_attention").as_object();
    const auto set = [&](const char* key, const json::value& value) { k["laguna." + std::string(key)] = value; };
    set("vocab_size", m.at("vocab_size"));
    set("rope.dimension_count_swa", m.at("head_dim"));
    set("rope.freq_base_swa", m.at("rope_parameters").at("sliding_attention").at("rope_theta"));
    set("rope.scaling.yarn_attn_factor", 1.0);
    set("rope.scaling.yarn_beta_fast", rope.at("beta_fast"));
    set("rope.scaling.yarn_beta_slow", rope.at("beta_slow"));
    if (dialect == 'F') {
        json::array flags;
        for (const json::value& type : m.at("layer_types").as_array()) flags.push_back(type == "sliding_attention");
        set("attention.gate_per_head", true);
        set("attention.sliding_window_pattern", flags);
        set("expert_shared_count", 1);
    }
    if (dialect == 'I') set("rope.scaling.yarn_ext_factor", 32.0);  // as its first converter wrote it; must mean 1
}

/// What one dialect of GGUF files writes for a model; see laguna_config.h. All numbers come from `m`, a config.json.
inline json::object gguf_metadata(char dialect, const json::object& m) {
    const json::object& rope = m.at("rope_parameters").at("full_attention").as_object();
    const auto head_dim = m.at("head_dim").as_int64();
    const json::array& mlps = m.at("mlp_layer_types").as_array();
    json::object k;
    const auto set = [&](const char* key, const json::value& value) { k["laguna." + std::string(key)] = value; };
    k["general.architecture"] = "laguna";
    set("block_count", m.at("num_hidden_layers"));
    set("context_length", m.at("max_position_embeddings"));
    set("embedding_length", m.at("hidden_size"));
    set("feed_forward_length", m.at("intermediate_size"));
    set("attention.head_count", m.at("num_attention_heads_per_layer"));
    set("attention.head_count_kv", m.at("num_key_value_heads"));
    set("attention.key_length", head_dim);
    set("attention.value_length", head_dim);
    set("attention.layer_norm_rms_epsilon", static_cast<double>(m.at("rms_norm_eps").to_number<float>()));
    set("attention.sliding_window", m.at("sliding_window"));
    set("expert_count", m.at("num_experts"));
    set("expert_used_count", m.at("num_experts_per_tok"));
    set("expert_feed_forward_length", m.at("moe_intermediate_size"));
    set("expert_shared_feed_forward_length", m.at("shared_expert_intermediate_size"));
    set("expert_gating_func", 2);
    set("expert_weights_norm", true);
    set("expert_weights_scale", m.at("moe_routed_scaling_factor"));
    set("leading_dense_block_count", static_cast<int64_t>(std::count(mlps.begin(), mlps.end(), json::value("dense"))));
    const double rotated = static_cast<double>(head_dim) * rope.at("partial_rotary_factor").as_double();
    set("rope.dimension_count", static_cast<int64_t>(rotated));
    set("rope.freq_base", rope.at("rope_theta"));
    set("rope.scaling.type", "yarn");
    set("rope.scaling.factor", rope.at("factor"));
    set("rope.scaling.original_context_length", rope.at("original_max_position_embeddings"));
    if (dialect == 'O') add_ollama_keys(k, m);
    else add_upstream_keys(k, m, dialect);
    return k;
}

inline json::object gguf_xs2(char dialect) {
    json::object keys = gguf_metadata(dialect, hf_xs2());
    if (dialect == 'O') keys["laguna.vocab_size"] = 100352;
    return keys;
}

}  // namespace riptide::testing
