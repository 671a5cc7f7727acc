// A vocabulary as a tree over bytes, to look at all tokens at once.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/work_budget.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide {

/// The normal tokens of a tokenizer by their bytes; its added tokens apart. Immutable.
class TokenTrie {
  public:
    /// Nodes stand in preorder: a node's subtree is [node, end). Node 0 is the root.
    struct Node {
        int32_t end = 0;
        int32_t tokens = 0;  // of ids(): the node's are [tokens, tokens of the next node)
        uint16_t depth = 0;  // bytes on the way here
        uint8_t byte = 0;    // the last of them
        uint8_t height = 0;  // bytes to the end of the longest token below; 255: or more
    };
    /// Kinds of text, as bits: small letters, capitals, digits, each other character of ASCII but controls by itself,
    /// and two more: whole characters beyond ASCII, and what is not whole.
    using Kinds = uint64_t;
    static constexpr Kinds kWhole = Kinds{1} << 62, kPieces = Kinds{1} << 63;
    /// Of a byte of ASCII.
    static Kinds kind_of(uint8_t byte);

    /// Copies what it needs. Time n log n: a fraction of a second for large vocabularies. `work` may stop it within a
    /// millisecond; null: nobody does.
    explicit TokenTrie(const Tokenizer& tokenizer, WorkBudget* work = nullptr);

    int32_t vocab_size() const { return vocab_size_; }
    const std::vector<Node>& nodes() const { return nodes_; }  // and one more at the end
    std::span<const int32_t> ids(int32_t node) const {
        const auto at = static_cast<std::size_t>(node);
        const auto begin = static_cast<std::size_t>(nodes_[at].tokens),
                   end = static_cast<std::size_t>(nodes_[at + 1].tokens);
        return std::span(ids_).subspan(begin, end - begin);
    }
    /// What the tokens below a node have behind it.
    Kinds below(int32_t node) const { return below_[static_cast<std::size_t>(node)]; }
    /// The tokens below a node.
    std::span<const int32_t> ids_below(int32_t node) const {
        const auto begin = static_cast<std::size_t>(nodes_[static_cast<std::size_t>(node) + 1].tokens),
                   end = static_cast<std::size_t>(
                       nodes_[static_cast<std::size_t>(nodes_[static_cast<std::size_t>(node)].end)].tokens);
        return std::span(ids_).subspan(begin, end - begin);
    }
    int32_t most_depth() const { return most_depth_; }

    /// The bytes of a normal token; empty for all others.
    std::string_view bytes(int32_t token) const;
    /// Bytes that some token spells alone.
    const std::array<bool, 256>& single_bytes() const { return single_bytes_; }
    /// Tokens that are matched as a whole, with their ids.
    const std::vector<std::string>& markup() const { return markup_; }
    const std::vector<int32_t>& markup_ids() const { return markup_ids_; }

  private:
    int32_t vocab_size_ = 0, most_depth_ = 0;
    std::vector<Node> nodes_;
    std::vector<Kinds> below_;  // of each node
    std::vector<int32_t> ids_;
    std::string bytes_;
    std::vector<uint32_t> offsets_;
    std::array<bool, 256> single_bytes_{};
    std::vector<std::string> markup_;
    std::vector<int32_t> markup_ids_;
};

}  // namespace riptide
