// Routes that steer the engine: pause, resume, other weights, requests that are to end.
#include "server/api/api.h"

#include "base/json.h"

namespace riptide::server {

namespace {

json::object state_of(const ApiContext& ctx) {
    const EngineStats stats = ctx.engine.stats();
    return {{"status", "ok"},
            {"paused", stats.paused},
            {"waiting", stats.waiting},
            {"running", stats.running},
            {"weights_version", stats.version}};
}

}  // namespace

std::string_view query_value(std::string_view query, std::string_view key) {
    while (!query.empty()) {
        const std::string_view pair = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(query.size(), pair.size() + 1));
        const std::size_t equals = pair.find('=');
        if (pair.substr(0, equals) == key) return equals == std::string_view::npos ? "" : pair.substr(equals + 1);
    }
    return {};
}

HttpReply post_pause(const ApiContext& ctx, const json::object& body, std::string_view query) {
    std::string_view mode = query_value(query, "mode");
    if (const auto asked = Fields(body).string("mode")) mode = *asked;
    if (mode.empty()) mode = "keep";
    if (mode != "keep" && mode != "abort" && mode != "wait")
        refuse("mode", "mode: expected keep, abort or wait, found '{}'", mode.substr(0, 40));
    if (mode == "abort") ctx.live.cancel_all(ctx.engine);
    if (mode == "wait") ctx.engine.drain(&ctx.work);
    ctx.engine.pause();
    return {200, json::serialize(state_of(ctx))};
}

HttpReply post_resume(const ApiContext& ctx) {
    ctx.engine.resume();
    return {200, json::serialize(state_of(ctx))};
}

HttpReply post_update_weights(const ApiContext& ctx, const json::object& body) {
    const Fields fields(body);
    std::optional<std::string_view> path;
    for (const char* key : {"weight_dir", "model_path", "path"})
        if (!path) path = fields.string(key);
    if (!path) refuse("weight_dir", "weight_dir: missing (a GGUF file or a folder of safetensors on this machine)");
    try {
        const int64_t version = ctx.engine.reload(std::string(*path), &ctx.work);
        json::object out = state_of(ctx);
        out["weights_version"] = version;
        return {200, json::serialize(out)};
    } catch (const WorkStopped&) {
        throw;
    } catch (const Error& error) {
        const bool broken = ctx.engine.stats().broken;
        throw ApiError(broken ? 500 : 400, error.what(), "weight_dir");
    }
}

HttpReply post_flush_cache(const ApiContext& ctx) {
    ctx.engine.forget_cache(&ctx.work);
    return {200, json::serialize(state_of(ctx))};
}

HttpReply get_requests(const LiveRequests& live, const std::string& isolation) {
    return {200, json::serialize(json::object{{"object", "list"}, {"data", live.list(isolation)}})};
}

HttpReply delete_request(const LiveRequests& live, const std::string& isolation, std::string_view id) {
    if (id.empty() || !live.cancel(isolation, id))
        throw ApiError(404, fmt::format("there is no request '{}' (any more)", id.substr(0, 80)));
    return {200, json::serialize(json::object{{"id", id}, {"cancelled", true}})};
}

HttpReply post_abort_request(const LiveRequests& live, const std::string& isolation, const json::object& body) {
    return delete_request(live, isolation, Fields(body).filled("rid"));
}

}  // namespace riptide::server
