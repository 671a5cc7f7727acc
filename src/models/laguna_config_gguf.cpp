#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "models/facts.h"
#include "models/laguna_config.h"
#include "models/unread_keys.h"

namespace riptide {

namespace {

constexpr int64_t kDefaultPeriod = 4;

void refuse_unsupported_keys(const ConfigReader& keys) {
    const auto refuse = [&](std::string_view key, bool refused) {
        RT_CHECK(!refused, "{} has a value that is not supported", keys.name_of(key));
    };
    refuse("attention.sink_enabled", keys.get_or<bool>("attention.sink_enabled", false));
    refuse("attention.qk_norm", !keys.get_or<bool>("attention.qk_norm", true));
    refuse("decoder_sparse_step", keys.get_or<int64_t>("decoder_sparse_step", 1) != 1);
    const int64_t gating = keys.get_or<int64_t>("expert_gating_func", 2);
    RT_CHECK(gating == 2, "{} is {}, expected 2 (sigmoid)", keys.name_of("expert_gating_func"), gating);
    const int64_t shared = keys.get_or<int64_t>("expert_shared_count", 1);
    RT_CHECK(shared == 1, "{} is {}, expected 1", keys.name_of("expert_shared_count"), shared);
}

/// Window layers from a period whose first layer is full. The head counts must tell the same story.
std::vector<char> periodic(const ConfigReader& keys, const LagunaConfig& c) {
    const int64_t period = keys.get_or<int64_t>("attention.sliding_window_pattern", kDefaultPeriod);
    RT_CHECK(period >= 1, "{} is {}, expected a period of at least 1 layer",
             keys.name_of("attention.sliding_window_pattern"), period);
    std::vector<char> sliding;
    for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) sliding.push_back(layer % period != 0);
    for (size_t layer = 0; layer < sliding.size(); ++layer) {
        const size_t first = sliding[layer] ? 1 : 0;  // layer 1 is a window layer if any is
        const int64_t heads = c.num_attention_heads_per_layer[layer], expected = c.num_attention_heads_per_layer[first];
        RT_CHECK(heads == expected,
                 "{} is {} in layer {}, but {} in layer {}: that does not fit a full-attention layer every {} layers",
                 keys.name_of("attention.head_count"), heads, layer, expected, first, period);
    }
    return sliding;
}

std::vector<char> read_gguf_sliding(const ConfigReader& keys, const LagunaConfig& c) {
    constexpr std::string_view kPattern = "attention.sliding_window_pattern", kTypes = "attention.layer_types";
    if (c.sliding_window == 0) return std::vector<char>(static_cast<size_t>(c.num_hidden_layers), 0);
    const bool pattern_is_array = keys.has(kPattern) && keys.raw(kPattern).is_array();
    if (!keys.has(kTypes) && !pattern_is_array) return periodic(keys, c);
    std::vector<char> sliding = read_flags(keys, keys.has(kTypes) ? kTypes : kPattern, c.num_hidden_layers);
    if (keys.has(kTypes) && pattern_is_array)
        RT_CHECK(sliding == read_flags(keys, kPattern, c.num_hidden_layers), "{} and {} name different window layers",
                 keys.name_of(kTypes), keys.name_of(kPattern));
    return sliding;
}

std::vector<char> read_gguf_sparse(const ConfigReader& keys, int64_t layers) {
    std::vector<char> sparse(static_cast<size_t>(layers), 1);
    if (keys.has("dense_layers")) {
        for (const int64_t layer : keys.get<std::vector<int64_t>>("dense_layers")) {
            RT_CHECK(layer >= 0 && layer < layers, "{} names layer {} of {}", keys.name_of("dense_layers"), layer,
                     layers);
            sparse[static_cast<size_t>(layer)] = 0;
        }
        return sparse;
    }
    const auto dense = keys.get<int64_t>("leading_dense_block_count");
    RT_CHECK(dense >= 0 && dense <= layers, "{} is {}, expected 0 to {}", keys.name_of("leading_dense_block_count"),
             dense, layers);
    std::fill_n(sparse.begin(), dense, 0);
    return sparse;
}

void read_gguf_rope(const ConfigReader& keys, LagunaConfig& c) {
    c.rope_full = rope_from_gguf(keys, keys.get_or<int64_t>("rope.dimension_count", c.head_dim / 2));
    if (!c.has_sliding()) return;
    const bool older = keys.has("rope.swa.freq_base");
    c.rope_sliding.theta = keys.get<double>(older ? "rope.swa.freq_base" : "rope.freq_base_swa");
    c.rope_sliding.rotary_dim = keys.get_or<int64_t>(
        keys.has("rope.swa.dimension_count") ? "rope.swa.dimension_count" : "rope.dimension_count_swa", c.head_dim);
}

void read_experts(const ConfigReader& keys, LagunaConfig& c) {
    c.num_experts = keys.get<int64_t>("expert_count");
    c.num_experts_per_tok = keys.get<int64_t>("expert_used_count");
    c.moe_intermediate_size = read_uniform(keys, "expert_feed_forward_length", c.num_hidden_layers);
    c.shared_expert_intermediate_size = keys.get<int64_t>("expert_shared_feed_forward_length");
    c.moe_routed_scaling_factor = keys.get<double>("expert_weights_scale");
    c.norm_topk_prob = keys.get_or<bool>("expert_weights_norm", true);
}

}  // namespace

LagunaConfig laguna_config_from_gguf(const ConfigReader& keys) {
    refuse_unsupported_keys(keys);
    refuse_scaled_gguf(keys);
    LagunaConfig c;
    const std::string source = keys.name_of("*");
    c.num_hidden_layers = keys.get<int64_t>("block_count");
    RT_CHECK(c.num_hidden_layers >= 1 && c.num_hidden_layers <= 4096, "{} is {}, expected 1 to 4096",
             keys.name_of("block_count"), c.num_hidden_layers);
    c.vocab_size = keys.get_or<int64_t>("vocab_size", 0);
    RT_CHECK(c.vocab_size >= 0 && c.vocab_size <= (1 << 24), "{} is {}, expected at most {}",
             keys.name_of("vocab_size"), c.vocab_size, 1 << 24);
    c.hidden_size = keys.get<int64_t>("embedding_length");
    c.max_position_embeddings = keys.get<int64_t>("context_length");
    c.intermediate_size = read_uniform(keys, "feed_forward_length", c.num_hidden_layers);
    c.num_attention_heads_per_layer = keys.get_per_layer("attention.head_count", c.num_hidden_layers);
    c.num_key_value_heads = read_uniform(keys, "attention.head_count_kv", c.num_hidden_layers);
    c.head_dim = keys.get<int64_t>("attention.key_length");
    const int64_t value_length = keys.get_or<int64_t>("attention.value_length", c.head_dim);
    RT_CHECK(value_length == c.head_dim, "{} is {}, expected key_length, {}", keys.name_of("attention.value_length"),
             value_length, c.head_dim);
    c.rms_norm_eps = keys.get<double>("attention.layer_norm_rms_epsilon");
    c.sliding_window = keys.get_or<int64_t>("attention.sliding_window", 0);
    c.is_sliding = read_gguf_sliding(keys, c);
    if (!c.has_sliding()) c.sliding_window = 0;
    c.is_sparse = read_gguf_sparse(keys, c.num_hidden_layers);
    if (c.has_sparse()) read_experts(keys, c);
    read_gguf_rope(keys, c);
    c.tie_word_embeddings = true;  // if the file has no output.weight
    check_laguna_config(c, source);
    return c;
}

}  // namespace riptide
