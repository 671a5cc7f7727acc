#include "server/api/request_headers.h"

#include <algorithm>

#include "server/api/api.h"
#include "text/utf8.h"

namespace riptide::server {

std::string session_in_headers(const HttpRequest& request) {
    for (const char* name :
         {"x-claude-code-session-id", "x-session-id", "session-id", "thread-id", "x-session-affinity"})
        if (const std::string_view value = request.header(name); !value.empty()) {
            std::string session;  // valid UTF-8, as it is told in JSON
            Utf8Stream stream;
            stream.push(value.substr(0, 256), session);
            stream.finish(session);
            return session;
        }
    return {};
}

bool is_json(std::string_view content_type) {
    std::string type(content_type.substr(0, content_type.find(';')));
    while (type.ends_with(' ')) type.pop_back();
    std::transform(type.begin(), type.end(), type.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return type == "application/json";
}

std::string settle_request_id(HttpRequest& request) {
    constexpr std::string_view kName = "x-request-id";
    constexpr std::size_t kLongest = 128;
    const std::string_view given = request.header(kName);
    const bool fine = !given.empty() && given.size() <= kLongest &&
                      std::all_of(given.begin(), given.end(), [](char c) { return c >= ' ' && c <= '~'; });
    if (fine) return std::string(given);
    std::erase_if(request.headers, [&](const auto& field) { return field.first == kName; });
    return request.headers.emplace_back(kName, random_id("req-")).second;
}

}  // namespace riptide::server
