// Where tokens of a prompt were left out, for models that are to see what is left at its original positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace riptide {

/// What rotation adds to positions (Batch::gaps) of a sequence whose prompt was made shorter: constant between two
/// gaps, and behind the last one. Positions of what is left keep their order and differ from the original ones by less
/// than `step`, down.
///
/// Steps are there for the prefix cache: K of a token depends on what was dropped before it, so its key must name both
/// in 32 bits (keys()).
class PromptGaps {
  public:
    PromptGaps() = default;
    /// kept: for each token of the whole prompt. REQUIRES a step of at least 1.
    PromptGaps(const std::vector<bool>& kept, int64_t step);

    /// What rotation adds to position `index`. Time logarithmic in the gaps.
    int32_t at(int64_t index) const;
    bool empty() const { return gaps_.empty(); }
    /// What is added behind the prompt.
    int32_t last() const { return gaps_.empty() ? 0 : gaps_.back().sum; }

    /// For each token of a sequence a key that also says where it stands: token + vocab * sum / step. In front of all
    /// gaps it is the token. Injective for tokens below `vocab`. REQUIRES step_for(vocab, positions).
    std::vector<int32_t> keys(std::span<const int32_t> tokens, int64_t vocab) const;
    /// The smallest power of two with which keys of a vocabulary fit for sums below `positions`.
    static int64_t step_for(int64_t vocab, int64_t positions);

  private:
    struct Gap {
        int64_t from;  // position, among what is left, from which on
        int32_t sum;   // this is added
    };
    std::vector<Gap> gaps_;  // both ascending
    int64_t step_ = 1;
};

}  // namespace riptide
