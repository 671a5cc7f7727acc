#include "apps/flags/trace_flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "apps/support/environment.h"
#include "base/error.h"
#include "base/percent.h"
#include "server/openapi/openapi.h"
#include "text/utf8.h"

namespace riptide::apps {

namespace {

constexpr std::string_view kPath = "/v1/traces";

/// "k=v,k=v", percent-encoded.
std::vector<std::pair<std::string, std::string>> pairs_in(const char* variable) {
    const std::string text = environment(variable);
    std::vector<std::pair<std::string, std::string>> out;
    const auto bare = [](std::string_view part) {
        const std::size_t begin = std::min(part.find_first_not_of(" \t"), part.size());
        part = part.substr(begin, part.find_last_not_of(" \t") + 1 - begin);
        return percent_decoded(part);
    };
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find(',', at), text.size());
        const std::string_view part = std::string_view(text).substr(at, end - at);
        at = end + 1;
        if (part.find_first_not_of(" \t") == std::string_view::npos) continue;
        const std::size_t equals = part.find('=');
        // What stands there may be a key, so it is not shown.
        RT_CHECK(equals != std::string_view::npos && equals > 0, ErrorKind::usage,
                 "{}: part {} is no NAME=VALUE; expected NAME=VALUE,NAME=VALUE", variable, out.size() + 1);
        out.emplace_back(bare(part.substr(0, equals)), bare(part.substr(equals + 1)));
        const std::string& value = out.back().second;
        RT_CHECK(
            utf8_valid_prefix(value) == value.size() && utf8_valid_prefix(out.back().first) == out.back().first.size(),
            ErrorKind::usage, "{}: part {} is no UTF-8", variable, out.size());
    }
    return out;
}

server::Headers headers_in(const char* variable) {
    const auto plain = [](const std::string& text) {
        return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
    };
    server::Headers out = pairs_in(variable);
    for (const auto& [name, value] : out)
        RT_CHECK(plain(name) && name.find_first_of(" :") == std::string::npos && plain(value), ErrorKind::usage,
                 "{}: a name or value in it can be in no HTTP header", variable);
    return out;
}

/// A number, or `usual` if the variable is not set. `low` to `high`.
double number_in(const char* variable, double usual, double low, double high) {
    const std::string text = environment(variable);
    if (text.empty()) return usual;
    double value = 0;
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
    RT_CHECK(wrong == std::errc() && end == text.data() + text.size() && value >= low && value <= high,
             ErrorKind::usage, "{}={}: expected a number from {} to {}", variable, text, low, high);
    return value;
}

std::chrono::milliseconds time_in(const char* variable, std::chrono::milliseconds usual) {
    return std::chrono::milliseconds(
        std::llround(number_in(variable, static_cast<double>(usual.count()), 1, 3'600'000)));
}

void read_sampler(server::TraceOptions& out) {
    std::string name = environment("OTEL_TRACES_SAMPLER");
    if (name.empty()) return;
    constexpr std::string_view kParent = "parentbased_";
    out.follow_parent = name.starts_with(kParent);
    if (out.follow_parent) name.erase(0, kParent.size());
    if (name == "always_off") out.share = 0;
    else if (name == "traceidratio") out.share = number_in("OTEL_TRACES_SAMPLER_ARG", 1, 0, 1);
    else
        RT_CHECK(name == "always_on", ErrorKind::usage,
                 "OTEL_TRACES_SAMPLER={}: expected always_on, always_off or traceidratio, or one of these behind "
                 "parentbased_",
                 environment("OTEL_TRACES_SAMPLER"));
}

}  // namespace

server::TraceOptions trace_options(const std::string& endpoint) {
    constexpr const char *kTraces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", *kAll = "OTEL_EXPORTER_OTLP_ENDPOINT";
    server::TraceOptions out;
    const bool off = environment("OTEL_SDK_DISABLED") == "true" || environment("OTEL_TRACES_EXPORTER") == "none";
    std::string url = endpoint, from = "--otlp-endpoint";
    if (url.empty() && !off) {
        from = environment(kTraces).empty() ? kAll : kTraces;
        url = environment(from.c_str());
    }
    if (url.empty()) return out;
    if (from != kTraces && !url.ends_with(kPath)) {
        while (url.ends_with('/')) url.pop_back();
        url += kPath;
    }
    out.url = server::parse_url(url, from);
    out.headers = headers_in("OTEL_EXPORTER_OTLP_HEADERS");
    out.resource = pairs_in("OTEL_RESOURCE_ATTRIBUTES");
    const auto settle = [&out](const std::string& name, const std::string& value, bool replace) {
        const auto found = std::find_if(out.resource.begin(), out.resource.end(),
                                        [&](const auto& pair) { return pair.first == name; });
        if (found == out.resource.end()) out.resource.emplace_back(name, value);
        else if (replace) found->second = value;
    };
    const std::string name = environment("OTEL_SERVICE_NAME");
    RT_CHECK(utf8_valid_prefix(name) == name.size(), ErrorKind::usage, "OTEL_SERVICE_NAME: is no UTF-8");
    settle("service.name", name.empty() ? "riptide" : name, !name.empty());
    settle("service.version", std::string(server::program_version()), false);
    read_sampler(out);
    out.delay = time_in("OTEL_BSP_SCHEDULE_DELAY", out.delay);
    out.timeout = time_in("OTEL_EXPORTER_OTLP_TIMEOUT", out.timeout);
    return out;
}

}  // namespace riptide::apps
