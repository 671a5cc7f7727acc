#include "base/work_budget.h"

namespace riptide {

void WorkBudget::look() {
    next_look_ = std::max<int64_t>(left_ - kLookEvery, -1);
    if (stop_.stop_requested() || (flag_ != nullptr && flag_->load(std::memory_order_relaxed))) throw WorkStopped();
    if (end_ != end_.max() && std::chrono::steady_clock::now() >= end_) throw WorkLate();
    if (left_ < 0) {
        left_ = next_look_ = 0;  // what is counted from here on is too much as well
        throw TooMuchWork(fmt::format("takes more than {} steps", steps_));
    }
}

}  // namespace riptide
