// PFlash: a small model reads a long prompt first and says which parts of it the large one should read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json_fwd.h"

namespace riptide {

enum class CompressMode : uint8_t {
    off,
    automatic,  // prompts of more than `above` tokens, unless the request asks for exactness; see wants_compression()
    always,     // each prompt of more tokens than may be kept
};

/// At which positions the model sees what is kept.
enum class KeptPositions : uint8_t {
    compact,   // one behind the other, as if it were the whole prompt
    original,  // where it stood (PromptGaps); compact where the whole prompt has more tokens than the model positions
};

/// How prompts are compressed where a request does not say. Without a scorer none is.
struct CompressionOptions {
    CompressMode mode = CompressMode::automatic;
    /// Share of what can be left out (contents of messages: not markup, system prompt, tool schemas, calls) that is
    /// kept at most, over 0 to 1; but `least` tokens of it in any case: fewer save no time (a GPU reads all weights for
    /// any step), and a model that sees hardly anything of a tool's results calls the tool again, though the answer is
    /// there (docs/results/long_context.md).
    double keep = 0.1;
    int64_t least = 768;
    int64_t keep_tokens = 0;  // if not 0: so many tokens of the whole prompt at most, instead
    int64_t above = 32768;    // automatic: prompts of more tokens
    KeptPositions positions = KeptPositions::compact;
};

/// What a request says itself.
struct CompressionRequest {
    std::optional<CompressMode> mode;
    std::optional<double> keep;
    std::optional<int64_t> keep_tokens, above;
    std::optional<KeptPositions> positions;
    bool show = false;  // CompressionReport::shown is wanted

    /// A request's own keep replaces both limits of `options`.
    CompressionOptions over(const CompressionOptions& options) const;
    friend bool operator==(const CompressionRequest&, const CompressionRequest&) = default;
};

/// Throws Error naming the option, its value and the limits. `what` stands in front of the name ("compress.").
void check_compression(const CompressionOptions& options, const std::string& what);

/// What became of a prompt that was compressed.
struct CompressionReport {
    int64_t original = 0;    // tokens of the whole prompt; 0: it was not compressed
    int64_t kept = 0;        // tokens that the model reads
    int64_t budget = 0;      // at most so many should be kept: what cannot be left out, and the share of the rest
    int64_t forced = 0;      // of kept: had to stay
    int64_t remembered = 0;  // of kept: as an earlier turn chose
    int64_t scored = 0;      // tokens that the scorer read, in its own vocabulary
    double seconds = 0;      // to score and to choose
    std::string shown;       // the prompt with what was dropped in marks (show_kept), if asked for
    bool over() const { return kept > budget; }
    /// "kept 4,012 of 40,120 tokens (...)", and why more than the budget, if so.
    std::string sentence() const;
    /// The same for scripts: original_tokens, kept_tokens, ..., scoring_seconds.
    json::object facts() const;
};

}  // namespace riptide
