// Which tokens of a prompt are kept: units, anchors and the budget. No model here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer/token_map.h"

namespace riptide {

/// A prompt's text as its tokens spell it, and where it may be cut.
struct PromptText {
    PromptText(const Tokenizer& tokenizer, std::span<const int32_t> tokens);
    std::string text;
    std::vector<TextSpan> spans;  // of each token
    std::vector<bool> cuts;       // word_cuts, and none beside a control token but its own borders
    std::string_view bytes(TokenRun run) const;
};

/// Cuts a run into what is kept or dropped as one, in order and without gaps: a paragraph of up to kMostUnit tokens;
/// larger ones by lines, of which short ones join until they have kLeastUnit; longer lines at the ends of sentences, or
/// at any cut. A run of up to kWholeRun tokens is one unit. Only a stretch without any cut is longer than kMostUnit.
/// REQUIRES the run to begin and end at cuts. Time linear.
std::vector<TokenRun> split_units(const PromptText& prompt, TokenRun run);
inline constexpr int64_t kLeastUnit = 16, kMostUnit = 64, kWholeRun = 24;

/// The mean score of each unit's tokens, a quarter of it from each neighbour that touches it.
std::vector<double> unit_scores(std::span<const TokenRun> units, std::span<const float> scores);

/// Units that repeat `question`: a run of kAnchor of its tokens, one of them at least a word, or one of its words of
/// kLeastWord bytes (letters, digits, '_'; ASCII letters in any case), that stands in at most kMostHits places of the
/// units. The rarest first, then by place; each unit once. Time linear.
std::vector<size_t> anchored_units(const PromptText& prompt, std::span<const int32_t> tokens, TokenRun question,
                                   std::span<const TokenRun> units);
inline constexpr int64_t kAnchor = 4, kMostHits = 8, kLeastWord = 3;

/// Units in the order of their worth, as many as fit: the anchored ones up to half of the budget, then by score, of
/// equals the first. One that does not fit is passed over. Ascending.
std::vector<size_t> choose_units(std::span<const TokenRun> units, std::span<const double> scores,
                                 std::span<const size_t> anchored, int64_t budget);

}  // namespace riptide
