// What clients send as the conversation so far.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace riptide::server {

/// A block of content that this model cannot read, as short text that names it: "[tool_reference: WebFetch]",
/// "[image]", "[web_search_tool_result: first title; second title]".
std::string named_block(const json::object& block);

/// Whether a block is a trace of tools, which asks nothing of the model where it cannot be read. Others (images, files,
/// what is not known) are what a user asks about, and cannot be left unread in the last message of the user.
bool is_trace(std::string_view type);

/// The place of the last message of the user; the size of `messages` if there is none.
std::size_t last_of_user(const json::array& messages);

/// Makes what clients send as history into what the chat template takes: reasoning under any of its names goes to all
/// of them, content parts keep nothing but their text, or a text that names them, arguments that are not the JSON of an
/// object become one, so that a broken call in the history does not end the conversation. Throws ApiError naming the
/// field; also for a part in the last message of the user that cannot be read.
json::array prepare_history(json::array messages);

}  // namespace riptide::server
