// Asking a riptide server that runs already.
#pragma once

#include <optional>
#include <string>

namespace riptide::apps {

struct ServerAddress {
    std::string host = "127.0.0.1";
    int port = 8484;
    std::string key;  // API key; may be empty
};

struct LocalReply {
    int status = 0;
    std::string body;
};

/// GET over plain HTTP. nullopt: nobody listens there, or no reply has come within `seconds`. Throws Error (usage) for
/// a host that is no IPv4 address.
std::optional<LocalReply> get_local(const ServerAddress& server, const std::string& path, int seconds = 5);

}  // namespace riptide::apps
