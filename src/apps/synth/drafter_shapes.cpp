#include "apps/synth/drafter_shapes.h"

#include "base/error.h"

namespace riptide::apps {

namespace {

/// All layers see the whole context, and all of the block.
void full_layers(DflashConfig& c, double theta) {
    c.is_sliding.assign(static_cast<size_t>(c.num_hidden_layers), 0);
    c.is_causal = c.is_sliding;
    c.rope.theta = theta;
    c.rope.rotary_dim = c.head_dim;
    c.rope_sliding = c.rope;
}

/// The first `sliding` layers slide, and are causal within the block.
void slide(DflashConfig& c, int64_t sliding, int64_t window) {
    c.sliding_window = window;
    for (size_t l = 0; l < static_cast<size_t>(sliding); ++l) c.is_sliding[l] = c.is_causal[l] = 1;
}

DrafterShape laguna_xs_2_drafter() {
    DrafterShape s{.owns_vocabulary = true};
    DflashConfig& c = s.config;
    c.hidden_size = 2048;
    c.num_hidden_layers = 5;
    c.num_attention_heads = 16;
    c.num_key_value_heads = 8;
    c.head_dim = 128;
    c.intermediate_size = 8192;
    c.max_position_embeddings = 131072;
    c.rms_norm_eps = 1e-6;
    c.vocab_size = 100352;
    c.draft_vocab_size = 32000;
    c.num_target_layers = 40;
    c.block_size = 8;
    c.mask_token_id = 12;
    c.taps = {0, 8, 16, 35, 38};
    full_layers(c, 5e5);
    return s;
}

DrafterShape laguna_xs_21_drafter() {
    DrafterShape s = laguna_xs_2_drafter();
    s.owns_vocabulary = false;
    s.has_tap_norms = s.has_gates = true;
    DflashConfig& c = s.config;
    c.num_attention_heads = 64;
    c.draft_vocab_size = 0;
    c.block_size = 16;
    c.taps = {1, 13, 25, 33, 39};
    c.norms_context = true;
    slide(c, c.num_hidden_layers, 512);
    return s;
}

DrafterShape laguna_tiny_drafter() {
    DrafterShape s = laguna_xs_2_drafter();
    DflashConfig& c = s.config;
    c.hidden_size = 256;
    c.num_hidden_layers = 2;
    c.num_attention_heads = 4;
    c.num_key_value_heads = 2;
    c.head_dim = 64;
    c.intermediate_size = 512;
    c.max_position_embeddings = 4096;
    c.vocab_size = 512;
    c.draft_vocab_size = 128;
    c.num_target_layers = 5;
    c.taps = {0, 2, 4};
    full_layers(c, 5e5);
    return s;
}

DrafterShape qwen35_27b_drafter() {
    DrafterShape s;
    DflashConfig& c = s.config;
    c.hidden_size = 5120;
    c.num_hidden_layers = 5;
    c.num_attention_heads = 32;
    c.num_key_value_heads = 8;
    c.head_dim = 128;
    c.intermediate_size = 17408;
    c.max_position_embeddings = 262144;
    c.rms_norm_eps = 1e-6;
    c.vocab_size = 248320;
    c.num_target_layers = 64;
    c.block_size = 16;
    c.mask_token_id = 248070;
    c.taps = {1, 16, 31, 46, 61};
    full_layers(c, 1e7);
    slide(c, 4, 2048);
    return s;
}

DrafterShape qwen35_tiny_drafter() {
    DrafterShape s = qwen35_27b_drafter();
    DflashConfig& c = s.config;
    c.hidden_size = 256;
    c.num_hidden_layers = 2;
    c.num_attention_heads = 4;
    c.num_key_value_heads = 2;
    c.head_dim = 64;
    c.intermediate_size = 512;
    c.max_position_embeddings = 4096;
    c.vocab_size = 512;
    c.num_target_layers = 4;
    c.block_size = 8;
    c.mask_token_id = 12;
    c.taps = {0, 2};
    full_layers(c, 1e7);
    slide(c, 1, 64);
    return s;
}

}  // namespace

DrafterShape find_drafter_shape(const std::string& target) {
    if (target == "laguna-xs.2") return laguna_xs_2_drafter();
    if (target == "laguna-xs-2.1") return laguna_xs_21_drafter();
    if (target == "laguna-tiny") return laguna_tiny_drafter();
    if (target == "qwen3.5-27b") return qwen35_27b_drafter();
    if (target == "qwen3.5-tiny") return qwen35_tiny_drafter();
    fail(ErrorKind::usage,
         "random drafter {}: unknown shape; known: laguna-xs.2, laguna-xs-2.1, laguna-tiny, "
         "qwen3.5-27b, qwen3.5-tiny",
         target);
}

}  // namespace riptide::apps
