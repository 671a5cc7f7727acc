// The text side of a checkpoint: its tokenizer, chat template and stop ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/prompt/generation_defaults.h"
#include "io/checkpoint.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide {

/// The checkpoint has a vocabulary that load_tokenizer can read.
bool has_tokenizer(const Checkpoint& checkpoint);
/// From tokenizer.json, or else tokenizer.ggml.*. Throws Error if the checkpoint has none.
Tokenizer load_tokenizer(const Checkpoint& checkpoint);
/// The chat template's source, or "" if the checkpoint has none.
std::string chat_template_source(const Checkpoint& checkpoint);
/// The template itself, with the variables that the makers give it. Throws Error if it cannot be used.
std::optional<ChatTemplate> load_chat_template(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                               const GenerationDefaults& makers);
/// The ids that end an answer: the tokenizer's eos and eot and generation_config.json's eos_token_id. Throws Error
/// where generation_defaults does.
std::vector<int32_t> stop_ids(const Checkpoint& checkpoint, const Tokenizer& tokenizer);

}  // namespace riptide
