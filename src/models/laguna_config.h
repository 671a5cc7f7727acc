// Hyper-parameters of Laguna models, from config.json or from GGUF metadata.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "models/rope_config.h"

namespace riptide {

/// Everything that shapes the forward pass, under transformers' names. Whether gates are per head or per element is not
/// here: the releases spell it in three contradicting ways, so the rows of g_proj decide.
struct LagunaConfig {
    int64_t vocab_size = 0;  // 0: as many as the embedding table has rows
    int64_t hidden_size = 0;
    int64_t num_hidden_layers = 0;
    std::vector<int64_t> num_attention_heads_per_layer;
    int64_t num_key_value_heads = 0;
    int64_t head_dim = 0;
    int64_t max_position_embeddings = 0;
    std::vector<char> is_sliding;  // per layer
    std::vector<char> is_sparse;   // per layer: mixture of experts
    int64_t sliding_window = 0;    // 0 without sliding layers
    int64_t intermediate_size = 0;
    // Zero without sparse layers:
    int64_t moe_intermediate_size = 0;
    int64_t shared_expert_intermediate_size = 0;
    int64_t num_experts = 0;
    int64_t num_experts_per_tok = 0;
    double moe_routed_scaling_factor = 0;
    bool norm_topk_prob = true;

    double rms_norm_eps = 0;
    bool tie_word_embeddings = false;
    RopeConfig rope_full;
    RopeConfig rope_sliding;  // meaningless without sliding layers

    bool has_sliding() const;
    bool has_sparse() const;
};

/// From config.json of a Hugging Face folder: XS.2, XS-2.1, S-2.1, M.1 and what transformers saves.
/// Throws Error naming the key for anything missing, contradictory, or not supported (attention biases and sinks,
/// router weights on the input, router soft-capping, other activations and score functions).
LagunaConfig laguna_config_from_hf(const ConfigReader& config);

/// From GGUF metadata; `keys` has the prefix "laguna.". Knows the files of llama.cpp, Lucebox, Ollama before 0.32.3,
/// the first fork that ran Laguna, and ik_llama.cpp; what differs:
///   head_count          an array, or one number for all layers
///   window layers       attention.layer_types (0 full, 1 window), else attention.sliding_window_pattern as flags, else
///   a period
///                       (the key as a number, else 4) whose first layer is full; then all layers of one kind must have
///                       one number of heads
///   rope                rope.{freq_base,dimension_count}_swa or rope.swa.{freq_base,dimension_count}; without
///   dimension_count
///                       half of key_length rotates on full layers and all of it on window layers
///   dense layers        dense_layers, or leading_dense_block_count
LagunaConfig laguna_config_from_gguf(const ConfigReader& keys);

/// The one that fits the checkpoint's format.
LagunaConfig laguna_config(const Checkpoint& checkpoint);

/// Every field, as text that tells any two configs apart.
std::string config_text(const LagunaConfig& config);

/// Throws Error beginning with `source` if sizes are out of range or do not fit each other.
void check_laguna_config(const LagunaConfig& config, std::string_view source);

}  // namespace riptide
