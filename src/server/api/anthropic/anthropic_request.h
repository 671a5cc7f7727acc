// Bodies of POST /v1/messages.
#pragma once

#include "server/api/generation_request.h"

namespace riptide::server {

/// What a conversation is read for: an answer, for which there must be a place to go on, or to count it as it stands.
enum class MessagesFor { answering, counting };

/// Blocks become the messages that the chat template takes: thinking goes back in as reasoning, tool_use and
/// tool_result as tool calls and their results, system messages stay where they stand, documents and search results
/// that are text are text. Other blocks become short text that names them; what the last message of the user asks
/// about (an image, a PDF) and `system` must be text. The block in which Claude Code names its billing, which differs
/// from session to session, is left out: it would keep prefixes from being found again. cache_control and unknown
/// fields are ignored, tools that are not functions are left out. Throws ApiError.
GenerationRequest parse_messages(json::object body, const RequestDefaults& defaults, MessagesFor purpose);

}  // namespace riptide::server
