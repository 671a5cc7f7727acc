// Decoding on a GPU from recorded graphs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/batch_builder.h"
#include "engine/device_batch.h"
#include "models/model.h"
#include "ops/advance.h"

namespace riptide {

/// Runs steps of one row of one sequence. The first step of a kind runs kernel by kernel and warms the arena up, the
/// second is recorded as a graph, all later ones launch it. Not thread-safe. All arguments must outlive the decoder.
class GpuDecoder {
  public:
    GpuDecoder(const Model& model, KvCache& cache, Context& context, DeviceBatch& device_batch);

    /// One step that feeds `token`; returns the logits [vocab_size] on the host, valid until the next call. The caller
    /// has reserved a row and commits it.
    std::span<const float> logits_after(SequenceState& sequence, int32_t token);

    /// Greedy decoding, several steps ahead of the host: begin, then launch() and next() in turns. The sequence must
    /// have a row reserved for every launched step; the caller commits what it keeps, then calls end(). For
    /// measurements `forced` are fed in turn instead of what the model says (at most kForced).
    void begin(SequenceState& sequence, int32_t token, std::span<const int32_t> forced = {});
    /// Starts one more step.
    void launch();
    /// Waits for the token of the oldest step not yet asked for. Throws Error if the device fails, or, after end(), if
    /// the step found no token.
    int32_t next();
    /// Steps started and not yet asked for.
    int64_t pending() const { return launched_ - taken_; }
    /// Waits for all that was launched and forgets it.
    void end();

    static constexpr int64_t kForced = 1024;
    static constexpr int64_t kRingSteps = 256;  // the most steps that may be pending

  private:
    void upload(SequenceState& sequence, int32_t token);
    void greedy_step();

    const Model& model_;
    KvCache& cache_;
    Context& context_;
    DeviceBatch& device_batch_;
    BatchBuilder builder_;
    Tensor logits_;
    std::vector<float> host_logits_;
    GpuGraph logits_graph_, greedy_graph_;
    int logits_warm_ = 0, greedy_warm_ = 0;
    PinnedMemory ring_memory_;
    DeviceMemory step_memory_;  // step, forced_size, forced tokens
    ops::TokenRing ring_;
    int64_t launched_ = 0, taken_ = 0;
};

}  // namespace riptide
