// One step as the ops see it: a ragged list of rows from any number of sequences.
#pragma once

#include <cstdint>
#include <span>

namespace riptide {

/// A row is one token fed in this step. Rows of one sequence are adjacent and in storage order. Decode is one row for each
/// sequence, chunked prefill many, tree verification many rows with parents. Models and ops never ask which it is.
///
/// Storage index: the committed tokens of a sequence have indices 0 .. committed-1 (index = position). Row r of sequence s
/// stores its K/V at index committed[s] + (r - row_begin[s]). In a chain that is also its position; in a tree a row's
/// position is that of its depth, and indices only number the rows.
///
/// A row sees: all committed indices, its ancestors among the rows of this step, and itself; on a window layer only those
/// whose position is greater than its own position - window. The visible keys, ordered by position, have ranks
/// 0 .. position: reductions over keys are cut by rank, so a row verified in a tree computes what plain decoding computes.
///
/// A position is a rank, and what is stored goes by it; only the rotation of queries and keys (rotary_position) may go by the
/// place that a token had in a longer prompt.
///
/// All spans point to memory of the device that runs the step. n = rows, s = sequences.
struct Batch {
    std::span<const int32_t> tokens;        // [n]
    std::span<const int32_t> positions;     // [n]
    std::span<const int32_t> row_sequence;  // [n] index into the per-sequence spans
    std::span<const int32_t> parent;        // [n] row (of this step) of the parent, -1 for a child of the last committed token;
                                            //     empty when every sequence is a chain
    std::span<const int32_t> row_begin;     // [s + 1]
    std::span<const int32_t> committed;     // [s]
    std::span<const int32_t> page_table;    // [s, max_pages] page ids; unused entries -1
    int32_t max_pages = 0;
    std::span<const int32_t> state_slot;    // [s] slot of the sequence's bounded state
    std::span<const int32_t> logit_rows;    // [m] rows whose logits are wanted, ascending
    std::span<const int32_t> gaps;          // [n] what rotation adds to a row's position: tokens of the prompt that were
                                            //     left out before it. Empty when nothing was
    bool far = false;                       // one row, at kFarPosition or behind it when the step was made: kernels
                                            //     may choose by it; no bits depend on it, so it may be out of date

    static constexpr int32_t kFarPosition = 7168;
    int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
    int64_t sequences() const { return static_cast<int64_t>(committed.size()); }
    /// What the queries and keys of row r are rotated by.
    constexpr int32_t rotary_position(int64_t r) const {
        const auto i = static_cast<size_t>(r);
        return positions[i] + (gaps.empty() ? 0 : gaps[i]);
    }
    /// Storage index of row r.
    int64_t storage_index(int64_t r) const {
        const auto s = static_cast<size_t>(row_sequence[static_cast<size_t>(r)]);
        return committed[s] + r - row_begin[s];
    }
};

}  // namespace riptide
