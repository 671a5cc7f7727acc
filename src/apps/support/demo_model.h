// The demo model, its drafter and its scorer inside the program.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/speculation/speculation_options.h"
#include "io/checkpoint.h"

namespace riptide::apps {

/// Opens the checkpoint that `path` means (resolve_model), or the embedded demo model if it is empty.
/// Throws Error(unavailable) if this build has none.
std::unique_ptr<Checkpoint> open_model_or_demo(const std::string& path);

/// Drafts by `name`: "ngram", "demo" (the embedded drafter of the demo model), or a DFlash drafter's path or name.
/// Opening throws Error(unavailable) if this build has no such drafter.
SpeculationOptions drafted_by(const std::string& name);

/// The scorer of this path or name, or "demo": the embedded one of the demo model. Throws as open_checkpoint does, or
/// Error(unavailable) if this build has none.
std::unique_ptr<Checkpoint> open_scorer_checkpoint(const std::string& name);

/// The demo's chat template, Laguna's v5 dialect.
std::string_view demo_chat_template();

}  // namespace riptide::apps
