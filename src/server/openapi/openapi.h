// What clients can ask the server, as OpenAPI 3.1.
#pragma once

#include <string_view>

namespace riptide::server {

/// The text of openapi.json in this folder, with this program's version in `info`. It is inside the program, and lives
/// as long.
std::string_view openapi_text();
/// Of it, the version.
std::string_view program_version();

}  // namespace riptide::server
