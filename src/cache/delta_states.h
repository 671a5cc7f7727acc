// The recurrent state of all Gated DeltaNet layers: a slot for each sequence, spares, and the stash of the running
// step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "cache/state_spec.h"
#include "ops/gated_delta.h"
#include "tensor/arena.h"
#include "tensor/context.h"
#include "tensor/gpu.h"

namespace riptide {

/// Owns the memory of the layers of kind `delta`. Slots 0 .. slots - 1 go with the sequences' slots of KvCache; behind
/// them lie spares, for the time in which a step overwrites a state that it may yet have to give back. Memory is
/// address space until it is written. Not thread-safe.
class DeltaStates {
  public:
    /// Sequences that a step may overwrite the state of, at most, and rows that a step may stash.
    static constexpr int32_t kSpares = 8, kStashRows = 256;

    /// `step_rows`: the most rows of a step. `threads` (null: none) and `gpu` must outlive this. Throws Error for sizes
    /// that overflow or that the system refuses.
    DeltaStates(std::span<const StateSpec> specs, int32_t slots, int64_t step_rows, Gpu* gpu, ThreadPool* threads);

    /// Whether there is any such layer.
    bool any() const { return any_; }
    /// One view for each layer of the model, those of other kinds empty; none at all if !any().
    std::span<const DeltaView> views() const { return views_; }
    /// Those that are not empty.
    std::span<const DeltaView> layers() const { return layers_; }
    /// The most sequences whose steps of one row each may follow (ops::DeltaMode::follow); 0: none may.
    int64_t follow_rows() const;
    /// Bytes of one slot, of all layers.
    int64_t bytes_per_sequence() const { return slot_bytes_; }
    int64_t total_bytes() const { return total_bytes_; }
    int32_t spares() const { return spares_; }

    /// A spare slot. Throws Error (unavailable) when there is none left.
    int32_t acquire_spare();
    void release_spare(int32_t slot) { free_spares_.push_back(slot); }

    /// Another step will stash: what the one before it stashed is gone. Steps are numbered, so that nobody commits rows
    /// of another.
    void begin_step() { ++step_; }
    int64_t step() const { return step_; }

    /// All layers' state.
    void copy(int32_t from, int32_t to);
    /// Makes rows of the last stashed step, by their numbers in the step, part of the state in a slot, which described
    /// `committed` tokens: ops::gated_delta_commit.
    void commit(int32_t slot, int64_t committed, std::span<const int32_t> rows);
    /// The same for one row of each of several slots, at once.
    struct Row {
        int32_t slot = 0;
        int64_t committed = 0;
        int64_t row = 0;
    };
    void commit_rows(std::span<const Row> rows);

  private:
    void add_layer(const StateSpec& spec, size_t layer, int64_t slots, int64_t stash_rows);
    void commit_paths(size_t sequences);

    bool any_ = false;
    std::vector<DeltaView> views_, layers_;  // layers_: those that are not empty
    std::vector<DeviceMemory> memory_;
    std::vector<int32_t> free_spares_;
    int32_t spares_ = 0;
    int64_t step_ = 0;
    int64_t slot_bytes_ = 0, total_bytes_ = 0;
    Arena arena_;
    Context context_;
    DeviceMemory path_memory_;  // of a commit: slots, committed, counts, rows
    std::vector<int32_t> path_words_;
};

/// A copy of what a slot holds, in a spare one, for as long as it lives; nothing if there is no such layer. Throws as
/// acquire_spare().
class SpareState {
  public:
    SpareState(DeltaStates& delta, int32_t slot) : delta_(delta) {
        if (!delta_.any()) return;
        slot_ = delta_.acquire_spare();
        delta_.copy(slot, slot_);
    }
    ~SpareState() {
        if (slot_ >= 0) delta_.release_spare(slot_);
    }
    SpareState(const SpareState&) = delete;
    SpareState& operator=(const SpareState&) = delete;
    /// Back to a slot.
    void restore(int32_t slot) const {
        if (slot_ >= 0) delta_.copy(slot_, slot);
    }

  private:
    DeltaStates& delta_;
    int32_t slot_ = -1;
};

}  // namespace riptide
