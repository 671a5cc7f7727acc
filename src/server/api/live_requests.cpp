#include "server/api/live_requests.h"

#include "base/json.h"

#include <algorithm>

namespace riptide::server {

namespace {

std::string_view stage_of(const LiveRequest& request) {
    if (request.pieces > 0) return "answering";
    return request.prompt.total > 0 ? "reading" : "waiting";
}

json::object describe(const LiveRequest& request) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - request.since).count();
    return {{"id", request.id},
            {"x_request_id", request.request_id},
            {"requests", json::value_from(request.requests)},
            {"model", request.model},
            {"route", request.route},
            {"session", request.session},
            {"stream", request.stream},
            {"state", stage_of(request)},
            {"seconds", seconds},
            {"prompt_tokens", request.prompt.total},
            {"prompt_read", request.prompt.done},
            {"prompt_cached", request.prompt.cached},
            {"answers", request.answers},
            {"answers_complete", request.complete},
            {"pieces", request.pieces}};
}

}  // namespace

void LiveRequests::add(const std::shared_ptr<LiveRequest>& request) {
    const std::lock_guard lock(mutex_);
    requests_[request->id] = request;
}

void LiveRequests::submitted(LiveRequest& request, RequestId id) {
    const std::lock_guard lock(mutex_);
    request.requests.push_back(id);
}

void LiveRequests::remove(const std::string& id) {
    const std::lock_guard lock(mutex_);
    requests_.erase(id);
}

void LiveRequests::heard(LiveRequest& request, const Event& event) {
    const std::lock_guard lock(mutex_);
    if (const auto* progress = std::get_if<PromptProgress>(&event.body)) request.prompt = *progress;
    else if (std::holds_alternative<Done>(event.body) || std::holds_alternative<Failed>(event.body)) ++request.complete;
    else ++request.pieces;
}

json::array LiveRequests::list(const std::string& isolation) const {
    const std::lock_guard lock(mutex_);
    std::vector<const LiveRequest*> found;
    for (const auto& [id, request] : requests_)
        if (request->isolation == isolation) found.push_back(request.get());
    std::sort(found.begin(), found.end(),
              [](const LiveRequest* a, const LiveRequest* b) { return a->since < b->since; });
    json::array out;
    for (const LiveRequest* request : found) out.push_back(describe(*request));
    return out;
}

bool LiveRequests::cancel(const std::string& isolation, std::string_view id) const {
    const std::lock_guard lock(mutex_);
    bool found = false;
    for (const auto& [name, request] : requests_) {
        if (request->isolation != isolation || (name != id && request->request_id != id)) continue;
        for (const RequestId each : request->requests) request->engine->cancel(each);
        found = found || !request->requests.empty();
    }
    return found;
}

void LiveRequests::cancel_all(const Engine& engine) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, request] : requests_)
        if (request->engine == &engine)
            for (const RequestId each : request->requests) request->engine->cancel(each);
}

}  // namespace riptide::server
