// The demo model inside the program.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "io/checkpoint.h"

namespace riptide::apps {

/// Opens the checkpoint at `path`, or the embedded demo model if `path` is empty.
/// Throws Error(unavailable) if this build has none.
std::unique_ptr<Checkpoint> open_model_or_demo(const std::string& path);

/// The demo's chat template, Laguna's v5 dialect.
std::string_view demo_chat_template();

}  // namespace riptide::apps
