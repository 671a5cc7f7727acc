// Shapes of released DFlash drafters, for random weights.
#pragma once

#include <string>

#include "models/dflash_config.h"

namespace riptide::apps {

/// What the hyper-parameters of a drafter say, and what its tensors say by being there.
struct DrafterShape {
    DflashConfig config;
    bool owns_vocabulary = false;  // an embedding, a head and d2t; else it borrows the target's
    bool has_tap_norms = false, has_gates = false;
};

/// The drafter made for a shape of `riptide synth`: laguna-xs.2 (Laguna-XS.2-speculator.dflash), laguna-xs-2.1
/// (Laguna-XS-2.1-DFlash), qwen3.5-27b (Qwen3.6-27B-DFlash), or one made up for laguna-tiny or qwen3.5-tiny. Throws
/// Error (usage) that names these.
DrafterShape find_drafter_shape(const std::string& target);

}  // namespace riptide::apps
