// What a tokenizer file says, as read and not yet checked. The loaders fill it, the Tokenizer checks and uses it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide {

/// One entry of the vocabulary. `text` points into the file's metadata: normal tokens in the byte alphabet, others as
/// they are. An entry that no part of the file defines has `defined` false.
struct TokenSpec {
    std::string_view text;
    TokenKind kind = TokenKind::normal;
    bool defined = false;
    bool lstrip = false;
    bool rstrip = false;
    bool normalized = false;  // matched after the normaliser, and after the added tokens that are not
};

struct MergeSpec {
    std::string_view left, right;
};

struct TokenizerSpec {
    std::string path;  // for errors
    std::vector<TokenSpec> tokens;
    std::vector<MergeSpec> merges;
    PreTokenizer pre;
    bool nfc = false;
    bool ignore_merges = false;  // a piece that is a token as a whole becomes it without merging
    int32_t bos = -1, eos = -1, eot = -1, unk = -1, pad = -1, mask = -1;
    std::vector<int32_t> prefix, suffix;  // ids that add_special puts round the text
};

/// Limits on what a file may hold, far above any real vocabulary.
inline constexpr int64_t kMaxTokens = int64_t{1} << 22;
inline constexpr int64_t kMaxTokenBytes = 65536;
inline constexpr int64_t kMaxAddedTokenBytes = 1024;

/// The two parts of a merge written as "left right". Throws Error naming `what` and the number of the merge.
MergeSpec parse_merge(std::string_view text, std::size_t number, std::string_view what);

}  // namespace riptide
