// Who has had how much, and who should be next.
#pragma once

#include <cstdint>
#include <map>

namespace riptide {

/// Divides a stream of tokens evenly between the sessions that want some: serve the session with the smallest
/// `served`, a quantum at a time. A clock runs at the pace at which an even share grows: by 1 / (active sessions) for
/// each token served. The clock less `served` is the session's deficit, kept within -lag .. lag, so that a session
/// neither saves up what it did not want nor pays for long for what nobody else wanted. One that joins starts at the
/// clock, or where it was if it is ahead: leaving and coming back wins nothing. Pure arithmetic on integers.
class FairShare {
  public:
    /// `lag`: tokens. REQUIRES lag >= 1.
    explicit FairShare(int64_t lag) : lag_(lag * kScale) {}

    /// Each request of a session joins once and leaves once.
    void join(uint64_t session);
    void leave(uint64_t session);
    /// The session has had so many tokens more. REQUIRES that it has joined.
    void charge(uint64_t session, int64_t tokens);
    /// What orders sessions: the smallest is next. No unit. REQUIRES that it has joined.
    int64_t served(uint64_t session) const;
    /// Sessions remembered: the active ones and those still ahead of the clock.
    int64_t known() const { return static_cast<int64_t>(sessions_.size()); }

  private:
    static constexpr int64_t kScale = 1024;
    struct Session {
        int64_t served = 0;
        int64_t requests = 0;
    };

    std::map<uint64_t, Session> sessions_;
    int64_t lag_;
    int64_t clock_ = 0;
    int64_t active_ = 0;
};

}  // namespace riptide
