// Hugging Face folders as GGUF: layout, names and tokenizer.
#pragma once

#include <string>

#include "apps/convert/gguf_layout.h"
#include "io/checkpoint.h"
#include "models/binder.h"

namespace riptide::apps {

/// Whether a folder is an embedding model's: it says so, or its names begin without "model.".
bool is_embedder(const Checkpoint& checkpoint);

/// The layout of the GGUF that holds this safetensors checkpoint: Laguna, dense Qwen3, Qwen3.5. `name` goes to
/// general.name. Throws Error for other architectures, listing these, for embedding models, and for rotary embeddings
/// that GGUF has no keys for.
GgufLayout layout_of(const Checkpoint& checkpoint, const std::string& name);

/// Where a GGUF tensor's values are in a Hugging Face folder.
/// REQUIRES a name that layout_tensors makes. Stacks (`*_exps`) are read with expert_names.
TensorNames source_names(const LayoutTensor& tensor);
/// `text`: what the text model's names begin with, "model." or "model.language_model.".
ExpertNames expert_names(const LayoutTensor& tensor, const std::string& text = "model.");
/// Is it a stack of experts?
bool is_expert_stack(const LayoutTensor& tensor);

/// Writes tokenizer.ggml.* and tokenizer.chat_template from tokenizer.json, tokenizer_config.json,
/// generation_config.json and the chat template of the folder. Nothing if the folder has no tokenizer.json. Throws
/// Error for rules that GGUF has no name for.
void write_tokenizer_metadata(const Checkpoint& checkpoint, int64_t vocab_size, GgufWriter& writer);

/// Writes general.sampling.* as generation_defaults reads it from the folder. GGUF has no key for variables of the chat
/// template: they stay behind. Throws Error where generation_defaults does.
void write_sampling_metadata(const Checkpoint& checkpoint, GgufWriter& writer);

}  // namespace riptide::apps
