// One sequence's share of the caches: its pages, its ring slot, its length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_cache.h"

namespace riptide {

/// The life of a step: try_reserve(rows) -> build the Batch -> forward() writes rows at indices length() .. length() +
/// rows - 1
/// -> commit. A step that fails is dropped with commit_prefix(0). Holds references to pages and one ring slot; the
/// destructor gives them back. Move-only; not thread-safe.
///
/// Pages may be shared (fork, a prefix cache): full pages are never written again; the last, partly filled page is
/// copied by the first try_reserve that finds it shared.
class SequenceState {
  public:
    /// An empty sequence. Throws Error (unavailable) when no ring slot is free: a scheduler asks cache.free_slots()
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
    int32_t slot() const { return slot_; }
    const KvCache& cache() const { return *cache_; }

    /// Free pages that try_reserve(rows) would take.
    int32_t pages_needed(int64_t rows) const;
    /// Makes room for `rows` more tokens. False, with nothing changed, when the pool has too few free pages.
    /// REQUIRES 1 <= rows <= max_step_rows. Calling it again in a step enlarges the reservation.
    bool try_reserve(int64_t rows);

    /// Ends the step: keeps the rows path[0] < path[1] < ..., numbered from the first row of this sequence in the step,
    /// as the next path.size() tokens, moving their K/V into place in every layer, and frees the pages left over.
    /// REQUIRES the path to be a chain of ancestors from a root and its rows reserved.
    /// Cost: nothing for a prefix 0, 1, 2, ...; else one slot copy for each moved row and layer.
    void commit(std::span<const int32_t> path);
    /// commit of 0 .. rows - 1.
    void commit_prefix(int64_t rows);

    /// Whether the rings still hold what a sequence of `length` tokens reads. Always true without window layers.
    bool can_truncate(int64_t length) const;
    /// Forgets the tokens from `length` on and frees their pages. Throws Error when !can_truncate(length): restore a
    /// saved state then. REQUIRES length <= length() and no step running.
    void truncate(int64_t length);

    /// The bounded state at this length as bytes: a header that names length and geometry, then the last window - 1
    /// tokens of each window layer. REQUIRES no step running.
    std::vector<std::byte> save() const;
    /// Goes back to a state saved from this very sequence (the same tokens): truncates the pages, rewrites the rings.
    /// Throws Error, with nothing changed, if the bytes do not fit this cache or are longer than length().
    void restore(std::span<const std::byte> saved);
    /// Starts an empty sequence from a saved state and the pages of its tokens, which it shares.
    /// Throws Error, with nothing changed, if the bytes do not fit this cache or the pages do not fit the length.
    void restore(std::span<const std::byte> saved, std::span<const int32_t> pages);

    /// Starts an empty sequence at `length` tokens with the pages of its tokens, which it shares, and with rings that
    /// the caller fills (KvTransfer::load_rings) before the next step. REQUIRES as many pages as the length takes.
    void adopt(int64_t length, std::span<const int32_t> pages);

    /// A second sequence with the same tokens: shares the pages, copies the rings. Throws Error (unavailable) without a
    /// free ring slot. REQUIRES no step running.
    SequenceState fork() const { return fork(length_); }
    /// The same with its first `length` tokens. REQUIRES can_truncate(length).
    SequenceState fork(int64_t length) const;

  private:
    bool tail_is_shared() const;
    void move_row(int64_t from, int64_t to);
    void resize_pages(int64_t tokens);
    void adopt_rings(int64_t length);
    void release_all();

    KvCache* cache_ = nullptr;
    std::vector<int32_t> pages_;
    int32_t slot_ = -1;
    int64_t length_ = 0;
    int64_t reserved_ = 0;
    // Which indices the rings hold: those from ring_base_ - (window - 1) on, as the rings were last copied in at length
    // ring_base_, except what indices up to ring_high_ - 1, the highest ever reserved since, may have overwritten.
    int64_t ring_base_ = 0;
    int64_t ring_high_ = 0;
};

}  // namespace riptide
