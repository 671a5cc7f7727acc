// From sequences and their next tokens to the arrays of one step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/sequence_state.h"
#include "ops/batch.h"

namespace riptide {

/// The rows that one sequence feeds in a step.
struct StepRows {
    enum class Logits { none, last, all, list };

    const SequenceState* sequence = nullptr;
    std::span<const int32_t> tokens;
    /// Empty for a chain. Else, for each row, the row of this entry that is its parent (smaller than its own number),
    /// or -1 for a child of the last committed token.
    std::span<const int32_t> parents;
    Logits logits = Logits::last;
    std::span<const int32_t> logit_list;  // logits == list: rows of this entry, ascending
};

/// Owns the arrays that a Batch points to; they are reused from step to step.
class BatchBuilder {
  public:
    /// Valid until the next build and while the builder lives; the token spans of `steps` need not live on.
    /// REQUIRES tokens non-empty and reserved in each sequence, a sequence at most once, parents in order.
    const Batch& build(std::span<const StepRows> steps);

    /// The rows of entry i are row_begin()[i] .. row_begin()[i + 1] - 1.
    std::span<const int32_t> row_begin() const { return row_begin_; }
    const Batch& batch() const { return batch_; }

  private:
    void add_rows(const StepRows& step, int32_t sequence, bool tree);
    void add_gaps(std::span<const StepRows> steps);
    void add_logits(const StepRows& step, int32_t first_row);

    std::vector<int32_t> tokens_, positions_, row_sequence_, parent_, row_begin_;
    std::vector<int32_t> committed_, page_table_, state_slot_, logit_rows_, gaps_;
    Batch batch_;
};

}  // namespace riptide
