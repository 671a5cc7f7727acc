// The part of `riptide bench` behind --scorer.
#pragma once

#include <vector>

#include "apps/bench/bench_rows.h"
#include "apps/flags/model_flags.h"
#include "models/scorer.h"

namespace riptide::apps {

class Flag;

struct ScorerFlags {
    bool scorer = false;
    std::vector<int32_t> layers;
    float alpha = ops::SparseOptions().alpha;
    int32_t blocks = ops::SparseOptions().most_blocks;
    int64_t question = 64, turn = 2048;
    std::string target;  // bench_compressed: the model that answers
    double keep = 0.1;
    bool no_dense = false;
    Flag* option = nullptr;  // --scorer
};
void add_scorer_flags(Command& cmd, ScorerFlags& flags);

/// Scores made-up prompts of some lengths, at once and as a turn behind a prefix, and prints what that takes.
int bench_scorer(const ModelFlags& model, const ScorerFlags& flags, const BenchOptions& options,
                 const std::vector<int64_t>& prompts, bool as_json);

}  // namespace riptide::apps
