// Seeded random weights written directly in a storage format, for full-size synthetic models.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace riptide {

/// Fills n values of `type` at dst with independent values of mean about 0 and standard deviation about sigma. Float types
/// are uniform, block types have uniform codes under random scales: the cost of a real file without quantising gigabytes.
/// REQUIRES n to be whole blocks. Throws Error for a type that this cannot make. A pure function of (type, n, sigma, seed).
/// Cost: about 1 GB/s a core.
void random_fill(DType type, void* dst, int64_t n, float sigma, uint64_t seed);

}  // namespace riptide
