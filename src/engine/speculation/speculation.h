// Drafting for sequences that are being decoded: what to check, and what is learnt from it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/speculation/dflash_drafter.h"
#include "engine/speculation/draft_tree.h"
#include "engine/speculation/draft_width.h"
#include "engine/speculation/drafter.h"
#include "engine/speculation/speculation_options.h"
#include "ops/draft_round.h"

namespace riptide {

/// "ngram", or a DFlash model's file or folder, for a model that runs as `target` says. Throws Error: what opening it
/// does, and (usage) if it is no drafter.
std::unique_ptr<Drafter> make_drafter(const SpeculationOptions& options, const DraftTarget& target);

struct SpeculationStats {
    int64_t steps = 0;     // of a sequence, each of which gives a token also without drafts
    int64_t drafted = 0;   // drafts checked
    int64_t accepted = 0;  // of them
    double draft_seconds = 0;
    struct Slot {
        int64_t reached = 0, accepted = 0;  // ways that came as far as this slot with drafts there; that went through
    };
    std::vector<Slot> slots;

    /// Tokens a step, the one that needs no draft included; 0 without steps.
    double tokens_per_step() const {
        return steps > 0 ? 1 + static_cast<double>(accepted) / static_cast<double>(steps) : 0;
    }
};

/// A drafter, and the choice of what to check of its drafts. The life of a step: propose -> [the model runs the token
/// and the nodes below it] -> walk (draft_tree.h) -> settle. Not thread-safe.
class Speculator {
  public:
    Speculator(std::shared_ptr<Drafter> drafter, const SpeculationOptions& options);

    const SpeculationOptions& options() const { return options_; }
    Drafter& drafter() { return *drafter_; }
    const std::shared_ptr<Drafter>& shared_drafter() const { return drafter_; }

    /// Drafter::begin.
    void begin(uint64_t sequence, std::span<const int32_t> tokens) { drafter_->begin(sequence, tokens); }
    /// Tokens that are known now and were not before, other than by settle().
    void extend(uint64_t sequence, std::span<const int32_t> tokens) { drafter_->extend(sequence, tokens); }
    void end(uint64_t sequence) { drafter_->end(sequence); }

    struct Wanted {
        uint64_t sequence = 0;
        int64_t most = 0;  // nodes that there is room for
    };
    /// What to check for each; valid until the next call.
    std::span<const DraftTree> propose(std::span<const Wanted> wanted);
    /// Whether the device of a model should run rounds of drafting and checking by itself, where nothing else wants it.
    bool wants_rounds(bool on_gpu) const;
    /// The same for rounds that the device runs by itself, from what came of earlier ones: the drafter's probabilities
    /// are not known here when a round begins. One row: a plain one is better.
    ops::DraftPlan plan_ahead(int64_t most);
    /// Plain rounds to run before the next plan, where that was one row.
    int64_t plain_ahead() const { return ahead_width_.plain_steps(); }
    /// What came of such a round, as for settle(), its rows, and its time if known, else 0.
    void ran_ahead(uint64_t sequence, const DraftTree& tree, std::span<const int32_t> path,
                   std::span<const int32_t> tokens, int64_t rows, double seconds);
    void ran_plain(uint64_t sequence, std::span<const int32_t> tokens, double seconds);
    /// Steps for which propose would draft nothing: they may run in any other way, and are reported with idled().
    int64_t idle_steps() const { return options_.adaptive ? width_.idle_steps() : 0; }
    void idled(int64_t steps, double seconds, int64_t rows = 1);

    /// What came of the step for a sequence: the rows that were kept (walk) and the tokens that are known now and were
    /// not before: those of the accepted rows, then the one that follows, if there is one.
    void settle(uint64_t sequence, const DraftTree& tree, std::span<const int32_t> path,
                std::span<const int32_t> tokens);
    /// The step's rows, drafts included, and its time.
    void stepped(int64_t rows, double seconds) { width_.stepped(rows, seconds); }

    const SpeculationStats& stats() const { return stats_; }
    void clear_stats();
    const DraftWidth& width() const { return width_; }

  private:
    void choose(DraftTree& tree, int64_t sequences);

    std::shared_ptr<Drafter> drafter_;
    SpeculationOptions options_;
    DraftWidth width_, ahead_width_;  // of steps that the host drafts for; of rounds of the device
    SpeculationStats stats_;
    std::vector<DraftRequest> requests_;
    std::vector<Draft> drafts_;
    std::vector<DraftTree> trees_;
    std::vector<double> chances_;
};

}  // namespace riptide
