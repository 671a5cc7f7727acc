// Threads and GPUs.
#pragma once

#include "tensor/gpu.h"

namespace riptide {

/// CUDA keeps a current device for each thread, at first device 0. Every thread that allocates, pins or launches must
/// have called this once; the one that opened the GPU need not. Throws Error if the device cannot be used.
void use_on_this_thread(const Gpu& gpu);

}  // namespace riptide
