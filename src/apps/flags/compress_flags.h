// Flags for shortening long prompts.
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

/// The same with a progress bar.
PromptScorer with_progress(PromptScorer scorer);
/// What the flags ask of an engine that one person asks: it says on stderr what was kept of a prompt.
EngineOptions compressing(const CompressFlags& flags, const ModelFlags& model);

}  // namespace riptide::apps
