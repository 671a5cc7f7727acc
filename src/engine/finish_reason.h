// Why an answer ended.
#pragma once

namespace riptide {

enum class FinishReason { stop_id, stop_string, length, context, cancelled };
/// "stop_id", "stop_string", "length", "context", "cancelled"
const char* finish_reason_name(FinishReason reason);

}  // namespace riptide
