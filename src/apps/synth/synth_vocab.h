// A made-up byte-level BPE vocabulary, so that a synthetic model takes text.
#pragma once

#include <cstdint>

#include "io/gguf_writer.h"

namespace riptide::apps {

/// Writes tokenizer.ggml.* keys of a vocabulary of exactly `size` tokens: Laguna's 70 special ids (brackets and markup
/// at their real places), 256 bytes, then strings of lower-case letters with the merges that build them, and the chat
/// template. REQUIRES size >= 326.
void write_synth_vocabulary(GgufWriter& writer, int64_t size, std::string_view chat_template);

}  // namespace riptide::apps
