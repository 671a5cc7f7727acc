// One message of a conversation, as OpenAI clients have it.
#pragma once

#include <string_view>

#include "base/json.h"

namespace riptide::apps {

/// {"role": role, "content": content}.
inline json::object chat_message(std::string_view role, std::string_view content) {
    return {{"role", role}, {"content", content}};
}

}  // namespace riptide::apps
