#include "models/laguna_config.h"

#include <algorithm>

#include "base/error.h"
#include "models/config_text.h"
#include "models/facts.h"
#include "models/unread_keys.h"

namespace riptide {

namespace {

constexpr int64_t kMaxLayers = 4096;

void check_size(int64_t value, std::string_view name, std::string_view source) {
    RT_CHECK(value >= 1 && value <= kMaxSize, "{}: {} is {}, expected 1 to {}", source, name, value, kMaxSize);
}

/// Refuses a key whose value is not what this implementation computes.
template <class T>
void expect(const ConfigReader& c, std::string_view key, T wanted) {
    const T value = c.get_or<T>(key, wanted);
    RT_CHECK(value == wanted, "{} is {}, which is not supported (only {})", c.name_of(key), value, wanted);
}

void refuse_unsupported(const ConfigReader& c) {
    expect<bool>(c, "attention_bias", false);
    expect<bool>(c, "swa_attention_sink_enabled", false);
    expect<bool>(c, "use_bidirectional_attention", false);
    expect<bool>(c, "moe_apply_router_weight_on_input", false);
    expect<double>(c, "moe_router_logit_softcapping", 0.0);
    expect<std::string>(c, "moe_router_score_func", "sigmoid");
    expect<bool>(c, "moe_router_use_sigmoid", true);
    expect<bool>(c, "norm_topk_prob", true);
    expect<std::string>(c, "hidden_act", "silu");
    expect<std::string>(c, "qk_norm_type", "rmsnorm");
    expect<int64_t>(c, "decoder_sparse_step", 1);
}

/// Flags per layer from an array of two words.
std::vector<char> read_word_flags(const ConfigReader& c, std::string_view key, int64_t layers, std::string_view no,
                                  std::string_view yes) {
    const auto words = c.get<std::vector<std::string>>(key);
    RT_CHECK(std::ssize(words) == layers, "{} has {} values, expected one for each of {} layers", c.name_of(key),
             words.size(), layers);
    std::vector<char> flags;
    for (const std::string& word : words) {
        RT_CHECK(word == no || word == yes, "{}[{}] is \"{}\", expected {} or {}", c.name_of(key), flags.size(), word,
                 no, yes);
        flags.push_back(word == yes);
    }
    return flags;
}

/// mlp_layer_types, or the dense layers' numbers in mlp_only_layers, or the count first_k_dense_replace. Where two say
/// it they must agree.
std::vector<char> read_sparse(const ConfigReader& c, int64_t layers) {
    std::vector<char> listed;
    if (c.has("mlp_only_layers")) {
        listed.assign(static_cast<size_t>(layers), 1);
        for (const int64_t layer : c.get<std::vector<int64_t>>("mlp_only_layers")) {
            RT_CHECK(layer >= 0 && layer < layers, "{} names layer {} of {}", c.name_of("mlp_only_layers"), layer,
                     layers);
            listed[static_cast<size_t>(layer)] = 0;
        }
    } else if (c.has("first_k_dense_replace")) {
        const auto dense = c.get<int64_t>("first_k_dense_replace");
        RT_CHECK(dense >= 0 && dense <= layers, "{} is {}, expected 0 to {}", c.name_of("first_k_dense_replace"), dense,
                 layers);
        listed.assign(static_cast<size_t>(layers), 1);
        std::fill_n(listed.begin(), dense, 0);
    }
    if (!c.has("mlp_layer_types") && !listed.empty()) return listed;
    std::vector<char> sparse = read_word_flags(c, "mlp_layer_types", layers, "dense", "sparse");
    RT_CHECK(listed.empty() || listed == sparse, "{} and mlp_layer_types name different dense layers",
             c.name_of("mlp_only_layers"));
    return sparse;
}

}  // namespace

bool LagunaConfig::has_sliding() const {
    return std::find(is_sliding.begin(), is_sliding.end(), 1) != is_sliding.end();
}
bool LagunaConfig::has_sparse() const { return std::find(is_sparse.begin(), is_sparse.end(), 1) != is_sparse.end(); }

LagunaConfig laguna_config_from_hf(const ConfigReader& c) {
    refuse_unsupported(c);
    LagunaConfig out;
    out.vocab_size = c.get<int64_t>("vocab_size");
    check_size(out.vocab_size, "vocab_size", "config.json");
    out.hidden_size = c.get<int64_t>("hidden_size");
    out.num_hidden_layers = c.get<int64_t>("num_hidden_layers");
    RT_CHECK(out.num_hidden_layers >= 1 && out.num_hidden_layers <= kMaxLayers, "{} is {}, expected 1 to {}",
             c.name_of("num_hidden_layers"), out.num_hidden_layers, kMaxLayers);
    const int64_t layers = out.num_hidden_layers;
    const bool per_layer = c.has("num_attention_heads_per_layer");
    out.num_attention_heads_per_layer =
        c.get_per_layer(per_layer ? "num_attention_heads_per_layer" : "num_attention_heads", layers);
    out.num_key_value_heads = c.get<int64_t>("num_key_value_heads");
    out.head_dim = c.get<int64_t>("head_dim");
    out.max_position_embeddings = c.get<int64_t>("max_position_embeddings");
    if (c.has("layer_types"))
        out.is_sliding = read_word_flags(c, "layer_types", layers, "full_attention", "sliding_attention");
    else out.is_sliding.assign(static_cast<size_t>(layers), 0);  // as transformers: M.1 has no windows and no such key
    out.is_sparse = read_sparse(c, layers);
    out.intermediate_size = c.get<int64_t>("intermediate_size");
    if (out.has_sparse()) {
        out.moe_intermediate_size = c.get<int64_t>("moe_intermediate_size");
        out.shared_expert_intermediate_size = c.get<int64_t>("shared_expert_intermediate_size");
        out.num_experts = c.get<int64_t>("num_experts");
        out.num_experts_per_tok = c.get<int64_t>("num_experts_per_tok");
        out.moe_routed_scaling_factor = c.get<double>("moe_routed_scaling_factor");
    }
    out.rms_norm_eps = c.get<double>("rms_norm_eps");
    out.tie_word_embeddings = c.get_or<bool>("tie_word_embeddings", false);
    // The top-level partial_rotary_factor stands in for the full layers' own; it must not reach the sliding ones.
    const ConfigReader rope = c.child("rope_parameters");
    check_size(out.head_dim, "head_dim", "config.json");
    out.rope_full =
        rope_from_hf(rope.child("full_attention"), out.head_dim, c.get_or<double>("partial_rotary_factor", 1.0));
    if (out.has_sliding()) {
        out.sliding_window = c.get<int64_t>("sliding_window");
        out.rope_sliding = rope_from_hf(rope.child("sliding_attention"), out.head_dim, 1.0);
    }
    check_laguna_config(out, "config.json");
    // Overruled by the lists of each layer, or without meaning where there are no windows and no experts, or (the last)
    // between the two nested objects, where nothing reads it.
    for (const char* key :
         {"num_attention_heads", "sliding_window", "moe_intermediate_size", "shared_expert_intermediate_size",
          "num_experts", "num_experts_per_tok", "moe_routed_scaling_factor"})
        (void)c.has(key);
    for (const char* key : {"original_max_position_embeddings", "sliding_attention"}) (void)rope.has(key);
    if (!out.has_sliding() && rope.has("sliding_attention"))
        (void)rope_from_hf(rope.child("sliding_attention"), out.head_dim, 1.0);
    refuse_unread_keys(c);
    return out;
}

void check_laguna_config(const LagunaConfig& c, std::string_view source) {
    check_size(c.hidden_size, "hidden_size", source);
    RT_CHECK(c.num_hidden_layers >= 1 && c.num_hidden_layers <= kMaxLayers,
             "{}: num_hidden_layers is {}, expected 1 to {}", source, c.num_hidden_layers, kMaxLayers);
    check_size(c.num_key_value_heads, "num_key_value_heads", source);
    check_size(c.head_dim, "head_dim", source);
    RT_CHECK(c.max_position_embeddings >= 1 && c.max_position_embeddings < INT32_MAX,
             "{}: max_position_embeddings is {}, expected 1 to {}", source, c.max_position_embeddings, INT32_MAX - 1);
    check_size(c.intermediate_size, "intermediate_size", source);
    RT_CHECK(c.rms_norm_eps > 0 && c.rms_norm_eps < 1, "{}: rms_norm_eps is {}, expected more than 0 and less than 1",
             source, c.rms_norm_eps);
    for (size_t layer = 0; layer < c.num_attention_heads_per_layer.size(); ++layer) {
        const int64_t heads = c.num_attention_heads_per_layer[layer];
        RT_CHECK(heads >= 1 && heads * c.head_dim <= kMaxSize && heads % c.num_key_value_heads == 0,
                 "{}: layer {} has {} attention heads, expected a multiple of the {} key-value heads", source, layer,
                 heads, c.num_key_value_heads);
    }
    check_rope(c.rope_full, c.head_dim, fmt::format("{}: rope of full-attention layers", source));
    if (c.has_sliding()) {
        RT_CHECK(c.sliding_window >= 1 && c.sliding_window <= kMaxSize, "{}: sliding_window is {}, expected 1 to {}",
                 source, c.sliding_window, kMaxSize);
        check_rope(c.rope_sliding, c.head_dim, fmt::format("{}: rope of sliding layers", source));
    }
    if (!c.has_sparse()) return;
    check_size(c.moe_intermediate_size, "moe_intermediate_size", source);
    check_size(c.shared_expert_intermediate_size, "shared_expert_intermediate_size", source);
    RT_CHECK(c.num_experts >= 1 && c.num_experts <= 65536, "{}: num_experts is {}, expected 1 to 65536", source,
             c.num_experts);
    RT_CHECK(c.num_experts_per_tok >= 1 && c.num_experts_per_tok <= c.num_experts,
             "{}: num_experts_per_tok is {}, expected 1 to num_experts, {}", source, c.num_experts_per_tok,
             c.num_experts);
    RT_CHECK(c.moe_routed_scaling_factor > 0 && c.moe_routed_scaling_factor < 1e6,
             "{}: moe_routed_scaling_factor is {}, expected a positive number", source, c.moe_routed_scaling_factor);
}

std::string config_text(const LagunaConfig& config) {
    const auto& [vocab, hidden, layers, heads, kv_heads, head_dim, positions, sliding, sparse, window, intermediate,
                 moe_intermediate, shared_intermediate, experts, experts_per_tok, scaling, norm_topk, eps, tied, full,
                 slides] = config;
    return text_of_fields(vocab, hidden, layers, heads, kv_heads, head_dim, positions, sliding, sparse, window,
                          intermediate, moe_intermediate, shared_intermediate, experts, experts_per_tok, scaling,
                          norm_topk, eps, tied, full, slides);
}

LagunaConfig laguna_config(const Checkpoint& checkpoint) {
    if (checkpoint.format() == Checkpoint::Format::gguf)
        return laguna_config_from_gguf(gguf_config(checkpoint, "laguna."));
    return laguna_config_from_hf(hf_config(checkpoint));
}

}  // namespace riptide
