// Weights packed for other software: named, so that a folder of them is refused in words that help.
#pragma once

#include <string>

#include "io/checkpoint.h"

namespace riptide {

/// What can be loaded in place of weights that cannot: the end of a message.
inline constexpr const char* kReadableInstead =
    "take a GGUF file of the model, or a folder of it in BF16, FP8, NVFP4, or INT4 or INT8 by compressed-tensors";

/// Throws Error if the tensors of a Hugging Face folder are packed as GPTQ, AWQ, bitsandbytes or MLX do, which nothing
/// here reads. Decided from quantization_config.quant_method of config.json, else from the tensors' names. MLX's
/// quantised folders do not come so far: their U32 words are refused by the safetensors reader.
void refuse_foreign_format(const Checkpoint& checkpoint);

}  // namespace riptide
