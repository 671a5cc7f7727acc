#include "apps/synth/synth_vocab.h"

#include <array>
#include <string>
#include <vector>

#include "apps/convert/gguf_layout.h"
#include "base/error.h"
#include "base/json.h"
#include "text/utf8.h"

namespace riptide::apps {

namespace {

constexpr int64_t kSpecials = 70;

/// Laguna's special tokens 0 .. 69.
std::vector<std::string> special_tokens() {
    const char* bracketed[] = {"UNK",        "CODE_START", "EOS", "CODE_END", "META_START", "META_END", "FIM_MIDDLE",
                               "FIM_SUFFIX", "SEP",        "PAD", "CLS",      "FIM_START",  "MASK"};
    std::vector<std::string> tokens;
    const auto bracket = [](const std::string& name) { return "\u3008|" + name + "|\u3009"; };
    for (const char* name : bracketed) tokens.push_back(bracket(name));
    for (const char* plain : {"|\u25CA|", "\u3008|", "|\u3009", "\u3008|/", "/|\u3009", "<think>", "</think>"})
        tokens.push_back(plain);
    for (int i = 1; i <= 3; ++i) tokens.push_back(bracket("SPECIAL_" + std::to_string(i)));
    for (const char* plain : {"<assistant>", "</assistant>", "<tool_call>", "</tool_call>"}) tokens.push_back(plain);
    for (int i = 8; i <= 50; ++i) tokens.push_back(bracket("SPECIAL_" + std::to_string(i)));
    RT_ASSERT(static_cast<int64_t>(tokens.size()) == kSpecials);
    return tokens;
}

/// GPT-2's printable stand-ins for the 256 bytes: printable Latin-1 stands for itself, the others for 256, 257, ...
std::vector<std::string> byte_tokens() {
    std::vector<std::string> tokens;
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
        const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        std::string token;
        append_utf8(token, static_cast<char32_t>(printable ? byte : next++));
        tokens.push_back(token);
    }
    return tokens;
}

}  // namespace

void write_synth_vocabulary(GgufWriter& w, int64_t size, std::string_view chat_template) {
    std::vector<std::string> tokens = special_tokens();
    for (std::string& token : byte_tokens()) tokens.push_back(std::move(token));
    RT_CHECK(size >= static_cast<int64_t>(tokens.size()), "a synthetic vocabulary has at least {} tokens, not {}",
             tokens.size(), size);
    std::vector<std::string> merges, words;
    for (char c = 'a'; c <= 'z'; ++c) words.emplace_back(1, c);
    for (size_t at = 0; static_cast<int64_t>(tokens.size()) < size; ++at) {
        for (char c = 'a'; c <= 'z' && static_cast<int64_t>(tokens.size()) < size; ++c) {
            merges.push_back(words[at] + " " + c);
            words.push_back(words[at] + c);
            tokens.push_back(words.back());
        }
    }
    json::array types;
    for (size_t i = 0; i < tokens.size(); ++i)
        types.push_back(static_cast<int64_t>(i) >= kSpecials ? kNormalToken
                        : tokens[i][0] == '<'                ? kUserDefinedToken
                                                             : kControlToken);
    w.set_string("tokenizer.ggml.model", "gpt2");
    w.set_string("tokenizer.ggml.pre", "laguna");
    w.set_strings("tokenizer.ggml.tokens", tokens);
    w.set_array("tokenizer.ggml.token_type", GgufType::i32, types);
    w.set_strings("tokenizer.ggml.merges", merges);
    w.set_u32("tokenizer.ggml.bos_token_id", 2);
    w.set_u32("tokenizer.ggml.eos_token_id", 2);
    w.set_u32("tokenizer.ggml.eot_token_id", 24);
    w.set_u32("tokenizer.ggml.unknown_token_id", 0);
    w.set_u32("tokenizer.ggml.padding_token_id", 9);
    w.set_u32("tokenizer.ggml.mask_token_id", 12);
    w.set_bool("tokenizer.ggml.add_bos_token", true);
    w.set_string("tokenizer.chat_template", chat_template);
}

}  // namespace riptide::apps
