// The ops of scorers on a GPU, as ops/cuda/backend.h has those of models.
#pragma once

#include <cstdint>

#include "ops/scoring/sparse_attention.h"
#include "tensor/context.h"

namespace riptide::ops::cuda {

// prefill.cu. result is allocated.
void sparse_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch,
                      const SparseOptions& options, SparseResult& result);

// window_mass.cu
void store_score_keys(Context& ctx, const Tensor& k, int64_t first, Tensor& keys);
void add_window_mass(Context& ctx, const Tensor& q, const Tensor& keys, int64_t begin, int64_t n, float softmax_scale,
                     Tensor& mass);

}  // namespace riptide::ops::cuda
