// A conversation in fewer items: what the user said, and a summary that the model writes.
#pragma once

#include <string_view>

#include "base/json.h"

namespace riptide::server {

/// What the model is asked behind the conversation.
inline constexpr std::string_view kAskForSummary =
    "Write a summary of this conversation for whoever goes on with it and has not read it. Say what is wanted, what "
    "has "
    "been done and found out (names of files, numbers, decisions and why), what failed, and what is to be done next. "
    "Call no tools. Answer with the summary alone.";

/// The messages of the user among some items, as they were said, with ids.
json::array users_messages(const json::array& items);

}  // namespace riptide::server
