// Causal attention in which each block of queries looks at the blocks of keys that matter to it. For scorers.
#pragma once

#include <cstdint>

#include "ops/gated_attention.h"

namespace riptide::ops {

/// Queries and keys are cut into blocks of this many positions: block m holds [m * 128, (m + 1) * 128).
inline constexpr int64_t kSparseBlock = 128;

/// Which blocks of keys n <= m a block of queries m reads, for each head by itself. All are functions of positions, not
/// of where a step begins: a prompt computed in parts has the bits of one computed at once.
struct SparseOptions {
    int32_t sink_blocks = 2;    // always: n < sink_blocks
    int32_t window_blocks = 4;  // always: m - n < window_blocks. At least 1: a row sees itself
    float alpha = 0.1f;         // of the others those with a mass of at least alpha times the largest of all blocks ...
    int32_t most_blocks = 64;   // ... but at most so many, the largest first
    int32_t full_below = 64;    // query blocks m < full_below read everything: 8192 tokens
    int32_t full_from = INT32_MAX;  // and so do m >= full_from: the blocks that end a prompt
};

struct SparseResult {
    Tensor o;      // f32 [n, H * head_dim], fresh
    Tensor lists;  // i32 [query blocks of the step, H, 1 + columns], fresh: how many blocks were read, then which,
                   // ascending
};

/// q <- rope(RMSNorm(q)), k <- rope(RMSNorm(k)); k and v go into the cache; then, for row r in block m and head h,
/// o[r, h] = softmax_j(softmax_scale * q_r . k_j) V over the keys j <= r that lie in the chosen blocks. The choice:
///
///     d_jn   = softmax_scale * q_j . mean(stored keys of block n)      j: the rows of block m that exist
///     mass_n = sum_j exp(d_jn - M) / sum_n' sum_j exp(d_jn' - M)       M: the largest d of the block, over j and n <=
///     m
///
/// A threshold relative to the largest mass is one comparison a block, needs no sorting, and follows the head: peaked
/// heads read little, flat ones more, up to most_blocks, which bounds the cost. (A smallest set that holds a share p of
/// the mass would need both an order and a bound.) Of equal masses at that bound the blocks with lower n are read. The
/// estimate is what it says: a mean hides a single strong key among 127 weak ones. Masses that are not numbers choose
/// nothing; sinks and window are read whatever happens, and a list has room for every block.
///
/// in: as gated_attention, without a gate; in.k and in.q may be overwritten. REQUIRES one sequence, a chain, whose
/// committed tokens are a multiple of kSparseBlock; paged storage; heads of at most 256. Row-exact but for the choice,
/// which a block of rows shares: steps must begin at block borders, and may end anywhere only if the last block is fed
/// again or read in full. On a GPU the prefill family's kernels: K and V as 16-bit values where head_dim is 64 or 128
/// and the cache is not f32. With everything chosen: attention() within its error bounds. Error of masses: that of d,
/// exp(2 |error|) relative. Cost: 4 * 128 * 128 * d FLOPs for each chosen pair of blocks and head, 2 * 128 * d for each
/// other pair. Source: FlashPrefill (arXiv 2603.06199): estimates normalised over n before they are compared.
SparseResult sparse_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch,
                              const SparseOptions& options);

/// The judges, single-threaded; in float the CPU's arithmetic but for the order of sums.

/// mass_n for n = 0 .. m of one block of queries and one head. q [rows, d], means [m + 1, d].
template <class Acc>
void block_mass_ref(const float* q, int64_t rows, const Acc* means, int64_t m, int64_t d, float softmax_scale,
                    Acc* mass);

/// The rule on masses 0 .. m: writes the chosen blocks to `list`, ascending, and returns how many there are (m + 1 at
/// most).
template <class Acc>
int64_t choose_blocks(const Acc* mass, int64_t m, const SparseOptions& options, int32_t* list);

/// The mean of the stored keys of each block that exist, [blocks, d], of one KV head of the batch's sequence.
template <class Acc>
void block_means_ref(const KvView& view, const Batch& batch, int64_t kv_head, Acc* means);

/// Attention over the blocks of `lists` (host memory). q f32 [n, H, d] as the products take it; y [n, H * d].
template <class Acc>
void sparse_attention_ref(const float* q, int64_t heads, const KvView& view, const Batch& batch, const Tensor& lists,
                          float softmax_scale, Acc* y);

}  // namespace riptide::ops
