// What the header of a request says, whatever its API.
#pragma once

#include <string>
#include <string_view>

#include "server/http/message.h"

namespace riptide::server {

/// The conversation that it belongs to, in valid UTF-8; "" if it names none.
std::string session_in_headers(const HttpRequest& request);

/// Is it application/json?
bool is_json(std::string_view content_type);

/// The name by which its client, its routers and the log know it: x-request-id as it came, 1 to 128 printable
/// characters of ASCII; else a new one, which takes its place.
std::string settle_request_id(HttpRequest& request);

}  // namespace riptide::server
