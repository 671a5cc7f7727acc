// Where traces go: --otlp-endpoint, and OpenTelemetry's standard variables.
#pragma once

#include <string>

#include "server/traces/traces.h"

namespace riptide::apps {

/// `endpoint`: of --otlp-endpoint; empty: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, which is used as it is, or
/// OTEL_EXPORTER_OTLP_ENDPOINT; without any of them nothing is traced. OTEL_SDK_DISABLED=true and
/// OTEL_TRACES_EXPORTER=none switch off the variables' endpoints, but not the flag's. To an endpoint that is not the
/// whole path /v1/traces is added. Also OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME ("riptide"),
/// OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER(_ARG), OTEL_BSP_SCHEDULE_DELAY, OTEL_EXPORTER_OTLP_TIMEOUT. Throws
/// Error (usage) naming the flag or variable.
server::TraceOptions trace_options(const std::string& endpoint);

}  // namespace riptide::apps
