// Where in a request of /v1/responses the parts of the chat that was made of it come from: for errors about that chat.
#pragma once

#include <string>
#include <vector>

#include "server/api/api_error.h"

namespace riptide::server {

/// Of a message. Paths in the request as its client wrote it, such as "input[2]".
struct MessageOrigin {
    std::string item;                // that it begins with
    std::string content;             // "input[3].content", "input[4].output"
    std::vector<std::string> calls;  // items, of each call
};

/// Of a tool: of the item, and of what describes the function.
struct ToolOrigin {
    std::string tool, function;
};

struct ChatOrigins {
    std::vector<MessageOrigin> messages;
    std::vector<ToolOrigin> tools;
};

/// An error about the chat that was made of a request, in the names that its client knows.
ApiError in_its_words(const ApiError& error, const ChatOrigins& origins);

}  // namespace riptide::server
