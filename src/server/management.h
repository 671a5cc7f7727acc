// The ports for who watches the server and who spreads requests over several: HTTP that only tells, and HAProxy's agent
// checks.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "server/api/api_error.h"
#include "server/metrics.h"
#include "server/server.h"

namespace riptide::server {

/// What the server tells there: GETs without a key, answered from the header alone.
HttpOptions management_options(const ServerOptions& o);
/// And where it tells HAProxy how much of the server is free.
HttpOptions agent_options(const ServerOptions& o);

/// What probes want to know.
enum class Health { ok, loading, asleep, draining, failed };
/// Whether requests are answered: 200, 503 or 500.
HttpReply ready_reply(Health health);
/// Whether the process is of use, also while it loads, sleeps or drains: 200 or 500.
HttpReply live_reply(Health health);

/// For what the management port does not tell.
ApiError not_managed();

/// The share of a server that is free, as a weight in per cent: 25, 50, 75 or 100. A weight that changes moves
/// conversations away from what is cached for them, so another one is told only when it has been due for kSettle.
/// Not thread-safe.
class FreeWeight {
  public:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::seconds kSettle{5};

    /// `all`: of the engines together. Free is what neither K/V nor places for answers are taken of.
    int next(const EngineFacts& all, Clock::time_point now = Clock::now());
    /// What HAProxy's agent check is told: "up ready 75%\n", "drain\n" or "down\n".
    std::string line(Health health, const EngineFacts& all);

  private:
    int told_ = 100;
    std::optional<Clock::time_point> due_;  // since when another one is
};

}  // namespace riptide::server
