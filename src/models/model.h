// What a model is to the rest of the engine.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/state_spec.h"
#include "io/checkpoint.h"
#include "models/task.h"
#include "ops/batch.h"
#include "ops/gated_delta.h"
#include "ops/kv/kv_view.h"
#include "tensor/context.h"

namespace riptide {

/// Facts about a loaded model that other layers may show or check.
struct ModelInfo {
    std::string architecture;  // "laguna", "qwen3"
    Task task = Task::generate;
    std::string name;    // general.name or the folder
    std::string config;  // all that was read of the checkpoint's config: another config, another text
    int64_t num_hidden_layers = 0;
    int64_t hidden_size = 0;
    int64_t vocab_size = 0;
    int64_t max_position_embeddings = 0;
    int64_t parameters = 0;         // stored
    int64_t active_parameters = 0;  // used for one token; the embedding table counts as one row
    int64_t weight_bytes = 0;
    int64_t bytes_per_token = 0;           // weight bytes that one decoded token reads (batch 1)
    int64_t device_bytes = 0;              // of a GPU's memory that the weights take; 0 on the CPU
    int32_t attention_window = 0;          // of full-attention layers, in tokens; 0: they see all (ModelOptions)
    std::string kv_scales;                 // what became of the checkpoint's K/V scales, in a sentence; may be empty
    std::vector<std::string> conversions;  // what a GPU cannot hold as the file does: WeightStore::conversions()
};

/// Bytes of temporaries: fixed + rows * per_row + context * per_token.
struct Workspace {
    int64_t fixed = 0;
    int64_t per_row = 0;
    int64_t per_token = 0;
};

/// What every model adds to Workspace::fixed: weights of a layer as bf16 while a prefill step uses them, logits,
/// partial results of long attention.
inline constexpr int64_t kWorkspaceFixed = int64_t{768} << 20;

/// The storage that a step works on, one view for each layer (kind none: an empty view).
struct States {
    std::span<const KvView> kv;
    std::span<const DeltaView> delta = {};              // none at all if the model has no such layers
    ops::DeltaMode delta_mode = ops::DeltaMode::stash;  // what becomes of them
    std::span<const int32_t> held = {};                 // follow: ops::gated_delta
};

/// Hidden states of a step for a drafter: for row r and each i, out[r, i D .. i D + D) is the residual stream behind
/// layer layers[i] (0-based; -1: the embedding), before any norm. out: f32 [n, layers.size() * D], contiguous, memory
/// of the device that runs the step, the caller's.
struct FeatureCapture {
    std::span<const int32_t> layers;
    Tensor out;

    /// Takes x, the stream behind layer l, if that layer is wanted. Whoever runs a model layer by layer calls it behind
    /// embed() (l = -1) and behind each layer().
    void take(Context& ctx, int64_t l, const Tensor& x);
};

/// Weights that a drafter may use as its own; empty if a model has none to share.
struct SharedWeights {
    Weight embed_tokens;  // [vocab_size, hidden_size]
    Weight lm_head;
};

/// A network with its weights. Immutable after loading. A step is embed(), then layer() for 0 .. L-1 in order, then
/// logits(); whoever calls them in parts keeps the arena's memory of x until the end. Each row's values are independent
/// of the other rows of the step, bit for bit. One thread at a time for one Context.
class Model {
  public:
    virtual ~Model() = default;
    virtual const ModelInfo& info() const = 0;
    /// One entry for each layer.
    virtual std::span<const StateSpec> state_specs() const = 0;
    /// What the temporaries of a step may take of a GPU's memory, at most.
    virtual Workspace workspace() const = 0;
    /// x: the residual stream of the step's rows, f32 [n, hidden_size], in the arena.
    virtual Tensor embed(Context& ctx, const Batch& batch) const = 0;
    /// x <- what layer l makes of it, in place. Appends K/V of every row, updates or stashes recurrent state.
    virtual void layer(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const = 0;
    /// f32 logits of the wanted rows, [batch.logit_rows.size(), vocab_size], in the arena; of a model that embeds,
    /// which has no head, the rows that a head would read: [batch.logit_rows.size(), hidden_size].
    virtual Tensor logits(Context& ctx, const Tensor& x, const Batch& batch) const = 0;

    /// As they lie on the model's device.
    virtual SharedWeights shared_weights() const { return {}; }

    /// A whole step; returns its logits.
    Tensor forward(Context& ctx, const Batch& batch, const States& states, FeatureCapture* capture = nullptr) const;
};

/// What the prefill family multiplies on a GPU.
enum class PrefillKind : uint8_t {
    bf16,
    fp8,  // e4m3 copies of the layers' weights, a byte each, by activations rounded to e4m3: Hopper
};

struct ModelOptions {
    std::optional<Task> task = {};  // nothing: what the files say (task_of)
    /// Prompts go through recurrent state in chunks of rows where the GPU can (ops/gated_delta.h): faster, and a row's
    /// bits then depend on where its step begins.
    bool delta_by_chunks = false;
    PrefillKind prefill = PrefillKind::bf16;
    /// K, or V, is stored as FP8: only then a checkpoint's scales for it count (models/kv_scales.h).
    bool fp8_k = false, fp8_v = false;
    /// YaRN magnitude of full-attention layers: < 0 takes it from the checkpoint's rule (docs/formats.md, YaRN), else this
    /// value.
    double yarn_attention_factor = -1.0;
    /// Rows of full-attention layers see only the last so many tokens, themselves among them: keys at positions >
    /// own position - attention_window. Lossy: the model was not trained so. 0: all. No fewer than the model's
    /// positions: likewise all. Layers with a window of their own keep that; recurrent layers have none.
    int32_t attention_window = 0;
    /// That window, for a model with so many positions.
    int32_t window_within(int64_t positions) const { return attention_window < positions ? attention_window : 0; }
    /// Where the weights go; null: they stay in the checkpoint's mapping.
    Gpu* gpu = nullptr;
    /// Bytes of the checkpoint that have been placed so far.
    std::function<void(int64_t)> on_progress = {};
};

/// Builds the model that the checkpoint describes. The checkpoint must outlive it (weights are mapped, not copied).
/// Throws Error for an unknown architecture (listing the known ones) and for missing, unused or wrongly shaped tensors.
std::unique_ptr<Model> load_model(const Checkpoint& checkpoint, const ModelOptions& options = {});

}  // namespace riptide
