// A checkpoint with the tokenizer or the chat template of other files.
#pragma once

#include <memory>
#include <string>

#include "io/checkpoint.h"

namespace riptide {

/// The same tensors and metadata, where these replace what the checkpoint has:
/// `tokenizer`: a folder with tokenizer.json (and tokenizer_config.json); "" keeps the checkpoint's.
/// `chat_template`: a file with a template; "" keeps the checkpoint's.
/// In the metadata of a GGUF they have the names that they have in a folder: "tokenizer", "tokenizer_config" and
/// "chat_template". Throws Error that names the file.
std::unique_ptr<Checkpoint> replace_text(std::unique_ptr<Checkpoint> checkpoint, const std::string& tokenizer,
                                         const std::string& chat_template);

}  // namespace riptide
