// The second kernel of a draw.
#pragma once

#include "ops/cuda/sampling/sample_row.cuh"

namespace riptide::ops::drawing {

/// Finishes the rows that the scan left unfinished. `scratch`: f64 [n, vocab], or nullptr if filter_needs_scratch is
/// false.
void launch_filter(const Gpu& gpu, const Draw& draw, int64_t rows, double* scratch);
bool filter_needs_scratch(const Gpu& gpu, int64_t vocab);

}  // namespace riptide::ops::drawing
