// The model shapes that `riptide synth` can write: real dimensions, random weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/gguf_writer.h"

namespace riptide::apps {

/// Hyper-parameters of one Laguna or Qwen3 shape, under their Hugging Face names.
struct SynthShape {
    std::string name;
    std::string architecture;  // "laguna" or "qwen3"
    int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0;
    std::vector<int64_t> heads;   // repeated over the layers: {48, 64, 64, 64}; the first of a period is the full layer
    int64_t num_key_value_heads = 0, head_dim = 128;
    int64_t intermediate_size = 0;
    int64_t sliding_window = 0;
    // Mixture of experts; 0 experts: dense.
    int64_t num_experts = 0, num_experts_per_tok = 0, moe_intermediate_size = 0, leading_dense = 0;
    double routed_scale = 1.0;
    bool gate_per_element = false;
    // RoPE
    int64_t rotary_dim = 128;
    double rope_theta = 1e6, yarn_factor = 0, yarn_beta_fast = 64;
    int64_t yarn_original = 0;
    bool tie_word_embeddings = false;

    int64_t layer_heads(int64_t layer) const { return heads[static_cast<size_t>(layer) % heads.size()]; }
};

struct SynthTensor {
    std::string name;
    std::vector<int64_t> shape;  // row-major
    int64_t layer = -1;
};

/// Every known shape.
const std::vector<SynthShape>& synth_shapes();
/// The shape of that name. Throws Error listing the known names.
const SynthShape& find_synth_shape(const std::string& name);
/// All tensors in the order of the file, with GGUF names.
std::vector<SynthTensor> synth_tensors(const SynthShape& shape);
/// The hyper-parameter keys of a GGUF of this shape (llama.cpp's names), general.* included.
void write_synth_metadata(const SynthShape& shape, GgufWriter& writer);

}  // namespace riptide::apps
