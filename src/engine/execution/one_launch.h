// Decoding in one launch (--decode persistent).
#pragma once

#include <cstdint>
#include <memory>

#include "cache/kv_cache.h"
#include "models/model.h"
#include "ops/cuda/megakernel/persistent_decode.h"

namespace riptide {

/// The kernel that runs a model's steps of one row at once, over this cache and sequences of up to `tokens`; for
/// Context::one_launch. Both must outlive it. Throws Error (usage) that says why, if there is none: it is for small
/// dense Qwen3.5 in bf16, on a GPU.
std::unique_ptr<ops::PersistentDecode> one_launch(const Model& model, const KvCache& cache, int64_t tokens);

}  // namespace riptide
