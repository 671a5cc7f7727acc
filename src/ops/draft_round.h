// A round of speculative decoding without the host: from a drafter's logits to the rows of a step, and from the tokens
// drawn for these rows to where the next round begins.
#pragma once

#include <cstdint>
#include <span>

#include "ops/topk.h"
#include "tensor/context.h"

namespace riptide::ops {

// Pointers below are to memory of the device that runs the ops (the host's without a GPU). On a GPU sizes and pointers
// are in the kernels' arguments and everything else is read on the device, so a recorded round serves all rounds of its
// number of rows. Rows are at most kMostRoundRows.
inline constexpr int32_t kMostRoundRows = 64;

/// The rows that verify drafts: row 0 is the token that the sequence goes on with, row i > 0 a draft whose parent is a
/// row before it. A draft stands one position behind its parent. The first *count rows are in use.
struct DraftRows {
    int32_t* tokens = nullptr;
    int32_t* positions = nullptr;
    int32_t* parents = nullptr;  // of row 0: -1
    float* logprobs = nullptr;   // ln of how probable the drafter thinks the draft is where its parent is right
    int32_t* count = nullptr;
};

/// What the device knows of one sequence that it decodes in rounds.
struct RoundState {
    // Where the next round begins: written by whoever starts, then by accept_rows.
    int32_t* length = nullptr;  // committed tokens
    int32_t* token = nullptr;   // the one behind them
    int32_t* origin = nullptr;  // length at the start; never changed
    // Of the round that runs.
    int32_t* committed = nullptr;  // its length
    int32_t* behind = nullptr;     // committed - origin
    int32_t* line = nullptr;       // [line_rows] committed, committed + 1, ...
    int32_t line_rows = 0;
    int32_t* block_tokens = nullptr;  // the first is the round's token; the others stay as they are
    DraftRows rows;
    int32_t* path = nullptr;  // [kMostRoundRows] the rows on the accepted way, ascending; behind them 0
    int32_t* kept = nullptr;  // how many they are
};

/// Begins a round: sets what depends on length and token, with row 0 as the only row in use.
void begin_round(Context& ctx, const RoundState& state);

/// values[r, c] - values[r, 0] - ln sum_j exp(values[r, j] - values[r, 0]): ln of the probability of each choice among
/// the k of its row. f32 [n, k], fresh. In double, rounded once. k <= 32.
Tensor choice_logprobs(Context& ctx, const TopK& best);

/// The drafts of a round. choices.indices and logprobs [slots, k]: for the token s + 1 places behind row 0, the likely
/// words, best first, no word twice; a choice whose logprob is NaN or -infinity is none, and neither is what follows
/// it. `words`: the token of each word; empty: the word itself. Only the first choices of the first slots count.
///
/// First the chain of the best choices of the first `chain` slots, then always the most probable prefix that is
/// missing, where a prefix is as probable as the product of its drafts. Equals: the shorter first, then the one that
/// was found first (siblings are found behind a row, then its first child). Until `rows` are in use or nothing is left;
/// rows beyond have token 0, as children of row 0. REQUIRES rows.tokens[0] and rows.positions[0]; writes all else. With
/// chain 0 no other tree of so many rows expects to have more tokens accepted. Exact: sums of ln in double, in the
/// order of the way. Cost: on a GPU one warp, about 0.1 us a row. Source: DDTree, arXiv 2604.12989.
struct DraftPlan {
    int32_t rows = 1;  // row 0 included
    int32_t chain = 0;
    int32_t slots = 1, choices = 1;  // that count, at most
};
void draft_rows(Context& ctx, const Tensor& indices, const Tensor& logprobs, std::span<const int32_t> words,
                const DraftPlan& plan, const DraftRows& rows);
/// draft_rows on the host, with any number of rows.
void draft_rows_ref(std::span<const int32_t> indices, std::span<const float> logprobs, int64_t slots, int64_t k,
                    std::span<const int32_t> words, const DraftPlan& plan, const DraftRows& rows);

/// Where the device reports rounds: entry e = step % size has, for each of its rows, kWords words, each (step + 1) <<
/// 32 | value, in pinned host memory: the token drawn, the row's token, its place: (parent + 1) | kept << 8 | rows in
/// use
/// << 16, and the bits of its logprob. `step` lies in device memory.
struct RoundRing {
    static constexpr int64_t kWords = 4, kEntryWords = kWords * kMostRoundRows;
    uint64_t* entries = nullptr;
    int64_t size = 0;
    int64_t* step = nullptr;
};

/// Ends a round of n rows. drawn i32 [n]: the token that follows each row, -1 for none. The way begins at row 0 and
/// goes on to the first child whose token is the one drawn. Sets path and kept, *length += *kept, *token to what was
/// drawn for the last row of the way (0 if none: rounds that run ahead stay harmless), reports, and counts *ring.step
/// up.
void accept_rows(Context& ctx, const Tensor& drawn, const RoundState& state, const RoundRing& ring);

/// out[*at + r] = x[r]. x f32 [n, C], contiguous; out f32 [m, C], contiguous; at: of the device. REQUIRES 0 <= *at,
/// *at + n <= m.
void store_rows(Context& ctx, const Tensor& x, const int32_t* at, Tensor& out);

}  // namespace riptide::ops
