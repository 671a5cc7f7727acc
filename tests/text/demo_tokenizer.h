// The tokenizer of the demo model.
#pragma once

#include "io/checkpoint.h"
#include "tests/source_dir.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide {

inline Tokenizer demo_tokenizer() {
    const auto file = open_checkpoint(source_dir() + "/models/demo/laguna-demo.gguf");
    return Tokenizer::from_gguf(file->metadata(), file->path());
}

}  // namespace riptide
