#include "server/server.h"

#include <algorithm>
#include <atomic>

#include "server/access.h"
#include "server/api/api.h"
#include "server/openapi/openapi.h"
#include "server/api/routes.h"
#include "server/page/page.h"
#include "text/utf8.h"

namespace riptide::server {

namespace {

ErrorShape shape_of(const Known& known) {
    if (known.ollama()) return ErrorShape::ollama;
    const bool anthropic = known.route == Route::messages || known.route == Route::count_tokens;
    return anthropic ? ErrorShape::anthropic : ErrorShape::openai;
}

std::string session_in_headers(const HttpRequest& request) {
    for (const char* name :
         {"x-claude-code-session-id", "x-session-id", "session-id", "thread-id", "x-session-affinity"})
        if (const std::string_view value = request.header(name); !value.empty()) {
            std::string session;  // valid UTF-8, as it is told in JSON
            Utf8Stream stream;
            stream.push(value.substr(0, 256), session);
            stream.finish(session);
            return session;
        }
    return {};
}

bool is_json(std::string_view content_type) {
    std::string type(content_type.substr(0, content_type.find(';')));
    while (type.ends_with(' ')) type.pop_back();
    std::transform(type.begin(), type.end(), type.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return type == "application/json";
}

ApiError not_ready(const std::string& message) {
    ApiError error(503, message);
    error.retry_after_us = 2'000'000;
    return error;
}

}  // namespace

struct Server::Impl {
    explicit Impl(ServerOptions o)
        : options(std::move(o)),
          access(options.api_keys, options.http.unix_socket.empty() ? options.http.host : "localhost",
                 options.allowed_hosts, options.cors_origins),
          responses(options.stored_bytes),
          log(options.log),
          http(options.http, {.door = [this](const HttpRequest& request) { return door(request); },
                              .handle = [this](HttpRequest&& request) { return handle(request); },
                              .headers = [this](const HttpRequest& request) { return access.cors(request); },
                              .error_body =
                                  [](int status, const std::string& text) {
                                      return error_body(ApiError(status, text), ErrorShape::openai);
                                  }}) {}

    std::optional<HttpReply> door(const HttpRequest& request);
    std::optional<HttpReply> pass(const HttpRequest& request, const Known& known);
    Outcome handle(const HttpRequest& request);
    Outcome dispatch(const HttpRequest& request, const Known& known);
    ApiContext context(Engine& on, const HttpRequest& request, const Known& known, WorkBudget& work) {
        RequestDefaults counted = defaults;
        counted.work = &work;
        counted.received = request.received;
        return {on,
                options,
                std::move(counted),
                metrics,
                responses,
                live,
                log,
                access.isolation(request),
                session_in_headers(request),
                known.label,
                request.body,
                work};
    }
    bool broken() const;
    HttpReply health() const;
    HttpReply hello(const HttpRequest& request, const Known& known) const;
    HttpReply about(const HttpRequest& request, const Known& known);

    const ServerOptions options;
    RequestDefaults defaults;  // with what the engine's model says; nobody reads them before there is an engine
    const Access access;
    Metrics metrics;
    ResponseStore responses;
    LiveRequests live;
    RequestLog log;
    std::atomic<Engine*> engine = nullptr;
    std::atomic<bool> draining = false, failed = false;
    HttpServer http;  // last: it calls the others
};

/// From the header alone: refusals, and all that needs no body.
std::optional<HttpReply> Server::Impl::door(const HttpRequest& request) {
    const Known& known = find_route(request.path);
    std::optional<HttpReply> reply;
    try {
        reply = pass(request, known);
    } catch (const ApiError& error) {
        reply = error_reply(error, shape_of(known));
        if (error.status() == 405)
            reply->headers.emplace_back("Allow", known.get() ? "GET, HEAD" : std::string(known.method));
    } catch (const std::exception&) {
        reply = error_reply(ApiError(500, "the server has made a mistake"), shape_of(known));
    }
    if (reply) metrics.replied(known.label, reply->status);
    return reply;
}

std::optional<HttpReply> Server::Impl::pass(const HttpRequest& request, const Known& known) {
    access.check_origin(request);
    const bool get = request.method == "GET" || request.method == "HEAD";
    if (request.method == "OPTIONS") return HttpReply{204, ""};
    if (get && known.route == Route::hello) return hello(request, known);
    if (get && known.route == Route::health) return health();
    access.check_key(request);
    if (known.route == Route::none) throw ApiError(404, "there is nothing at this path");
    if (known.get() ? !get : request.method != known.method)
        throw ApiError(405, "this path does not take " + request.method);
    if (known.route == Route::ollama_refused) refuse_ollama(known.path);
    if (known.without_body()) return about(request, known);
    if (known.admin() && !options.admin)
        throw ApiError(403, "this server does not let clients steer it; riptide serve --admin does");
    const bool empty = known.admin() && request.header("content-type").empty();
    if (!empty && !is_json(request.header("content-type")))
        throw ApiError(415, "the body must be JSON, and the request must say so: Content-Type: application/json");
    if (draining) throw not_ready("the server is shutting down");
    if (engine == nullptr) throw not_ready("the model is being loaded");
    return std::nullopt;
}

/// The engine has ended: it said so, or refused a request for it.
bool Server::Impl::broken() const {
    const Engine* const loaded = engine;
    return failed || (loaded != nullptr && loaded->stats().broken);
}

HttpReply Server::Impl::health() const {
    if (broken()) return {500, R"({"status":"failed"})"};
    if (!draining && engine != nullptr) return {200, R"({"status":"ok"})"};
    HttpReply reply{503, draining ? R"({"status":"draining"})" : R"({"status":"loading"})"};
    reply.headers.emplace_back("Retry-After", "2");
    return reply;
}

/// Browsers are shown the page; who looks for the server gets a word.
HttpReply Server::Impl::hello(const HttpRequest& request, const Known& known) const {
    const bool page = options.page && known.path == "/";
    if (page && wants_page(request)) return page_reply(request);
    HttpReply reply{200, "riptide\n", "text/plain"};
    if (page) reply.headers.emplace_back("Vary", "Accept");
    return reply;
}

HttpReply Server::Impl::about(const HttpRequest& request, const Known& known) {
    Engine* const loaded = engine;
    if (known.route == Route::metrics)
        return {200, metrics.page(loaded, http.connections()), "text/plain; version=0.0.4; charset=utf-8"};
    if (known.route == Route::openapi) return {200, std::string(openapi_text())};
    if (known.route == Route::ollama_version) return get_ollama_version();
    if (loaded == nullptr) throw not_ready("the model is being loaded");
    WorkBudget work;
    const ApiContext ctx = context(*loaded, request, known, work);
    if (known.route == Route::models) return get_models(ctx);
    if (known.route == Route::model) return get_model(ctx, rest_of(request.path, known));
    if (known.route == Route::ollama_tags) return get_ollama_tags(ctx);
    if (known.route == Route::ollama_ps) return get_ollama_ps(ctx);
    if (known.route == Route::requests) return get_requests(ctx);
    if (known.route == Route::request) return delete_request(ctx, rest_of(request.path, known));
    return get_props(ctx);
}

Outcome Server::Impl::handle(const HttpRequest& request) {
    const Known& known = find_route(request.path);
    Outcome outcome;
    const auto refuse_with = [&](const ApiError& error) {
        if (error.status() == 500) log.mistake(known.label, error.what());
        outcome = error_reply(error, shape_of(known));
    };
    try {
        outcome = dispatch(request, known);
    } catch (const ApiError& error) {
        if (error.status() == 500) failed = true;  // only a failed engine refuses in this way
        refuse_with(error);
    } catch (const Error& error) {
        refuse_with(from_engine(error));
    } catch (const std::bad_alloc&) {
        refuse_with(not_ready("out of memory"));
    } catch (const std::exception& error) {
        log.mistake(known.label, error.what());
        outcome = error_reply(ApiError(500, "the server has made a mistake"), shape_of(known));
    }
    const auto* reply = std::get_if<HttpReply>(&outcome);
    metrics.replied(known.label, reply != nullptr ? reply->status : 200);
    return outcome;
}

Outcome Server::Impl::dispatch(const HttpRequest& request, const Known& known) {
    WorkBudget work(WorkBudget::kSteps, request.stop);
    work.look();  // it may have waited for a worker longer than its client did
    const ApiContext ctx = context(*engine, request, known, work);
    switch (known.route) {
        case Route::chat:
            return post_chat(ctx, request);
        case Route::completions:
            return post_completion(ctx, request);
        case Route::responses:
            return post_responses(ctx, request);
        case Route::messages:
            return post_messages(ctx, request);
        case Route::count_tokens:
            return post_count_tokens(ctx, request);
        case Route::ollama_chat:
            return post_ollama_chat(ctx, request);
        case Route::ollama_generate:
            return post_ollama_generate(ctx, request);
        case Route::ollama_show:
            return post_ollama_show(ctx, request);
        case Route::pause:
            return post_pause(ctx, request);
        case Route::resume:
            return post_resume(ctx);
        case Route::update_weights:
            return post_update_weights(ctx, request);
        case Route::tokenize:
            return post_tokenize(ctx, request);
        case Route::detokenize:
            return post_detokenize(ctx, request);
        default:
            return post_apply_template(ctx, request);
    }
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() = default;

int Server::port() const { return impl_->http.port(); }
void Server::serve(Engine& engine) {
    const ServerOptions& options = impl_->options;
    impl_->defaults = options.defaults;
    impl_->defaults.sampling =
        settle_sampling(options.defaults.sampling, options.sampling, engine.info().makers).params;
    impl_->engine = &engine;
}
bool Server::engine_failed() const { return impl_->broken(); }

void Server::drain(std::chrono::milliseconds grace) {
    impl_->draining = true;
    impl_->http.drain(grace);
}

}  // namespace riptide::server
