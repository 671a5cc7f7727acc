// Spans on their way to a collector: OTLP over HTTP, in JSON.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/http/fetch.h"
#include "server/traces/traced_request.h"

namespace riptide::server {

struct TraceOptions {
    std::optional<RemoteUrl> url;                               // where spans are posted; none: nothing is traced
    Headers headers;                                            // that the collector wants to see, its key for example
    std::vector<std::pair<std::string, std::string>> resource;  // what all spans come from: "service.name", ...
    bool follow_parent = true;               // a request in a trace is traced if whoever asks is; else by `share` too
    double share = 1;                        // 0 to 1, of the others
    std::chrono::milliseconds delay{5'000};  // how long a span waits for others to be sent with
    std::chrono::milliseconds timeout{10'000};  // for one reply of the collector
};

struct TraceCounts {  // spans
    int64_t sent = 0, dropped = 0;
};

/// A thread posts what add() has queued, at most kBatch spans at a time. Nobody waits for the collector: what it does
/// not take, and what finds kQueue spans waiting, is dropped and counted. A status of 429, 502, 503 or 504, or no reply
/// at all, is tried again kRetries times. Thread-safe.
class Traces {
  public:
    static constexpr int64_t kQueue = 2048, kBatch = 512;
    static constexpr int kRetries = 2;

    /// REQUIRES valid UTF-8 in `resource`.
    explicit Traces(TraceOptions options);
    /// Sends what is queued, for a second at most.
    ~Traces();
    Traces(const Traces&) = delete;
    Traces& operator=(const Traces&) = delete;

    /// The trace that a request is to be told in; nullopt: in none.
    std::optional<TraceContext> begin(const Headers& headers) const;
    void add(TracedRequest request);
    TraceCounts counts() const;

  private:
    struct Exporter;
    const TraceOptions options_;
    std::shared_ptr<Exporter> exporter_;  // null: nothing is traced
};

}  // namespace riptide::server
