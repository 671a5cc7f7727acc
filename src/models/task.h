// What a model is for.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "io/checkpoint.h"

namespace riptide {

enum class Task : uint8_t {
    generate,  // it writes text
    embed,     // a text becomes a vector: the final state of its last row. There is no head
    rerank,    // it writes text too; of two answers, "yes" and "no", the probabilities say how relevant a text is
};

/// "generate", "embed", "rerank"; nothing for other words.
std::string_view task_name(Task task);
std::optional<Task> task_from_name(std::string_view name);

/// `asked`, or what the checkpoint's files say: embed for a GGUF file whose `ARCHITECTURE.pooling_type` is 3 (last),
/// and for a folder whose modules.json has a Pooling layer; else generate. Throws Error naming the file for an
/// embedding model that pools in another way than by the last token, or has layers behind that.
Task task_of(const Checkpoint& checkpoint, std::optional<Task> asked);

}  // namespace riptide
