// What a GPU's memory will be used for, before it is.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "cache/state_spec.h"
#include "models/model.h"
#include "tensor/dtype.h"

namespace riptide {

/// What a drafter will take of a GPU's memory, at most: bytes.
struct DrafterMemory {
    int64_t fixed = 0;      // weights, rings, temporaries
    int64_t per_token = 0;  // K/V of a token in pages
    int64_t per_row = 0;    // of a step: what the model's layers put out
};

/// Bytes are device memory. `weights` are loaded; `available` is what is left for the rest.
struct MemoryRequest {
    int64_t context = 0;      // 0: as much as fits
    int64_t max_context = 0;  // of the model
    int32_t sequences = 1;    // that have bounded state at a time
    int32_t max_chunk_rows = 8192;
    int32_t chunk_rows = 0;  // 0: as large as fits, up to max_chunk_rows
    int32_t page_rows = 64;
    int64_t available = 0;
    int64_t weights = 0;
    std::span<const StateSpec> specs;
    DType k_dtype = DType::f16;
    DType v_dtype = DType::f16;
    Workspace workspace;
    int64_t drafter = 0;            // of a drafter: weights, rings, temporaries
    int64_t drafter_per_token = 0;  // its K/V of a token in pages
};
/// Asks for a drafter's memory too.
void add_drafter(MemoryRequest& request, const DrafterMemory& drafter);

struct MemoryPlan {
    int64_t context = 0;
    int32_t chunk_rows = 0;
    int64_t weights = 0;
    int64_t drafter = 0;    // without its pages
    int64_t kv = 0;         // pages of one context, a drafter's too, and bounded state: rings, recurrent state
    int64_t per_token = 0;  // of it, K/V bytes of one token in the pages
    int64_t workspace = 0;  // temporaries of the largest step
    int64_t spare = 0;      // of what was available
};

/// To be left of `available`, for what no plan counts: arrays of steps, marks of drawn tokens, buffers for cached
/// state, the ends of slabs of a drafter's weights.
inline constexpr int64_t kUnplannedBytes = int64_t{192} << 20;

/// Takes the largest chunk of 8192, 4096, ... 512 rows that is allowed and fits, then the largest context, a multiple
/// of page_rows, or the asked-for ones. Throws Error (unavailable) that says what is needed, what is there, what would
/// fit and the flag to ask for it. Pure.
MemoryPlan plan_gpu_memory(const MemoryRequest& request);

/// "weights 18.9 GiB + K/V 5.3 GiB (131072 tokens, f16) + workspace 1.9 GiB, 112.3 GiB spare"
std::string describe(const MemoryPlan& plan, DType k_dtype, DType v_dtype);

}  // namespace riptide
