// The server: OpenAI's and Anthropic's APIs in front of an Engine.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api/generation_request.h"
#include "server/api/mcp.h"
#include "server/http/server.h"
#include "server/model_pool.h"
#include "server/request_log.h"
#include "server/traces/traces.h"

namespace riptide::server {

struct ServerOptions {
    HttpOptions http;
    std::string model;                         // its name in the API; not of several
    PoolOptions several;                       // models that are loaded when they are asked for, or none
    bool strict_model = false;                 // other names are refused, not taken for this model
    std::vector<std::string> api_keys;         // none: everybody may ask
    std::vector<std::string> allowed_hosts;    // further names in Host and Origin headers
    std::vector<std::string> cors_origins;     // whose web pages may ask; none: only our own
    RequestDefaults defaults;                  // of `sampling` what nobody else says
    SamplingChoice sampling;                   // the command line's: comes before what the model's makers say
    int64_t stored_bytes = int64_t{64} << 20;  // of responses that later requests may refer to; in memory only
    LogOptions log;
    TraceOptions traces;
    McpServers mcp;  // whose tools the page may use
    /// A port of its own for who watches the server: GETs that generate and change nothing, without a key or TLS.
    std::optional<int64_t> management_port;  // none: there is none; 0: any that is free
    std::string management_host = "127.0.0.1";
    std::optional<int64_t> agent_port;  // on that host too: HAProxy's agent checks (docs/fleet.md)
    bool open_metrics = false;          // GET /metrics needs no key here either
    bool page = true;                   // browsers are shown a page at "/"
    bool admin = false;                 // clients may pause the engine and give it other weights
};

/// Where a model's K/V events are told over ZeroMQ (docs/fleet.md).
struct KvEventsAt {
    std::string host;  // "*": each address of this machine
    int64_t port = 0;  // 0: nowhere that others reach
    std::string topic;
};

/// Listens from construction on, and says 503 until it has an engine, or several models. All functions may be called
/// from any thread.
class Server {
  public:
    /// Throws Error (usage, unavailable): options, or the address cannot be bound.
    explicit Server(ServerOptions options);
    /// Breaks off what still goes on.
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    int port() const;
    /// 0: there is none.
    int management_port() const;
    int agent_port() const;
    /// Tells routers so, once there is a model. REQUIRES that serve() has not been called, and that there are not
    /// several.
    void tell_kv_events(KvEventsAt at);
    /// The model is loaded; `open` loads it once more when it has slept, and throws Error. REQUIRES that there are not
    /// several.
    void serve(std::unique_ptr<Engine> engine, std::function<std::unique_ptr<Engine>()> open);
    /// The same of one that must outlive the server, and so cannot sleep.
    void serve(Engine& engine);
    /// The engine has ended by itself (its device failed): the process should too.
    bool engine_failed() const;
    /// Refuses new requests, lets replies end for as long as `grace`, then aborts them.
    void drain(std::chrono::milliseconds grace);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace riptide::server
