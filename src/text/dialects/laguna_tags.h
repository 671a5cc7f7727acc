// How Laguna's tags are spelled that its parser and its grammar know. Private to dialect_laguna*.cpp.
#pragma once

#include <string_view>

namespace riptide::laguna {

inline constexpr std::string_view kEndAssistant = "</assistant>";  // a single token

// The tags that are plain text.
inline constexpr std::string_view kArgKey = "<arg_key>", kEndArgKey = "</arg_key>";
inline constexpr std::string_view kArgValue = "<arg_value>", kEndArgValue = "</arg_value>";

}  // namespace riptide::laguna
