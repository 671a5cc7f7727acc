// The tools of POST /v1/responses, as a chat has them.
#pragma once

#include <string>
#include <string_view>

#include "server/api/responses/responses_request.h"

namespace riptide::server {

/// An item's or a tool's `type`; "message" if it has none.
std::string_view item_type(const json::object& item);
/// A string, or "".
std::string string_of(const json::object& item, std::string_view key);

/// Functions, also in namespaces, and custom tools as functions (custom_tools.h). Others are left out. Fills
/// `namespaces`, `generation.custom` and `origins.tools`. Throws ApiError, also for namesakes.
json::array chat_tools(const json::array& tools, ResponsesRequest& out);
/// {"type": "function" or "custom", "name"} -> {"type": "function", "function": {"name"}}; others as they are.
json::value chat_tool_choice(const json::value& choice);

}  // namespace riptide::server
