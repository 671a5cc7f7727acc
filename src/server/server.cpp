#include "server/server.h"

#include <algorithm>
#include <atomic>

#include "base/percent.h"
#include "server/access.h"
#include "server/api/api.h"
#include "server/api/ollama/ollama_request.h"
#include "server/api/routes.h"
#include "server/http/authority.h"
#include "server/model_pool.h"
#include "server/openapi/openapi.h"
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

/// As an event, with the reply's status.
std::string socket_error(const HttpReply& reply) {
    json::object out = {{"type", "error"}, {"status", reply.status}};
    const json::value error = parse_json(reply.body, "an error");
    for (const auto& [key, value] : error.as_object()) out[key] = value;
    return json::serialize(out);
}

ApiError not_ready(const std::string& message) {
    ApiError error(503, message);
    error.retry_after_us = 2'000'000;
    return error;
}

/// A request that waits for its model holds a worker; as many as ever are work on.
HttpOptions http_options(const ServerOptions& o) {
    HttpOptions out = o.http;
    if (!o.several.models.empty()) out.worker_threads += o.several.most_waiting;
    return out;
}

}  // namespace

struct Server::Impl {
    explicit Impl(ServerOptions o)
        : options(std::move(o)),
          access(options.api_keys, options.http.unix_socket.empty() ? options.http.host : "localhost",
                 options.allowed_hosts, options.cors_origins),
          responses(options.stored_bytes),
          log(options.log),
          pool(options.several.models.empty() ? nullptr : std::make_unique<ModelPool>(options.several, make_served())),
          http(http_options(options),
               {.door = [this](const HttpRequest& request) { return door(request); },
                .handle = [this](HttpRequest&& request) { return handle(request); },
                .waits = [](const HttpRequest& request) { return find_route(request.path).route == Route::mcp; },
                .session = [this](const HttpRequest& request) { return session(request); },
                .message = [](const HttpReply& reply) { return socket_error(reply); },
                .headers = [this](const HttpRequest& request) { return access.cors(request); },
                .error_body =
                    [](int status, const std::string& text) {
                        return error_body(ApiError(status, text), ErrorShape::openai);
                    }}) {}

    std::optional<HttpReply> door(const HttpRequest& request);
    std::optional<HttpReply> pass(const HttpRequest& request, const Known& known);
    Outcome handle(const HttpRequest& request);
    Outcome dispatch(const HttpRequest& request, const Known& known);
    ApiContext context(const ModelLease& model, const HttpRequest& request, const Known& known, WorkBudget& work) {
        RequestDefaults counted = model->defaults;
        counted.work = &work;
        counted.received = request.received;
        return {model,
                *model->engine,
                options,
                std::move(counted),
                metrics,
                responses,
                live,
                log,
                access.isolation(request),
                session_in_headers(request),
                static_cast<ResponseSession*>(request.session.get()),
                known.label,
                request.body,
                work};
    }
    std::shared_ptr<void> session(const HttpRequest& request) {
        const bool socket = find_route(request.path, request.method).route == Route::responses_socket;
        return socket ? std::make_shared<ResponseSession>(responses) : nullptr;
    }
    bool ready() const { return pool || only != nullptr; }
    bool broken() const;
    HttpReply health() const;
    HttpReply hello(const HttpRequest& request, const Known& known) const;
    HttpReply about(const HttpRequest& request, const Known& known);
    HttpReply props(const HttpRequest& request, const Known& known);
    ServedModel served(const std::string& name, Engine& engine) const;
    ModelPool::Make make_served() const {
        return [this](const std::string& name, std::unique_ptr<Engine> engine) {
            ServedModel out = served(name, *engine);
            out.own = std::move(engine);
            return out;
        };
    }
    std::vector<ModelStatus> models() const;
    /// Null: it is still being loaded.
    ModelLease only_model() const { return {ModelLease(), only.load()}; }
    std::string pooled(std::string_view asked) const;
    ModelLease model_for(const HttpRequest& request, const Known& known, const json::object& body, WorkBudget& work);
    HttpReply steer_model(const json::object& body, const Known& known, WorkBudget& work);

    const ServerOptions options;
    const Access access;
    Metrics metrics;
    ResponseStore responses;
    LiveRequests live;
    RequestLog log;
    ServedModel loaded;  // nobody reads it before `only` points there
    std::atomic<const ServedModel*> only = nullptr;
    std::unique_ptr<ModelPool> pool;  // of several; null: there is only one
    std::atomic<bool> draining = false, failed = false;
    HttpServer http;  // last: it calls the others
};

/// From the header alone: refusals, and all that needs no body.
std::optional<HttpReply> Server::Impl::door(const HttpRequest& request) {
    const Known& known = find_route(request.path, request.method);
    std::optional<HttpReply> reply;
    try {
        reply = pass(request, known);
    } catch (const ApiError& error) {
        reply = error_reply(error, shape_of(known));
        if (error.status() == 426) reply->headers.emplace_back("Upgrade", "websocket");
        if (error.status() == 405) reply->headers.emplace_back("Allow", methods_at(request.path));
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
    if (known.at_the_door()) return about(request, known);
    if (known.admin() && !options.admin)
        throw ApiError(403, "this server does not let clients steer it; riptide serve --admin does");
    const bool empty = known.without_body() || (known.admin() && request.header("content-type").empty());
    if (!empty && !is_json(request.header("content-type")))
        throw ApiError(415, "the body must be JSON, and the request must say so: Content-Type: application/json");
    if (known.route == Route::responses_socket && !same_name(request.header("upgrade"), "websocket"))
        throw ApiError(426, "this path takes POST, or GET to open a WebSocket: send Upgrade: websocket");
    if (draining) throw not_ready("the server is shutting down");
    if (!ready()) throw not_ready("the model is being loaded");
    return std::nullopt;
}

/// The engine has ended: it said so, or refused a request for it.
bool Server::Impl::broken() const {
    if (failed || (pool && pool->broken())) return true;
    const ServedModel* const model = only;
    return model != nullptr && model->engine->stats().broken;
}

HttpReply Server::Impl::health() const {
    if (broken()) return {500, R"({"status":"failed"})"};
    if (!draining && ready()) return {200, R"({"status":"ok"})"};
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
    if (known.route == Route::metrics) {
        std::vector<EngineFacts> engines;
        if (pool)
            for (const ModelLease& model : pool->loaded()) engines.push_back(engine_facts(model, true));
        else if (const ModelLease model = only_model()) engines.push_back(engine_facts(model, false));
        return {200, metrics.page(ready(), engines, http.connections()), "text/plain; version=0.0.4; charset=utf-8"};
    }
    if (known.route == Route::openapi) return {200, std::string(openapi_text())};
    if (known.route == Route::ollama_version) return get_ollama_version();
    if (known.route == Route::response)
        return get_response(responses, access.isolation(request), rest_of(request.path, known), request.query);
    if (known.route == Route::delete_response)
        return delete_response(responses, access.isolation(request), rest_of(request.path, known));
    if (!ready()) throw not_ready("the model is being loaded");
    if (known.route == Route::models) return get_models(models());
    if (known.route == Route::model) return get_model(models(), rest_of(request.path, known));
    if (known.route == Route::ollama_tags) return get_ollama_tags(models());
    if (known.route == Route::ollama_ps) return get_ollama_ps(models());
    if (known.route == Route::requests) return get_requests(live, access.isolation(request));
    if (known.route == Route::request)
        return delete_request(live, access.isolation(request), rest_of(request.path, known));
    return props(request, known);
}

/// Of several models: of the one that the query names, which is loaded for it.
HttpReply Server::Impl::props(const HttpRequest& request, const Known& known) {
    WorkBudget work;
    if (!pool) return get_props(context(only_model(), request, known, work));
    const std::string name = pooled(percent_decoded(query_value(request.query, "model")));
    const ModelLease model = pool->look(name);
    if (!model) throw not_ready(fmt::format("the model '{}' is being loaded", name));
    return get_props(context(model, request, known, work));
}

ServedModel Server::Impl::served(const std::string& name, Engine& engine) const {
    ServedModel out{name, nullptr, &engine, options.defaults};
    out.defaults.sampling = settle_sampling(options.defaults.sampling, options.sampling, engine.info().makers).params;
    return out;
}

std::vector<ModelStatus> Server::Impl::models() const {
    if (pool) return pool->list();
    return {{options.model, ModelState::ready, "", only.load()->engine->info()}};
}

/// The model of several that a request means which asks for this name.
std::string Server::Impl::pooled(std::string_view asked) const {
    std::string name(asked);
    if (!pool->has(name) && name.ends_with(kLatest)) name.resize(name.size() - kLatest.size());
    if (pool->has(name)) return name;
    if (name.empty() || !options.strict_model) return pool->first();
    std::string known;
    for (const ModelStatus& model : pool->list()) known += (known.empty() ? "'" : ", '") + model.name + "'";
    throw unknown_model(name, known);
}

ModelLease Server::Impl::model_for(const HttpRequest& request, const Known& known, const json::object& body,
                                   WorkBudget& work) {
    if (!pool) return only_model();
    const Fields fields(body);
    RequestDefaults counted;
    counted.work = &work;
    counted.received = request.received;
    parse_timeout(fields, counted);  // of which the wait for the model is a part
    const std::string asked = known.ollama() ? ollama_model(fields) : std::string(fields.string("model").value_or(""));
    return pool->lease(pooled(asked), work);
}

HttpReply Server::Impl::steer_model(const json::object& body, const Known& known, WorkBudget& work) {
    const std::string name(Fields(body).filled("model"));
    get_model(models(), name);  // throws for a name that there is not
    const bool load = known.route == Route::load_model;
    if (!load && !pool)
        refuse("model", "model: '{}' is the only one here and stays; riptide serve --models has several", name);
    if (load && pool) pool->lease(name, work);
    if (!load) pool->unload(name);
    return get_model(models(), name);
}

Outcome Server::Impl::handle(const HttpRequest& request) {
    const Known& known = find_route(request.path, request.method);
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
    if (known.route == Route::mcp) return pass_to_mcp(options.mcp, rest_of(request.path, known), request);
    if (known.route == Route::input_items)
        return get_input_items(responses, access.isolation(request), rest_of(request.path, known), request.query);
    const bool nothing = known.admin() && request.body.empty();
    json::object body = nothing ? json::object() : parse_body(request.body);
    if (known.route == Route::responses_socket && !take_message(body)) return HttpReply{204, ""};
    if (known.route == Route::load_model || known.route == Route::unload_model) return steer_model(body, known, work);
    const ApiContext ctx = context(model_for(request, known, body, work), request, known, work);
    switch (known.route) {
        case Route::chat:
            return post_chat(ctx, std::move(body));
        case Route::completions:
            return post_completion(ctx, std::move(body));
        case Route::responses:
        case Route::responses_socket:
            return post_responses(ctx, std::move(body));
        case Route::compact:
            return post_compact(ctx, body);
        case Route::messages:
            return post_messages(ctx, std::move(body));
        case Route::count_tokens:
            return post_count_tokens(ctx, std::move(body));
        case Route::ollama_chat:
            return post_ollama_chat(ctx, body);
        case Route::ollama_generate:
            return post_ollama_generate(ctx, body);
        case Route::ollama_show:
            return post_ollama_show(ctx, body);
        case Route::pause:
            return post_pause(ctx, body, request.query);
        case Route::resume:
            return post_resume(ctx);
        case Route::update_weights:
            return post_update_weights(ctx, body);
        case Route::tokenize:
            return post_tokenize(ctx, std::move(body));
        case Route::detokenize:
            return post_detokenize(ctx, body);
        default:
            return post_apply_template(ctx, std::move(body));
    }
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() = default;

int Server::port() const { return impl_->http.port(); }
void Server::serve(Engine& engine) {
    impl_->loaded = impl_->served(impl_->options.model, engine);
    impl_->only = &impl_->loaded;
}
bool Server::engine_failed() const { return impl_->broken(); }

void Server::drain(std::chrono::milliseconds grace) {
    impl_->draining = true;
    impl_->http.drain(grace);
}

}  // namespace riptide::server
