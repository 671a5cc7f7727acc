#include "apps/synth/synth_shapes.h"

#include <fmt/format.h>

#include "base/error.h"

namespace riptide::apps {

namespace {

GgufLayout laguna_xs_2() {
    GgufLayout s;
    s.name = "laguna-xs.2";
    s.architecture = "laguna";
    s.vocab_size = 100352;
    s.hidden_size = 2048;
    s.num_hidden_layers = 40;
    s.max_position_embeddings = 131072;
    s.heads = {48, 64, 64, 64};
    s.num_key_value_heads = 8;
    s.intermediate_size = 8192;
    s.sliding_window = 512;
    s.num_experts = 256;
    s.num_experts_per_tok = 8;
    s.moe_intermediate_size = 512;
    s.shared_expert_intermediate_size = 512;
    s.leading_dense = 1;
    s.routed_scale = 2.5;
    s.rotary_dim = 64;
    s.rope_theta = 500000;
    s.yarn_factor = 32;
    s.yarn_original = 4096;
    return s;
}

GgufLayout laguna_xs_21() {
    GgufLayout s = laguna_xs_2();
    s.name = "laguna-xs-2.1";
    s.max_position_embeddings = 262144;
    s.yarn_original = 8192;
    return s;
}

GgufLayout laguna_s_21() {
    GgufLayout s = laguna_xs_21();
    s.name = "laguna-s-2.1";
    s.hidden_size = 3072;
    s.num_hidden_layers = 48;
    s.heads = {48, 72, 72, 72};
    s.intermediate_size = 12288;
    s.num_experts_per_tok = 10;
    s.moe_intermediate_size = 1024;
    s.shared_expert_intermediate_size = 1024;
    s.yarn_beta_fast = 32;
    return s;
}

/// Laguna's features in the smallest dimensions that every quant type and kernel accepts.
GgufLayout laguna_tiny() {
    GgufLayout s = laguna_xs_2();
    s.name = "laguna-tiny";
    s.vocab_size = 512;
    s.hidden_size = 256;
    s.num_hidden_layers = 5;
    s.max_position_embeddings = 4096;
    s.heads = {4, 6, 6, 6};
    s.num_key_value_heads = 2;
    s.intermediate_size = 512;
    s.sliding_window = 64;
    s.num_experts = 8;
    s.num_experts_per_tok = 2;
    s.moe_intermediate_size = 256;
    s.shared_expert_intermediate_size = 256;
    s.yarn_factor = 4;
    s.yarn_original = 1024;
    return s;
}

GgufLayout qwen3_06b() {
    GgufLayout s;
    s.name = "qwen3-0.6b";
    s.architecture = "qwen3";
    s.vocab_size = 151936;
    s.hidden_size = 1024;
    s.num_hidden_layers = 28;
    s.max_position_embeddings = 40960;
    s.heads = {16};
    s.num_key_value_heads = 8;
    s.intermediate_size = 3072;
    s.tie_word_embeddings = true;
    return s;
}

/// Three layers of Gated DeltaNet, one of full attention.
GgufLayout qwen35(const char* name, int64_t hidden_size, int64_t layers) {
    GgufLayout s;
    s.name = name;
    s.architecture = "qwen35";
    s.vocab_size = 248320;
    s.hidden_size = hidden_size;
    s.num_hidden_layers = layers;
    s.max_position_embeddings = 262144;
    s.head_dim = 256;
    s.rotary_dim = 64;
    s.rope_theta = 1e7;
    for (int64_t l = 0; l < layers; ++l) s.is_linear.push_back(l % 4 != 3);
    s.delta = {.key_heads = 16, .value_heads = 16, .key_dim = 128, .value_dim = 128, .conv_width = 4};
    return s;
}

GgufLayout qwen35_08b() {
    GgufLayout s = qwen35("qwen3.5-0.8b", 1024, 24);
    s.heads = {8};
    s.num_key_value_heads = 2;
    s.intermediate_size = 3584;
    s.tie_word_embeddings = true;
    return s;
}

GgufLayout qwen35_27b() {
    GgufLayout s = qwen35("qwen3.5-27b", 5120, 64);
    s.heads = {24};
    s.num_key_value_heads = 4;
    s.intermediate_size = 17408;
    s.delta.value_heads = 48;
    return s;
}

GgufLayout qwen35_35b_a3b() {
    GgufLayout s = qwen35("qwen3.5-35b-a3b", 2048, 40);
    s.architecture = "qwen35moe";
    s.heads = {16};
    s.num_key_value_heads = 2;
    s.delta.value_heads = 32;
    s.num_experts = 256;
    s.num_experts_per_tok = 8;
    s.moe_intermediate_size = 512;
    s.shared_expert_intermediate_size = 512;
    return s;
}

GgufLayout qwen35_tiny() {
    GgufLayout s = qwen35("qwen3.5-tiny", 256, 4);
    s.vocab_size = 512;
    s.max_position_embeddings = 4096;
    s.heads = {2};
    s.num_key_value_heads = 1;
    s.intermediate_size = 512;
    s.delta = {.key_heads = 2, .value_heads = 4, .key_dim = 64, .value_dim = 64, .conv_width = 4};
    return s;
}

}  // namespace

const std::vector<GgufLayout>& synth_shapes() {
    static const std::vector<GgufLayout> shapes = {laguna_xs_2(), laguna_xs_21(),   laguna_s_21(),
                                                   laguna_tiny(), qwen3_06b(),      qwen35_08b(),
                                                   qwen35_27b(),  qwen35_35b_a3b(), qwen35_tiny()};
    return shapes;
}

const GgufLayout& find_synth_shape(const std::string& name) {
    std::vector<std::string> known;
    for (const GgufLayout& shape : synth_shapes()) {
        if (shape.name == name) return shape;
        known.push_back(shape.name);
    }
    fail(ErrorKind::usage, "--shape {}: unknown shape; known: {}", name, fmt::join(known, ", "));
}

}  // namespace riptide::apps
