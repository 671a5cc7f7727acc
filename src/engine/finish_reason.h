// Why an answer ended.
#pragma once

namespace riptide {

enum class FinishReason { stop_id, stop_string, length, context, cancelled };

/// "stop_id", "stop_string", "length", "context", "cancelled"
inline const char* finish_reason_name(FinishReason reason) {
    constexpr const char* kNames[] = {"stop_id", "stop_string", "length", "context", "cancelled"};
    return kNames[static_cast<int>(reason)];
}

}  // namespace riptide
