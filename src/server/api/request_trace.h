// What a request's trace hears of it.
#pragma once

#include <utility>
#include <vector>

#include "server/api/generation_request.h"
#include "server/api/routes.h"
#include "server/traces/traces.h"

namespace riptide::server {

/// A request with what is known of it before it is answered. nullopt: it is not traced.
std::optional<TracedRequest> trace_of(const Traces& traces, const HttpRequest& request, const Known& known);

/// Tells of one that was answered without the engine, or refused.
void trace_reply(Traces& traces, const HttpRequest& request, const Known& known, int status);

/// Of one that the engine is asked. Each function by one thread at a time; it must not outlive `traces`.
class RequestTrace {
  public:
    /// `model`, `reply`, `session`: as in TracedRequest::Generation. REQUIRES a prompt.
    RequestTrace(Traces& traces, TracedRequest request, const GenerationRequest& asked, const std::string& model,
                 const std::string& reply, const std::string& session);

    /// Before and after a prompt of it is submitted.
    void submitting();
    void submitted(RequestId id);
    void hear(const Event& event);
    /// Hands it on.
    void ended(const ReplyEnding& ending);

  private:
    using Time = TracedRequest::Time;

    Traces& traces_;
    TracedRequest request_;
    TracedRequest::Generation generation_;
    const bool stream_;
    Time submitting_;
    std::vector<std::pair<RequestId, Time>> submitted_;  // in their order
};

}  // namespace riptide::server
