#include "server/api/request_trace.h"

#include <algorithm>

#include "server/api/reply_parts.h"
#include "text/utf8.h"

namespace riptide::server {

namespace {

constexpr std::size_t kLongest = 256;  // of a name that a client has made up

std::string clipped(std::string_view text) {
    text = text.substr(0, kLongest);
    return std::string(text.substr(0, utf8_valid_prefix(text)));
}

std::string_view operation_of(std::string_view route) {
    if (route == "/v1/embeddings" || route.starts_with("/api/embed")) return "embeddings";
    if (route == "/v1/rerank") return "rerank";
    return route == "/v1/completions" || route == "/api/generate" ? "text_completion" : "chat";
}

}  // namespace

std::optional<TracedRequest> trace_of(const Traces& traces, const HttpRequest& request, const Known& known) {
    auto context = traces.begin(request.headers);
    if (!context) return std::nullopt;
    TracedRequest out;
    out.context = std::move(*context);
    out.method = known.method;
    out.route = known.label;
    out.request_id = request.header("x-request-id");
    out.received = request.received;
    return out;
}

void trace_reply(Traces& traces, const HttpRequest& request, const Known& known, int status) {
    std::optional<TracedRequest> traced = trace_of(traces, request, known);
    if (!traced) return;
    traced->ended = std::chrono::steady_clock::now();
    traced->status = status;
    traced->failed = status >= 500;
    if (status >= 400) traced->error = std::to_string(status);
    traces.add(std::move(*traced));
}

RequestTrace::RequestTrace(Traces& traces, TracedRequest request, const GenerationRequest& asked,
                           const std::string& model, const std::string& reply, const std::string& session)
    : traces_(traces), request_(std::move(request)), stream_(asked.stream) {
    const SamplingParams& s = asked.prompts.at(0).sampling;
    generation_ = {.operation = operation_of(request_.route),
                   .asked = clipped(asked.model),
                   .model = model,
                   .reply = reply,
                   .session = clipped(session),
                   .temperature = s.temperature,
                   .top_p = s.top_p,
                   .frequency_penalty = s.frequency_penalty,
                   .presence_penalty = s.presence_penalty,
                   .top_k = s.top_k,
                   .max_tokens = s.max_tokens,
                   .choices = asked.prompts[0].n,
                   .finish = {},
                   .answers = {}};
}

void RequestTrace::submitting() { submitting_ = std::chrono::steady_clock::now(); }

void RequestTrace::submitted(RequestId id) { submitted_.emplace_back(id, submitting_); }

void RequestTrace::hear(const Event& event) {
    const auto* done = std::get_if<Done>(&event.body);
    if (std::holds_alternative<Failed>(event.body) || was_cancelled(event)) {
        const int status = error_of(event).status();
        request_.error = was_cancelled(event) ? "cancelled" : std::to_string(status);
        request_.status = stream_ ? 200 : status;
        request_.failed = status >= 500;
    }
    if (done == nullptr) return;
    generation_.output += done->usage.completion;
    if (event.answer == 0) {
        generation_.input += done->usage.prompt;
        generation_.cached += done->usage.cached;
    }
    if (generation_.answers.size() == TracedRequest::kAnswers) return;
    const auto at = std::lower_bound(submitted_.begin(), submitted_.end(), std::pair(event.id, Time::min()));
    if (at == submitted_.end()) return;
    generation_.finish.push_back(finish_reason_name(done->reason));
    generation_.answers.push_back({at->second, done->timings, done->usage.completion});
}

void RequestTrace::ended(const ReplyEnding& ending) {
    using How = ReplyEnding::How;
    request_.ended = std::chrono::steady_clock::now();
    if (ending.how == How::complete && request_.error.empty()) request_.status = 200;
    if (ending.how == How::client_gone) request_.error = "client_gone";
    if (ending.how == How::server_stops || ending.how == How::mistake) {
        request_.error = ending.how == How::mistake ? "mistake" : "server_stops";
        request_.status = stream_ ? 200 : ending.how == How::mistake ? 500 : 503;
        request_.failed = true;
    }
    request_.generation = std::move(generation_);
    traces_.add(std::move(request_));
}

}  // namespace riptide::server
