// How fast this machine reads memory.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace riptide {

/// Bytes per second of sequential reads by all threads of the pool over `bytes` of memory (more than the caches hold):
/// the best of three passes. Takes about a tenth of a second for 256 MiB.
double measure_read_bandwidth(ThreadPool& threads, int64_t bytes = int64_t{256} << 20);

}  // namespace riptide
