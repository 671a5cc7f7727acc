// Bodies of POST /v1/messages.
#pragma once

#include "server/generation_request.h"

namespace riptide::server {

/// Blocks become the messages that the chat template takes: thinking goes back in as reasoning, tool_use and
/// tool_result as tool calls and their results, system messages stay where they stand, documents that are text are
/// text. The block in which Claude Code names its billing, which differs from session to session, is left out: it would
/// keep prefixes from being found again. cache_control and unknown fields are ignored, tools that are not functions are
/// left out. Throws ApiError.
GenerationRequest parse_messages(json::object body, const RequestDefaults& defaults);

}  // namespace riptide::server
