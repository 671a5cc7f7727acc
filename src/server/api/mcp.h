// The way of the page to servers of the Model Context Protocol: those that the command line names, and no others.
#pragma once

#include <map>
#include <string>

#include "server/http/fetch.h"

namespace riptide::server {

/// Who they are, by name.
struct McpServers {
    std::map<std::string, RemoteUrl> named;
    FetchLimits limits;

    /// Takes "NAME=URL" in. Throws Error (usage).
    void add(const std::string& text);
};

/// Passes a message to the server of that name, with the headers of the protocol and no others, and its reply back:
/// JSON or events, whole. Throws ApiError: 404, no such server, or no such session; 502, what the server did, in a
/// sentence.
HttpReply pass_to_mcp(const McpServers& servers, const std::string& name, const HttpRequest& request);

}  // namespace riptide::server
