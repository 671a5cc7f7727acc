#include "apps/commands/serve_engine.h"

#include <algorithm>
#include <filesystem>

#include "apps/support/environment.h"
#include "apps/support/model_list.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "cache/cache_feed.h"
#include "engine/prompt/loaded_text.h"
#include "models/dflash_config.h"
#include "tensor/gpu.h"

namespace riptide::apps {

void DiskWarnings::hear(const std::string& problem) {
    const std::lock_guard lock(mutex_);
    last_ = problem;
    ++unsaid_;
    const auto now = std::chrono::steady_clock::now();
    if (said_ && now - *said_ < kPause) return;
    const std::string more = unsaid_ > 1 ? fmt::format(" ({} more like it)", unsaid_ - 1) : "";
    log_.write(fmt::format("cache   {}{}", problem, more));
    said_ = now;
    unsaid_ = 0;
}

namespace {

/// As the programs of Redis and S3 have it from the environment.
SharedAccess shared_access() {
    const std::string only_s3 = environment("AWS_ENDPOINT_URL_S3"), region = environment("AWS_REGION");
    return {.redis_password = environment("REDISCLI_AUTH"),
            .s3_id = environment("AWS_ACCESS_KEY_ID"),
            .s3_secret = environment("AWS_SECRET_ACCESS_KEY"),
            .s3_token = environment("AWS_SESSION_TOKEN"),
            .s3_region = region.empty() ? environment("AWS_DEFAULT_REGION") : region,
            .s3_endpoint = only_s3.empty() ? environment("AWS_ENDPOINT_URL") : only_s3};
}

EngineOptions server_engine_options(const ServerFlags& o, Progress& progress, int64_t total) {
    EngineOptions out = o.engine;
    static_cast<SessionOptions&>(out) = session_options(o.model);
    out.model.task = task_from_name(o.task);
    out.open_weights = weights_opener(o.model);
    out.speculation = speculation_options(o.draft);
    out.compression = compression_options(o.compress);
    out.scorer = open_scorer(o.compress, o.model);
    out.host_cache_bytes = o.cache_ram_mib << 20;
    out.disk_cache_bytes = o.cache_disk_gib << 30;
    out.shared_cache_bytes = o.cache_shared_gib << 30;
    if (!out.shared_cache.empty()) out.shared_access = shared_access();
    if (out.gpu) out.model.on_progress = [&progress, total](int64_t done) { progress.update(done, total); };
    return out;
}

/// The command line's, with what the list says of this model.
ServerFlags flags_of(const ServerFlags& o, const ListedModel& model) {
    ServerFlags out = o;
    out.model.model = model.path;
    if (!model.kv.empty()) out.model.kv = model.kv;
    if (!model.weights.empty()) out.model.weights = model.weights;
    if (!model.task.empty()) out.task = model.task;
    if (!model.drafter.empty()) out.draft.drafter = model.drafter;
    if (!model.memory_budget.empty()) out.model.memory_budget = model.memory_budget;
    if (model.context > 0) out.model.context = model.context;
    if (model.kv_tokens > 0) out.engine.kv_tokens = model.kv_tokens;
    if (out.engine.disk_cache.empty()) return out;
    std::string folder = model.name;
    std::replace(folder.begin(), folder.end(), '/', '_');
    out.engine.disk_cache += "/" + (folder.starts_with('.') ? "_" + folder : folder);
    return out;
}

/// What the weights of a listed model take at least on the CPU; 0: that is told when it is loaded.
int64_t least_bytes(const ListedModel& model, const ModelFlags& flags) {
    if (flags.weights.empty()) return model.file_bytes;
    try {
        return with_weight_sizes(open_checkpoint(model.path), flags)->tensor_bytes();
    } catch (const Error&) {  // what is wrong with it is told to who asks for it
        return 0;
    }
}

int64_t default_models_memory(const std::optional<GpuOptions>& gpu) {
    if (gpu) return Gpu::open({.ordinal = gpu->ordinal, .memory_budget = 0, .portable = gpu->portable})->available();
    return physical_memory() / 4 * 3;
}

}  // namespace

std::unique_ptr<KvEvents> open_kv_events(ServerFlags& o, const server::ServerOptions& server, int port) {
    KvEventsOptions& events = o.events;
    if (events.endpoint.empty()) {
        RT_CHECK(events.replay.empty() && events.topic.empty() && !events.disk && o.events_form.empty(),
                 ErrorKind::usage,
                 "--kv-events-replay, --kv-events-topic, --kv-events-format and --kv-events-disk need --kv-events");
        return nullptr;
    }
    RT_CHECK(o.models.empty(), ErrorKind::usage, "--kv-events are of one model: leave out --models {}", o.models);
    if (events.topic.empty()) {
        const std::string& host = server.http.host;
        RT_CHECK(
            server.http.unix_socket.empty(), ErrorKind::usage,
            "--kv-events with --socket {}: say with --kv-events-topic under which address routers know this server",
            server.http.unix_socket);
        RT_CHECK(
            server.model.find('@') == std::string::npos, ErrorKind::usage,
            "--kv-events: the model's name {} has an @, which ends it in kv@ADDRESS:PORT@MODEL: give --alias NAME, "
            "or --kv-events-topic",
            server.model);
        events.topic = fmt::format(
            "kv@{}:{}@{}", host.find(':') == std::string::npos ? host : fmt::format("[{}]", host), port, server.model);
    }
    if (o.events_form == "map") events.form = KvEventForm::map;
    o.engine.cache_feed = std::make_shared<CacheFeed>();
    return std::make_unique<KvEvents>(events, o.engine.cache_feed);
}

server::KvEventsAt place_of(const KvEvents& events, const std::string& topic) {
    constexpr std::string_view kTcp = "tcp://";
    const std::string& at = events.endpoint();
    if (!at.starts_with(kTcp)) return {};
    const size_t colon = at.rfind(':');
    std::string host = at.substr(kTcp.size(), colon - kTcp.size());
    if (host == "0.0.0.0" || host == "[::]") host = "*";
    return {std::move(host), std::stoll(at.substr(colon + 1)), topic};
}

std::string shared_line(const ServerFlags& o) {
    const std::string& address = o.engine.shared_cache;
    const bool folder = is_folder_address(address);
    return fmt::format("shared  {}{}{}, records sealed with the fleet's key",
                       folder && !address.starts_with("dir:") ? "dir:" : "", without_password(address),
                       folder ? fmt::format(", {} GiB at most", o.cache_shared_gib) : "");
}

std::unique_ptr<Engine> open_server_engine(const ServerFlags& o, DiskWarnings& warnings, LogWriter& log) {
    auto checkpoint = open_model(o.model);
    refuse_dflash(*checkpoint);
    RT_CHECK(has_tokenizer(*checkpoint),
             "{}: no tokenizer, so the server could not say a word; riptide run --tokens takes ids and prints ids",
             checkpoint->path());
    int64_t total = 0;
    for (const TensorInfo& tensor : checkpoint->tensors()) total += static_cast<int64_t>(tensor.bytes.size());
    Progress progress("weights", "B");
    EngineOptions options = server_engine_options(o, progress, total);
    options.on_disk_problem = [&warnings](const std::string& problem) { warnings.hear(problem); };
    options.on_shared_problem = [&log](const std::string& problem) { log.write("cache   " + problem); };
    options.on_disk_news = [&log](const std::string& news) { log.write("cache   " + news); };
    options.digests = digests_file();
    return std::make_unique<Engine>(std::move(checkpoint), options);
}

server::PoolOptions several_models(const ServerFlags& o, DiskWarnings& warnings, LogWriter& log) {
    server::PoolOptions out;
    out.keep_alive = std::chrono::seconds(o.keep_alive);
    out.memory_bytes = o.models_memory_mib << 20;
    std::vector<ListedModel> models = list_models(o.models, o.model.hub);
    for (const ListedModel& model : models) {
        SessionOptions options;
        const ModelFlags flags = flags_of(o, model).model;
        try {
            check_weights(flags);
            options = session_options(flags);
        } catch (const Error& error) {
            throw Error(fmt::format("{}: models.{}: {}", o.models, model.name, error.what()), error.kind());
        }
        if (out.memory_bytes == 0) out.memory_bytes = default_models_memory(options.gpu);
        const int64_t budget = options.gpu ? options.gpu->memory_budget : 0;
        out.models.push_back({model.name, !options.gpu ? least_bytes(model, flags)
                                          : budget > 0 ? budget
                                                       : out.memory_bytes});
    }
    out.load = [&o, &warnings, &log, models = std::move(models)](const std::string& name) {
        const auto model = std::find_if(models.begin(), models.end(), [&](const auto& m) { return m.name == name; });
        const auto begun = std::chrono::steady_clock::now();
        log.write(fmt::format("load    {}  {}", name, model->path));
        try {
            auto engine = open_server_engine(flags_of(o, *model), warnings, log);
            const EngineInfo info = engine->info();
            log.write(
                fmt::format("loaded  {} in {:.1f} s   context {} tokens, K/V for {} tokens, {} of weights and K/V",
                            name, std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(),
                            grouped(info.context_length), grouped(info.kv_tokens), human_bytes(info.memory_bytes)));
            return engine;
        } catch (const Error& error) {
            log.write(fmt::format("failed  {}: {}", name, error.what()));
            throw;
        }
    };
    return out;
}

}  // namespace riptide::apps
