#include "text/tokenizer/token_trie.h"

#include <algorithm>

#include "text/utf8.h"

namespace riptide {

namespace {

/// kinds[i]: of the text from byte i on.
void kinds_of(std::string_view text, std::vector<TokenTrie::Kinds>& kinds) {
    kinds.assign(text.size() + 1, 0);
    for (std::size_t i = text.size(); i-- > 0;) {
        const auto byte = static_cast<uint8_t>(text[i]);
        if (byte < 0x80) {
            kinds[i] = TokenTrie::kind_of(byte) | kinds[i + 1];
            continue;
        }
        const Utf8Char c = utf8_at(text, i);
        kinds[i] = c.kind == Utf8Char::Kind::character
                       ? TokenTrie::kWhole | kinds[i + static_cast<std::size_t>(c.length)]
                       : TokenTrie::kPieces;
    }
}

}  // namespace

TokenTrie::Kinds TokenTrie::kind_of(uint8_t byte) {
    if (byte >= 'a' && byte <= 'z') return 1;
    if (byte >= 'A' && byte <= 'Z') return 2;
    if (byte >= '0' && byte <= '9') return 4;
    if (byte < ' ') return byte == '\n' ? 8 : byte == '\t' ? 16 : byte == '\r' ? 32 : 64;
    // The others, without those letters and digits, in order: 33, and DEL.
    const int letters = byte > 'z' ? 62 : byte > 'Z' ? 36 : byte > '9' ? 10 : 0;
    return Kinds{128} << (byte - ' ' - letters);
}

TokenTrie::TokenTrie(const Tokenizer& tokenizer, WorkBudget* work) : vocab_size_(tokenizer.vocab_size()) {
    constexpr std::size_t kLongest = 60'000;  // depths fit into 16 bits
    const auto spend = [&](std::size_t bytes) {
        if (work != nullptr) work->spend_bytes(static_cast<int64_t>(bytes));
    };
    constexpr std::size_t kOne = 64;  // a token or a comparison, as bytes gone through
    for (int32_t id = 0; id < vocab_size_; ++id) {
        spend(kOne);
        offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
        const std::string_view piece = tokenizer.piece(id);
        if (tokenizer.is_added(id)) {
            markup_.emplace_back(piece);
            markup_ids_.push_back(id);
        } else if (tokenizer.kind(id) == TokenKind::normal && !piece.empty() && piece.size() < kLongest) {
            bytes_ += piece;
            ids_.push_back(id);
            if (piece.size() == 1) single_bytes_[static_cast<uint8_t>(piece[0])] = true;
        }
    }
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    std::stable_sort(ids_.begin(), ids_.end(), [&](int32_t a, int32_t b) {
        spend(kOne);
        return bytes(a) < bytes(b);
    });

    nodes_.emplace_back();
    below_.push_back(0);
    std::vector<Kinds> kinds;
    std::vector<int32_t> path = {0};  // nodes from the root to the last token
    std::string_view last;
    const auto close = [&](std::size_t depth) {
        for (; path.size() > depth + 1; path.pop_back())
            nodes_[static_cast<std::size_t>(path.back())].end = static_cast<int32_t>(nodes_.size());
    };
    for (std::size_t i = 0; i < ids_.size(); ++i) {
        const std::string_view piece = bytes(ids_[i]);
        spend(kOne + 8 * piece.size());
        const auto common = static_cast<std::size_t>(
            std::mismatch(piece.begin(), piece.end(), last.begin(), last.end()).first - piece.begin());
        close(common);
        for (std::size_t at = common; at < piece.size(); ++at) {
            path.push_back(static_cast<int32_t>(nodes_.size()));
            nodes_.push_back(
                {0, static_cast<int32_t>(i), static_cast<uint16_t>(at + 1), static_cast<uint8_t>(piece[at]), 0});
            below_.push_back(0);
            most_depth_ = std::max(most_depth_, static_cast<int32_t>(at + 1));
        }
        kinds_of(piece, kinds);
        for (std::size_t at = 0; at < piece.size(); ++at) {
            const auto node = static_cast<std::size_t>(path[at]);
            below_[node] |= kinds[at];
            const std::size_t rest = std::min<std::size_t>(piece.size() - at, 255);
            nodes_[node].height = std::max(nodes_[node].height, static_cast<uint8_t>(rest));
        }
        last = piece;
    }
    close(0);
    nodes_[0].end = static_cast<int32_t>(nodes_.size());
    nodes_.push_back({static_cast<int32_t>(nodes_.size()) + 1, static_cast<int32_t>(ids_.size()), 0, 0, 0});
}

std::string_view TokenTrie::bytes(int32_t token) const {
    const auto at = static_cast<std::size_t>(token);
    return std::string_view(bytes_).substr(offsets_[at], offsets_[at + 1] - offsets_[at]);
}

}  // namespace riptide
