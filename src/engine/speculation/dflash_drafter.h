// A DFlash model as a drafter.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cache/batch_builder.h"
#include "cache/kv_cache.h"
#include "engine/execution/device_batch.h"
#include "engine/execution/graph_cache.h"
#include "engine/execution/memory_plan.h"
#include "engine/speculation/drafter.h"
#include "engine/speculation/speculation_options.h"
#include "models/dflash.h"
#include "ops/topk.h"

namespace riptide {

/// Where a drafter works, and for whom.
struct DraftTarget {
    const Model* model = nullptr;
    Gpu* gpu = nullptr;  // the model's
    ThreadPool* threads = nullptr;
    int64_t context = 0;     // tokens of a sequence at most
    int32_t chunk_rows = 1;  // tokens that feed() is given at once, at most
    int32_t sequences = 1;
    int32_t kept = 0;       // texts of sequences that have ended, for those that begin alike
    int64_t kv_tokens = 0;  // of all of them together; 0: the context for each sequence
};

/// For a session or an engine that drafts for so many sequences, ended ones included.
DrafterMemory drafter_memory(const SpeculationOptions& options, const ModelInfo& target, int32_t sequences);

/// Keeps the drafter's K/V of every token that it was fed, in a cache of its own, and drafts a block behind it. Where
/// something was not fed (steps that captured nothing), it knows the tokens before only and drafts nothing until it is
/// fed from there on. A sequence that begins as one that it knows, running or ended, takes over that one's K/V; so
/// where the model took the beginning from a prefix cache, the drafter mostly has it too. Probabilities are among the
/// kChoices best of a slot. On a GPU the block's pass is a recorded graph for one sequence. On the CPU rows that are fed
/// one at a time are held, and K/V made of many at once, which costs much less.
class DflashDrafter : public Drafter {
  public:
    /// Throws what load_drafter does, and Error if the device lacks memory.
    DflashDrafter(std::unique_ptr<Checkpoint> checkpoint, const DraftTarget& target);

    std::span<const int32_t> capture_layers() const override { return model_->taps(); }
    int32_t slots() const override { return static_cast<int32_t>(model_->config().drafts()); }
    void begin(uint64_t sequence, std::span<const int32_t> tokens) override;
    void extend(uint64_t sequence, std::span<const int32_t> tokens) override;
    int64_t fed(uint64_t sequence) const override;
    void feed(uint64_t sequence, int64_t position, const Tensor& features, std::span<const int32_t> rows) override;
    void propose(std::span<const DraftRequest> requests, std::span<Draft> out) override;
    void end(uint64_t sequence) override;
    DflashDrafter* dflash() override { return this; }

    const Dflash& model() const { return *model_; }
    const KvCache& cache() const { return *cache_; }
    /// What holds the K/V of a sequence; null if it is not known.
    SequenceState* state(uint64_t sequence);
    /// Makes room for rows behind it, by forgetting ended texts if need be. REQUIRES that it is known.
    bool reserve(uint64_t sequence, int64_t rows) { return reserve(texts_.at(sequence).state, rows); }

    static constexpr int64_t kChoices = 16;
    static constexpr int32_t kAheadRows = 256;  // that a sequence may have reserved, beside a block

  private:
    struct Text {
        std::vector<int32_t> tokens;
        SequenceState state;      // as long as what was fed, but for
        std::vector<float> held;  // features of the rows behind it, one after the other
        int64_t held_rows = 0;
        int64_t fed() const { return state.length() + held_rows; }
    };

    Text start(std::span<const int32_t> tokens);
    bool reserve(SequenceState& state, int64_t rows);
    const Batch& build(const StepRows& rows);
    void show_held(Text& text);
    void append(Text& text, const Tensor& features, int64_t from);
    Tensor rows_of(const Tensor& features, std::span<const int32_t> rows);
    bool draft(Text& text, const DraftRequest& request, Draft& out);

    std::unique_ptr<Checkpoint> checkpoint_;
    std::unique_ptr<Dflash> model_;
    std::unique_ptr<KvCache> cache_;
    Arena arena_;
    Context context_;
    BatchBuilder builder_;
    std::optional<DeviceBatch> device_batch_;  // on a GPU
    RecordedStep block_;
    ops::TopK best_;  // of the block's slots
    std::vector<int32_t> block_tokens_, block_rows_;
    std::vector<int32_t> best_tokens_;
    std::vector<float> best_logits_;
    std::unordered_map<uint64_t, Text> texts_;
    std::deque<Text> kept_;  // of sequences that have ended, the latest last
    size_t most_kept_ = 0;
};

}  // namespace riptide
