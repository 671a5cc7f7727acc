#include <set>
#include <vector>

#include "apps/convert/convert.h"
#include "base/error.h"
#include "base/json.h"
#include "engine/prompt/loaded_text.h"
#include "text/tokenizer/pretokenizer.h"

namespace riptide::apps {

namespace {

/// GGUF's name of the pre-tokenizer rules, found by comparing the rules themselves.
std::string pre_name(const PreTokenizer& rules, const std::string& path) {
    for (const char* name : {"laguna", "qwen2", "qwen35", "gpt-2", "llama-bpe", "starcoder"})
        if (PreTokenizer::from_ggml(name, name).description() == rules.description()) return name;
    fail("{}: tokenizer.json has pre-tokenizer rules that GGUF has no name for", path);
}

std::string merge_text(const json::value& merge) {
    if (merge.is_string()) return std::string(merge.get_string());
    const json::array& pair = merge.as_array();
    return std::string(pair.at(0).as_string()) + " " + std::string(pair.at(1).as_string());
}

struct Vocabulary {
    std::vector<std::string> tokens;
    json::array types;
};

Vocabulary vocabulary(const json::object& file, int64_t size, const std::set<int64_t>& stops) {
    Vocabulary v;
    v.tokens.resize(static_cast<size_t>(size));
    std::vector<int> types(static_cast<size_t>(size), kUnusedToken);
    const auto put = [&](int64_t id, std::string_view text, int type) {
        RT_CHECK(id >= 0 && id < size, "tokenizer.json: token id {} is outside the vocabulary of {}", id, size);
        v.tokens[static_cast<size_t>(id)] = text;
        types[static_cast<size_t>(id)] = type;
    };
    for (const auto& [text, id] : file.at("model").at("vocab").as_object()) put(id.as_int64(), text, kNormalToken);
    for (const json::value& added : file.at("added_tokens").as_array()) {
        const int64_t id = added.at("id").as_int64();
        const bool control = added.at("special").as_bool() || stops.contains(id);
        put(id, added.at("content").as_string(), control ? kControlToken : kUserDefinedToken);
    }
    for (size_t i = 0; i < v.tokens.size(); ++i)
        if (types[i] == kUnusedToken) v.tokens[i] = fmt::format("[PAD{}]", i);
    for (int type : types) v.types.push_back(type);
    return v;
}

}  // namespace

void write_tokenizer_metadata(const Checkpoint& checkpoint, int64_t vocab_size, GgufWriter& w) {
    const std::string chat = chat_template_source(checkpoint);
    if (!chat.empty()) w.set_string("tokenizer.chat_template", chat);
    if (!has_tokenizer(checkpoint)) return;
    const Tokenizer tokenizer = load_tokenizer(checkpoint);  // checks what is read below
    const json::object& file = checkpoint.metadata().at("tokenizer").as_object();
    const std::vector<int32_t> stops = stop_ids(checkpoint, tokenizer);
    Vocabulary v =
        vocabulary(file, std::max<int64_t>(vocab_size, tokenizer.vocab_size()), {stops.begin(), stops.end()});
    std::vector<std::string> merges;
    for (const json::value& merge : file.at("model").at("merges").as_array()) merges.push_back(merge_text(merge));
    w.set_string("tokenizer.ggml.model", "gpt2");
    w.set_string("tokenizer.ggml.pre", pre_name(tokenizer.pre_tokenizer(), checkpoint.path()));
    w.set_strings("tokenizer.ggml.tokens", v.tokens);
    w.set_array("tokenizer.ggml.token_type", GgufType::i32, v.types);
    w.set_strings("tokenizer.ggml.merges", merges);
    const auto set_id = [&](const char* key, int32_t id) {
        if (id >= 0) w.set_u32(std::string("tokenizer.ggml.") + key, static_cast<uint32_t>(id));
    };
    set_id("bos_token_id", tokenizer.bos());
    set_id("eos_token_id", tokenizer.eos());
    set_id("unknown_token_id", tokenizer.unk());
    set_id("padding_token_id", tokenizer.pad());
    set_id("mask_token_id", tokenizer.mask());
    for (int32_t id : stops)
        if (id != tokenizer.eos()) set_id("eot_token_id", id);
    w.set_bool("tokenizer.ggml.add_bos_token", tokenizer.adds_bos());
}

void write_sampling_metadata(const Checkpoint& checkpoint, GgufWriter& w) {
    const SamplingChoice sampling = generation_defaults(checkpoint).sampling;
    const auto set = [&](const char* key, const std::optional<double>& value) {
        if (value) w.set_f32(std::string("general.sampling.") + key, static_cast<float>(*value));
    };
    if (sampling.top_k) w.set_i32("general.sampling.top_k", static_cast<int32_t>(*sampling.top_k));
    set("temp", sampling.temperature);
    set("top_p", sampling.top_p);
    set("min_p", sampling.min_p);
    set("penalty_repeat", sampling.repetition_penalty);
}

}  // namespace riptide::apps
