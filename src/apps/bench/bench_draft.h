// The part of `riptide bench` behind --drafter.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/bench/bench_rows.h"
#include "base/json.h"
#include "io/checkpoint.h"

namespace riptide::apps {

/// Rounds of drafting that the device runs by itself (engine/speculation/device_rounds.h), with all that the drafter
/// does in one and without any of it: the rows that are checked are the same made-up words, so the difference is the
/// drafter's pass: its block, the choice of rows, features of the model's layers, K/V of the rows that were checked.
struct DraftRow {
    int64_t depth = 0;                  // tokens of context
    int64_t rows = 0;                   // checked in a round
    std::vector<double> with, without;  // seconds a round, of each repeat, sorted
    std::vector<OpProfile::Line> ops;   // if asked for: of a round with the drafter, less those of one without
    double ops_seconds = 0;             // of all of them

    double drafting() const;  // seconds, of medians
};

struct DraftBench {
    std::string name;
    int64_t block = 0, bytes = 0;  // rows of a block; weights that a block reads
    std::vector<DraftRow> rows;
};

/// "random" (that of the session's model), "random:SHAPE:TYPE" (see random_drafter), or as `--drafter` elsewhere.
std::unique_ptr<Checkpoint> open_drafter(const std::string& name, const std::string& random_target, int threads);

/// One DraftRow for each depth and number of rows from 2 on (more than the drafter's block has: as many as that has).
/// Behind each depth as many rounds as the drafter can have under way (DflashDrafter::kAheadRows), again and again,
/// until there were options.gen. Throws Error if the drafter does not fit.
DraftBench bench_draft(Session& session, const BenchOptions& options, std::unique_ptr<Checkpoint> drafter,
                       const std::vector<int64_t>& depths, const std::vector<int64_t>& rows);
void print_draft(const DraftBench& bench);
json::object draft_json(const DraftBench& bench);

}  // namespace riptide::apps
