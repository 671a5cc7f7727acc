// What `riptide bench` measures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench/op_profile.h"
#include "engine/session/session.h"
#include "tensor/gpu_energy.h"

namespace riptide::apps {

/// Token ids that differ from place to place and list to list, the same in each run; small ids (special tokens) are
/// left out where there are others. A longer list begins like a shorter one.
std::vector<int32_t> made_up_tokens(int64_t count, int64_t vocab_size, int64_t list = 0);

struct BenchOptions {
    int64_t gen = 64;  // tokens to decode, for each sequence
    int repeat = 3;
    bool profile = false;               // an extra pass for BenchRow::ops
    const GpuEnergy* energy = nullptr;  // for BenchRow::joules, if wanted
};

/// One line of the bench. All tokens fed are made up, and each decoded row's most likely token is found all the same.
struct BenchRow {
    enum class Kind { prefill, decode, verify };
    Kind kind = Kind::prefill;
    int64_t depth = 0;          // tokens of context before: of the first decoded token
    int64_t sequences = 1;      // that decode together
    int64_t rows = 1;           // verify: of the one sequence in a step
    int64_t tokens = 0;         // in a repeat
    std::vector<double> rates;  // tok/s of each repeat, sorted
    double bytes = 0;  // of weights and K/V, see OpCost: of the prompt, or of one step in the middle of a repeat
    double flops = 0;  // the same
    std::vector<OpProfile::Line> ops;  // if asked for: of the prompt, or of the mean step
    double ops_seconds = 0;
    double experts = 0;          // verify: different ones that a sparse layer uses in a step, mean; 0: none has any
    std::vector<double> joules;  // of a token in each repeat, sorted; empty: not asked for

    std::string name() const;
    double median() const;
    double joules_each() const;  // at the median; 0: not asked for
    double spread() const;       // (largest - smallest) / median
    double seconds() const;      // of the prompt, or of a step, at the median
};

/// Prefills `prompt` tokens from an empty sequence to the logits behind the last.
BenchRow bench_prefill(Session& session, const BenchOptions& options, int64_t prompt);
/// Decodes behind `depth` tokens, or as many as leave room in the context; each repeat begins there.
BenchRow bench_decode(Session& session, const BenchOptions& options, int64_t depth);
/// Decodes several sequences together behind `depth` tokens each, in K/V of their own: one step of the runner with a
/// row each, the most likely tokens brought to the host, the next made-up tokens. REQUIRES gen <= 512.
BenchRow bench_batch(Session& session, const BenchOptions& options, int64_t depth, int64_t sequences);
/// Steps of the decode family that feed `rows` tokens to one sequence behind `depth` of its own, as checking a chain of
/// drafts does, and find the most likely token behind each; nothing of it is kept. The host launches steps without
/// waiting for the one before. REQUIRES gen <= 512, rows <= 256.
BenchRow bench_verify(Session& session, const BenchOptions& options, int64_t depth, int64_t rows);

}  // namespace riptide::apps
