// Tokenizer from Hugging Face's tokenizer.json and tokenizer_config.json.
#include <algorithm>

#include "base/error.h"
#include "text/json_fields.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_spec.h"

namespace riptide {
namespace {

// Ids are dense, so none can reach the number of all entries that the files list. Checked before memory is taken for
// it.
int64_t count_entries(const json::object& root, const json::value* config) {
    std::size_t count = 0;
    if (const json::value* model = find_field(root, "model"); model != nullptr && model->is_object()) {
        const json::value* vocab = find_field(model->get_object(), "vocab");
        if (vocab != nullptr && vocab->is_object()) count += vocab->get_object().size();
    }
    const json::value* added = find_field(root, "added_tokens");
    if (added != nullptr && added->is_array()) count += added->get_array().size();
    if (config != nullptr && config->is_object()) {
        const json::value* decoder = find_field(config->get_object(), "added_tokens_decoder");
        if (decoder != nullptr && decoder->is_object()) count += decoder->get_object().size();
    }
    return static_cast<int64_t>(std::min(count, static_cast<std::size_t>(kMaxTokens)));
}

TokenSpec& token_at(TokenizerSpec& spec, int64_t id) {
    if (static_cast<std::size_t>(id) >= spec.tokens.size()) spec.tokens.resize(static_cast<std::size_t>(id) + 1);
    return spec.tokens[static_cast<std::size_t>(id)];
}

void check_model(const json::object& model, const std::string& what) {
    RT_CHECK(field_string(model, "type", what) == "BPE", "{}: type is {:?}, only \"BPE\" is supported", what,
             field_string(model, "type", what));
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
        const json::value* value = find_field(model, key);
        RT_CHECK(value == nullptr || (value->is_string() && value->get_string().empty()), "{}: {} is not supported",
                 what, key);
    }
    RT_CHECK(!field_bool_or(model, "byte_fallback", false, what),
             "{}: byte_fallback is not supported (expected a byte-level model)", what);
}

void read_vocab(const json::object& model, int64_t limit, const std::string& what, TokenizerSpec& spec) {
    const json::object& vocab = field_object(model, "vocab", what);
    RT_CHECK(vocab.size() <= static_cast<std::size_t>(kMaxTokens), "{}: vocab has {} entries, at most {} are allowed",
             what, vocab.size(), kMaxTokens);
    spec.tokens.reserve(vocab.size());
    const std::string id_place = what + ": id in vocab";
    for (const auto& [text, value] : vocab) {
        RT_CHECK(value.is_int64() || value.is_uint64(), "{}: vocab entry {:?} has no whole number as id", what,
                 std::string_view(text));
        TokenSpec& token = token_at(spec, index_below(value, limit, id_place));
        RT_CHECK(!token.defined, "{}: vocab entries {:?} and {:?} have the same id", what, token.text,
                 std::string_view(text));
        token.text = text;
        token.defined = true;
    }
}

void read_hf_merges(const json::object& model, const std::string& what, TokenizerSpec& spec) {
    const json::array& merges = field_array(model, "merges", what);
    RT_CHECK(merges.size() <= static_cast<std::size_t>(kMaxTokens), "{}: merges has {} entries, at most {} are allowed",
             what, merges.size(), kMaxTokens);
    spec.merges.reserve(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
        if (merges[i].is_string()) {
            spec.merges.push_back(parse_merge(merges[i].get_string(), i, what + ": merges"));
            continue;
        }
        const json::array* pair = merges[i].if_array();
        RT_CHECK(pair != nullptr && pair->size() == 2 && (*pair)[0].is_string() && (*pair)[1].is_string(),
                 "{}: merge {} is not \"a b\" or [\"a\", \"b\"]", what, i);
        spec.merges.push_back({(*pair)[0].get_string(), (*pair)[1].get_string()});
    }
}

// One added token. `override_kind`: tokenizer_config.json, read second, has the last word on what is special.
void read_added(const json::object& entry, int64_t id, bool override_kind, const std::string& what,
                TokenizerSpec& spec) {
    const std::string_view content = field_string(entry, "content", what);
    TokenSpec& token = token_at(spec, id);
    RT_CHECK(!token.defined || token.text == content, "{}: id {} is {:?} here and {:?} in the vocabulary", what, id,
             content, token.text);
    RT_CHECK(!field_bool_or(entry, "single_word", false, what), "{}: added token {:?}: single_word is not supported",
             what, content);
    const bool special = field_bool_or(entry, "special", false, what);
    const bool known = token.kind == TokenKind::special || token.kind == TokenKind::added;
    token.kind = special ? TokenKind::special : TokenKind::added;
    if (override_kind && known) return;
    token.text = content;
    token.defined = true;
    token.lstrip = field_bool_or(entry, "lstrip", false, what);
    token.rstrip = field_bool_or(entry, "rstrip", false, what);
    token.normalized = field_bool_or(entry, "normalized", !special, what);
}

void read_added_tokens(const json::object& root, const json::value* config, int64_t limit, TokenizerSpec& spec) {
    const std::string what = spec.path + ": added_tokens";
    if (find_field(root, "added_tokens") != nullptr) {
        for (const json::value& entry : field_array(root, "added_tokens", spec.path)) {
            RT_CHECK(entry.is_object() && entry.get_object().contains("id"), "{}: an entry is no object with an id",
                     what);
            read_added(entry.get_object(), index_below(entry.get_object().at("id"), limit, what + " id"), false, what,
                       spec);
        }
    }
    if (config == nullptr || !config->is_object() ||
        find_field(config->get_object(), "added_tokens_decoder") == nullptr)
        return;
    const std::string decoder = spec.path + ": tokenizer_config added_tokens_decoder";
    for (const auto& [key, entry] : field_object(config->get_object(), "added_tokens_decoder", decoder)) {
        int64_t id = 0;
        const bool digits = !key.empty() && key.size() <= 9 && std::all_of(key.begin(), key.end(), [&](char c) {
            id = id * 10 + (c - '0');
            return c >= '0' && c <= '9';
        });
        RT_CHECK(digits && id < limit, "{}: key {:?} is not a possible token id", decoder, std::string_view(key));
        RT_CHECK(entry.is_object(), "{}: entry {} is not an object", decoder, id);
        read_added(entry.get_object(), id, true, decoder, spec);
    }
}

bool reads_nfc(const json::object& root, const std::string& path) {
    const json::value* node = find_field(root, "normalizer");
    if (node == nullptr) return false;
    RT_CHECK(node->is_object(), "{}: normalizer is not an object", path);
    const std::string_view type = field_string(node->get_object(), "type", path + ": normalizer");
    if (type == "Sequence" && field_array(node->get_object(), "normalizers", path).empty()) return false;
    RT_CHECK(type == "NFC", "{}: normalizer {:?} is not supported; supported are none and NFC", path, type);
    return true;
}

void read_template(const json::object& node, const std::string& what, TokenizerSpec& spec) {
    bool behind = false;
    for (const json::value& part : field_array(node, "single", what)) {
        RT_CHECK(part.is_object(), "{}: single holds something that is no object", what);
        if (part.get_object().contains("Sequence")) {
            RT_CHECK(!behind, "{}: single names the text twice", what);
            behind = true;
            continue;
        }
        const std::string_view name = field_string(field_object(part.get_object(), "SpecialToken", what), "id", what);
        const json::object& entry = field_object(field_object(node, "special_tokens", what), name, what);
        for (const json::value& id : field_array(entry, "ids", what)) {
            const auto number =
                static_cast<int32_t>(index_below(id, static_cast<int64_t>(spec.tokens.size()), what + " id"));
            (behind ? spec.suffix : spec.prefix).push_back(number);
        }
    }
    RT_CHECK(behind, "{}: single does not name the text", what);
}

void read_post_processor(const json::object& node, const std::string& what, TokenizerSpec& spec, int depth = 0) {
    const std::string_view type = field_string(node, "type", what);
    if (type == "TemplateProcessing") {
        RT_CHECK(spec.prefix.empty() && spec.suffix.empty(), "{}: two TemplateProcessing steps", what);
        read_template(node, what, spec);
    } else if (type == "Sequence") {
        RT_CHECK(depth == 0, "{}: a Sequence inside a Sequence", what);
        for (const json::value& child : field_array(node, "processors", what)) {
            RT_CHECK(child.is_object(), "{}: processors holds something that is no object", what);
            read_post_processor(child.get_object(), what, spec, depth + 1);
        }
    } else {
        RT_CHECK(type == "ByteLevel",
                 "{}: type {:?} is not supported; supported are TemplateProcessing, ByteLevel, Sequence", what, type);
    }
}

// The id of the token that tokenizer_config.json (or the model) names under `key` (a string, or an object with
// `content`), or -1.
int32_t named_id(const json::object& config, std::string_view key, const TokenizerSpec& spec) {
    const json::value* value = find_field(config, key);
    if (value == nullptr) return -1;
    const std::string what = spec.path + ": special token";
    const std::string_view text =
        value->is_object() ? field_string(value->get_object(), "content", what) : field_string(config, key, what);
    const auto found = std::find_if(spec.tokens.begin(), spec.tokens.end(),
                                    [&](const TokenSpec& t) { return t.defined && t.text == text; });
    RT_CHECK(found != spec.tokens.end(), "{}: {} is {:?}, which is not in the vocabulary", what, key, text);
    return static_cast<int32_t>(found - spec.tokens.begin());
}

// The model's own unknown token, or -1. Files that have none write null or "".
int32_t unknown_id(const json::object& model, const TokenizerSpec& spec) {
    const json::value* value = find_field(model, "unk_token");
    if (value == nullptr || (value->is_string() && value->get_string().empty())) return -1;
    return named_id(model, "unk_token", spec);
}

}  // namespace

Tokenizer Tokenizer::from_hf(const json::value& tokenizer_json, const json::value* tokenizer_config,
                             const std::string& path) {
    RT_CHECK(tokenizer_json.is_object(), "{}: expected a JSON object", path);
    const json::object& root = tokenizer_json.get_object();
    const json::object& model = field_object(root, "model", path);
    const std::string what = path + ": model";
    TokenizerSpec spec;
    spec.path = path;
    check_model(model, what);
    const int64_t limit = count_entries(root, tokenizer_config);
    read_vocab(model, limit, what, spec);
    read_hf_merges(model, what, spec);
    read_added_tokens(root, tokenizer_config, limit, spec);
    spec.unk = unknown_id(model, spec);
    spec.nfc = reads_nfc(root, path);
    spec.ignore_merges = field_bool_or(model, "ignore_merges", false, what);
    if (const json::value* pre = find_field(root, "pre_tokenizer")) {
        spec.pre = PreTokenizer::from_hf(*pre, path + ": pre_tokenizer");
    }
    if (const json::value* post = find_field(root, "post_processor")) {
        RT_CHECK(post->is_object(), "{}: post_processor is not an object", path);
        read_post_processor(post->get_object(), path + ": post_processor", spec);
    }
    if (tokenizer_config != nullptr && tokenizer_config->is_object()) {
        const json::object& config = tokenizer_config->get_object();
        spec.bos = named_id(config, "bos_token", spec);
        spec.eos = named_id(config, "eos_token", spec);
        if (spec.unk < 0) spec.unk = named_id(config, "unk_token", spec);
        spec.pad = named_id(config, "pad_token", spec);
        spec.mask = named_id(config, "mask_token", spec);
        const bool no_template = find_field(root, "post_processor") == nullptr;
        if (no_template && spec.bos >= 0 && field_bool_or(config, "add_bos_token", false, path))
            spec.prefix = {spec.bos};
        if (no_template && spec.eos >= 0 && field_bool_or(config, "add_eos_token", false, path))
            spec.suffix = {spec.eos};
    }
    return Tokenizer(std::move(spec));
}

}  // namespace riptide
