// The requests that are being answered now, to look at and to end.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "engine/engine.h"

namespace riptide::server {

/// One reply in the making.
struct LiveRequest {
    std::string id;          // of the reply: "chatcmpl-..."
    std::string request_id;  // x-request-id, which several may have
    std::string model;       // who answers
    Engine* engine = nullptr;
    std::string route;  // "/v1/chat/completions"
    std::string isolation, session;
    bool stream = false;
    std::vector<RequestId> requests;  // of the engine
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
    // What has come of it, under LiveRequests' mutex.
    PromptProgress prompt;  // of the answer that spoke last
    int64_t answers = 1, complete = 0;
    int64_t pieces = 0;  // of text, reasoning and calls that have come
};

/// Thread-safe.
class LiveRequests {
  public:
    void add(const std::shared_ptr<LiveRequest>& request);
    /// The engine has taken a prompt of it.
    void submitted(LiveRequest& request, RequestId id);
    void remove(const std::string& id);
    /// An event of it.
    void heard(LiveRequest& request, const Event& event);
    /// Those of one isolation key, oldest first: {"id", "requests", "route", "session", "state", "seconds", ...}. State
    /// is waiting, reading (the prompt) or answering.
    json::array list(const std::string& isolation) const;
    /// Ends what has the id, or the x-request-id, of that key; false: there is none.
    bool cancel(const std::string& isolation, std::string_view id) const;
    /// And all of an engine, whosever they are.
    void cancel_all(const Engine& engine) const;

  private:
    mutable std::mutex mutex_;
    std::map<std::string, std::shared_ptr<LiveRequest>> requests_;
};

}  // namespace riptide::server
