// What each route does. Internal to the server.
#pragma once

#include <optional>
#include <string>

#include "engine/engine.h"
#include "server/api/generation_request.h"
#include "server/api/live_requests.h"
#include "server/api/reply_parts.h"
#include "server/api/request_trace.h"
#include "server/api/responses/response_session.h"
#include "server/api/responses/responses_request.h"
#include "server/api/routes.h"
#include "server/http/message.h"
#include "server/metrics.h"
#include "server/model_pool.h"
#include "server/random_id.h"
#include "server/server.h"

namespace riptide::server {

/// What a request is answered with, and for whom.
struct ApiContext {
    ModelLease model;  // held until the reply has ended
    Engine& engine;    // its own
    const ServerOptions& options;
    RequestDefaults defaults;  // of `options`, with what the model's makers say and this request's `work`
    Metrics& metrics;
    ResponseStore& responses;
    LiveRequests& live;
    Traces& traces;
    std::optional<TracedRequest> trace;  // nullopt: it is not traced
    const RequestLog& log;
    std::string isolation;    // Request::isolation
    std::string session;      // from headers; may be empty
    std::string request_id;   // x-request-id
    ResponseSession* socket;  // of a WebSocket's message; or null
    std::string_view route;   // Known::label
    const std::string& body;
    WorkBudget& work;                   // of the whole request
    const ReplyFacts* early = nullptr;  // of a stream that may have begun already, in which the client knows the reply
};

/// A stream that waits for its model, and in what its client knows it.
struct EarlyStream {
    ReplyFacts facts;
    PendingReply reply;  // opening, heartbeat and abort
};
/// Of a request on this route, if a stream is wanted that can begin without the model, named `model`: else nothing, and
/// `body` is as it was. Throws ApiError for one that no model would answer.
std::optional<EarlyStream> early_stream(Route route, json::object& body, const RequestDefaults& defaults,
                                        const ResponseStore& store, const std::string& isolation,
                                        const std::string& model);

/// What a route with a body answers by means of a model; `query` as in HttpRequest.
Outcome answer(const ApiContext& ctx, Route route, json::object body, std::string_view query);

// All throw ApiError, or Error as Engine::submit does.
Outcome post_chat(const ApiContext& ctx, json::object body);
Outcome post_completion(const ApiContext& ctx, json::object body);
Outcome post_responses(const ApiContext& ctx, json::object body);
/// The conversation in fewer items: the user's messages, and a summary that the model writes.
Outcome post_compact(const ApiContext& ctx, const json::object& body);
Outcome post_messages(const ApiContext& ctx, json::object body);
/// A stored response of the same key's, as it was answered; away with one; what one was asked, by pages.
HttpReply get_response(const ResponseStore& store, const std::string& isolation, const std::string& id,
                       std::string_view query);
HttpReply delete_response(ResponseStore& store, const std::string& isolation, const std::string& id);
HttpReply get_input_items(const ResponseStore& store, const std::string& isolation, const std::string& id,
                          std::string_view query);
HttpReply post_count_tokens(const ApiContext& ctx, json::object body);
HttpReply post_pause(const ApiContext& ctx, const json::object& body, std::string_view query);
HttpReply post_resume(const ApiContext& ctx);
HttpReply post_update_weights(const ApiContext& ctx, const json::object& body);
HttpReply post_flush_cache(const ApiContext& ctx);
HttpReply get_requests(const LiveRequests& live, const std::string& isolation);
/// Ends it, if it is one of the same key's; `id` as in LiveRequests::cancel.
HttpReply delete_request(const LiveRequests& live, const std::string& isolation, std::string_view id);
HttpReply post_abort_request(const LiveRequests& live, const std::string& isolation, const json::object& body);
/// The ids that the engine would be fed, where nothing is compressed.
HttpReply post_render_chat(const ApiContext& ctx, json::object body);
HttpReply post_render_completion(const ApiContext& ctx, json::object body);
HttpReply post_tokenize(const ApiContext& ctx, json::object body);
HttpReply post_detokenize(const ApiContext& ctx, const json::object& body);
HttpReply post_apply_template(const ApiContext& ctx, json::object body);
/// `started`: when the server was, in Unix time.
HttpReply get_models(const std::vector<ModelStatus>& models, int64_t started);
/// One of them; `id` as in the path.
HttpReply get_model(const std::vector<ModelStatus>& models, std::string_view id, int64_t started);
HttpReply get_props(const ApiContext& ctx);
HttpReply get_version();
/// Of the model that answers requests which name none.
/// `events`: where what that model's cache holds is told.
HttpReply get_server_info(const ModelStatus& model, const KvEventsAt& events);
/// `all`: of the engines together.
HttpReply get_loads(const EngineFacts& all);
/// Of a model that embeds, and of a reranker; of others ApiError(400) that says what to serve.
Outcome post_embeddings(const ApiContext& ctx, const json::object& body);
Outcome post_rerank(const ApiContext& ctx, const json::object& body);
Outcome post_ollama_embed(const ApiContext& ctx, const json::object& body);
Outcome post_ollama_embeddings(const ApiContext& ctx, const json::object& body);
Outcome post_ollama_chat(const ApiContext& ctx, const json::object& body);
Outcome post_ollama_generate(const ApiContext& ctx, const json::object& body);
HttpReply get_ollama_tags(const std::vector<ModelStatus>& models);
/// Those that are loaded.
HttpReply get_ollama_ps(const std::vector<ModelStatus>& models);
HttpReply post_ollama_show(const ApiContext& ctx, const json::object& body);
HttpReply get_ollama_version();
/// Throws: what to do in place of what `path` asks for.
[[noreturn]] void refuse_ollama(std::string_view path);

/// Ollama's clients add it to names: NAME:latest is NAME.
inline constexpr std::string_view kLatest = ":latest";
/// The value of a key in "a=b&c=d", as it is written there.
std::string_view query_value(std::string_view query, std::string_view key);
/// ApiError(404) for a name that is none of `known`.
ApiError unknown_model(std::string_view name, const std::string& known);

/// What a reply of this request says of itself.
ReplyFacts facts_of(const ApiContext& ctx, std::string_view id_prefix);
/// The defaults, with a seed of the request's own: a client that wants the same answer again says which.
RequestDefaults defaults_of(const ApiContext& ctx);
/// Throws ApiError(404) for another model's name, if the server is strict. NAME:latest, as Ollama's clients have it,
/// is NAME.
void check_model(const ApiContext& ctx, const std::string& name);
/// What the engine throws when a prompt is too long, in the words that clients look for.
ApiError too_long(const PromptTooLong& error, ErrorShape shape, const std::string& field);

/// Hands the prompts to the engine, and leaves in `reply`, which has the id `id`, how to follow and to end them. All or
/// none are submitted. Throws ApiError.
void start(const ApiContext& ctx, GenerationRequest& asked, ErrorShape shape, const std::string& field,
           const std::string& id, PendingReply& reply);

/// The same of a request of /v1/responses, whose errors come in the names that its client knows.
void start_response(const ApiContext& ctx, ResponsesRequest& asked, const std::string& id, PendingReply& reply);

/// Fills a PendingReply with the functions of a dialect's reply object.
template <class Reply>
PendingReply pending(std::shared_ptr<Reply> reply, bool stream) {
    PendingReply out;
    out.stream = stream;
    if (stream) out.opening = reply->opening();
    out.take = [reply](const Item& item, std::string& bytes) { return reply->take(item, bytes); };
    out.heartbeat = [reply](std::string& bytes) { reply->heartbeat(bytes); };
    out.abort = [reply](int status, const std::string& message, std::string& bytes) {
        reply->abort(ApiError(status, message), bytes);
    };
    out.finish = [reply] { return reply->finish(); };
    return out;
}

}  // namespace riptide::server
