// The paths that the server knows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace riptide::server {

enum class Route {
    none,
    hello,
    openapi,
    health,  // from here on Known::management()
    live,
    metrics,
    version,
    server_info,
    loads,
    models,  // to here
    model,
    props,
    is_sleeping,
    requests,
    request,
    abort_request,
    chat,
    completions,
    embeddings,
    rerank,
    render_chat,
    render_completion,
    responses,
    responses_socket,  // the same over a WebSocket
    compact,
    response,
    delete_response,
    input_items,
    tokenize,
    detokenize,
    apply_template,
    messages,
    count_tokens,
    ollama_chat,  // from here on Ollama's
    ollama_generate,
    ollama_embed,
    ollama_embeddings,
    ollama_tags,
    ollama_ps,
    ollama_show,
    ollama_version,
    ollama_refused,  // what Ollama does and this server does not; to here
    mcp,
    pause,  // from here on: Known::admin()
    resume,
    update_weights,
    flush_cache,
    sleep,
    wake_up,
    load_model,
    unload_model
};

struct Known {
    std::string_view path;  // without /v1; what a path begins with, if it ends in '/'
    Route route;
    std::string_view method;     // "GET" (and "HEAD"), "POST", "DELETE"
    std::string_view label;      // in metrics
    std::string_view tail = {};  // what ends a path that `path` begins

    bool get() const { return method == "GET"; }
    /// Answered from the header alone.
    bool without_body() const { return method != "POST"; }
    /// And that is quick.
    bool at_the_door() const {
        return without_body() && route != Route::mcp && route != Route::input_items && route != Route::responses_socket;
    }
    /// Tells how the server is: on the management port too, where nobody needs a key.
    bool management() const { return route >= Route::health && route <= Route::models; }
    /// Ollama's API.
    bool ollama() const { return route >= Route::ollama_chat && route <= Route::ollama_refused; }
    /// Asked of a server that sleeps, too.
    bool about_sleep() const { return route == Route::sleep || route == Route::wake_up; }
    /// Changes the server for everybody: only where ServerOptions::admin allows it.
    bool admin() const { return route >= Route::pause; }
};

/// Route::none for a path that is not known; of several the first that takes `method`, if one does. Clients disagree
/// whether their base URL ends in /v1: any number of them in front is fine.
const Known& find_route(std::string_view path, std::string_view method = {});
/// What a 405 tells: "POST, DELETE".
std::string methods_at(std::string_view path);
/// Every route but Route::none: what openapi.json has to describe.
std::vector<Known> all_routes();
/// What stands behind the part of the path that is known: an id, its percent-escapes decoded.
std::string rest_of(std::string_view path, const Known& known);

}  // namespace riptide::server
