// Flags for shortening long prompts, and what comes of them for commands that hold a Session.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/flags/model_flags.h"
#include "engine/compression/compressor.h"

namespace riptide::apps {

struct CompressFlags {
    std::string scorer, mode = "auto", keep = "0.1", above = "32K", positions = "compact";
    std::vector<int32_t> score_layers;  // ScorerOptions; -1: the last layer. Empty: what the scorer was trained for
    float alpha = ops::SparseOptions().alpha;
    int32_t blocks = ops::SparseOptions().most_blocks;
};
/// --compress-positions.
void add_positions_flag(Command& cmd, CompressFlags& flags);
/// --score-layers, --alpha, --blocks.
void add_scoring_flags(Command& cmd, CompressFlags& flags);
void add_compress_flags(Command& cmd, CompressFlags& flags);
/// Throws Error (usage) naming the flag that is wrong.
CompressionOptions compression_options(const CompressFlags& flags);
/// Loads it where the model runs; empty without --scorer. On a GPU before the model, which takes all memory that is
/// left.
PromptScorer open_scorer(const CompressFlags& flags, const ModelFlags& model);

/// Of the GPU's memory, for the scorer.
inline int64_t device_bytes(const PromptScorer& scorer) { return scorer.device_bytes ? scorer.device_bytes() : 0; }

/// Shortens the prompts of one conversation, with a progress bar. Says on stderr what was kept. Not thread-safe.
class PromptShortener {
  public:
    /// `tokenizer` must outlive it. Does nothing without a scorer. Throws Error.
    PromptShortener(const CompressFlags& flags, PromptScorer scorer, const Tokenizer& tokenizer);

    /// The tokens to feed. `parts` of a chat's prompt; empty for plain text. Ctrl-C ends the program when the scorer
    /// next looks.
    std::vector<int32_t> shorten(std::vector<int32_t> tokens, std::span<const ChatPart> parts = {});
    /// Where the tokens of the last prompt stood in it (GenerateRequest::gaps); null: it was left whole, or compacted.
    std::shared_ptr<const PromptGaps> gaps(const ModelInfo& model) const {
        return plan_ ? kept_gaps(*plan_, model.vocab_size, model.max_position_embeddings) : nullptr;
    }
    /// Of the last prompt; null if it was left whole.
    const CompressionPlan* last() const { return plan_.get(); }
    bool on() const { return compressor_.has_value(); }

  private:
    CompressionOptions options_;
    std::optional<Compressor> compressor_;
    std::shared_ptr<CompressionPlan> plan_;
};

}  // namespace riptide::apps
