#include "models/dflash_config.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "models/facts.h"
#include "models/unread_keys.h"

namespace riptide {

namespace {

constexpr int64_t kMaxDrafterLayers = 256;
constexpr int64_t kMaxBlock = 256;  // rows of a step of the decode family

using Dialect = DflashConfig::Dialect;

/// A value that may stand under several readers; where two have it they must agree.
template <class T>
std::optional<T> find_one(std::span<const ConfigReader* const> readers, std::string_view key) {
    std::optional<T> found;
    std::string where;
    for (const ConfigReader* reader : readers) {
        if (!reader->has(key)) continue;
        const T value = reader->get<T>(key);
        RT_CHECK(!found || *found == value, "{} and {} differ", where, reader->name_of(key));
        found = value;
        where = reader->name_of(key);
    }
    return found;
}

template <class T>
T get_one(std::span<const ConfigReader* const> readers, std::string_view key) {
    const std::optional<T> found = find_one<T>(readers, key);
    RT_CHECK(found, "{}: missing, also in dflash_config", readers[0]->name_of(key));
    return *found;
}

Dialect dialect_of(const ConfigReader& c) {
    if (c.has("speculators_config") || c.has("transformer_layer_config")) return Dialect::speculators;
    if (c.has("architectures"))
        for (const std::string& name : c.get<std::vector<std::string>>("architectures"))
            if (name.starts_with("DFlashLaguna")) return Dialect::laguna;
    return Dialect::zlab;
}

/// Ids of `key` less `shift`, as outputs of 0-based layers.
std::vector<int32_t> shifted(const ConfigReader& c, std::string_view key, int64_t shift) {
    std::vector<int32_t> taps;
    for (const int64_t id : c.get<std::vector<int64_t>>(key)) {
        RT_CHECK(id >= shift - 1 && id < kMaxSize, "{} holds {}, which is no layer", c.name_of(key), id);
        taps.push_back(static_cast<int32_t>(id - shift));
    }
    return taps;
}

std::vector<int32_t> read_taps(std::span<const ConfigReader* const> readers) {
    struct Spelling {
        const char* key;
        int64_t shift;
    };
    std::vector<int32_t> taps;
    std::string where;
    for (const Spelling s : {Spelling{"target_layer_ids", 0}, Spelling{"aux_hidden_state_layer_ids", 1},
                             Spelling{"eagle_aux_hidden_state_layer_ids", 1}})
        for (const ConfigReader* reader : readers) {
            if (!reader->has(s.key)) continue;
            std::vector<int32_t> found = shifted(*reader, s.key, s.shift);
            RT_CHECK(taps.empty() || taps == found, "{} and {} name different layers of the target", where,
                     reader->name_of(s.key));
            taps = std::move(found);
            where = reader->name_of(s.key);
        }
    RT_CHECK(
        !taps.empty(),
        "{}: missing, and so are aux_hidden_state_layer_ids and eagle_aux_hidden_state_layer_ids: which layers of the "
        "target does the drafter read?",
        readers[0]->name_of("target_layer_ids"));
    return taps;
}

/// layer_types, or a rule for all layers.
std::vector<char> read_dflash_sliding(const ConfigReader& c, int64_t layers, bool window_of_dflash) {
    if (!c.has("layer_types")) {
        const bool all = c.get_or<bool>("use_sliding_window", window_of_dflash);
        RT_CHECK(all || c.has("use_sliding_window") || !c.has("sliding_window"),
                 "{} is given, but neither layer_types nor use_sliding_window say for which layers",
                 c.name_of("sliding_window"));
        return std::vector<char>(static_cast<size_t>(layers), all);
    }
    (void)c.has("use_sliding_window");  // the list comes first
    const auto words = c.get<std::vector<std::string>>("layer_types");
    RT_CHECK(std::ssize(words) == layers, "{} has {} values, expected one for each of {} layers",
             c.name_of("layer_types"), words.size(), layers);
    std::vector<char> sliding;
    for (const std::string& word : words) {
        RT_CHECK(word == "full_attention" || word == "sliding_attention",
                 "{}[{}] is \"{}\", expected full_attention or sliding_attention", c.name_of("layer_types"),
                 sliding.size(), word);
        sliding.push_back(word == "sliding_attention");
    }
    return sliding;
}

void read_causal(std::span<const ConfigReader* const> readers, const ConfigReader* dflash, DflashConfig& out) {
    std::optional<bool> all = find_one<bool>(readers, "is_causal");
    const std::optional<bool> inner = dflash != nullptr ? dflash->find<bool>("causal") : std::nullopt;
    if (!all) all = inner;
    const bool windows_see_all = find_one<bool>(readers, "sliding_window_non_causal").value_or(false);
    for (const char sliding : out.is_sliding) out.is_causal.push_back(all.value_or(sliding != 0 && !windows_see_all));
}

/// rope_parameters with one object for each kind of layer, or as rope_of_model() has it.
void read_dflash_rope(const ConfigReader& c, DflashConfig& out) {
    RT_CHECK(c.get_or<bool>("is_neox_style", true), "{} is false, which is not supported", c.name_of("is_neox_style"));
    const double partial = c.get_or<double>("partial_rotary_factor", 1.0);
    const auto kind = [&](const char* key) { return c.has("rope_parameters") && c.child("rope_parameters").has(key); };
    if (!kind("full_attention") && !kind("sliding_attention")) {
        out.rope = out.rope_sliding = rope_of_model(c, out.head_dim, partial);
        return;
    }
    const ConfigReader rope = c.child("rope_parameters");
    const bool full = std::find(out.is_sliding.begin(), out.is_sliding.end(), 0) != out.is_sliding.end();
    if (out.has_sliding()) out.rope_sliding = rope_from_hf(rope.child("sliding_attention"), out.head_dim, partial);
    out.rope = full ? rope_from_hf(rope.child("full_attention"), out.head_dim, partial) : out.rope_sliding;
}

void read_layers(const ConfigReader& c, DflashConfig& out) {
    for (const char* key : {"attention_bias", "mlp_bias"})
        RT_CHECK(!c.get_or<bool>(key, false), "{} is true, which is not supported", c.name_of(key));
    const auto activation = c.get_or<std::string>("hidden_act", "silu");
    RT_CHECK(activation == "silu", "{} is \"{}\", expected silu", c.name_of("hidden_act"), activation);
    out.hidden_size = c.get<int64_t>("hidden_size");
    out.num_hidden_layers = c.get<int64_t>("num_hidden_layers");
    out.num_attention_heads = c.get<int64_t>("num_attention_heads");
    out.num_key_value_heads = c.get<int64_t>("num_key_value_heads");
    out.head_dim = c.get<int64_t>("head_dim");
    out.intermediate_size = c.get<int64_t>("intermediate_size");
    out.max_position_embeddings = c.get<int64_t>("max_position_embeddings");
    out.rms_norm_eps = c.get<double>("rms_norm_eps");
    RT_CHECK(out.num_hidden_layers >= 1 && out.num_hidden_layers <= kMaxDrafterLayers, "{} is {}, expected 1 to {}",
             c.name_of("num_hidden_layers"), out.num_hidden_layers, kMaxDrafterLayers);
    RT_CHECK(out.head_dim >= 1 && out.head_dim <= kMaxSize, "{} is {}, expected 1 to {}", c.name_of("head_dim"),
             out.head_dim, kMaxSize);
}

/// Drafters that go by the same name and are another network, known by keys that DFlash has not.
void check_network(const ConfigReader& c, std::initializer_list<const char*> keys, std::string_view name) {
    for (const char* key : keys) {
        if (!c.has(key) || c.raw(key) == json::value(false)) continue;
        RT_CHECK(false, "{} is there: {} drafters are another network than DFlash, and not supported", c.name_of(key),
                 name);
    }
}

constexpr std::string_view kDflashArchitectures[] = {"dflash-draft", "qwen35-dflash-draft", "gemma4-dflash-draft",
                                                     "dflash"};

}  // namespace

bool DflashConfig::has_sliding() const {
    return std::find(is_sliding.begin(), is_sliding.end(), 1) != is_sliding.end();
}

bool is_dflash(const Checkpoint& checkpoint) {
    if (checkpoint.format() == Checkpoint::Format::gguf) {
        const ConfigReader keys = gguf_config(checkpoint);
        return keys.has("general.architecture") &&
               std::ranges::find(kDflashArchitectures, keys.get<std::string>("general.architecture")) !=
                   std::end(kDflashArchitectures);
    }
    if (!checkpoint.metadata().contains("config")) return false;
    const ConfigReader c = hf_config(checkpoint);
    if (c.has("dflash_config")) return true;
    if (c.has("architectures"))
        for (const std::string& name : c.get<std::vector<std::string>>("architectures"))
            if (name.starts_with("DFlash")) return true;
    if (c.has("speculators_model_type")) return c.get<std::string>("speculators_model_type") == "dflash";
    return c.has("speculators_config") && c.child("speculators_config").has("algorithm") &&
           c.child("speculators_config").get<std::string>("algorithm") == "dflash";
}

void refuse_dflash(const Checkpoint& checkpoint) {
    RT_CHECK(
        !is_dflash(checkpoint),
        "{}: is a DFlash drafter, which proposes tokens for a model and is none itself: name the model that it was "
        "made for, and give this with --drafter",
        checkpoint.path());
}

DflashConfig dflash_config_from_hf(const ConfigReader& c) {
    DflashConfig out;
    out.dialect = dialect_of(c);
    out.norms_context = out.dialect == Dialect::laguna;
    const std::optional<ConfigReader> inner =
        c.has("dflash_config") ? std::optional(c.child("dflash_config")) : std::nullopt;
    const ConfigReader layer = out.dialect == Dialect::speculators && c.has("transformer_layer_config")
                                   ? c.child("transformer_layer_config")
                                   : c;
    std::vector<const ConfigReader*> readers = {&c};
    if (inner) readers.push_back(&*inner);
    for (const ConfigReader* reader : readers) {
        check_network(*reader, {"conv_kernel_size", "selector_rank"}, "DFlash2");
        check_network(*reader, {"markov_rank"}, "DSpark");
    }
    read_layers(layer, out);
    out.block_size = get_one<int64_t>(readers, "block_size");
    out.mask_token_id = get_one<int64_t>(readers, "mask_token_id");
    out.sample_from_anchor = find_one<bool>(readers, "sample_from_anchor").value_or(false);
    out.draft_vocab_size = find_one<int64_t>(readers, "draft_vocab_size").value_or(0);
    out.num_target_layers = find_one<int64_t>(readers, "num_target_layers").value_or(0);
    out.vocab_size = layer.get_or<int64_t>("vocab_size", 0);
    out.taps = read_taps(readers);
    const auto window = inner ? inner->find<int64_t>("swa_window_size") : std::nullopt;
    out.is_sliding = read_dflash_sliding(layer, out.num_hidden_layers, window.has_value());
    if (out.has_sliding()) out.sliding_window = window ? *window : layer.get<int64_t>("sliding_window");
    read_causal(readers, inner ? &*inner : nullptr, out);
    read_dflash_rope(layer, out);
    check_dflash_config(out, "config.json");
    for (const ConfigReader* reader : {&c, &layer})  // without windows the one means nothing; the head is the target's,
        for (const char* key : {"sliding_window", "tie_word_embeddings"}) (void)reader->has(key);  // or its own tensor
    refuse_unread_keys(c);
    return out;
}

DflashConfig dflash_config_from_gguf(const ConfigReader& keys, const ConfigReader& all) {
    check_network(keys, {"conv_kernel_size", "selector_rank"}, "DFlash2");
    check_network(keys, {"markov_rank", "dspark.enabled"}, "DSpark");
    for (const char* below : {"", "dflash."}) refuse_scaled_gguf(keys, below);
    DflashConfig out;
    out.dialect = Dialect::gguf;
    const std::string source = keys.name_of("*");
    const auto own = [&](const char* key) {  // llama.cpp's architecture is "dflash", so that its keys lack one
        const std::string with = std::string("dflash.") + key;
        return keys.has(with) || !keys.has(key) ? with : std::string(key);
    };
    out.hidden_size = keys.get<int64_t>("embedding_length");
    out.num_hidden_layers = keys.get<int64_t>("block_count");
    RT_CHECK(out.num_hidden_layers >= 1 && out.num_hidden_layers <= kMaxDrafterLayers, "{} is {}, expected 1 to {}",
             keys.name_of("block_count"), out.num_hidden_layers, kMaxDrafterLayers);
    out.num_attention_heads = keys.get<int64_t>("attention.head_count");
    out.num_key_value_heads = keys.get<int64_t>("attention.head_count_kv");
    out.head_dim = keys.get<int64_t>("attention.key_length");
    const int64_t value_length = keys.get_or<int64_t>("attention.value_length", out.head_dim);
    RT_CHECK(value_length == out.head_dim, "{} is {}, expected key_length, {}", keys.name_of("attention.value_length"),
             value_length, out.head_dim);
    out.intermediate_size = keys.get<int64_t>("feed_forward_length");
    out.max_position_embeddings = keys.get<int64_t>("context_length");
    out.rms_norm_eps = keys.get<double>("attention.layer_norm_rms_epsilon");
    out.vocab_size = keys.get_or<int64_t>("vocab_size", 0);
    out.block_size = keys.get<int64_t>(own("block_size"));
    const bool llama = keys.has("target_layers");  // llama.cpp's
    const char* const kMask = "tokenizer.ggml.mask_token_id";
    const bool elsewhere = !keys.has(own("mask_token_id")) && all.has(kMask);
    out.mask_token_id = elsewhere ? all.get<int64_t>(kMask) : keys.get<int64_t>(own("mask_token_id"));
    out.taps = llama ? shifted(keys, "target_layers", 1) : shifted(keys, own("target_layer_ids"), 0);
    out.d2t_is_absolute = llama;
    const auto taps = keys.find<int64_t>(own("n_target_layers"));
    RT_CHECK(!taps || *taps == std::ssize(out.taps), "{} is {}, but {} layers are named",
             keys.name_of(own("n_target_layers")), taps.value_or(0), out.taps.size());
    out.draft_vocab_size = keys.get_or<int64_t>(own("draft_vocab_size"), 0);
    out.num_target_layers = keys.get_or<int64_t>(own("num_target_layers"), 0);
    out.sample_from_anchor = keys.get_or<bool>(own("sample_from_anchor"), false);
    const bool laguna = keys.get_or<std::string>("decoder_arch", "") == "laguna";
    out.norms_context = keys.get_or<bool>(own("context_kv_layer_norm"), laguna);
    out.sliding_window = keys.get_or<int64_t>("attention.sliding_window", 0);
    if (out.sliding_window > 0)
        out.is_sliding = read_flags(keys, "attention.sliding_window_pattern", out.num_hidden_layers);
    else out.is_sliding.assign(static_cast<size_t>(out.num_hidden_layers), 0);
    if (!out.has_sliding()) out.sliding_window = 0;
    out.is_causal = out.is_sliding;
    if (keys.has(own("causal"))) {
        out.is_causal = read_flags(keys, own("causal"), out.num_hidden_layers);
    } else if (llama && (keys.has("attention.causal") || laguna)) {
        const bool causal = keys.get_or<bool>("attention.causal", true);
        out.is_causal.assign(out.is_sliding.size(), causal);
    }
    out.rope = out.rope_sliding = rope_from_gguf(keys, keys.get_or<int64_t>("rope.dimension_count", out.head_dim));
    check_dflash_config(out, source);
    return out;
}

DflashConfig dflash_config(const Checkpoint& checkpoint) {
    if (checkpoint.format() != Checkpoint::Format::gguf) return dflash_config_from_hf(hf_config(checkpoint));
    const ConfigReader all = gguf_config(checkpoint);
    return dflash_config_from_gguf(gguf_config(checkpoint, all.get<std::string>("general.architecture") + "."), all);
}

void check_dflash_config(const DflashConfig& c, std::string_view source) {
    const auto size = [&](int64_t value, std::string_view name, int64_t most) {
        RT_CHECK(value >= 1 && value <= most, "{}: {} is {}, expected 1 to {}", source, name, value, most);
    };
    size(c.hidden_size, "hidden_size", kMaxSize);
    size(c.num_hidden_layers, "num_hidden_layers", kMaxDrafterLayers);
    size(c.head_dim, "head_dim", kMaxSize);
    size(c.num_key_value_heads, "num_key_value_heads", kMaxSize / c.head_dim);
    size(c.num_attention_heads, "num_attention_heads", kMaxSize / c.head_dim);
    size(c.intermediate_size, "intermediate_size", kMaxSize);
    size(c.max_position_embeddings, "max_position_embeddings", INT32_MAX - 1);
    RT_CHECK(c.num_attention_heads % c.num_key_value_heads == 0,
             "{}: {} attention heads, expected a multiple of the {} key-value heads", source, c.num_attention_heads,
             c.num_key_value_heads);
    RT_CHECK(c.rms_norm_eps > 0 && c.rms_norm_eps < 1, "{}: rms_norm_eps is {}, expected more than 0 and less than 1",
             source, c.rms_norm_eps);
    RT_CHECK(c.vocab_size >= 0 && c.vocab_size <= kMaxSize && c.draft_vocab_size >= 0 && c.draft_vocab_size <= kMaxSize,
             "{}: a vocabulary of {} and drafts of {} words, expected at most {}", source, c.vocab_size,
             c.draft_vocab_size, kMaxSize);
    RT_CHECK(c.block_size >= (c.sample_from_anchor ? 1 : 2) && c.block_size <= kMaxBlock,
             "{}: block_size is {}, expected 2 to {}", source, c.block_size, kMaxBlock);
    RT_CHECK(c.mask_token_id >= 0 && c.mask_token_id < (c.vocab_size > 0 ? c.vocab_size : kMaxSize),
             "{}: mask_token_id is {}, expected a word of the vocabulary of {}", source, c.mask_token_id, c.vocab_size);
    RT_CHECK(!c.taps.empty() && c.taps.size() <= 64, "{}: {} layers of the target are read, expected 1 to 64", source,
             c.taps.size());
    if (c.has_sliding()) size(c.sliding_window, "sliding_window", kMaxSize);
    check_rope(c.rope, c.head_dim, fmt::format("{}: rope", source));
    if (c.has_sliding()) check_rope(c.rope_sliding, c.head_dim, fmt::format("{}: rope of sliding layers", source));
}

}  // namespace riptide
