// Hugging Face folders as FP8 or NVFP4 in the layout of compressed-tensors: for `riptide quantize`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "apps/convert/packed_plan.h"
#include "base/thread_pool.h"
#include "io/checkpoint.h"

namespace riptide::apps {

/// fp8 or nvfp4, in any case; nothing for other names.
std::optional<PackedType> packed_type(std::string_view name);

/// The folder of `checkpoint` (f32, f16 or bf16 safetensors) once more as the new folder `out`, as Poolside publishes
/// Laguna: the feed-forwards' matrices (gate, up and down, of experts too) rounded as apps/convert/float_rounding.h
/// says, all else as it is; stacks of experts become matrices of their own, and gate and up share NVFP4's global scale.
/// config.json gets its quantization_config; tokenizer, templates, code and licences are copied byte for byte. Files
/// hold up to `shard_bytes` of tensors, or one. The folder is written under another name, opened as a model, and gets
/// its own name last; whatever fails, nothing stays. `on_progress`: bytes read and to read; global scales read gate and
/// up twice. Memory: pieces of 32 MiB, and the scales of one matrix. Throws Error: (usage) where `out` exists or the
/// input is no such folder, for a model that cannot be loaded, for values that are not finite, and when interrupted().
PackedReport write_packed_folder(const Checkpoint& checkpoint, PackedType type, const std::string& out,
                                 ThreadPool& threads, const std::function<void(int64_t, int64_t)>& on_progress = {},
                                 int64_t shard_bytes = 5'000'000'000);

}  // namespace riptide::apps
