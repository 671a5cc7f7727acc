#include "server/management.h"

namespace riptide::server {

HttpOptions management_options(const ServerOptions& o) {
    HttpOptions out;
    out.host = o.management_host;
    out.port = static_cast<int>(o.management_port.value_or(0));
    out.host_flag = "--management-host";
    out.port_flag = "--management-port";
    out.worker_threads = out.waiting_threads = 0;
    out.max_connections = 256;
    return out;
}

ApiError not_managed() {
    return {404,
            "this port tells how the server is (GET /health, /livez, /readyz, /metrics, /version, /server_info, "
            "/v1/models, /v1/loads); everything else is at the port of the API"};
}

}  // namespace riptide::server
