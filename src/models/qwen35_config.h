// What Qwen3.5 and 3.6 checkpoints say about themselves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "models/rope_config.h"
#include "ops/delta_view.h"

namespace riptide {

struct Qwen35Config {
    int64_t vocab_size = 0;  // 0: as many as the embedding table has rows
    int64_t hidden_size = 0;
    int64_t num_hidden_layers = 0;
    int64_t mtp_layers = 0;       // GGUF: blocks behind these, of the drafter that comes with the model
    std::vector<char> is_linear;  // per layer: Gated DeltaNet, else full attention
    int64_t num_attention_heads = 0;
    int64_t num_key_value_heads = 0;
    int64_t head_dim = 0;
    int64_t max_position_embeddings = 0;
    double rms_norm_eps = 0;
    bool tie_word_embeddings = false;
    RopeConfig rope;
    DeltaView delta;  // sizes alone
    // Dense models:
    int64_t intermediate_size = 0;
    // Mixtures of experts (num_experts > 0):
    int64_t num_experts = 0;
    int64_t num_experts_per_tok = 0;
    int64_t moe_intermediate_size = 0;
    int64_t shared_expert_intermediate_size = 0;
};

/// From config.json (model_type qwen3_5 or qwen3_5_moe with the text model in text_config, or that alone: *_text) or
/// from GGUF metadata (qwen35, qwen35moe). M-RoPE's sections are not read: in text all positions of a token are the
/// same, and interleaved or not it is then the plain rotation. Throws Error naming the key for anything missing or not
/// supported.
Qwen35Config qwen35_config(const Checkpoint& checkpoint);
Qwen35Config qwen35_config_from_hf(const ConfigReader& config);
/// `architecture`: qwen35 or qwen35moe; keys carry it as a prefix.
Qwen35Config qwen35_config_from_gguf(const Checkpoint& checkpoint, const std::string& architecture);

/// Every field, as text that tells any two configs apart.
std::string config_text(const Qwen35Config& config);

}  // namespace riptide
