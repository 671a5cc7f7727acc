#include "server/management.h"

#include <algorithm>
#include <cmath>

namespace riptide::server {

namespace {

HttpOptions beside(const ServerOptions& o, int64_t port, const char* flag) {
    HttpOptions out;
    out.host = o.management_host;
    out.port = static_cast<int>(port);
    out.host_flag = "--management-host";
    out.port_flag = flag;
    out.worker_threads = out.waiting_threads = 0;
    out.max_connections = 256;
    return out;
}

}  // namespace

HttpOptions management_options(const ServerOptions& o) {
    return beside(o, o.management_port.value_or(0), "--management-port");
}

HttpOptions agent_options(const ServerOptions& o) { return beside(o, o.agent_port.value_or(0), "--agent-port"); }

HttpReply ready_reply(Health health) {
    if (health == Health::ok || health == Health::failed) return live_reply(health);
    const char* word = health == Health::draining ? "draining" : health == Health::asleep ? "asleep" : "loading";
    HttpReply reply{503, fmt::format(R"({{"status":"{}"}})", word)};
    reply.headers.emplace_back("Retry-After", "2");
    return reply;
}

HttpReply live_reply(Health health) {
    if (health == Health::failed) return {500, R"({"status":"failed"})"};
    return {200, R"({"status":"ok"})"};
}

ApiError not_managed() {
    return {404,
            "this port tells how the server is (GET /health, /livez, /readyz, /metrics, /version, /server_info, "
            "/v1/models, /v1/loads); everything else is at the port of the API"};
}

int FreeWeight::next(const EngineFacts& all, Clock::time_point now) {
    const double places = std::max<double>(1, all.max_running);
    const double taken = std::max(all.kv_usage(), static_cast<double>(all.running) / places);
    const int weight = std::clamp(25 * static_cast<int>(std::ceil(4 * (1 - taken))), 25, 100);
    if (weight == told_) {
        due_.reset();
    } else if (!due_) {
        due_ = now;
    } else if (now - *due_ >= kSettle) {
        told_ = weight;
        due_.reset();
    }
    return told_;
}

std::string FreeWeight::line(Health health, const EngineFacts& all) {
    if (health == Health::draining) return "drain\n";
    if (health != Health::ok) return "down\n";
    return fmt::format("up ready {}%\n", next(all));
}

}  // namespace riptide::server
