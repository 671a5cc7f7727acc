// The model shapes that `riptide synth` can write: real dimensions, random weights.
#pragma once

#include <string>
#include <vector>

#include "apps/convert/gguf_layout.h"

namespace riptide::apps {

/// Every known shape.
const std::vector<GgufLayout>& synth_shapes();
/// The shape of that name. Throws Error listing the known names.
const GgufLayout& find_synth_shape(const std::string& name);

}  // namespace riptide::apps
