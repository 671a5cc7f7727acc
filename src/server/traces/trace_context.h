// Which trace a request belongs to: the W3C's Trace Context, https://www.w3.org/TR/trace-context/.
#pragma once

#include <optional>
#include <string>

#include "server/http/message.h"

namespace riptide::server {

/// Ids are lower-case hexadecimal digits, never all zero.
struct TraceContext {
    std::string trace;    // 32 digits
    std::string span;     // 16: of whoever asks; empty: nobody does, this is the trace's first span
    bool sampled = true;  // whether that one is recorded
};

/// What `traceparent` says: VERSION-TRACE-SPAN-FLAGS. Of versions that are not known yet the four fields that are.
/// nullopt, as the standard wants it: there is none, there are two, or it is malformed.
std::optional<TraceContext> trace_context(const Headers& headers);

/// A trace that begins here.
TraceContext new_trace();
/// 16 digits.
std::string new_span_id();

/// Whether a trace is among this share (0 to 1) of all: for one trace the same answer everywhere.
bool in_share(const std::string& trace, double share);

}  // namespace riptide::server
