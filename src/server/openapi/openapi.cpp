#include "server/openapi/openapi.h"

extern "C" const char riptide_openapi_begin[];
extern "C" const char riptide_openapi_end[];

namespace riptide::server {

std::string_view openapi_text() { return {riptide_openapi_begin, riptide_openapi_end}; }

}  // namespace riptide::server
