// A scorer's checkpoint as a PromptScorer: the network, its vocabulary, where it runs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/prompt_scorer.h"
#include "io/checkpoint.h"
#include "tensor/gpu.h"

namespace riptide {

struct ModelScorerOptions {
    ScorerOptions scorer;
    int threads = 0;                // on the CPU; 0: one for each hardware thread
    std::optional<GpuOptions> gpu;  // run on this GPU, in a stream of its own
    /// Prompts that it can be asked for, in its own tokens. On a GPU the memory for one is taken when it is opened.
    int64_t most_tokens = 262'144;
};

/// Loads it. Throws Error: see Scorer, load_tokenizer, Gpu::open. It cannot be broken off inside a prompt: it looks at
/// ScoreCall::cancel before it begins, and does not report progress.
PromptScorer open_scorer(std::unique_ptr<Checkpoint> checkpoint, const ModelScorerOptions& options = {});

}  // namespace riptide
