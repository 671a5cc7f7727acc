// Between the tokens of a text, its bytes, and the tokens that another vocabulary has for it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/text_span.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide {

/// Tokens [begin, end) of a prompt.
struct TokenRun {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
    friend bool operator==(const TokenRun&, const TokenRun&) = default;
};

/// The bytes of `text` that each token spells. Begins and ends ascend, and together the spans cover the text.
///
/// Where the tokens spell the text byte for byte, as all of a GGUF file do, spans are exact and follow each other.
/// Where the tokenizer has made NFC of it first, what NFC changed is one place from an ASCII character to the next:
/// each token that has a part in it spans all of it, so spans of neighbours may overlap there, and nowhere else.
/// Throws Error if the tokens spell neither the text nor its NFC. Time linear.
std::vector<TextSpan> token_spans(const Tokenizer& tokenizer, std::span<const int32_t> tokens, std::string_view text);

/// The tokens whose spans overlap `bytes`. Time logarithmic.
TokenRun tokens_at(std::span<const TextSpan> spans, TextSpan bytes);

/// A value for each token of `to`: the sum of what falls to its bytes, where each token of `from` has dealt its value
/// out evenly over its own. Both are spans of one text, ascending. Sums stay what they are where `to` covers the bytes
/// of `from` without overlaps. In f64 inside. Time linear.
std::vector<float> deal_scores(std::span<const TextSpan> from, std::span<const float> scores,
                               std::span<const TextSpan> to);

/// Words longer than this many bytes (base64, long runs of digits) may be cut at any character.
inline constexpr int64_t kLongestWord = 96;

/// Where the tokens of a text may be parted without harm: entry i is whether a cut before token i (entry n: behind the
/// last) cuts no character, no word, and no \r\n. A word is a run of letters, digits, marks and underscores; scripts
/// that write no spaces (Han, kana, Thai and others) have a word for each character. Bytes that are no UTF-8 count as
/// characters of their own. Entries 0 and n are true. REQUIRES spans as token_spans gives them. Time linear.
std::vector<bool> word_cuts(std::string_view text, std::span<const TextSpan> spans);

/// The smallest run around `run` that begins and ends at cuts. An empty run stays as it is.
TokenRun grow_to_cuts(const std::vector<bool>& cuts, TokenRun run);

}  // namespace riptide
