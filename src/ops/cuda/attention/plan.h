// THE TABLE for attention: which kernels attend. Read the tables in plan.cpp from top to bottom, as in
// ../linear/plan.h.
#pragma once

#include <cstdint>

#include "ops/cuda/device/chip.h"
#include "tensor/context.h"
#include "tensor/dtype.h"

namespace riptide::ops::cuda::attn {

struct Case {
    Family family = Family::decode;
    int64_t rows = 0, sequences = 0;
    int64_t heads = 0, kv_heads = 0, head_dim = 0;
    int64_t rotary_dim = 0;  // values of a head that are rotated here
    DType k = DType::f16, v = DType::f16;
    bool aligned = true;         // stored rows, to sixteen bytes
    int64_t window = 0;          // keys; 0: all
    int64_t most_keys = 0;       // that a row can see
    bool appends = true;         // the rows' K and V come with the call; else they are in the cache
    bool far = false;            // Batch::far
    bool plain = true;           // prefill: chains, and scores times a positive number
    bool sparse = false;         // prefill: sparse_attention
    Chip chip;
};

enum class Kernel {
    decode_d128_verify_sm90,
    decode_d128_window_sm90,
    decode_d128_row1_sm90,
    decode_d128_rows_sm80,
    decode_d128_sm80,
    decode_d256_row1_sm90,
    decode_d256_sm80,
    decode_any,
    draft_block_sm90,
    draft_block,
    prefill_sm90,
    prefill_sm80,
    prefill_any,
};
/// "decode_any": that of the source file, too.
const char* kernel_name(Kernel kernel);

struct Choice {
    Kernel kernel = Kernel::decode_any;
    bool apart = false;  // rows of many keys are left to a launch of decode_d128_sm80
    bool fused = false;  // each row is its sequence's only one, and the kernel appends its K and V
    /// Whether the kernels append K and V of the rows; else kv_append does so before.
    bool appends() const { return fused || kernel == Kernel::decode_d128_verify_sm90 || wide(); }
    bool wide() const { return kernel == Kernel::decode_d256_row1_sm90 || kernel == Kernel::decode_d256_sm80; }
};
Choice choose(const Case& c);
/// For block_attention: a drafter's rows, which all see each other.
Kernel choose_block(const Case& c);

/// Heads that tensor cores take in prefill: those that all kernels know, and one that only prefill_sm80 knows.
constexpr bool has_tiles(int64_t head_dim) { return head_dim == 64 || head_dim == 128; }
constexpr bool has_wide_tiles(int64_t head_dim) { return head_dim == 256; }

}  // namespace riptide::ops::cuda::attn
