// Tokenizer from the metadata of a GGUF file.
#include <array>

#include "base/error.h"
#include "text/json_fields.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_spec.h"

namespace riptide {
namespace {

// Values of tokenizer.ggml.token_type.
TokenKind kind_of(int64_t type, std::size_t id, const std::string& path) {
    switch (type) {
        case 1:
            return TokenKind::normal;
        case 2:  // the unknown token
        case 3:
            return TokenKind::special;
        case 4:
            return TokenKind::added;
        case 5:
            return TokenKind::unused;
        default:
            break;
    }
    fail("{}: tokenizer.ggml.token_type of token {} is {}, expected 1 to 5 in a byte-level vocabulary", path, id, type);
}

void read_tokens(const json::object& metadata, TokenizerSpec& spec) {
    const json::array& tokens = field_array(metadata, "tokenizer.ggml.tokens", spec.path);
    RT_CHECK(tokens.size() <= static_cast<std::size_t>(kMaxTokens),
             "{}: tokenizer.ggml.tokens has {} entries, at most {}", spec.path, tokens.size(), kMaxTokens);
    const bool typed = find_field(metadata, "tokenizer.ggml.token_type") != nullptr;
    const json::array* types = typed ? &field_array(metadata, "tokenizer.ggml.token_type", spec.path) : nullptr;
    RT_CHECK(types == nullptr || types->size() == tokens.size(),
             "{}: tokenizer.ggml.token_type has {} entries, tokenizer.ggml.tokens has {}", spec.path,
             types == nullptr ? 0 : types->size(), tokens.size());
    spec.tokens.resize(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        RT_CHECK(tokens[i].is_string(), "{}: tokenizer.ggml.tokens entry {} is not a string", spec.path, i);
        spec.tokens[i].text = tokens[i].get_string();
        spec.tokens[i].defined = true;
        if (types == nullptr) continue;
        const int64_t type = index_below((*types)[i], 1 << 16, spec.path + ": tokenizer.ggml.token_type");
        spec.tokens[i].kind = kind_of(type, i, spec.path);
    }
}

void read_gguf_merges(const json::object& metadata, TokenizerSpec& spec) {
    const json::array& merges = field_array(metadata, "tokenizer.ggml.merges", spec.path);
    RT_CHECK(merges.size() <= static_cast<std::size_t>(kMaxTokens),
             "{}: tokenizer.ggml.merges has {} entries, at most {}", spec.path, merges.size(), kMaxTokens);
    spec.merges.reserve(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
        RT_CHECK(merges[i].is_string(), "{}: tokenizer.ggml.merges entry {} is not a string", spec.path, i);
        spec.merges.push_back(parse_merge(merges[i].get_string(), i, spec.path + ": tokenizer.ggml.merges"));
    }
}

// The id under `key`, or -1. Without token types, an id that the file names for a control purpose is a control token.
int32_t read_id(const json::object& metadata, std::string_view key, TokenizerSpec& spec) {
    const json::value* value = find_field(metadata, key);
    if (value == nullptr) return -1;
    const auto size = static_cast<int64_t>(spec.tokens.size());
    const int64_t id = index_below(*value, size, fmt::format("{}: {} (vocabulary of {} tokens)", spec.path, key, size));
    if (find_field(metadata, "tokenizer.ggml.token_type") == nullptr) {
        spec.tokens[static_cast<std::size_t>(id)].kind = TokenKind::special;
    }
    return static_cast<int32_t>(id);
}

}  // namespace

Tokenizer Tokenizer::from_gguf(const json::object& metadata, const std::string& path) {
    const std::string_view model = field_string(metadata, "tokenizer.ggml.model", path);
    RT_CHECK(model == "gpt2", "{}: tokenizer.ggml.model is {:?}, only \"gpt2\" (byte-level BPE) is supported", path,
             model);
    const std::string_view pre = field_string(metadata, "tokenizer.ggml.pre", path);
    TokenizerSpec spec;
    spec.path = path;
    spec.pre = PreTokenizer::from_ggml(pre, path + ": tokenizer.ggml.pre");
    read_tokens(metadata, spec);
    read_gguf_merges(metadata, spec);
    spec.bos = read_id(metadata, "tokenizer.ggml.bos_token_id", spec);
    spec.eos = read_id(metadata, "tokenizer.ggml.eos_token_id", spec);
    spec.eot = read_id(metadata, "tokenizer.ggml.eot_token_id", spec);
    spec.unk = read_id(metadata, "tokenizer.ggml.unknown_token_id", spec);
    spec.pad = read_id(metadata, "tokenizer.ggml.padding_token_id", spec);
    spec.mask = read_id(metadata, "tokenizer.ggml.mask_token_id", spec);
    // The format has no key for ignore_merges, and files of the Llama 3 family often lack add_bos_token: both go with
    // the name.
    const bool llama3 = pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3" || pre == "falcon3";
    spec.ignore_merges = llama3;
    if (field_bool_or(metadata, "tokenizer.ggml.add_bos_token", llama3 && spec.bos >= 0, path)) {
        RT_CHECK(spec.bos >= 0, "{}: tokenizer.ggml.add_bos_token is on, but tokenizer.ggml.bos_token_id is missing",
                 path);
        spec.prefix.push_back(spec.bos);
    }
    if (field_bool_or(metadata, "tokenizer.ggml.add_eos_token", false, path)) {
        RT_CHECK(spec.eos >= 0, "{}: tokenizer.ggml.add_eos_token is on, but tokenizer.ggml.eos_token_id is missing",
                 path);
        spec.suffix.push_back(spec.eos);
    }
    return Tokenizer(std::move(spec));
}

}  // namespace riptide
