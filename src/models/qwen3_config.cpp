#include "base/error.h"
#include "models/config_text.h"
#include "models/facts.h"
#include "models/qwen3.h"
#include "models/unread_keys.h"

namespace riptide {

namespace {

void check_qwen3_config(const Qwen3Config& c, std::string_view source) {
    const auto size = [&](int64_t value, std::string_view name, int64_t most) {
        RT_CHECK(value >= 1 && value <= most, "{}: {} is {}, expected 1 to {}", source, name, value, most);
    };
    size(c.hidden_size, "hidden_size", kMaxSize);
    size(c.num_hidden_layers, "num_hidden_layers", 4096);
    size(c.num_key_value_heads, "num_key_value_heads", kMaxSize);
    size(c.head_dim, "head_dim", kMaxSize);
    size(c.num_attention_heads, "num_attention_heads", kMaxSize / c.head_dim);
    size(c.intermediate_size, "intermediate_size", kMaxSize);
    size(c.max_position_embeddings, "max_position_embeddings", INT32_MAX - 1);
    RT_CHECK(c.vocab_size >= 0 && c.vocab_size <= kMaxSize, "{}: vocab_size is {}, expected at most {}", source,
             c.vocab_size, kMaxSize);
    RT_CHECK(c.num_attention_heads % c.num_key_value_heads == 0,
             "{}: {} attention heads, expected a multiple of the {} key-value heads", source, c.num_attention_heads,
             c.num_key_value_heads);
    RT_CHECK(c.rms_norm_eps > 0 && c.rms_norm_eps < 1, "{}: rms_norm_eps is {}, expected more than 0 and less than 1",
             source, c.rms_norm_eps);
    check_rope(c.rope, c.head_dim, fmt::format("{}: rope", source));
}

/// Layers with windows are another network.
void refuse_windows(const ConfigReader& c) {
    RT_CHECK(!c.get_or<bool>("use_sliding_window", false), "{} is true, which is not supported",
             c.name_of("use_sliding_window"));
    (void)c.has("sliding_window");  // means nothing then
    if (!c.has("layer_types")) return;
    for (const std::string& type : c.get<std::vector<std::string>>("layer_types"))
        RT_CHECK(type == "full_attention", "{} holds \"{}\", expected full_attention", c.name_of("layer_types"), type);
}

}  // namespace

Qwen3Config qwen3_config_from_hf(const ConfigReader& c) {
    RT_CHECK(!c.get_or<bool>("attention_bias", false), "{} is true, which is not supported",
             c.name_of("attention_bias"));
    refuse_windows(c);
    const auto activation = c.get_or<std::string>("hidden_act", "silu");
    RT_CHECK(activation == "silu", "{} is \"{}\", expected silu", c.name_of("hidden_act"), activation);
    Qwen3Config out;
    out.vocab_size = c.get<int64_t>("vocab_size");
    RT_CHECK(out.vocab_size >= 1, "{} is {}, expected at least 1", c.name_of("vocab_size"), out.vocab_size);
    out.hidden_size = c.get<int64_t>("hidden_size");
    out.num_hidden_layers = c.get<int64_t>("num_hidden_layers");
    out.num_attention_heads = c.get<int64_t>("num_attention_heads");
    out.num_key_value_heads = c.get<int64_t>("num_key_value_heads");
    out.head_dim = c.get<int64_t>("head_dim");
    out.intermediate_size = c.get<int64_t>("intermediate_size");
    out.max_position_embeddings = c.get<int64_t>("max_position_embeddings");
    out.rms_norm_eps = c.get<double>("rms_norm_eps");
    out.tie_word_embeddings = c.get_or<bool>("tie_word_embeddings", false);
    out.rope = rope_of_model(c, out.head_dim, 1.0);
    check_qwen3_config(out, "config.json");
    refuse_unread_keys(c);
    return out;
}

std::string config_text(const Qwen3Config& config) {
    const auto& [vocab, hidden, layers, heads, kv_heads, head_dim, intermediate, positions, eps, tied, rope] = config;
    return text_of_fields(vocab, hidden, layers, heads, kv_heads, head_dim, intermediate, positions, eps, tied, rope);
}

Qwen3Config qwen3_config_from_gguf(const ConfigReader& keys) {
    refuse_scaled_gguf(keys);
    Qwen3Config c;
    c.vocab_size = keys.get_or<int64_t>("vocab_size", 0);
    c.hidden_size = keys.get<int64_t>("embedding_length");
    c.num_hidden_layers = keys.get<int64_t>("block_count");
    c.num_attention_heads = keys.get<int64_t>("attention.head_count");
    c.num_key_value_heads = keys.get<int64_t>("attention.head_count_kv");
    c.head_dim = keys.get<int64_t>("attention.key_length");
    c.intermediate_size = keys.get<int64_t>("feed_forward_length");
    c.max_position_embeddings = keys.get<int64_t>("context_length");
    c.rms_norm_eps = keys.get<double>("attention.layer_norm_rms_epsilon");
    c.tie_word_embeddings = true;  // if the file has no output.weight
    c.rope = rope_from_gguf(keys, keys.get_or<int64_t>("rope.dimension_count", c.head_dim));
    check_qwen3_config(c, keys.name_of("*"));
    return c;
}

}  // namespace riptide
