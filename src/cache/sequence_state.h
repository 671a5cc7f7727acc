// One sequence's share of the caches: its pages, its slot of bounded state, its length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/prompt_gaps.h"
#include "cache/saved_state.h"

namespace riptide {

/// The life of a step: try_reserve(rows) -> build the Batch -> forward() writes rows at indices length() .. length() +
/// rows - 1
/// -> commit. A step that fails is dropped with commit_prefix(0). Holds references to pages and one slot; the
/// destructor gives them back. Move-only; not thread-safe.
///
/// **Recurrent state** (layers of kind delta) describes exactly length() tokens, so it cannot be truncated, only
/// restored. begin_rows() says what a step does with it: stash leaves it as it is, and commit replays the rows that are
/// kept; update overwrites it (chains of which all rows are kept or none), after a copy to a spare slot, from which
/// commit_prefix(0) brings it back. Rows of a prompt are too many to be stashed.
///
/// Pages may be shared (fork, a prefix cache): full pages are never written again; the last, partly filled page is
/// copied by the first try_reserve that finds it shared.
class SequenceState {
  public:
    /// An empty sequence. Throws Error (unavailable) when no slot is free: a scheduler asks cache.free_slots()
    /// first.
    explicit SequenceState(KvCache& cache);
    ~SequenceState();
    SequenceState(SequenceState&& other) noexcept;
    SequenceState& operator=(SequenceState&& other) noexcept;

    /// Committed tokens.
    int64_t length() const { return length_; }
    /// Rows that the running step may use, 0 between steps.
    int64_t reserved() const { return reserved_; }
    std::span<const int32_t> pages() const { return pages_; }
    /// Where its tokens stood in a longer prompt; null: nothing was left out. Forks have the same. REQUIRES that what
    /// is computed already was computed with these sums.
    const std::shared_ptr<const PromptGaps>& gaps() const { return gaps_; }
    void set_gaps(std::shared_ptr<const PromptGaps> gaps) { gaps_ = std::move(gaps); }
    int32_t slot() const { return slot_; }
    const KvCache& cache() const { return *cache_; }

    /// Free pages that try_reserve(rows) would take.
    int32_t pages_needed(int64_t rows) const;
    /// Makes room for `rows` more tokens. False, with nothing changed, when the pool has too few free pages.
    /// REQUIRES 1 <= rows <= max_step_rows. Calling it again in a step enlarges the reservation.
    bool try_reserve(int64_t rows);

    /// The rows of the step that runs next are numbers first_row .. first_row + rows - 1 of its batch. To be called
    /// before the step when the cache has recurrent state, else it does nothing. Calling it again begins the step anew.
    /// Throws Error (unavailable) when there is no spare slot. REQUIRES the rows reserved.
    void begin_rows(int64_t first_row, int64_t rows, ops::DeltaMode mode);

    /// Steps of one row each follow that a device runs by itself, this sequence number `row` of their batch: each is
    /// stashed, and joins the state at the beginning of the next (ops::DeltaMode::follow). To be ended by
    /// commit_followed() or commit_followed_states(). REQUIRES row < follow_rows() of the cache's states.
    void begin_follow(int64_t row = 0);
    /// Keeps the first `rows` of the `run` steps that were run since begin_follow(): rows or rows + 1, since all but
    /// the last are part of the state.
    void commit_followed(int64_t rows, int64_t run);
    struct Followed {
        SequenceState* sequence = nullptr;
        int64_t rows = 0;  // to be kept
    };
    /// The same for several sequences of the same steps, and the recurrent state alone, now: as commit_state(), to be
    /// followed by commit of the same rows of each. Leaves those alone that are not between begin_follow() and its end.
    static void commit_followed_states(std::span<const Followed> all, int64_t run);

    /// Does to the recurrent state what commit(path) will do, now: for who stashes another step before commit, which
    /// must then keep the same rows. Does nothing without recurrent state.
    void commit_state(std::span<const int32_t> path);

    /// Ends the step: keeps the rows path[0] < path[1] < ..., numbered from the first row of this sequence in the step,
    /// as the next path.size() tokens, moving their K/V into place in every layer, and frees the pages left over.
    /// REQUIRES the path to be a chain of ancestors from a root and its rows reserved.
    /// Cost: nothing for a prefix 0, 1, 2, ...; else one slot copy for each moved row and layer.
    void commit(std::span<const int32_t> path);
    /// commit of 0 .. rows - 1.
    void commit_prefix(int64_t rows);
    /// Steps have run without begin_rows(), whose recurrent state, if there is any, the device has committed itself: it
    /// describes length() + rows tokens. To be followed by commit of these rows.
    void state_is_committed(int64_t rows);

    /// Whether the rings still hold what a sequence of `length` tokens reads. Always true without bounded state; with
    /// recurrent state only for this very length, and for none.
    bool can_truncate(int64_t length) const;
    /// Forgets the tokens from `length` on and frees their pages. Throws Error when !can_truncate(length): restore a
    /// saved state then. REQUIRES length <= length() and no step running.
    void truncate(int64_t length);

    /// The bounded state at this length, in the memory of `reused` where that is large enough. On a GPU this only puts
    /// work on the stream. Throws Error (unavailable) when the device has no memory for it. REQUIRES no step running.
    SavedState save(SavedState reused = {}) const;
    /// Goes back to a state saved from this very sequence (the same tokens): truncates the pages, rewrites the slot.
    /// Throws Error, with nothing changed, if it was saved from another cache or is longer than length().
    void restore(const SavedState& saved);
    /// Starts an empty sequence from a saved state and the pages of its tokens, which it shares.
    /// Throws Error, with nothing changed, if it was saved from another cache or the pages do not fit the length.
    void restore(const SavedState& saved, std::span<const int32_t> pages);

    /// Starts an empty sequence at `length` tokens with the pages of its tokens, which it shares, and with a slot that
    /// the caller fills (KvTransfer::load_state) before the next step. REQUIRES as many pages as the length takes.
    void adopt(int64_t length, std::span<const int32_t> pages);

    /// A second sequence with the same tokens: shares the pages, copies the slot. Throws Error (unavailable) without a
    /// free one. REQUIRES no step running.
    SequenceState fork() const { return fork(length_); }
    /// The same with its first `length` tokens. REQUIRES can_truncate(length).
    SequenceState fork(int64_t length) const;

  private:
    bool tail_is_shared() const;
    void resize_pages(int64_t tokens);
    void check_saved_here(const SavedState& saved) const;
    void load(const SavedState& saved);
    void adopt_slot(int64_t length);
    void commit_delta(std::span<const int32_t> path);
    void end_rows();
    void keep(int64_t rows);
    void release_all();

    KvCache* cache_ = nullptr;
    std::vector<int32_t> pages_;
    std::shared_ptr<const PromptGaps> gaps_;
    int32_t slot_ = -1;
    int64_t length_ = 0;
    int64_t reserved_ = 0;
    // Which indices the rings hold: those from ring_base_ - (window - 1) on, as the rings were last copied in at length
    // ring_base_, except what indices up to ring_high_ - 1, the highest ever reserved since, may have overwritten.
    int64_t ring_base_ = 0;
    int64_t ring_high_ = 0;
    /// What the running step does with the recurrent state; rows == 0: no step has begun.
    struct DeltaStep {
        int64_t number = 0;  // DeltaStates::step()
        int64_t first_row = 0, rows = 0;
        int64_t committed = -1;  // by commit_state: rows
        ops::DeltaMode mode = ops::DeltaMode::stash;
        int32_t spare = -1;  // holds the state from before the step
    };
    DeltaStep step_;
};

}  // namespace riptide
