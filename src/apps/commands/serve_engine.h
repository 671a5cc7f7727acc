// From the flags of riptide serve to its engine, or engines.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "apps/events/kv_events.h"
#include "apps/flags/compress_flags.h"
#include "apps/flags/model_flags.h"
#include "apps/support/log_writer.h"
#include "engine/engine.h"
#include "server/server.h"

namespace riptide::apps {

struct ServerFlags {
    ModelFlags model;
    DraftFlags draft;
    CompressFlags compress;
    EngineOptions engine;
    server::ServerOptions server;
    KvEventsOptions events;
    std::string events_form;       // array | map; empty: array
    std::vector<std::string> mcp;  // NAME=URL
    std::string key_file, reasoning = "auto", log_format = "text", template_kwargs, task = "auto", otlp_endpoint;
    int64_t cache_ram_mib = 4096, cache_disk_gib = 64, cache_shared_gib = 256, inflight_mib = 0;
    int grace_seconds = 30;
    std::string models;             // of several; empty: there is one
    int64_t models_memory_mib = 0;  // 0: default_models_memory()
    int64_t keep_alive = 0;         // seconds; 0: for ever
    bool allow_no_auth = false, quiet = false, no_page = false;
};

/// What is wrong with the disk cache, in the log: at once, then once in kPause, so that a full disk does not fill it.
/// Thread-safe.
class DiskWarnings {
  public:
    explicit DiskWarnings(LogWriter& log) : log_(log) {}
    ~DiskWarnings() {
        if (unsaid_ > 0) log_.write(fmt::format("cache   {} ({} more like it)", last_, unsaid_));
    }
    DiskWarnings(const DiskWarnings&) = delete;
    DiskWarnings& operator=(const DiskWarnings&) = delete;
    void hear(const std::string& problem);

  private:
    static constexpr std::chrono::minutes kPause{10};
    LogWriter& log_;
    std::mutex mutex_;
    std::string last_;
    int64_t unsaid_ = 0;
    std::optional<std::chrono::steady_clock::time_point> said_;
};

/// Who tells routers what the cache of the flags' engine holds, from when that is opened; null without --kv-events.
/// `port`: of the server. Throws Error naming the flag that is wrong.
std::unique_ptr<KvEvents> open_kv_events(ServerFlags& o, const server::ServerOptions& server, int port);

/// What /server_info says of them.
server::KvEventsAt place_of(const KvEvents& events, const std::string& topic);

/// The model of the flags, or the demo model. Throws Error.
std::unique_ptr<Engine> open_server_engine(const ServerFlags& o, DiskWarnings& warnings, LogWriter& log);

/// The log's line that names the tier of --shared-cache, without user and password. REQUIRES one.
std::string shared_line(const ServerFlags& o);

/// The models of --models, with a function that loads each; all that it refers to must outlive it. Each has its own
/// folder in --cache-dir. What all may take of memory is --models-memory; left out: what is free on the GPU now, or
/// three quarters of the machine's. On a GPU a model counts as its memory budget, and as all if it has none, since its
/// K/V takes what is free. Throws Error naming the model and key that are wrong.
server::PoolOptions several_models(const ServerFlags& o, DiskWarnings& warnings, LogWriter& log);

}  // namespace riptide::apps
