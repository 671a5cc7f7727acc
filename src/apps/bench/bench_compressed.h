// The part of `riptide bench --scorer` behind --target: compressed prompts from end to end.
#pragma once

#include <vector>

#include "apps/bench/bench_scorer.h"

namespace riptide::apps {

/// Opens an engine with the model as scorer and flags.target as the model that answers, asks about made-up texts of
/// some lengths (a document and a question, then a second turn with flags.turn new tokens), and prints what comes
/// until the first token, beside the same with whole prompts, once, where the context holds them.
int bench_compressed(const ModelFlags& model, const ScorerFlags& flags, const BenchOptions& options,
                     const std::vector<int64_t>& prompts, bool as_json);

}  // namespace riptide::apps
