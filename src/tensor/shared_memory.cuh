// Kernels that may use more shared memory than every device has.
#pragma once

#include <cstdint>

namespace riptide {

/// Lets launches of a kernel on the calling thread's device ask for so many bytes of dynamic shared memory. The limit
/// belongs to the kernel and the device, not to a launch, and other threads launch the same kernel for models of other
/// sizes: so it is only ever raised. (Set for each launch to what this launch needs, it failed now and then with "too
/// many resources requested for launch" where several engines run in one process.) Thread-safe.
void allow_shared_memory(const void* kernel, int64_t bytes);

template <class... Params>
void allow_shared_memory(void (*kernel)(Params...), int64_t bytes) {
    allow_shared_memory(reinterpret_cast<const void*>(kernel), bytes);
}

}  // namespace riptide
