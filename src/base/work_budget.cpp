#include "base/work_budget.h"

namespace riptide {

void WorkBudget::look() {
    next_look_ = left_ - kLookEvery;
    if (stop_.stop_requested()) throw WorkStopped();
    if (left_ < 0) {
        left_ = next_look_ = 0;  // what is counted from here on is too much as well
        throw TooMuchWork(fmt::format("takes more than {} steps", steps_));
    }
}

}  // namespace riptide
