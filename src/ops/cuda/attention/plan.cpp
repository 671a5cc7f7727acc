#include "ops/cuda/attention/plan.h"

#include <algorithm>
#include <iterator>

#include "ops/cuda/attention/fit.h"
#include "quant/kv_codec.h"
#include "quant/kv_row.h"

namespace riptide::ops::cuda::attn {

namespace {

/// K and V that tensor cores read: both of one type, or q8_0 and q4_0.
bool stored(const Case& c) {
    return c.k != DType::f32 && can_hold_kv(c.k) && (c.v == c.k || (c.k == DType::q8_0 && c.v == DType::q4_0));
}
bool mma(const Case& c) {
    return c.chip.major >= 8 && !c.chip.portable && c.heads <= kMostGroup * c.kv_heads && stored(c);
}

/// Each row is the only one of its sequence.
bool fused(const Case& c) { return c.appends && c.rows == c.sequences; }
int64_t chunks(const Case& c) { return most_chunks(c.most_keys); }

// ---- Heads of 128.

bool narrow(const Case& c) {
    const bool rope = c.rotary_dim == 0 || c.rotary_dim == 64 || c.rotary_dim == 128;
    return c.head_dim == kNarrow && rope && mma(c);
}
/// One row of each sequence over a window has a kernel of its own, and one row over all keys wants all SMs.
bool verify(const Case& c) {
    return narrow(c) && c.chip.hopper() && c.appends && c.rows <= kFewRows &&
           (!fused(c) || (c.window == 0 && c.rows > 1));
}
/// Chunks of one step a warp. More rows have warps enough for a chunk each.
bool window(const Case& c) {
    return narrow(c) && c.chip.hopper() && fused(c) && c.rows <= kFewRows && c.window > 0 &&
           chunks(c) <= kMostCluster && chunk_keys(static_cast<int>(c.window)) == kShortChunk;
}
/// All chunks are there at once.
bool row1(const Case& c) {
    const int64_t clusters = c.kv_heads * ((chunks(c) + kRow1Cluster - 1) / kRow1Cluster);
    return narrow(c) && c.chip.hopper() && fused(c) && c.rows == 1 && c.window == 0 && chunks(c) > 1 &&
           two_ctas(c.k, c.v) && clusters * kRow1Cluster <= 2 * c.chip.sms;
}
bool rows(const Case& c) { return narrow(c) && c.rows > kFewRows; }

// ---- Heads of 256.

bool wide(const Case& c) {
    return c.head_dim == kWide && mma(c) && c.window == 0 && c.aligned &&
           wide_shared_bytes(c.k, c.v, 1) <= c.chip.shared_bytes;
}
bool wide_row1(const Case& c) {
    return wide(c) && c.chip.hopper() && c.appends && c.rows == 1 && c.sequences == 1 && !c.far && c.k == c.v &&
           (c.k == DType::q8_0 || c.k == DType::f8_e4m3) && c.kv_heads * kWideCluster <= 1024 &&
           c.most_keys <= INT32_MAX;
}

bool always(const Case&) { return true; }

// ---- Prefill.

bool tiles(const Case& c) {
    const bool dim = has_tiles(c.head_dim) || (has_wide_tiles(c.head_dim) && !c.sparse);
    return dim && c.plain && c.k != DType::f32 && c.v != DType::f32 && c.chip.major >= 8;
}
bool warpgroups(const Case& c) { return tiles(c) && c.chip.hopper() && has_tiles(c.head_dim); }

struct Row {
    Kernel kernel;
    bool (*when)(const Case&);
};

// clang-format off
constexpr Row kDecode[] = {
    // rows, of which sequences: K and V, what a row sees; what it takes of the chip. All but the last: 8 query heads a K/V head at most
    {Kernel::decode_d128_verify_sm90, verify},     // 2 to 8 (1 of a tree), any: heads of 128; Hopper
    {Kernel::decode_d128_window_sm90, window},     // to 8, one each: heads of 128, a window of 1,024; Hopper
    {Kernel::decode_d128_row1_sm90,   row1},       // 1: heads of 128, more than 128 keys; Hopper
    {Kernel::decode_d128_rows_sm80,   rows},       // 9 up, any: heads of 128; those of more than 4,096 keys apart
    {Kernel::decode_d128_sm80,        narrow},     // to 8: heads of 128
    {Kernel::decode_d256_row1_sm90,   wide_row1},  // 1: heads of 256, q8_0 or fp8, not far; Hopper
    {Kernel::decode_d256_sm80,        wide},       // any: heads of 256, no window
    {Kernel::decode_any,              always},     // all else
};
constexpr Row kPrefill[] = {
    {Kernel::prefill_sm90, warpgroups},  // heads of 64 and 128; Hopper
    {Kernel::prefill_sm80, tiles},       // those and 256; sm_80
    {Kernel::prefill_any,  always},      // trees, f32, other heads
};
// clang-format on

template <size_t N>
Kernel first(const Row (&table)[N], const Case& c) {
    return std::find_if(std::begin(table), std::end(table), [&](const Row& row) { return row.when(c); })->kernel;
}

}  // namespace

const char* kernel_name(Kernel kernel) {
    constexpr const char* kNames[] = {"decode_d128_verify_sm90",
                                      "decode_d128_window_sm90",
                                      "decode_d128_row1_sm90",
                                      "decode_d128_rows_sm80",
                                      "decode_d128_sm80",
                                      "decode_d256_row1_sm90",
                                      "decode_d256_sm80",
                                      "decode_any",
                                      "draft_block_sm90",
                                      "draft_block",
                                      "prefill_sm90",
                                      "prefill_sm80",
                                      "prefill_any"};
    return kNames[static_cast<int>(kernel)];
}

Choice choose(const Case& c) {
    if (c.family == Family::prefill) return {first(kPrefill, c), false, false};
    const Kernel kernel = first(kDecode, c);
    return {kernel, kernel == Kernel::decode_d128_rows_sm80 && c.most_keys > kMostShortKeys, narrow(c) && fused(c)};
}

Kernel choose_block(const Case& c) {
    const bool tensor_cores =
        c.chip.hopper() && c.head_dim == kNarrow && c.k == DType::f16 && c.v == DType::f16 && c.heads % c.kv_heads == 0;
    return tensor_cores ? Kernel::draft_block_sm90 : Kernel::draft_block;
}

}  // namespace riptide::ops::cuda::attn
