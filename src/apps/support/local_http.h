// Asking a riptide server that runs already.
#pragma once

#include <optional>
#include <string>

namespace riptide::apps {

struct ServerAddress {
    std::string host = "127.0.0.1";
    int port = 8484;
    std::string key;     // API key; may be empty
    std::string tls_ca;  // a PEM file: speak TLS, with a server whose certificate is in it or signed by one that is
};

struct LocalReply {
    int status = 0;
    std::string body;
};

/// GET over HTTP. nullopt: nobody listens there, or no reply has come within `seconds`. Throws Error: usage, for a host
/// that is no IPv4 address; unavailable, for a server that speaks TLS while we do not or the other way round, or whose
/// certificate is not to be trusted.
std::optional<LocalReply> get_local(const ServerAddress& server, const std::string& path, int seconds = 5);

}  // namespace riptide::apps
