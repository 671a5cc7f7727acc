// From the tokens of one decode step to the next, without the host.
#pragma once

#include <cstdint>
#include <span>

#include "ops/batch.h"
#include "tensor/context.h"

namespace riptide::ops {

/// Where the device reports tokens: entry (step % size) * rows + r of `entries`, in pinned host memory, becomes
/// (step + 1) << 32 | token once token r of that step is known. `step` lies in device memory.
struct TokenRing {
    uint64_t* entries = nullptr;
    int64_t size = 0;  // a power of two
    int64_t* step = nullptr;
    // For measurements: if *forced_size > 0, the token fed after step i is forced[i % *forced_size]. Device memory.
    const int32_t* forced = nullptr;
    const int64_t* forced_size = nullptr;
};

/// Ends a step of one row for each sequence: tokens[r] = next[r] (or the forced one); positions[r] and committed[r] +=
/// 1; next[r] goes to the ring, and *ring.step += 1. A negative next[r], the sampler's "no token", is reported as it
/// is, and token 0 is fed: steps that run ahead stay harmless. next: i32 [n] in device memory. GPU only; one kernel.
/// held [n] = committed[r] as the step had it, for steps that follow (DeltaMode::follow); empty: none do.
/// REQUIRES batch and held in device memory (they are written), n <= 1024, no tree.
void advance(Context& ctx, const Tensor& next, const Batch& batch, const TokenRing& ring,
             std::span<const int32_t> held = {});

/// most_likely (ops/topk.h) of logits f32 [n, vocab], then advance(), with the same results, in one kernel.
/// Floor: the logits from the L2 cache, a launch, an exchange between CTAs; 3 us.
void advance_most_likely(Context& ctx, const Tensor& logits, const Batch& batch, const TokenRing& ring,
                         std::span<const int32_t> held = {});

}  // namespace riptide::ops
