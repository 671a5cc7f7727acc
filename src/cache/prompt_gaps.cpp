#include "cache/prompt_gaps.h"

#include <algorithm>

#include "base/error.h"

namespace riptide {

PromptGaps::PromptGaps(const std::vector<bool>& kept, int64_t step) : step_(step) {
    RT_ASSERT(step >= 1 && kept.size() <= INT32_MAX);
    int64_t position = 0, dropped = 0;
    for (const bool keep : kept) {
        if (!keep) {
            ++dropped;
            continue;
        }
        const auto sum = static_cast<int32_t>(dropped / step * step);
        if (sum != last()) gaps_.push_back({position, sum});
        ++position;
    }
}

int32_t PromptGaps::at(int64_t index) const {
    const auto behind = std::ranges::upper_bound(gaps_, index, {}, &Gap::from);
    return behind == gaps_.begin() ? 0 : std::prev(behind)->sum;
}

std::vector<int32_t> PromptGaps::keys(std::span<const int32_t> tokens, int64_t vocab) const {
    std::vector<int32_t> out(tokens.begin(), tokens.end());
    auto gap = gaps_.begin();
    int64_t more = 0;
    for (size_t i = 0; i < out.size(); ++i) {
        for (; gap != gaps_.end() && gap->from <= static_cast<int64_t>(i); ++gap) more = gap->sum / step_ * vocab;
        RT_ASSERT(out[i] >= 0 && out[i] < vocab && out[i] + more <= INT32_MAX);
        out[i] = static_cast<int32_t>(out[i] + more);
    }
    return out;
}

int64_t PromptGaps::step_for(int64_t vocab, int64_t positions) {
    RT_ASSERT(vocab >= 1 && positions >= 1);
    int64_t step = 1;
    while (vocab * (positions / step + 1) > int64_t{1} << 31) step *= 2;
    return step;
}

}  // namespace riptide
