// Small byte-level BPE vocabularies for tests, as tokenizer.json and as GGUF metadata.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/tokenizer/tokenizer.h"
#include "text/utf8.h"

namespace riptide {

/// How a vocabulary spells bytes: bytes_to_unicode of the GPT-2 release, the inverse of from_byte_alphabet().
inline std::string to_byte_alphabet(std::string_view bytes) {
    const auto printable = [](int b) { return (b >= '!' && b <= '~') || (b >= 0xA1 && b != 0xAD); };
    std::string out;
    for (const char c : bytes) {
        const int byte = static_cast<unsigned char>(c);
        char32_t code = static_cast<char32_t>(byte);
        if (!printable(byte)) {
            code = 0x100;
            for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
        }
        append_utf8(out, code);
    }
    return out;
}

/// All 256 bytes (after `specials`, so byte b is id specials + b), then one token for each merge.
struct SmallVocabulary {
    struct Added {
        std::string text;
        bool special = true;
    };
    std::vector<Added> specials = {
        {"〈|UNK|〉"}, {"〈|EOS|〉"}, {"<think>", false}, {"</think>", false}, {"</assistant>", false}};
    std::vector<std::pair<std::string, std::string>> merges;  // of raw bytes
    std::string pre = "laguna";

    int32_t byte_id(char c) const { return static_cast<int32_t>(specials.size()) + static_cast<unsigned char>(c); }
    int32_t merge_id(std::size_t i) const { return static_cast<int32_t>(specials.size() + 256 + i); }

    std::vector<std::string> tokens() const {
        std::vector<std::string> out;
        for (const Added& added : specials) out.push_back(added.text);
        for (int b = 0; b < 256; ++b) out.push_back(to_byte_alphabet(std::string(1, static_cast<char>(b))));
        for (const auto& [left, right] : merges) out.push_back(to_byte_alphabet(left + right));
        return out;
    }

    json::object gguf() const {
        json::array texts, types, rules;
        const auto all = tokens();
        for (std::size_t i = 0; i < all.size(); ++i) {
            texts.emplace_back(all[i]);
            types.emplace_back(i >= specials.size() ? 1 : specials[i].special ? 3 : 4);
        }
        for (const auto& [left, right] : merges)
            rules.emplace_back(to_byte_alphabet(left) + " " + to_byte_alphabet(right));
        return {{"tokenizer.ggml.model", "gpt2"},   {"tokenizer.ggml.pre", pre},
                {"tokenizer.ggml.tokens", texts},   {"tokenizer.ggml.token_type", types},
                {"tokenizer.ggml.merges", rules},   {"tokenizer.ggml.bos_token_id", 1},
                {"tokenizer.ggml.eos_token_id", 1}, {"tokenizer.ggml.add_bos_token", true}};
    }

    /// `pairs`: merges as ["a", "b"] instead of "a b".
    json::object hf(bool pairs = false) const {
        json::object vocab;
        json::array rules, added;
        const auto all = tokens();
        for (std::size_t i = 0; i < all.size(); ++i) vocab[all[i]] = i;
        for (const auto& [left, right] : merges) {
            const std::string a = to_byte_alphabet(left), b = to_byte_alphabet(right);
            rules.emplace_back(pairs ? json::value{a, b} : json::value(a + " " + b));
        }
        for (std::size_t i = 0; i < specials.size(); ++i) {
            added.push_back(
                {{"id", i}, {"content", specials[i].text}, {"special", specials[i].special}, {"normalized", false}});
        }
        return {{"added_tokens", added},
                {"normalizer", nullptr},
                {"pre_tokenizer", laguna_pre_tokenizer()},
                {"post_processor", post_processor()},
                {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", rules}, {"byte_fallback", false}}}};
    }

    static json::value laguna_pre_tokenizer() {
        return json::parse(R"json({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "(?:\\r?\\n)+(?!\\r?\\n)"}, "behavior": "MergedWithNext", "invert": false},
            {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
             "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})json");
    }
    static json::value post_processor() {
        return json::parse(R"({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "〈|EOS|〉", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
            "special_tokens": {"〈|EOS|〉": {"id": "〈|EOS|〉", "ids": [1], "tokens": ["〈|EOS|〉"]}}})");
    }

    Tokenizer tokenizer() const { return Tokenizer::from_gguf(gguf(), "test.gguf"); }
};

}  // namespace riptide
