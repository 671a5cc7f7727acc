#include "apps/synth_shapes.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace riptide::apps {

namespace {

SynthShape laguna_xs_2() {
    SynthShape s;
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
    s.leading_dense = 1;
    s.routed_scale = 2.5;
    s.rotary_dim = 64;
    s.rope_theta = 500000;
    s.yarn_factor = 32;
    s.yarn_original = 4096;
    return s;
}

SynthShape laguna_xs_21() {
    SynthShape s = laguna_xs_2();
    s.name = "laguna-xs-2.1";
    s.max_position_embeddings = 262144;
    s.yarn_original = 8192;
    return s;
}

SynthShape laguna_s_21() {
    SynthShape s = laguna_xs_21();
    s.name = "laguna-s-2.1";
    s.hidden_size = 3072;
    s.num_hidden_layers = 48;
    s.heads = {48, 72, 72, 72};
    s.intermediate_size = 12288;
    s.num_experts_per_tok = 10;
    s.moe_intermediate_size = 1024;
    s.yarn_beta_fast = 32;
    return s;
}

/// Laguna's features in the smallest dimensions that every quant type and kernel accepts.
SynthShape laguna_tiny() {
    SynthShape s = laguna_xs_2();
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
    s.yarn_factor = 4;
    s.yarn_original = 1024;
    return s;
}

SynthShape qwen3_06b() {
    SynthShape s;
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

void add_attention(const SynthShape& s, int64_t layer, std::vector<SynthTensor>& out) {
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

void add_feed_forward(const SynthShape& s, int64_t layer, std::vector<SynthTensor>& out) {
    const std::string p = fmt::format("blk.{}.", layer);
    if (s.num_experts == 0 || layer < s.leading_dense) {
        out.push_back({p + "ffn_gate.weight", {s.intermediate_size, s.hidden_size}, layer});
        out.push_back({p + "ffn_up.weight", {s.intermediate_size, s.hidden_size}, layer});
        out.push_back({p + "ffn_down.weight", {s.hidden_size, s.intermediate_size}, layer});
        return;
    }
    const int64_t e = s.num_experts, width = s.moe_intermediate_size;
    out.push_back({p + "ffn_gate_inp.weight", {e, s.hidden_size}, layer});
    out.push_back({p + "exp_probs_b.bias", {e}, layer});
    out.push_back({p + "ffn_gate_exps.weight", {e, width, s.hidden_size}, layer});
    out.push_back({p + "ffn_up_exps.weight", {e, width, s.hidden_size}, layer});
    out.push_back({p + "ffn_down_exps.weight", {e, s.hidden_size, width}, layer});
    out.push_back({p + "ffn_gate_shexp.weight", {width, s.hidden_size}, layer});
    out.push_back({p + "ffn_up_shexp.weight", {width, s.hidden_size}, layer});
    out.push_back({p + "ffn_down_shexp.weight", {s.hidden_size, width}, layer});
}

}  // namespace

const std::vector<SynthShape>& synth_shapes() {
    static const std::vector<SynthShape> shapes = {laguna_xs_2(), laguna_xs_21(), laguna_s_21(), laguna_tiny(), qwen3_06b()};
    return shapes;
}

const SynthShape& find_synth_shape(const std::string& name) {
    std::vector<std::string> known;
    for (const SynthShape& shape : synth_shapes()) {
        if (shape.name == name) return shape;
        known.push_back(shape.name);
    }
    fail(ErrorKind::usage, "--shape {}: unknown shape; known: {}", name, fmt::join(known, ", "));
}

std::vector<SynthTensor> synth_tensors(const SynthShape& s) {
    std::vector<SynthTensor> out = {{"token_embd.weight", {s.vocab_size, s.hidden_size}, -1},
                                    {"output_norm.weight", {s.hidden_size}, -1}};
    if (!s.tie_word_embeddings) out.push_back({"output.weight", {s.vocab_size, s.hidden_size}, -1});
    for (int64_t layer = 0; layer < s.num_hidden_layers; ++layer) {
        add_attention(s, layer, out);
        add_feed_forward(s, layer, out);
    }
    return out;
}

}  // namespace riptide::apps
