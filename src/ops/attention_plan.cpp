#include "ops/attention_plan.h"

#include <algorithm>

namespace riptide::ops {

namespace {

int64_t parent_of(const Batch& batch, int64_t r, int64_t first_row) {
    if (batch.parent.empty()) return r == first_row ? -1 : r - 1;
    return batch.parent[static_cast<size_t>(r)];
}

/// Whether the rows [begin, end) of sequence s leave the chain. Checks that they are numbered as batch.h says.
bool is_tree(const Batch& batch, size_t s, int64_t begin, int64_t end) {
    bool tree = false;
    for (int64_t r = begin; r < end; ++r) {
        const int64_t parent = parent_of(batch, r, begin);
        RT_ASSERT(parent == -1 || (parent >= begin && parent < r));
        const int64_t before = parent == -1 ? batch.committed[s] - 1 : batch.positions[static_cast<size_t>(parent)];
        RT_ASSERT(batch.positions[static_cast<size_t>(r)] == before + 1);
        tree = tree || parent != (r == begin ? -1 : r - 1);
    }
    return tree;
}

}  // namespace

std::vector<AttentionTile> plan_tiles(const Batch& batch, int32_t window) {
    std::vector<AttentionTile> tiles;
    for (int64_t s = 0; s < batch.sequences(); ++s) {
        const int64_t begin = batch.row_begin[static_cast<size_t>(s)],
                      end = batch.row_begin[static_cast<size_t>(s) + 1];
        const bool tree = is_tree(batch, static_cast<size_t>(s), begin, end);
        for (int64_t row = begin; row < end; row += kTileRows) {
            AttentionTile tile{s, row, std::min(kTileRows, end - row), tree, INT64_MAX, 0};
            for (int64_t r = row; r < row + tile.rows; ++r) {
                const VisibleRange range = visible_range(batch, window, r);
                tile.first_piece = std::min(tile.first_piece, range.begin / kAttentionSplit);
                tile.end_piece = std::max(tile.end_piece, (range.end + kAttentionSplit - 1) / kAttentionSplit);
            }
            tiles.push_back(tile);
        }
    }
    return tiles;
}

void path_indices(const Batch& batch, int64_t r, int64_t begin, int64_t end, int64_t* index) {
    const auto s = static_cast<size_t>(batch.row_sequence[static_cast<size_t>(r)]);
    const int64_t committed = batch.committed[s], first_row = batch.row_begin[s];
    for (int64_t p = begin; p < std::min(end, committed); ++p) index[p - begin] = p;
    int64_t row = r;
    for (int64_t p = batch.positions[static_cast<size_t>(r)]; p >= std::max(begin, committed); --p) {
        if (p < end) index[p - begin] = committed + row - first_row;
        row = parent_of(batch, row, first_row);
    }
}

}  // namespace riptide::ops
