// How Qwen's tags are spelled that its parser and its grammar know. Private to dialect_qwen*.cpp.
#pragma once

#include <string_view>

namespace riptide::qwen {

inline constexpr std::string_view kEndTurn = "<|im_end|>";  // a single token

// The tags that are plain text.
inline constexpr std::string_view kFunction = "<function=", kEndFunction = "</function>";
inline constexpr std::string_view kParameter = "<parameter=", kEndParameter = "</parameter>";

}  // namespace riptide::qwen
