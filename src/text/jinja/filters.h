// Where the filters of Jinja are found.
#pragma once

#include "text/jinja/interpreter.h"

namespace riptide::jinja {

/// The filters that work on sequences and mappings; nullptr if there is none of that name.
Filter find_sequence_filter(std::string_view name);

}  // namespace riptide::jinja
