// Asks another server, over HTTP/1.1, with limits on time and size.
#pragma once

#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>

#include "server/http/message.h"

namespace riptide::server {

/// "http(s)://HOST[:PORT][/PATH][?QUERY]", taken apart.
struct RemoteUrl {
    bool tls = false;
    std::string authority;   // HOST[:PORT], as written
    std::string host, port;  // without brackets; 80 or 443 if not written
    std::string target;      // path and query
};

/// Throws Error (usage), which begins with `what`, for anything else; also for a user or a fragment in it.
RemoteUrl parse_url(const std::string& text, const std::string& what);

struct FetchLimits {
    std::chrono::milliseconds time{60'000};  // all in all, but for the system's look-up of the name
    uint64_t reply_bytes = uint64_t{8} << 20;
};

/// The reply, whatever its status. Redirects are not followed; certificates must be vouched for by the system's
/// authorities. `headers` go beside Host and what frames the body. Blocks; ends soon once `stop` asks for it.
/// Throws Error (unavailable): no reply, and why, as what the sentence "NAME " goes on with.
HttpReply fetch(const RemoteUrl& url, const std::string& method, const Headers& headers, const std::string& body,
                const FetchLimits& limits, const std::stop_token& stop);

}  // namespace riptide::server
