#include "server/traces/trace_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "server/random_id.h"

namespace riptide::server {

namespace {

constexpr std::size_t kVersion = 2, kTrace = 32, kSpan = 16, kFlags = 2;
constexpr std::size_t kTraceAt = kVersion + 1, kSpanAt = kTraceAt + kTrace + 1, kFlagsAt = kSpanAt + kSpan + 1;
constexpr std::size_t kLength = kFlagsAt + kFlags;

int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool is_hex(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return digit_of(c) >= 0; });
}

bool is_id(std::string_view text) { return is_hex(text) && text.find_first_not_of('0') != std::string_view::npos; }

std::optional<TraceContext> parse_traceparent(std::string_view text) {
    if (text.size() < kLength) return std::nullopt;
    const std::string_view version = text.substr(0, kVersion), trace = text.substr(kTraceAt, kTrace),
                           span = text.substr(kSpanAt, kSpan), flags = text.substr(kFlagsAt, kFlags);
    if (!is_hex(version) || version == "ff" || !is_id(trace) || !is_id(span) || !is_hex(flags)) return std::nullopt;
    for (const std::size_t at : {kVersion, kTraceAt + kTrace, kSpanAt + kSpan})
        if (text[at] != '-') return std::nullopt;
    if (text.size() > kLength && (version == "00" || text[kLength] != '-')) return std::nullopt;
    return TraceContext{std::string(trace), std::string(span), (digit_of(flags[1]) & 1) != 0};
}

}  // namespace

std::optional<TraceContext> trace_context(const Headers& headers) {
    const std::string* found = nullptr;
    for (const auto& [name, value] : headers) {
        if (name != "traceparent") continue;
        if (found != nullptr) return std::nullopt;
        found = &value;
    }
    return found == nullptr ? std::nullopt : parse_traceparent(*found);
}

TraceContext new_trace() { return {fmt::format("{:016x}{:016x}", random_number(), random_number() | 1), "", true}; }

std::string new_span_id() { return fmt::format("{:016x}", random_number() | 1); }

bool in_share(const std::string& trace, double share) {
    uint64_t drawn = 0;  // the last 56 bits, which are random (Trace Context, level 2)
    for (const char c : std::string_view(trace).substr(kTrace - 14))
        drawn = drawn << 4 | static_cast<uint64_t>(digit_of(c));
    return static_cast<double>(drawn >> 3) < std::ldexp(share, 53);
}

}  // namespace riptide::server
