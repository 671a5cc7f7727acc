// What is told of a request, as spans of OpenTelemetry in JSON (OTLP 1: opentelemetry-proto, trace.proto).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "engine/request.h"
#include "server/traces/trace_context.h"

namespace riptide::server {

/// Plain facts, without a word of a prompt or an answer, or a key. Times are of one clock.
struct TracedRequest {
    using Time = std::chrono::steady_clock::time_point;

    /// An answer that is complete.
    struct Answer {
        Time submitted;  // to the engine: `timings` begins there
        Timings timings;
        int64_t tokens = 0;
    };
    /// Of a request that the engine took.
    struct Generation {
        std::string_view operation;  // "chat", "text_completion", "embeddings", "rerank"
        std::string asked, model;    // the model's name: in the request, and as the server calls it
        std::string reply, session;  // ids
        double temperature = 0, top_p = 0, frequency_penalty = 0, presence_penalty = 0;
        int64_t top_k = 0, max_tokens = -1, choices = 1;
        int64_t input = 0, cached = 0, output = 0;  // tokens of all prompts and answers
        std::vector<std::string_view> finish;       // of each of these answers
        std::vector<Answer> answers;                // the first kAnswers
    };
    static constexpr std::size_t kAnswers = 16;

    TraceContext context;
    std::string_view method, route;  // for ever: of the table of routes
    std::string request_id;          // x-request-id
    Time received, ended;
    int status = 0;          // of the reply; 0: the client did not wait for one
    std::string error = {};  // what went wrong, in a word or a status
    bool failed = false;     // and it is the server's fault, or the machine's
    std::optional<Generation> generation = {};
};

/// How many spans it has: the server's, and those of each answer's parts.
int64_t span_count(const TracedRequest& request);

/// Its spans, the server's first, the others inside it in time. Times become those of the system's clock, by what both
/// clocks say now. Ids of spans are new.
json::array spans_of(const TracedRequest& request);

/// {"key": ..., "value": {"stringValue": ...}}; `text` must be valid UTF-8.
json::object text_attribute(std::string_view key, std::string_view text);

}  // namespace riptide::server
