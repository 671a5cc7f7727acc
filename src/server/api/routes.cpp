#include "server/api/routes.h"

#include <algorithm>
#include <array>

#include "base/percent.h"
#include "text/utf8.h"

namespace riptide::server {

namespace {

constexpr std::array kRoutes = {
    Known{"/", Route::hello, "GET", "/"},
    Known{"/api/hello", Route::hello, "GET", "/api/hello"},
    Known{"/openapi.json", Route::openapi, "GET", "/openapi.json"},
    Known{"/health", Route::health, "GET", "/health"},
    Known{"/readyz", Route::health, "GET", "/readyz"},
    Known{"/livez", Route::live, "GET", "/livez"},
    Known{"/version", Route::version, "GET", "/version"},
    Known{"/server_info", Route::server_info, "GET", "/server_info"},
    Known{"/loads", Route::loads, "GET", "/v1/loads"},
    Known{"/models", Route::models, "GET", "/v1/models"},
    Known{"/props", Route::props, "GET", "/props"},
    Known{"/is_sleeping", Route::is_sleeping, "GET", "/is_sleeping"},
    Known{"/metrics", Route::metrics, "GET", "/metrics"},
    Known{"/requests", Route::requests, "GET", "/v1/requests"},
    Known{"/chat/completions", Route::chat, "POST", "/v1/chat/completions"},
    Known{"/completions", Route::completions, "POST", "/v1/completions"},
    Known{"/embeddings", Route::embeddings, "POST", "/v1/embeddings"},
    Known{"/rerank", Route::rerank, "POST", "/v1/rerank"},
    Known{"/chat/completions/render", Route::render_chat, "POST", "/v1/chat/completions/render"},
    Known{"/completions/render", Route::render_completion, "POST", "/v1/completions/render"},
    Known{"/responses", Route::responses, "POST", "/v1/responses"},
    Known{"/responses", Route::responses_socket, "GET", "/v1/responses"},
    Known{"/responses/compact", Route::compact, "POST", "/v1/responses/compact"},
    Known{"/messages", Route::messages, "POST", "/v1/messages"},
    Known{"/messages/count_tokens", Route::count_tokens, "POST", "/v1/messages/count_tokens"},
    Known{"/tokenize", Route::tokenize, "POST", "/tokenize"},
    Known{"/detokenize", Route::detokenize, "POST", "/detokenize"},
    Known{"/apply-template", Route::apply_template, "POST", "/apply-template"},
    Known{"/pause", Route::pause, "POST", "/pause"},
    Known{"/resume", Route::resume, "POST", "/resume"},
    Known{"/update_weights", Route::update_weights, "POST", "/update_weights"},
    Known{"/flush_cache", Route::flush_cache, "POST", "/flush_cache"},
    Known{"/sleep", Route::sleep, "POST", "/sleep"},
    Known{"/wake_up", Route::wake_up, "POST", "/wake_up"},
    Known{"/abort_request", Route::abort_request, "POST", "/abort_request"},
    Known{"/models/load", Route::load_model, "POST", "/models/load"},
    Known{"/models/unload", Route::unload_model, "POST", "/models/unload"},
    Known{"/api/chat", Route::ollama_chat, "POST", "/api/chat"},
    Known{"/api/generate", Route::ollama_generate, "POST", "/api/generate"},
    Known{"/api/tags", Route::ollama_tags, "GET", "/api/tags"},
    Known{"/api/ps", Route::ollama_ps, "GET", "/api/ps"},
    Known{"/api/show", Route::ollama_show, "POST", "/api/show"},
    Known{"/api/version", Route::ollama_version, "GET", "/api/version"},
    Known{"/api/embed", Route::ollama_embed, "POST", "/api/embed"},
    Known{"/api/embeddings", Route::ollama_embeddings, "POST", "/api/embeddings"},
    Known{"/api/pull", Route::ollama_refused, "POST", "/api/pull"},
    Known{"/api/push", Route::ollama_refused, "POST", "/api/push"},
    Known{"/api/create", Route::ollama_refused, "POST", "/api/create"},
    Known{"/api/copy", Route::ollama_refused, "POST", "/api/copy"},
    Known{"/api/delete", Route::ollama_refused, "DELETE", "/api/delete"},
};
constexpr std::array kWithId = {
    Known{"/responses/", Route::input_items, "GET", "/v1/responses/{id}/input_items", "/input_items"},
    Known{"/responses/", Route::response, "GET", "/v1/responses/{id}"},
    Known{"/responses/", Route::delete_response, "DELETE", "/v1/responses/{id}"},
    Known{"/models/", Route::model, "GET", "/v1/models/{id}"},
    Known{"/requests/", Route::request, "DELETE", "/v1/requests/{id}"},
    Known{"/mcp/", Route::mcp, "POST", "/v1/mcp/{name}"},
    Known{"/mcp/", Route::mcp, "DELETE", "/v1/mcp/{name}"},
};
constexpr Known kUnknown{"", Route::none, "GET", "other"};

std::string_view bare_path(std::string_view path) {
    while (path.starts_with("/v1/")) path.remove_prefix(3);
    return path == "/v1" ? "/" : path;
}

/// Those of exactly this path; if there are none, those that it begins with.
std::vector<const Known*> routes_at(std::string_view path) {
    path = bare_path(path);
    std::vector<const Known*> out;
    for (const Known& known : kRoutes)
        if (known.path == path) out.push_back(&known);
    if (!out.empty()) return out;
    for (const Known& known : kWithId)
        if (path.starts_with(known.path) && path.substr(known.path.size()).ends_with(known.tail)) out.push_back(&known);
    return out;
}

}  // namespace

const Known& find_route(std::string_view path, std::string_view method) {
    const std::vector<const Known*> routes = routes_at(path);
    for (const Known* known : routes)
        if (known->method == (method == "HEAD" ? "GET" : method)) return *known;
    return routes.empty() ? kUnknown : *routes.front();
}

std::string methods_at(std::string_view path) {
    std::string out;
    for (const Known* known : routes_at(path)) {
        const std::string_view methods = known->get() ? "GET, HEAD" : known->method;
        if (out.find(methods) == std::string::npos) out += (out.empty() ? "" : ", ") + std::string(methods);
    }
    return out;
}

std::vector<Known> all_routes() {
    std::vector<Known> out(kRoutes.begin(), kRoutes.end());
    out.insert(out.end(), kWithId.begin(), kWithId.end());
    return out;
}

std::string rest_of(std::string_view path, const Known& known) {
    std::string_view raw = bare_path(path).substr(known.path.size());
    raw.remove_suffix(known.tail.size());
    const std::string id = percent_decoded(raw);
    return utf8_valid_prefix(id) == id.size() ? id : std::string(raw);  // it may be shown
}

}  // namespace riptide::server
