// The port for who watches the server: HTTP that only tells.
#pragma once

#include "server/api/api_error.h"
#include "server/http/server.h"
#include "server/server.h"

namespace riptide::server {

/// What is told there: GETs without a key, answered from the header alone.
HttpOptions management_options(const ServerOptions& o);

/// For what is not told there.
ApiError not_managed();

}  // namespace riptide::server
