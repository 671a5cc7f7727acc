#include "server/traces/traced_request.h"

#include <algorithm>

#include "base/json.h"

namespace riptide::server {

namespace {

constexpr int kInternal = 1, kServer = 2;  // Span.SpanKind
constexpr int kStatusError = 2;            // Status.StatusCode

json::object attribute(std::string_view key, std::string_view type, json::value value) {
    return {{"key", key}, {"value", json::object{{type, std::move(value)}}}};
}
/// 64-bit integers are strings in protobuf's JSON.
json::object attribute(std::string_view key, int64_t value) {
    return attribute(key, "intValue", json::string(std::to_string(value)));
}
json::object attribute(std::string_view key, double value) { return attribute(key, "doubleValue", value); }

/// A part of what an answer took.
struct Part {
    std::string_view name;
    double seconds;
};

/// In their order, one behind the other.
std::vector<Part> parts_of(const TracedRequest::Answer& answer) {
    const Timings& t = answer.timings;
    std::vector<Part> out;
    if (t.scoring > 0) out.push_back({"riptide.score", t.scoring});
    out.push_back({"riptide.queue", t.queue});
    if (t.fetch > 0) out.push_back({"riptide.fetch", t.fetch});
    out.push_back({"riptide.prefill", t.prefill - t.fetch});
    if (answer.tokens > 0) out.push_back({"riptide.decode", t.decode});
    return out;
}

/// A steady clock's time as nanoseconds since 1970, in decimal.
class UnixTime {
  public:
    std::string operator()(TracedRequest::Time time) const {
        const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(time - steady_);
        return std::to_string((system_ + since).count());
    }

  private:
    std::chrono::nanoseconds system_ = std::chrono::system_clock::now().time_since_epoch();
    TracedRequest::Time steady_ = std::chrono::steady_clock::now();
};

json::object span(const TraceContext& context, std::string_view name, int kind) {
    json::object out = {{"traceId", context.trace}, {"spanId", new_span_id()}};
    if (!context.span.empty()) out["parentSpanId"] = context.span;
    out["name"] = name;
    out["kind"] = kind;
    return out;
}

void add_latencies(json::array& out, const TracedRequest& request, const TracedRequest::Generation& g) {
    out.push_back(
        attribute("gen_ai.latency.e2e", std::chrono::duration<double>(request.ended - request.received).count()));
    if (g.answers.empty()) return;
    const TracedRequest::Answer& first = g.answers.front();
    const Timings& t = first.timings;
    const double before = std::chrono::duration<double>(first.submitted - request.received).count();
    out.push_back(attribute("gen_ai.latency.time_in_queue", t.scoring + t.queue));
    if (first.tokens > 0)
        out.push_back(attribute("gen_ai.latency.time_to_first_token", before + t.scoring + t.queue + t.prefill));
    out.push_back(attribute("gen_ai.latency.time_in_model_prefill", t.prefill));
    out.push_back(attribute("gen_ai.latency.time_in_model_decode", t.decode));
    out.push_back(attribute("gen_ai.latency.time_in_model_inference", t.prefill + t.decode));
}

/// In the names of the conventions for generative AI, and (latency, request.id) in those of vLLM.
void add_generation(json::array& out, const TracedRequest& request, const TracedRequest::Generation& g) {
    const auto text = [&out](std::string_view key, std::string_view value) {
        if (!value.empty()) out.push_back(text_attribute(key, value));
    };
    text("gen_ai.operation.name", g.operation);
    text("gen_ai.provider.name", "riptide");
    text("gen_ai.request.model", g.asked.empty() ? g.model : g.asked);
    text("gen_ai.request.id", request.request_id);
    text("gen_ai.response.model", g.model);
    text("gen_ai.response.id", g.reply);
    text("gen_ai.conversation.id", g.session);
    if (g.operation == "chat" || g.operation == "text_completion") {
        out.push_back(attribute("gen_ai.request.temperature", g.temperature));
        out.push_back(attribute("gen_ai.request.top_p", g.top_p));
        out.push_back(attribute("gen_ai.request.top_k", g.top_k));
        out.push_back(attribute("gen_ai.request.frequency_penalty", g.frequency_penalty));
        out.push_back(attribute("gen_ai.request.presence_penalty", g.presence_penalty));
        if (g.max_tokens >= 0) out.push_back(attribute("gen_ai.request.max_tokens", g.max_tokens));
        if (g.choices != 1) out.push_back(attribute("gen_ai.request.choice.count", g.choices));
    }
    if (!g.finish.empty()) {
        out.push_back(attribute("gen_ai.usage.input_tokens", g.input));
        out.push_back(attribute("gen_ai.usage.output_tokens", g.output));
        out.push_back(attribute("gen_ai.usage.cache_read.input_tokens", g.cached));
        json::array reasons;
        for (const std::string_view reason : g.finish) reasons.push_back(json::object{{"stringValue", reason}});
        out.push_back(
            attribute("gen_ai.response.finish_reasons", "arrayValue", json::object{{"values", std::move(reasons)}}));
    }
    add_latencies(out, request, g);
}

json::object server_span(const TracedRequest& request, const UnixTime& unix_time) {
    const auto& generation = request.generation;
    json::object out = span(request.context,
                            generation ? fmt::format("{} {}", generation->operation, generation->model)
                                       : fmt::format("{} {}", request.method, request.route),
                            kServer);
    out["startTimeUnixNano"] = unix_time(request.received);
    out["endTimeUnixNano"] = unix_time(request.ended);
    json::array attributes = {text_attribute("http.request.method", request.method),
                              text_attribute("http.route", request.route)};
    if (request.status != 0)
        attributes.push_back(attribute("http.response.status_code", static_cast<int64_t>(request.status)));
    if (!request.error.empty()) attributes.push_back(text_attribute("error.type", request.error));
    if (generation) add_generation(attributes, request, *generation);
    out["attributes"] = std::move(attributes);
    out["status"] = request.failed ? json::object{{"code", kStatusError}} : json::object();
    return out;
}

}  // namespace

json::object text_attribute(std::string_view key, std::string_view text) {
    return attribute(key, "stringValue", json::string(text));
}

int64_t span_count(const TracedRequest& request) {
    int64_t count = 1;
    if (request.generation)
        for (const TracedRequest::Answer& answer : request.generation->answers) count += std::ssize(parts_of(answer));
    return count;
}

json::array spans_of(const TracedRequest& request) {
    const UnixTime unix_time;
    json::array out = {server_span(request, unix_time)};
    if (!request.generation) return out;
    const TraceContext inside{request.context.trace, std::string(out[0].at("spanId").as_string()), true};
    int64_t index = 0;
    for (const TracedRequest::Answer& answer : request.generation->answers) {
        TracedRequest::Time at = answer.submitted;
        for (const Part& part : parts_of(answer)) {
            const auto length = std::chrono::round<std::chrono::nanoseconds>(
                std::chrono::duration<double>(std::max(0.0, part.seconds)));
            json::object child = span(inside, part.name, kInternal);
            child["startTimeUnixNano"] = unix_time(at);
            at = std::min(at + length, request.ended);
            child["endTimeUnixNano"] = unix_time(at);
            if (request.generation->finish.size() > 1)
                child["attributes"] = json::array{attribute("riptide.answer", index)};
            out.push_back(std::move(child));
        }
        ++index;
    }
    return out;
}

}  // namespace riptide::server
