#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <ctime>

#include "base/percent.h"
#include "server/access.h"
#include "server/api/api.h"
#include "server/api/ollama/ollama_request.h"
#include "server/api/request_headers.h"
#include "server/api/routes.h"
#include "server/http/authority.h"
#include "server/management.h"
#include "server/model_pool.h"
#include "server/only_model.h"
#include "server/openapi/openapi.h"
#include "server/page/page.h"

namespace riptide::server {

namespace {

ErrorShape shape_of(const Known& known) {
    if (known.ollama()) return ErrorShape::ollama;
    const bool anthropic = known.route == Route::messages || known.route == Route::count_tokens;
    return anthropic ? ErrorShape::anthropic : ErrorShape::openai;
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
          watchers({}, options.management_host, {}),
          responses(options.stored_bytes),
          log(options.log),
          traces(options.traces),
          pool(options.several.models.empty() ? nullptr : std::make_unique<ModelPool>(options.several, make_served())),
          http(http_options(options), handlers(Port::serving)) {
        if (options.management_port)
            management = std::make_unique<HttpServer>(management_options(options), handlers(Port::management));
        if (options.agent_port)
            agent = std::make_unique<HttpServer>(agent_options(options),
                                                 HttpHandlers{.line = [this] { return agent_line(); }});
    }

    enum class Port { serving, management };
    HttpHandlers handlers(Port port) {
        const Access& who = port == Port::serving ? access : watchers;
        return {.door = [this, port](const HttpRequest& request) { return door(request, port); },
                .handle = [this](HttpRequest&& request) { return handle(request, nullptr); },
                .waits = [](const HttpRequest& request) { return find_route(request.path).route == Route::mcp; },
                .session = [this](const HttpRequest& request) { return session(request); },
                .message = error_message,
                .headers =
                    [&who](HttpRequest& request) {
                        Headers out = who.cors(request);
                        out.emplace_back("x-request-id", settle_request_id(request));
                        return out;
                    },
                .error_body =
                    [](const HttpRequest& request, int status, const std::string& text) {
                        return error_body(ApiError(status, text), shape_of(find_route(request.path, request.method)));
                    }};
    }
    std::optional<HttpReply> door(const HttpRequest& request, Port port);
    std::optional<HttpReply> pass(const HttpRequest& request, const Known& known, Port port);
    Outcome handle(HttpRequest& request, const ReplyFacts* early);
    Outcome dispatch(HttpRequest& request, const Known& known, const ReplyFacts* early);
    ApiContext context(const ModelLease& model, const HttpRequest& request, const Known& known, WorkBudget& work) {
        return {.model = model,
                .engine = *model->engine,
                .options = options,
                .defaults = counted(model->defaults, request, work),
                .metrics = metrics,
                .responses = responses,
                .live = live,
                .traces = traces,
                .trace = trace_of(traces, request, known),
                .log = log,
                .isolation = access.isolation(request),
                .session = session_in_headers(request),
                .request_id = std::string(request.header("x-request-id")),
                .socket = static_cast<ResponseSession*>(request.session.get()),
                .route = known.label,
                .body = request.body,
                .work = work};
    }
    std::shared_ptr<void> session(const HttpRequest& request) {
        const bool socket = find_route(request.path, request.method).route == Route::responses_socket;
        return socket ? std::make_shared<ResponseSession>(responses) : nullptr;
    }
    bool ready() const { return pool || only.state() == OnlyModel::State::awake; }
    bool broken() const;
    Health health() const;
    std::vector<EngineFacts> engines();
    std::string agent_line() { return weight.line(health(), total_of(engines())); }
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
    /// Throws if it is not there.
    ModelLease only_model() const {
        ModelLease model = only.lease();
        if (!model) throw only.absent();
        return model;
    }
    const std::string& default_model() const { return pool ? pool->first() : options.model; }
    std::string pooled(std::string_view asked) const;
    std::string asked_model(const Known& known, const json::object& body) const;
    RequestDefaults counted(RequestDefaults defaults, const HttpRequest& request, WorkBudget& work) const {
        defaults.work = &work;
        defaults.received = request.received;
        return defaults;
    }
    std::shared_ptr<LaterReply> later(HttpRequest& request, const Known& known, json::object& body, WorkBudget& work);
    ModelLease model_for(const HttpRequest& request, const Known& known, const json::object& body, WorkBudget& work);
    HttpReply steer_model(const json::object& body, const Known& known, WorkBudget& work);

    const ServerOptions options;
    const int64_t started = std::time(nullptr);
    KvEventsAt kv_events;           // before there is a model, and not after
    const Access access, watchers;  // of the port, of the management port
    Metrics metrics;
    ResponseStore responses;
    LiveRequests live;
    RequestLog log;
    Traces traces;
    OnlyModel only;
    std::unique_ptr<ModelPool> pool;  // of several; null: there is only one
    std::atomic<bool> draining = false, failed = false;
    FreeWeight weight;  // of the agent's thread
    HttpServer http;    // from here on: they call the others
    std::unique_ptr<HttpServer> management, agent;
};

/// From the header alone: refusals, and all that needs no body.
std::optional<HttpReply> Server::Impl::door(const HttpRequest& request, Port port) {
    const Known& known = find_route(request.path, request.method);
    std::optional<HttpReply> reply;
    try {
        reply = pass(request, known, port);
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

/// At the management port it always has a reply, or throws: there are no handlers.
std::optional<HttpReply> Server::Impl::pass(const HttpRequest& request, const Known& known, Port port) {
    const bool managing = port == Port::management;
    (managing ? watchers : access).check_origin(request);
    if (managing && !known.management()) throw not_managed();
    const bool get = request.method == "GET" || request.method == "HEAD";
    if (request.method == "OPTIONS" && !managing) return HttpReply{204, ""};
    if (get && known.route == Route::hello) return hello_reply(request, options.page && known.path == "/");
    if (get && known.route == Route::health) return ready_reply(health());
    if (get && known.route == Route::live) return live_reply(health());
    if (!managing && !(known.route == Route::metrics && options.open_metrics)) access.check_key(request);
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
    if (!ready() && !known.about_sleep()) throw only.absent();
    return std::nullopt;
}

/// The engine has ended: it said so, or refused a request for it.
bool Server::Impl::broken() const {
    if (failed || (pool && pool->broken())) return true;
    const ModelLease model = only.lease();
    return model && model->engine->stats().broken;
}

Health Server::Impl::health() const {
    if (broken()) return Health::failed;
    if (draining) return Health::draining;
    if (ready()) return Health::ok;
    const OnlyModel::State state = only.state();
    const bool sleeps = state == OnlyModel::State::asleep || state == OnlyModel::State::falling_asleep;
    return sleeps ? Health::asleep : Health::loading;
}

/// Of what is loaded.
std::vector<EngineFacts> Server::Impl::engines() {
    std::vector<EngineFacts> out;
    if (pool)
        for (const ModelLease& model : pool->loaded()) out.push_back(engine_facts(model, true));
    else if (const ModelLease model = only.lease()) out.push_back(engine_facts(model, false));
    return out;
}

HttpReply Server::Impl::about(const HttpRequest& request, const Known& known) {
    if (known.route == Route::metrics)
        return {200, metrics.page(ready(), engines(), http.connections(), traces.counts(), default_model()),
                "text/plain; version=0.0.4; charset=utf-8"};
    if (known.route == Route::openapi) return {200, std::string(openapi_text())};
    if (known.route == Route::version) return get_version();
    if (known.route == Route::ollama_version) return get_ollama_version();
    if (known.route == Route::response)
        return get_response(responses, access.isolation(request), rest_of(request.path, known), request.query);
    if (known.route == Route::delete_response)
        return delete_response(responses, access.isolation(request), rest_of(request.path, known));
    if (known.route == Route::is_sleeping) return get_is_sleeping(only);
    if (!pool && only.state() == OnlyModel::State::loading) throw only.absent();
    if (known.route == Route::models) return get_models(models(), started);
    if (known.route == Route::server_info) return get_server_info(models().front(), kv_events);
    if (known.route == Route::loads) return get_loads(total_of(engines()));
    if (known.route == Route::model) return get_model(models(), rest_of(request.path, known), started);
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
    return {{options.model, ready() ? ModelState::ready : ModelState::unloaded, "", only.info()}};
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

/// Of several.
std::string Server::Impl::asked_model(const Known& known, const json::object& body) const {
    const Fields fields(body);
    return pooled(known.ollama() ? ollama_model(fields) : std::string(fields.string("model").value_or("")));
}

ModelLease Server::Impl::model_for(const HttpRequest& request, const Known& known, const json::object& body,
                                   WorkBudget& work) {
    if (!pool) return only_model();
    parse_timeout(Fields(body), counted({}, request, work));  // of which the wait for the model is a part
    return pool->lease(asked_model(known, body), work);
}

/// For a stream whose model has to be loaded first. Null: it is there, or the client can hear nothing meanwhile; else
/// `request` and `body` are gone.
std::shared_ptr<LaterReply> Server::Impl::later(HttpRequest& request, const Known& known, json::object& body,
                                                WorkBudget& work) {
    const std::string name = asked_model(known, body);
    if (pool->ready(name)) return nullptr;
    auto early = early_stream(known.route, body, counted(options.defaults, request, work), responses,
                              access.isolation(request), name);
    if (!early) return nullptr;
    auto out = std::make_shared<LaterReply>();
    out->early = std::move(early->reply);
    out->make = [this, request = std::move(request), facts = std::move(early->facts)]() mutable {
        return handle(request, &facts);
    };
    return out;
}

HttpReply Server::Impl::steer_model(const json::object& body, const Known& known, WorkBudget& work) {
    const std::string name(Fields(body).filled("model"));
    get_model(models(), name, started);  // throws for a name that there is not
    const bool load = known.route == Route::load_model;
    if (!load && !pool)
        refuse("model", "model: '{}' is the only one here and stays; riptide serve --models has several", name);
    if (load && pool) pool->lease(name, work);
    if (!load) pool->unload(name);
    return get_model(models(), name, started);
}

/// `early`: null, or of the stream that a LaterReply has begun.
Outcome Server::Impl::handle(HttpRequest& request, const ReplyFacts* early) {
    const Known& known = find_route(request.path, request.method);
    Outcome outcome;
    const auto refuse_with = [&](const ApiError& error) {
        if (error.status() == 500) log.mistake(known.label, error.what());
        outcome = error_reply(error, shape_of(known));
    };
    try {
        outcome = dispatch(request, known, early);
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
    if (std::holds_alternative<std::shared_ptr<LaterReply>>(outcome)) return outcome;
    const auto* reply = std::get_if<HttpReply>(&outcome);
    metrics.replied(known.label, reply != nullptr ? reply->status : 200);
    if (reply != nullptr) trace_reply(traces, request, known, reply->status);
    return outcome;
}

Outcome Server::Impl::dispatch(HttpRequest& request, const Known& known, const ReplyFacts* early) {
    WorkBudget work(WorkBudget::kSteps, request.stop);
    work.look();  // it may have waited for a worker longer than its client did
    if (known.route == Route::mcp) return pass_to_mcp(options.mcp, rest_of(request.path, known), request);
    if (known.route == Route::input_items)
        return get_input_items(responses, access.isolation(request), rest_of(request.path, known), request.query);
    const bool nothing = known.admin() && request.body.empty();
    json::object body = nothing ? json::object() : parse_body(request.body, work);
    if (known.route == Route::responses_socket && !take_message(body)) return HttpReply{204, ""};
    if (known.route == Route::load_model || known.route == Route::unload_model) return steer_model(body, known, work);
    if (known.about_sleep() && pool)
        throw ApiError(400, "a server with several models does not sleep: POST /models/unload puts one away");
    if (known.route == Route::sleep) return post_sleep(only, live, request.query, work);
    if (known.route == Route::wake_up) return post_wake_up(only, work);
    if (known.route == Route::abort_request) return post_abort_request(live, access.isolation(request), body);
    if (pool && early == nullptr && !request.session)
        if (auto waits = later(request, known, body, work)) return waits;
    ApiContext ctx = context(model_for(request, known, body, work), request, known, work);
    ctx.early = early;
    return answer(ctx, known.route, std::move(body), request.query);
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() = default;

int Server::port() const { return impl_->http.port(); }
int Server::management_port() const { return impl_->management ? impl_->management->port() : 0; }
int Server::agent_port() const { return impl_->agent ? impl_->agent->port() : 0; }
void Server::tell_kv_events(KvEventsAt at) { impl_->kv_events = std::move(at); }
void Server::serve(std::unique_ptr<Engine> engine, std::function<std::unique_ptr<Engine>()> open) {
    const auto own = [make = impl_->make_served(), name = impl_->options.model](std::unique_ptr<Engine> given) {
        return make(name, std::move(given));
    };
    impl_->only.serve(own(std::move(engine)), [own, open = std::move(open)] { return own(open()); });
}
void Server::serve(Engine& engine) { impl_->only.serve(impl_->served(impl_->options.model, engine), {}); }
bool Server::engine_failed() const { return impl_->broken(); }

void Server::drain(std::chrono::milliseconds grace) {
    impl_->draining = true;
    impl_->http.drain(grace);
}

}  // namespace riptide::server
