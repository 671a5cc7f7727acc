#include "server/openapi/openapi.h"

extern "C" const char riptide_openapi_begin[];
extern "C" const char riptide_openapi_end[];

namespace riptide::server {

std::string_view openapi_text() { return {riptide_openapi_begin, riptide_openapi_end}; }

std::string_view program_version() {
    constexpr std::string_view kKey = "\"version\": \"";  // the first is that of `info`
    std::string_view text = openapi_text();
    text.remove_prefix(text.find(kKey) + kKey.size());
    return text.substr(0, text.find('"'));
}

}  // namespace riptide::server
