// Decoding on a GPU ahead of the host.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/batch_builder.h"
#include "engine/execution/device_batch.h"
#include "engine/execution/graph_cache.h"
#include "engine/sampling/device_masks.h"
#include "models/model.h"
#include "ops/advance.h"
#include "ops/sample.h"

namespace riptide {

/// A sequence to decode, and the token that it is fed first.
struct DecodeRow {
    SequenceState* sequence = nullptr;
    int32_t token = -1;
    int32_t slot = -1;  // where start_answer() put its parameters; -1: the row's own number
};

/// Runs steps of one row for each of some sequences. The device draws the tokens and feeds them to the next step by
/// itself; the host learns of them from a ring in pinned memory. One graph for each number of rows and way of drawing
/// (RecordedStep). Not thread-safe. All arguments must outlive the decoder.
class GpuDecoder {
  public:
    /// For at most `sequences` rows a step, and as many slots.
    GpuDecoder(const Model& model, KvCache& cache, Context& context, DeviceBatch& device_batch, int64_t sequences);

    enum class Draw {
        largest,  // the largest logit
        sampled,  // by the parameters and the history that start_answer() gave each row's slot: ops/sample.h
    };
    /// What becomes of recurrent state while steps run.
    enum class Recurrent {
        waits,    // nothing, or there is none
        follows,  // SequenceState::begin_follow, to be ended by commit_followed(.., run())
    };
    /// Begins an answer in a slot. What is drawn for the slot joins its history. REQUIRES nothing pending. Throws what
    /// SampleSlots::start does.
    void start_answer(int64_t slot, const ops::SampleStart& start) { slots_.start(slot, start); }

    /// Decoding is begin(), then launch() and next() in turns, then end(). Each sequence must have a row reserved for
    /// every launched step; the caller commits what it keeps. With recurrent state (KvCache::delta) a step must be
    /// committed before the next: one launch for each begin(); or up to follow_rows() rows follow (`state`), and steps
    /// run ahead, no more than one beyond the one whose token is asked for. For measurements `forced` are fed in turn,
    /// to all rows, instead of what was drawn (at most kForced).
    void begin(std::span<const DecodeRow> rows, Draw draw, std::span<const int32_t> forced = {},
               Recurrent state = Recurrent::waits);
    /// The most rows of steps that may follow; 0: none may.
    int64_t follow_rows() const;
    /// Steps since begin(), those that have no draw yet among them.
    int64_t run() const { return run_; }
    /// Starts one more step.
    void launch();
    /// A step in two, for answers of a given form: what may be drawn next depends on what was drawn last, which the
    /// host learns while the model's layers run, and so is known before they are done. forward() starts a step without
    /// its draw, behind the last one's, whose tokens may still be unknown here; draw() starts its draw, with what may
    /// come in each row, when they are known. REQUIRES Draw::sampled; of draw(): nothing pending, and nothing else run
    /// since forward(). A forward() without draw() is lost.
    void forward();
    void draw(std::span<const AllowedSet> allowed);
    /// Waits for the tokens of the oldest step not yet asked for, one for each row; valid until the next call. -1: the
    /// row has no token, because a logit is NaN or +infinity or no token is possible; what is decoded for it from then
    /// on means nothing. Throws Error if the device fails.
    std::span<const int32_t> next();
    /// From now on draw() is for this slot; 0 at first. REQUIRES nothing of it under way.
    void draw_for(int64_t slot);
    /// The token of each row, all for one slot, none of which joins its history; i32 [n] on the device, -1 as in next().
    /// At most 256 rows; can be recorded.
    Tensor draw(const Tensor& logits, std::span<const int32_t> positions, Draw draw);
    /// The token of each row of the step that has just been uploaded and run: slots[r] has the parameters of row r, and
    /// none joins its history; valid until the next call of this. Waits for the device. -1 as in next(). At most 256
    /// rows. A step begun before may be pending. `allowed`: what may be drawn for each row; empty: anything, else
    /// REQUIRES Draw::sampled.
    std::span<const int32_t> draw_rows(const Tensor& logits, std::span<const int32_t> slots, Draw how,
                                       std::span<const AllowedSet> allowed = {});
    /// Steps started and not yet asked for.
    int64_t pending() const { return launched_ - taken_; }
    /// Waits for all that was launched and forgets it.
    void end();

    static constexpr int64_t kForced = 1024;
    static constexpr int64_t kRingSteps = 256;  // the most steps that may be pending
    static constexpr int64_t kMostDraws = 256;  // rows

  private:
    ops::SampleMasks masks_of(std::span<const AllowedSet> allowed);
    Tensor draw(const Tensor& logits, std::span<const int32_t> positions, std::span<const int32_t> slots, Draw draw,
                const ops::SampleMasks& masks = {});

    const Model& model_;
    KvCache& cache_;
    Context& context_;
    DeviceBatch& device_batch_;
    int64_t sequences_;
    BatchBuilder builder_;
    /// [rows - 1]; of rows without and with gaps (Batch::gaps), then of those that are Batch::far
    using RecordedSteps = std::array<std::vector<RecordedStep>, 4>;
    enum Way : size_t { kLargest, kSampled, kForward, kWays };  // what a recorded step ends with
    RecordedStep& recorded(Way way);
    States states() const;
    std::array<RecordedSteps, kWays> waiting_, following_;
    Recurrent state_ = Recurrent::waits;
    Draw draw_ = Draw::largest;
    size_t kind_ = 0;   // of recorded steps; of the running begin()
    int64_t rows_ = 0;  // of the running begin()
    ops::SampleSlots slots_;
    DeviceMasks masks_;
    Tensor logits_;  // of forward(), until draw()
    PinnedMemory ring_memory_;
    DeviceMemory step_memory_;  // step, forced_size, slot of each row, held_, forced tokens
    ops::TokenRing ring_;
    std::vector<StepRows> step_;
    std::vector<int32_t> begin_words_;    // forced_size, slots and held_, on their way to the device
    std::span<const int32_t> row_slots_;  // in step_memory_, [sequences]
    std::span<const int32_t> held_;       // likewise, States::held
    DeviceMemory one_slot_;               // that of draw_for() for each of kMostDraws rows
    DeviceMemory drawn_slots_;            // of draw_rows
    std::vector<int32_t> tokens_, drawn_;
    int64_t launched_ = 0, taken_ = 0, run_ = 0;
};

}  // namespace riptide
