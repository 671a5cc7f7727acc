// How decode attention on a GPU cuts the keys of a row into pieces of work. Runs on both sides, so that tests can ask.
//
// A row with `count` visible keys, ranked by position, is cut into chunks of chunk_keys(count) keys from the first one
// it sees: a function of the row alone. One CTA takes a chunk of one KV head; its warps take steps of 16 keys: step s
// belongs to warp s % 8. Partial results of warps are added in ascending order, then chunks are merged in ascending
// order.
#pragma once

#include <cstdint>

#include "tensor/host_device.h"

namespace riptide::ops {

inline constexpr int kStepKeys = 16;
inline constexpr int kAttentionWarps = 8;
inline constexpr int kMostDecodeRows = 256;
inline constexpr int kShortChunk = kStepKeys * kAttentionWarps;  // a step for each warp
inline constexpr int kMostChunks = 32;
inline constexpr int kMostShortKeys = kMostChunks * kShortChunk;  // visible keys that make chunks of that size

/// Keys that a row at `position` sees.
RT_HD constexpr int visible_keys(int position, int window) {
    return window > 0 && position >= window ? window : position + 1;
}

/// Keys of a chunk: the least multiple of 128 that makes at most 32 chunks: times 8 KV heads, what an H200 takes at
/// once. (64 made two rounds of them, each with heads to prepare and results to exchange.)
RT_HD constexpr int chunk_keys(int count) { return (count + kMostShortKeys - 1) / kMostShortKeys * kShortChunk; }

RT_HD constexpr int chunk_count(int count) {
    const int keys = chunk_keys(count);
    return (count + keys - 1) / keys;
}

/// The most chunks of any row that sees at most `count` keys.
RT_HD constexpr int most_chunks(int64_t count) {
    if (count > kMostShortKeys) return kMostChunks;
    return count <= kShortChunk ? 1 : static_cast<int>((count + kShortChunk - 1) / kShortChunk);
}

/// The keys of one chunk: ranks [first, first + keys) counted from position 0, `keys` at least 1.
struct KeyChunk {
    int first;
    int keys;
    bool last;  // ends with the row's own key
};
RT_HD constexpr KeyChunk key_chunk(int position, int window, int chunk) {
    const int count = visible_keys(position, window), size = chunk_keys(count);
    const int left = count - chunk * size;
    return {position + 1 - count + chunk * size, left < size ? left : size, left <= size};
}

/// Where the rows of a step find their keys: Batch and KvView without what decode attention does not need.
struct KeyPlaces {
    const int32_t* positions;
    const int32_t* row_sequence;
    const int32_t* parent;  // null: chains
    const int32_t* row_begin;
    const int32_t* committed;
    const int32_t* page_table;
    const int32_t* state_slot;
    int32_t max_pages;
    int32_t page_rows;
    int32_t window;
    int32_t ring_rows;
    const int32_t* gaps;  // null: none

    /// Batch::rotary_position.
    RT_HD int32_t rotary_position(int row) const { return positions[row] + (gaps != nullptr ? gaps[row] : 0); }
    /// The first slot of a sequence's ring, 0 for pages.
    RT_HD int32_t ring_begin(int sequence) const { return window > 0 ? state_slot[sequence] * ring_rows : 0; }
    /// KvView::slot.
    RT_HD int32_t slot(int sequence, int32_t ring, int32_t index) const {
        const auto i = static_cast<uint32_t>(index);
        if (window > 0) return ring + static_cast<int32_t>(i % static_cast<uint32_t>(ring_rows));
        const uint32_t page = i / static_cast<uint32_t>(page_rows), place = i - page * static_cast<uint32_t>(page_rows);
        return page_table[int64_t{sequence} * max_pages + page] * page_rows + static_cast<int32_t>(place);
    }
};

/// Which element of A and B of mma.m16n8k16 lane 4 g + t holds: row g (A also g + 8), columns 2 t, 2 t + 1, 2 t + 8,
/// 2 t + 9. Products sum over columns in any order, so a lane's four columns of inner step s stand for the elements
/// kv_unit_element(type, t + 4 (s / 4), 4 (s % 4) + 0..3) of a row of 128: one or two whole loads for each key.
struct ScoreColumn {
    int unit;
    int first;
};
RT_HD constexpr ScoreColumn score_column(int s, int t) { return {t + 4 * (s / 4), 4 * (s % 4)}; }

/// The key (0..15) of a step whose row of V lane t loads as its j-th (j = 0..3): columns of A above.
RT_HD constexpr int value_key(int t, int j) { return 2 * t + j % 2 + 8 * (j / 2); }

}  // namespace riptide::ops
