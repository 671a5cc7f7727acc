// A step of prompts that runs in parts.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/batch_builder.h"
#include "engine/execution/device_batch.h"
#include "engine/execution/prompt_pace.h"
#include "engine/execution/runner.h"

namespace riptide {

/// A step of the prefill family whose layers need not run at once: begin, run some layers, then whatever else (steps of
/// the runner, graphs), run the next ones, then logits. Bits are those of Runner::step(items, Family::prefill). Its
/// residual stream and batch arrays have memory of their own; temporaries and logits are in the runner's arena, which
/// nobody else may be using meanwhile. Not thread-safe.
class PromptStep {
  public:
    /// All must outlive this. `sequence_tokens` as for Runner. `now_us`: the clock that times parts on the CPU.
    PromptStep(Runner& runner, KvCache& cache, int64_t sequence_tokens, std::function<int64_t()> now_us);

    /// Starts a step; one that is under way is dropped. REQUIRES the items' rows reserved, and that they stay so, with
    /// their pages and rings, until the step is complete or dropped; the tokens are copied. Throws what a model does.
    void begin(std::span<const StepItem> items);
    /// Runs the next `layers`, or as many as are left; on a GPU they may still run when this returns. If it throws, the
    /// step is dropped. REQUIRES a step under way with layers left.
    void run(int64_t layers);
    /// The logits of the wanted rows, item by item, in the memory of the device, valid until the runner's arena is used
    /// again. The step is over. REQUIRES complete().
    Tensor finish();
    void drop() { under_way_ = false; }

    /// From now on steps keep what these layers of the model put out (FeatureCapture); empty: none.
    void capture(std::span<const int32_t> layers) { capture_layers_.assign(layers.begin(), layers.end()); }
    /// Of a complete step: f32 [rows, layers * hidden_size], on the device, valid until the next begin().
    const Tensor& captured() const { return capture_.out; }

    /// Whether all layers have run.
    bool complete() const { return layer_ == std::ssize(full_); }
    /// For each layer that is left whether it attends to all keys.
    std::span<const char> layers_left() const { return std::span(full_).subspan(static_cast<size_t>(layer_)); }
    /// Of the model: all, and those that attend to all keys.
    int64_t layers() const { return std::ssize(full_); }
    int64_t full_layers() const { return std::count(full_.begin(), full_.end(), 1); }
    int64_t rows() const { return rows_; }
    int64_t row_keys() const { return row_keys_; }

    /// The oldest part not yet asked for, unless it is among the newest `running`. Waits for its end, so on a GPU
    /// `running` 1 is a part that may still run. At most kTimed parts are remembered.
    std::optional<PromptPart> time(size_t running);

  private:
    static constexpr size_t kTimed = 4;
    struct Timed {
        PromptPart part;
        size_t timer = 0;
    };

    const Model& model_;
    KvCache& cache_;
    Gpu* gpu_;
    Arena& temporaries_;
    Arena stream_;  // x
    Arena features_;
    std::vector<int32_t> capture_layers_;
    FeatureCapture capture_;
    Context context_;
    BatchBuilder builder_;
    std::optional<DeviceBatch> device_batch_;  // on a GPU
    std::function<int64_t()> now_us_;
    std::vector<char> full_;

    bool under_way_ = false;
    const Batch* batch_ = nullptr;
    Tensor x_;
    int64_t layer_ = 0, rows_ = 0, row_keys_ = 0;

    std::array<std::unique_ptr<GpuTimer>, kTimed> timers_;  // on a GPU
    size_t next_timer_ = 0;
    std::deque<Timed> timed_;
};

}  // namespace riptide
