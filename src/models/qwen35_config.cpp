#include "models/qwen35_config.h"

#include "base/error.h"
#include "models/config_text.h"
#include "models/facts.h"
#include "models/unread_keys.h"

namespace riptide {

namespace {

void check_range(int64_t value, std::string_view name, int64_t most, std::string_view source) {
    RT_CHECK(value >= 1 && value <= most, "{}: {} is {}, expected 1 to {}", source, name, value, most);
}

void check_experts(const Qwen35Config& c, std::string_view source) {
    check_range(c.num_experts, "num_experts", 1 << 16, source);
    check_range(c.num_experts_per_tok, "num_experts_per_tok", c.num_experts, source);
    check_range(c.moe_intermediate_size, "moe_intermediate_size", kMaxSize, source);
    check_range(c.shared_expert_intermediate_size, "shared_expert_intermediate_size", kMaxSize, source);
}

void check_delta(const DeltaView& d, std::string_view source) {
    check_range(d.key_dim, "linear_key_head_dim", 1 << 12, source);
    check_range(d.value_dim, "linear_value_head_dim", 1 << 12, source);
    check_range(d.key_heads, "linear_num_key_heads", 1 << 12, source);
    check_range(d.value_heads, "linear_num_value_heads", 1 << 12, source);
    check_range(d.conv_width, "linear_conv_kernel_dim", 64, source);
    RT_CHECK(d.value_heads % d.key_heads == 0,
             "{}: {} value heads in linear layers, expected a multiple of the {} key heads", source, d.value_heads,
             d.key_heads);
}

void check_config(const Qwen35Config& c, std::string_view source) {
    check_range(c.hidden_size, "hidden_size", kMaxSize, source);
    check_range(c.num_hidden_layers, "num_hidden_layers", 4096, source);
    check_range(c.num_key_value_heads, "num_key_value_heads", kMaxSize, source);
    check_range(c.head_dim, "head_dim", kMaxSize, source);
    check_range(c.num_attention_heads, "num_attention_heads", kMaxSize / c.head_dim, source);
    check_range(c.max_position_embeddings, "max_position_embeddings", INT32_MAX - 1, source);
    RT_CHECK(c.vocab_size >= 0 && c.vocab_size <= kMaxSize, "{}: vocab_size is {}, expected at most {}", source,
             c.vocab_size, kMaxSize);
    RT_CHECK(c.num_attention_heads % c.num_key_value_heads == 0,
             "{}: {} attention heads, expected a multiple of the {} key-value heads", source, c.num_attention_heads,
             c.num_key_value_heads);
    RT_CHECK(c.rms_norm_eps > 0 && c.rms_norm_eps < 1, "{}: rms_norm_eps is {}, expected more than 0 and less than 1",
             source, c.rms_norm_eps);
    if (c.num_experts > 0) check_experts(c, source);
    else check_range(c.intermediate_size, "intermediate_size", kMaxSize, source);
    check_delta(c.delta, source);
    check_rope(c.rope, c.head_dim, fmt::format("{}: rope", source));
}

std::vector<char> every_nth_full(int64_t layers, int64_t interval) {
    std::vector<char> linear;
    for (int64_t l = 0; l < layers; ++l) linear.push_back((l + 1) % interval != 0);
    return linear;
}

std::vector<char> layer_types(const ConfigReader& c, int64_t layers) {
    if (!c.has("layer_types")) {
        const auto interval = c.get_or<int64_t>("full_attention_interval", 4);  // transformers' default
        RT_CHECK(interval >= 1, "{} is {}, expected at least 1", c.name_of("full_attention_interval"), interval);
        return every_nth_full(layers, interval);
    }
    (void)c.has("full_attention_interval");  // the list comes first
    std::vector<char> linear;
    for (const std::string& type : c.get<std::vector<std::string>>("layer_types")) {
        RT_CHECK(type == "linear_attention" || type == "full_attention",
                 "{} holds \"{}\", expected linear_attention or full_attention", c.name_of("layer_types"), type);
        linear.push_back(type == "linear_attention");
    }
    RT_CHECK(std::ssize(linear) == layers, "{} has {} entries, expected one for each of {} layers",
             c.name_of("layer_types"), linear.size(), layers);
    return linear;
}

Qwen35Config read_text(const ConfigReader& c, bool experts) {
    RT_CHECK(!c.get_or<bool>("attention_bias", false), "{} is true, which is not supported",
             c.name_of("attention_bias"));
    RT_CHECK(c.get_or<bool>("attn_output_gate", true), "{} is false, which is not supported",
             c.name_of("attn_output_gate"));
    const auto activation = c.get_or<std::string>("hidden_act", "silu");
    RT_CHECK(activation == "silu", "{} is \"{}\", expected silu", c.name_of("hidden_act"), activation);
    Qwen35Config out;
    out.vocab_size = c.get<int64_t>("vocab_size");
    out.hidden_size = c.get<int64_t>("hidden_size");
    out.num_hidden_layers = c.get<int64_t>("num_hidden_layers");
    check_range(out.num_hidden_layers, "num_hidden_layers", 4096, "config.json");
    out.is_linear = layer_types(c, out.num_hidden_layers);
    out.num_attention_heads = c.get<int64_t>("num_attention_heads");
    out.num_key_value_heads = c.get<int64_t>("num_key_value_heads");
    out.head_dim = c.get<int64_t>("head_dim");
    out.max_position_embeddings = c.get<int64_t>("max_position_embeddings");
    out.rms_norm_eps = c.get<double>("rms_norm_eps");
    out.delta.heads = DeltaHeads::grouped;
    out.delta.key_heads = c.get<int64_t>("linear_num_key_heads");
    out.delta.value_heads = c.get<int64_t>("linear_num_value_heads");
    out.delta.key_dim = c.get<int64_t>("linear_key_head_dim");
    out.delta.value_dim = c.get<int64_t>("linear_value_head_dim");
    out.delta.conv_width = c.get<int64_t>("linear_conv_kernel_dim");
    const double partial = c.get_or<double>("partial_rotary_factor", 0.25);  // transformers' default
    out.rope = rope_of_model(c, out.head_dim, partial);
    if (!experts) {
        out.intermediate_size = c.get<int64_t>("intermediate_size");
        return out;
    }
    out.num_experts = c.get<int64_t>("num_experts");
    out.num_experts_per_tok = c.get<int64_t>("num_experts_per_tok");
    out.moe_intermediate_size = c.get<int64_t>("moe_intermediate_size");
    out.shared_expert_intermediate_size = c.get<int64_t>("shared_expert_intermediate_size");
    RT_CHECK(c.get_or<bool>("norm_topk_prob", true), "{} is false, which is not supported",
             c.name_of("norm_topk_prob"));
    return out;
}

}  // namespace

Qwen35Config qwen35_config_from_hf(const ConfigReader& c) {
    const auto type = c.get<std::string>("model_type");
    const ConfigReader text = c.has("text_config") ? c.child("text_config") : c;
    Qwen35Config out = read_text(text, type.find("moe") != std::string::npos);
    out.tie_word_embeddings = c.get_or<bool>("tie_word_embeddings", text.get_or<bool>("tie_word_embeddings", false));
    check_config(out, "config.json");
    refuse_unread_keys(c);
    return out;
}

Qwen35Config qwen35_config_from_gguf(const Checkpoint& checkpoint, const std::string& architecture) {
    const ConfigReader keys = gguf_config(checkpoint, architecture + ".");
    refuse_scaled_gguf(keys);
    Qwen35Config c;
    c.vocab_size = keys.get_or<int64_t>("vocab_size", 0);
    c.hidden_size = keys.get<int64_t>("embedding_length");
    const auto blocks = keys.get<int64_t>("block_count");
    c.mtp_layers = keys.get_or<int64_t>("nextn_predict_layers", 0);
    RT_CHECK(blocks >= 1 && blocks <= 4096 && c.mtp_layers >= 0 && c.mtp_layers < blocks,
             "{}: {} of {} blocks predict further tokens, expected fewer than all of at most 4096", keys.name_of("*"),
             c.mtp_layers, blocks);
    c.num_hidden_layers = blocks - c.mtp_layers;
    if (keys.has("attention.recurrent_layers")) {
        c.is_linear = read_flags(keys, "attention.recurrent_layers", blocks);
        c.is_linear.resize(static_cast<size_t>(c.num_hidden_layers));
    } else {
        const auto interval = keys.get_or<int64_t>("full_attention_interval", 4);  // older files have no key
        RT_CHECK(interval >= 1, "{} is {}, expected at least 1", keys.name_of("full_attention_interval"), interval);
        c.is_linear = every_nth_full(c.num_hidden_layers, interval);
    }
    c.num_attention_heads = keys.get<int64_t>("attention.head_count");
    c.num_key_value_heads = keys.get<int64_t>("attention.head_count_kv");
    c.head_dim = keys.get<int64_t>("attention.key_length");
    c.max_position_embeddings = keys.get<int64_t>("context_length");
    c.rms_norm_eps = keys.get<double>("attention.layer_norm_rms_epsilon");
    c.tie_word_embeddings = true;  // if the file has no output.weight
    c.rope = rope_from_gguf(keys, keys.get<int64_t>("rope.dimension_count"));
    c.delta.heads = DeltaHeads::tiled;
    c.delta.key_heads = keys.get<int64_t>("ssm.group_count");
    c.delta.value_heads = keys.get<int64_t>("ssm.time_step_rank");
    c.delta.key_dim = keys.get<int64_t>("ssm.state_size");
    c.delta.conv_width = keys.get<int64_t>("ssm.conv_kernel");
    const auto inner = keys.get<int64_t>("ssm.inner_size");
    RT_CHECK(c.delta.value_heads >= 1 && inner % c.delta.value_heads == 0,
             "{} is {}, expected a multiple of {} value heads", keys.name_of("ssm.inner_size"), inner,
             c.delta.value_heads);
    c.delta.value_dim = inner / c.delta.value_heads;
    if (architecture == "qwen35moe") {
        c.num_experts = keys.get<int64_t>("expert_count");
        c.num_experts_per_tok = keys.get<int64_t>("expert_used_count");
        c.moe_intermediate_size = read_uniform(keys, "expert_feed_forward_length", blocks);
        c.shared_expert_intermediate_size =
            keys.get_or<int64_t>("expert_shared_feed_forward_length", c.moe_intermediate_size);
    } else {
        c.intermediate_size = keys.get<int64_t>("feed_forward_length");
    }
    check_config(c, keys.name_of("*"));
    return c;
}

std::string config_text(const Qwen35Config& config) {
    const auto& [vocab, hidden, layers, mtp, linear, heads, kv_heads, head_dim, positions, eps, tied, rope, delta,
                 intermediate, experts, experts_per_tok, moe_intermediate, shared_intermediate] = config;
    return text_of_fields(vocab, hidden, layers, mtp, linear, heads, kv_heads, head_dim, positions, eps, tied, rope,
                          delta, intermediate, experts, experts_per_tok, moe_intermediate, shared_intermediate);
}

Qwen35Config qwen35_config(const Checkpoint& checkpoint) {
    if (checkpoint.format() != Checkpoint::Format::gguf) return qwen35_config_from_hf(hf_config(checkpoint));
    return qwen35_config_from_gguf(checkpoint, gguf_config(checkpoint).get<std::string>("general.architecture"));
}

}  // namespace riptide
