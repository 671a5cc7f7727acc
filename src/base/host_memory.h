// The main memory of this machine.
#pragma once

#include <cstdint>

namespace riptide {

/// All there is, in bytes.
int64_t physical_memory();

/// What programs may take now, in bytes; 0: the system does not say.
int64_t available_memory();

}  // namespace riptide
