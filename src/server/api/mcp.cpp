#include "server/api/mcp.h"

#include <algorithm>

#include "server/api/api_error.h"
#include "server/http/authority.h"
#include "text/utf8.h"

namespace riptide::server {

namespace {

constexpr const char* kSession = "Mcp-Session-Id";
constexpr std::size_t kMostName = 32, kMostSaid = 300;

bool is_mcp_name(const std::string& text) {
    return !text.empty() && text.size() <= kMostName && std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
    });
}

/// What the server says of its refusal, if it can be shown.
std::string said_in(const HttpReply& reply) {
    const std::string_view said = std::string_view(reply.body).substr(0, kMostSaid);
    const std::size_t valid = utf8_valid_prefix(said);
    return valid == 0 || reply.content_type.starts_with("text/html") ? "" : fmt::format(": {}", said.substr(0, valid));
}

/// "" if the reply can be passed on.
std::string fault_of_mcp(const HttpReply& reply) {
    const int status = reply.status;
    if (status == 401 || status == 403)
        return fmt::format("wants a login (status {}), which riptide cannot give", status);
    if (status >= 300 && status < 400)
        return fmt::format("sends to another address (status {}): give that one to --mcp", status);
    if (status < 200 || status >= 300) return fmt::format("refuses with status {}{}", status, said_in(reply));
    const bool known = reply.content_type.starts_with("application/json") ||
                       reply.content_type.starts_with("text/event-stream") || reply.body.empty();
    return known ? ""
                 : fmt::format("answers with '{}', expected application/json or text/event-stream",
                               reply.content_type.substr(0, utf8_valid_prefix(reply.content_type)));
}

}  // namespace

void McpServers::add(const std::string& text) {
    const std::size_t at = text.find('=');
    const std::string name = text.substr(0, at);
    RT_CHECK(at != std::string::npos && is_mcp_name(name), ErrorKind::usage,
             "--mcp {}: expected NAME=URL; a name has up to {} letters, digits and -", text, kMostName);
    const bool fresh = named.emplace(name, parse_url(text.substr(at + 1), "--mcp " + name)).second;
    RT_CHECK(fresh, ErrorKind::usage, "--mcp {}: there is a server of this name already", name);
}

HttpReply pass_to_mcp(const McpServers& servers, const std::string& name, const HttpRequest& request) {
    const auto found = servers.named.find(name);
    if (found == servers.named.end())
        throw ApiError(404, fmt::format("there is no MCP server '{}': riptide serve --mcp NAME=URL names them", name));
    Headers headers;
    for (const char* passed : {"accept", "mcp-session-id", "mcp-protocol-version"})
        if (const std::string_view value = request.header(passed); !value.empty()) headers.emplace_back(passed, value);
    if (request.method == "POST") headers.emplace_back("Content-Type", "application/json");
    HttpReply reply;
    std::string fault;
    try {
        reply = fetch(found->second, request.method, headers, request.body, servers.limits, request.stop);
        fault = fault_of_mcp(reply);
    } catch (const Error& error) {
        fault = error.what();
    }
    if (!fault.empty())
        throw ApiError(reply.status == 404 ? 404 : 502, fmt::format("the MCP server '{}' {}", name, fault));
    std::erase_if(reply.headers, [](const auto& field) { return !same_name(field.first, kSession); });
    return reply;
}

}  // namespace riptide::server
