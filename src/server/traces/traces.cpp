#include "server/traces/traces.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/json.h"
#include "server/http/authority.h"
#include "server/openapi/openapi.h"

namespace riptide::server {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLastChance{900}, kLetGo{100};  // together the most that the end may take
constexpr std::chrono::seconds kFirstPause{1}, kLongestPause{30};   // before something is tried again
constexpr uint64_t kReplyBytes = 64 << 10;                          // nobody reads more of what a collector says

/// ExportTraceServiceRequest.
std::string body_of(const TraceOptions& options, const std::vector<TracedRequest>& batch) {
    json::array attributes, spans;
    for (const auto& [key, value] : options.resource) attributes.push_back(text_attribute(key, value));
    for (const TracedRequest& request : batch)
        for (json::value& span : spans_of(request)) spans.push_back(std::move(span));
    const json::object scope = {{"name", "riptide"}, {"version", program_version()}};
    const json::array scopes = {json::object{{"scope", scope}, {"spans", std::move(spans)}}};
    const json::object resource = {{"attributes", std::move(attributes)}};
    const json::array resources = {json::object{{"resource", resource}, {"scopeSpans", scopes}}};
    return json::serialize(json::object{{"resourceSpans", resources}});
}

/// How long to wait by Retry-After, if it says seconds; at least `least`.
std::chrono::seconds pause_of(const HttpReply& reply, std::chrono::seconds least) {
    int64_t asked = 0;
    for (const auto& [name, value] : reply.headers)
        if (same_name(name, "Retry-After"))
            for (const char c : value.substr(0, 6)) asked = c >= '0' && c <= '9' ? asked * 10 + (c - '0') : 0;
    return std::clamp(std::chrono::seconds(asked), least, kLongestPause);
}

}  // namespace

/// What the thread shares with Traces; it lives as long as both.
struct Traces::Exporter {
    explicit Exporter(TraceOptions o) : options(std::move(o)) {
        headers = options.headers;
        headers.emplace_back("Content-Type", "application/json");
    }

    void run() {
        std::unique_lock lock(mutex);
        while (true) {
            changed.wait(lock, [&] { return ending || !queue.empty(); });
            changed.wait_for(lock, options.delay, [&] { return ending || queued >= kBatch; });
            if (queue.empty()) break;
            int64_t spans = 0;
            const std::vector<TracedRequest> batch = take(spans);
            lock.unlock();
            const bool sent = post(body_of(options, batch));
            lock.lock();
            (sent ? counts.sent : counts.dropped) += spans;
            if (!sent && ending) break;
        }
        ended = true;
        changed.notify_all();
    }

    /// From the queue, under the mutex: at least one.
    std::vector<TracedRequest> take(int64_t& spans) {
        std::vector<TracedRequest> out;
        while (!queue.empty() && spans < kBatch) {
            spans += span_count(queue.front());
            out.push_back(std::move(queue.front()));
            queue.pop_front();
        }
        queued -= spans;
        return out;
    }

    /// False: the collector has not taken it, and will not.
    bool post(const std::string& body) {
        std::chrono::seconds pause = kFirstPause;
        for (int left = kRetries;; --left, pause *= 2) {
            std::chrono::seconds wait = pause;
            try {
                const HttpReply reply =
                    fetch(*options.url, "POST", headers, body, {time_left(), kReplyBytes}, stop.get_token());
                if (reply.status >= 200 && reply.status < 300) return true;
                constexpr std::array kLater = {429, 502, 503, 504};
                if (std::find(kLater.begin(), kLater.end(), reply.status) == kLater.end()) return false;
                wait = pause_of(reply, pause);
            } catch (const std::exception&) {  // no reply: to be tried again too
            }
            std::unique_lock lock(mutex);
            if (left == 0 || ending || changed.wait_for(lock, wait, [&] { return ending; })) return false;
        }
    }

    std::chrono::milliseconds time_left() {
        const std::lock_guard lock(mutex);
        if (!ending) return options.timeout;
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        return std::clamp(left, std::chrono::milliseconds(1), options.timeout);
    }

    const TraceOptions options;
    Headers headers;
    std::stop_source stop;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<TracedRequest> queue;
    int64_t queued = 0;  // spans in it
    TraceCounts counts;
    bool ending = false, ended = false;
    Clock::time_point deadline;
    std::thread thread;
};

Traces::Traces(TraceOptions options) : options_(std::move(options)) {
    if (!options_.url) return;
    exporter_ = std::make_shared<Exporter>(options_);
    exporter_->thread = std::thread([exporter = exporter_] { exporter->run(); });
}

Traces::~Traces() {
    if (!exporter_) return;
    std::unique_lock lock(exporter_->mutex);
    exporter_->ending = true;
    exporter_->deadline = Clock::now() + kLastChance;
    exporter_->changed.notify_all();
    const auto ended = [&] { return exporter_->ended; };
    bool over = exporter_->changed.wait_for(lock, kLastChance, ended);
    exporter_->stop.request_stop();
    over = over || exporter_->changed.wait_for(lock, kLetGo, ended);
    lock.unlock();
    if (over) exporter_->thread.join();
    else exporter_->thread.detach();  // it is in the system's look-up of a name, which nothing can end
}

std::optional<TraceContext> Traces::begin(const Headers& headers) const {
    if (!exporter_) return std::nullopt;
    std::optional<TraceContext> given = trace_context(headers);
    TraceContext context = given ? *given : new_trace();
    const bool wanted = given && options_.follow_parent ? given->sampled : in_share(context.trace, options_.share);
    return wanted ? std::optional(std::move(context)) : std::nullopt;
}

void Traces::add(TracedRequest request) {
    if (!exporter_) return;
    const int64_t spans = span_count(request);
    const std::lock_guard lock(exporter_->mutex);
    if (exporter_->queued + spans > kQueue) {
        exporter_->counts.dropped += spans;
        return;
    }
    exporter_->queue.push_back(std::move(request));
    exporter_->queued += spans;
    if (exporter_->queue.size() == 1 || exporter_->queued >= kBatch) exporter_->changed.notify_all();
}

TraceCounts Traces::counts() const {
    if (!exporter_) return {};
    const std::lock_guard lock(exporter_->mutex);
    return exporter_->counts;
}

}  // namespace riptide::server
