#include "cache/batch_builder.h"

#include <algorithm>

#include "base/error.h"

namespace riptide {

const Batch& BatchBuilder::build(std::span<const StepRows> steps) {
    for (auto* array : {&tokens_, &positions_, &row_sequence_, &parent_, &row_begin_, &committed_, &page_table_,
                        &state_slot_, &logit_rows_, &gaps_})
        array->clear();
    bool tree = false;
    size_t max_pages = 0;
    for (const StepRows& step : steps) {
        tree = tree || !step.parents.empty();
        max_pages = std::max(max_pages, step.sequence->pages().size());
    }
    for (size_t s = 0; s < steps.size(); ++s) {
        const SequenceState& sequence = *steps[s].sequence;
        RT_ASSERT(!steps[s].tokens.empty() && static_cast<int64_t>(steps[s].tokens.size()) <= sequence.reserved());
        RT_ASSERT(std::find(state_slot_.begin(), state_slot_.end(), sequence.slot()) == state_slot_.end());
        row_begin_.push_back(static_cast<int32_t>(tokens_.size()));
        committed_.push_back(static_cast<int32_t>(sequence.length()));
        state_slot_.push_back(sequence.slot());
        page_table_.insert(page_table_.end(), sequence.pages().begin(), sequence.pages().end());
        page_table_.resize((s + 1) * max_pages, -1);
        add_rows(steps[s], static_cast<int32_t>(s), tree);
        add_logits(steps[s], row_begin_.back());
    }
    row_begin_.push_back(static_cast<int32_t>(tokens_.size()));
    add_gaps(steps);
    batch_ = {tokens_,     positions_, row_sequence_, parent_,
              row_begin_,  committed_, page_table_,   static_cast<int32_t>(max_pages),
              state_slot_, logit_rows_, gaps_};
    batch_.far = positions_.size() == 1 && positions_[0] >= Batch::kFarPosition;
    return batch_;
}

void BatchBuilder::add_rows(const StepRows& step, int32_t sequence, bool tree) {
    const auto first = static_cast<int32_t>(tokens_.size()), committed = static_cast<int32_t>(step.sequence->length());
    const auto rows = static_cast<int32_t>(step.tokens.size());
    RT_ASSERT(step.parents.empty() || step.parents.size() == step.tokens.size());
    for (int32_t i = 0; i < rows; ++i) {
        const int32_t parent = step.parents.empty() ? i - 1 : step.parents[static_cast<size_t>(i)];
        RT_ASSERT(parent >= -1 && parent < i);
        tokens_.push_back(step.tokens[static_cast<size_t>(i)]);
        positions_.push_back(parent < 0 ? committed : positions_[static_cast<size_t>(first + parent)] + 1);
        row_sequence_.push_back(sequence);
        if (tree) parent_.push_back(parent < 0 ? -1 : first + parent);
    }
}

/// Nothing, unless some sequence has gaps.
void BatchBuilder::add_gaps(std::span<const StepRows> steps) {
    const auto gapped = [](const StepRows& step) { return step.sequence->gaps() != nullptr; };
    if (std::ranges::none_of(steps, gapped)) return;
    gaps_.reserve(positions_.size());
    for (size_t r = 0; r < positions_.size(); ++r) {
        const PromptGaps* gaps = steps[static_cast<size_t>(row_sequence_[r])].sequence->gaps().get();
        gaps_.push_back(gaps == nullptr ? 0 : gaps->at(positions_[r]));
    }
}

void BatchBuilder::add_logits(const StepRows& step, int32_t first_row) {
    const auto rows = static_cast<int32_t>(step.tokens.size());
    switch (step.logits) {
        case StepRows::Logits::none:
            break;
        case StepRows::Logits::last:
            logit_rows_.push_back(first_row + rows - 1);
            break;
        case StepRows::Logits::all:
            for (int32_t i = 0; i < rows; ++i) logit_rows_.push_back(first_row + i);
            break;
        case StepRows::Logits::list:
            for (const int32_t i : step.logit_list) {
                RT_ASSERT(i >= 0 && i < rows && (logit_rows_.empty() || logit_rows_.back() < first_row + i));
                logit_rows_.push_back(first_row + i);
            }
    }
}

}  // namespace riptide
