// A scorer's checkpoint as a PromptScorer: the network, its vocabulary, where it runs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/compression/prompt_scorer.h"
#include "io/checkpoint.h"
#include "tensor/gpu.h"

namespace riptide {

struct ModelScorerOptions {
    ScorerOptions scorer;
    int threads = 0;                         // on the CPU; 0: one for each hardware thread
    std::optional<GpuOptions> gpu;           // run on this GPU, in a stream of its own
    int64_t most_tokens = int64_t{1} << 20;  // of a prompt, in its own vocabulary
    /// On a GPU the memory for a prompt of so many is taken when it is opened, for others when they come.
    int64_t reserved_tokens = 131'072;
};

/// Loads it. On a GPU its chunks are the largest, up to ScorerOptions::chunk_rows and from 2,048 on, with which all
/// temporaries take at most a twelfth of the memory that is there: of 24 GiB the model that answers needs most. No K/V
/// of it are kept between prompts (a turn's prompt is what was kept of the old one, and the new: kept_memory.h).
/// Throws Error: see Scorer, load_tokenizer, Gpu::open. It looks at ScoreCall::cancel before each op, and
/// reports progress in tokens as far as layers go; on a GPU both are ahead of the device.
PromptScorer open_scorer(std::unique_ptr<Checkpoint> checkpoint, const ModelScorerOptions& options = {});

}  // namespace riptide
