// Runs steps of a model for any number of sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/batch_builder.h"
#include "cache/kv_cache.h"
#include "cache/sequence_state.h"
#include "engine/execution/device_batch.h"
#include "engine/execution/graph_cache.h"
#include "models/model.h"

namespace riptide {

/// The rows of one sequence in a step; see StepRows.
struct StepItem {
    SequenceState* sequence = nullptr;
    std::span<const int32_t> tokens;
    std::span<const int32_t> parents = {};  // empty: a chain
    StepRows::Logits logits = StepRows::Logits::last;
    std::span<const int32_t> logit_list = {};
};

/// What a step of a family does with recurrent state.
inline ops::DeltaMode delta_mode(Family family) {
    return family == Family::prefill ? ops::DeltaMode::update : ops::DeltaMode::stash;
}
/// Tells each item's sequence which rows of the batch are its own (SequenceState::begin_rows).
void begin_rows(std::span<const StepItem> items, std::span<const int32_t> row_begin, Family family);

/// Owns what a step needs besides weights and caches: the arena and the batch arrays. Not thread-safe.
///
/// On a GPU a step of the decode family that feeds one token to each of up to kGraphRows sequences, as chains, and
/// wants all logits is launched as a graph from the second of its number of rows on (RecordedStep). There is one graph
/// for each number: a row more or less is another graph, not a row that nobody wants. So is a step that feeds up to
/// kVerifyRows to one sequence, which verifies drafts: a graph for chains and one for trees, whose parents are data.
class Runner {
  public:
    /// All must outlive the runner; `threads` may be null. The cache must have been made from model.state_specs(). Runs
    /// on the cache's GPU, if it has one. `sequence_tokens`: the most of one sequence, on which the size of the GPU's
    /// attention grids depends; 0: all that the cache holds. `workspace`: bytes of temporaries that a GPU's first step
    /// takes in one piece, so that large ones lie where small ones were; more are taken as they are needed.
    Runner(const Model& model, KvCache& cache, ThreadPool* threads, int64_t sequence_tokens = 0, int64_t workspace = 0);

    /// Reserves room for all rows, then runs them in one forward pass. Returns the logits of the wanted rows, item by
    /// item, valid until the next step, in the memory of the device. The caller commits each sequence (or drops its
    /// rows with commit_prefix(0)). Throws Error (unavailable) if the cache has too few pages, or what forward throws;
    /// then no sequence has rows reserved. REQUIRES for each item 1 to max_step_rows tokens, no sequence twice.
    Tensor step(std::span<const StepItem> items, Family family = Family::decode);

    /// From now on steps keep what these layers of the model put out (FeatureCapture); empty: none.
    void capture(std::span<const int32_t> layers);
    /// Of the last step: f32 [rows, layers * hidden_size], on the device, valid until the next step.
    const Tensor& captured() const { return captured_; }
    /// Where steps run; set its tap to watch.
    Context& context() { return context_; }
    /// On a GPU: the arrays that steps read.
    DeviceBatch& device_batch() { return *device_batch_; }
    /// Another of the same size.
    DeviceBatch new_device_batch(int64_t sequence_tokens) const;
    const Model& model() const { return model_; }
    /// Numbers of rows for which there is a graph by now.
    int64_t graphs() const;

    static constexpr int64_t kGraphRows = 64, kVerifyRows = 64;

  private:
    void reserve(std::span<const StepItem> items);
    void forget_recorded();
    Tensor forward(const Batch& batch);
    RecordedStep* recorded(const Batch& batch);

    const Model& model_;
    KvCache& cache_;
    Arena arena_;
    Context context_;
    BatchBuilder builder_;
    std::optional<DeviceBatch> device_batch_;  // on a GPU
    /// [rows - 1], on a GPU; chains and trees of one sequence.
    struct RecordedSteps {
        std::vector<RecordedStep> decode, chain, tree;
    };
    RecordedSteps steps_[4];  // of batches without and with gaps, then of those that are far
    std::vector<int32_t> capture_layers_;
    Tensor captured_;
    std::unordered_map<const RecordedStep*, Tensor> captured_by_;  // where a recorded step puts it
};

}  // namespace riptide
