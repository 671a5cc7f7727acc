// How CPU attention cuts a step into tiles of rows and pieces of keys. Internal to ops.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention.h"

namespace riptide::ops {

/// Rows of one sequence that share decoded K/V.
struct AttentionTile {
    int64_t sequence = 0;
    int64_t row = 0;  // of the step
    int64_t rows = 0;
    bool tree = false;        // some row of the sequence is no chain
    int64_t first_piece = 0;  // pieces of kAttentionSplit positions that some row sees
    int64_t end_piece = 0;
};

inline constexpr int64_t kTileRows = 32;

/// The positions that row r sees: [begin, end).
struct VisibleRange {
    int64_t begin, end;
    bool any() const { return begin < end; }
    bool operator==(const VisibleRange&) const = default;
};
inline VisibleRange visible_range(const Batch& batch, int32_t window, int64_t r) {
    const int64_t position = batch.positions[static_cast<size_t>(r)];
    return {window > 0 && position >= window ? position - window + 1 : 0, position + 1};
}

/// Tiles in order of rows. Aborts on a batch whose positions contradict its parents.
std::vector<AttentionTile> plan_tiles(const Batch& batch, int32_t window);

/// index[i] = storage index of the key at position begin + i on the path of row r, for positions [begin, end) that r
/// sees.
void path_indices(const Batch& batch, int64_t r, int64_t begin, int64_t end, int64_t* index);

}  // namespace riptide::ops
