#include "engine/scheduler/fair_share.h"

#include <algorithm>

#include "base/error.h"

namespace riptide {

void FairShare::join(uint64_t session) {
    Session& s = sessions_[session];
    if (s.requests++ > 0) return;
    s.served = std::clamp(s.served, clock_, clock_ + lag_);
    ++active_;
}

void FairShare::leave(uint64_t session) {
    Session& s = sessions_.at(session);
    RT_ASSERT(s.requests > 0);
    if (--s.requests > 0) return;
    --active_;
    // One that the clock has passed would start at the clock anyway, and without a rival nobody is ahead.
    std::erase_if(sessions_, [&](const auto& entry) {
        return entry.second.requests == 0 && (active_ == 0 || entry.second.served <= clock_);
    });
}

void FairShare::charge(uint64_t session, int64_t tokens) {
    Session& s = sessions_.at(session);
    RT_ASSERT(s.requests > 0 && tokens >= 0);
    s.served = std::max(s.served, clock_ - lag_) + tokens * kScale;
    clock_ += tokens * kScale / active_;
    s.served = std::min(s.served, clock_ + lag_);
}

int64_t FairShare::served(uint64_t session) const {
    return std::clamp(sessions_.at(session).served, clock_ - lag_, clock_ + lag_);
}

}  // namespace riptide
