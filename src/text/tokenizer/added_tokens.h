// Finds added tokens (`<think>`, `〈|EOS|〉`) in text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/pretokenizer.h"

namespace riptide {

/// A token that is matched in the text as a whole, never built by merging.
struct AddedToken {
    std::string text;
    int32_t id = -1;
    bool lstrip = false;  // also swallows white space before it
    bool rstrip = false;  // also swallows white space behind it
};

/// The added tokens of a vocabulary. Immutable, shareable between threads.
class AddedTokens {
  public:
    struct Found {
        TextSpan span;
        int32_t id = -1;
    };
    /// REQUIRES: no text empty, no two alike.
    explicit AddedTokens(std::vector<AddedToken> tokens = {});

    /// Appends the tokens that lie entirely inside `where`, from left to right: at each place the longest one wins, and
    /// the search goes on behind it. Time linear in the span, times the longest token in the worst case.
    void find(std::string_view text, TextSpan where, std::vector<Found>& out) const;

    bool empty() const { return tokens_.empty(); }

  private:
    const AddedToken* longest_at(std::string_view text) const;

    std::vector<AddedToken> tokens_;  // sorted by text
    std::array<bool, 256> starts_{};  // bytes with which some token starts
};

}  // namespace riptide
