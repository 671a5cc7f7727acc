// config.json of a folder in FP8 or NVFP4: compressed-tensors' quantization_config.
#pragma once

#include <string>

#include "apps/convert/packed_plan.h"

namespace riptide::apps {

/// `config`, a config.json without quantization_config, with one behind its last key; the rest byte for byte (written
/// anew if the key is there and null). Modules whose matrices stay get into "ignore", those of all layers as one
/// regular expression. Activations of FP8 are rounded by whoever multiplies, in groups of 128, as in Poolside's
/// releases; NVFP4 is of weights alone, since scales of activations would need a calibration. REQUIRES config to be a
/// JSON object with keys.
std::string packed_config(const std::string& config, PackedType type, const PackedPlan& plan);

}  // namespace riptide::apps
