// Which tensors and keys a GGUF of a Laguna, Qwen3 or Qwen3.5 model has. Shared by `synth` and `quantize`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/gguf_writer.h"
#include "ops/delta_view.h"

namespace riptide::apps {

/// Hyper-parameters of one model, under their Hugging Face names.
struct GgufLayout {
    std::string name;
    std::string architecture;  // "laguna", "qwen3", "qwen35" or "qwen35moe"
    int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0;
    std::vector<int64_t> heads;  // query heads, repeated over the layers: {48, 64, 64, 64}
    int64_t num_key_value_heads = 0, head_dim = 128;
    int64_t intermediate_size = 0;
    double rms_norm_eps = 1e-6;
    int64_t sliding_window = 0;    // 0: no window layers
    std::vector<char> is_sliding;  // per layer; empty: every fourth layer, from the first on, is full
    // Mixture of experts; 0 experts: dense.
    int64_t num_experts = 0, num_experts_per_tok = 0, moe_intermediate_size = 0, shared_expert_intermediate_size = 0;
    int64_t leading_dense = 0;
    double routed_scale = 1.0;
    bool norm_topk_prob = true;
    bool gate_per_element = false;
    // RoPE of full layers; yarn_factor 0: plain.
    int64_t rotary_dim = 128, yarn_original = 0;
    double rope_theta = 1e6, yarn_factor = 0, yarn_beta_fast = 64, yarn_beta_slow = 1;
    double yarn_attn_factor = 1;  // GGUF's rope.scaling.attn_factor: multiplies 0.1 ln(factor) + 1
    // RoPE of window layers.
    int64_t window_rotary_dim = 128;
    double window_rope_theta = 10000;
    bool tie_word_embeddings = false;
    // Qwen3.5: per layer whether it is linear, and the sizes of those.
    std::vector<char> is_linear;
    DeltaView delta;

    bool hybrid() const { return !is_linear.empty(); }
    int64_t layer_heads(int64_t layer) const { return heads[static_cast<size_t>(layer) % heads.size()]; }
};

struct LayoutTensor {
    std::string name;            // in GGUF
    std::vector<int64_t> shape;  // row-major
    int64_t layer = -1;          // -1: belongs to no layer
};

/// Values of tokenizer.ggml.token_type.
inline constexpr int kNormalToken = 1, kControlToken = 3, kUserDefinedToken = 4, kUnusedToken = 5;

/// All tensors in the order of the file.
std::vector<LayoutTensor> layout_tensors(const GgufLayout& layout);
/// The hyper-parameter keys, general.architecture and general.name included. Source: llama.cpp's Laguna, Qwen3 and
/// Qwen3.5 files.
void write_layout_metadata(const GgufLayout& layout, GgufWriter& writer);

}  // namespace riptide::apps
