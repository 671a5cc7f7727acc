// Where prefill attention on a GPU puts keys and queries, and how many tiles there are. Internal to ops.
#pragma once

#include <cstdint>

#include "tensor/host_device.h"

namespace riptide::ops::cuda::prefill {

inline constexpr int kTile = 128;     // rows of a query tile; keys of a key tile
inline constexpr int kMostDim = 256;  // widest head

/// Where key `key` of a tile, column e of d, lies in an image, in elements.
RT_HD int image_offset(int key, int e) { return (e / 64 * kTile + key) * 64 + ((e % 64 / 8) ^ (key % 8)) * 8 + e % 8; }

/// Where column e of row r of the step lies in the row's d 16-bit queries. Lane quarter t = e % 8 / 2 of the
/// tensor-core fragments reads 16 bytes at a time: piece 4 j + t holds its values of the k-steps 2 j and 2 j + 1. Odd
/// rows swap neighbouring j, so that eight lanes reading two rows meet no bank twice.
RT_HD int query_piece(int j, int t, int row) { return (4 * j + t) ^ (row % 2 * 4); }
RT_HD int query_offset(int row, int e) {
    const int step = e / 16, half = e % 16 / 8, t = e % 8 / 2;
    return query_piece(step / 2, t, row) * 8 + step % 2 * 4 + half * 2 + e % 2;
}

/// The first index that some row of a sequence sees, and its tile.
RT_HD int first_key(int committed, int window) {
    return window > 0 && committed >= window ? committed - window + 1 : 0;
}
RT_HD int first_key_tile(int committed, int window) { return first_key(committed, window) / kTile; }
RT_HD int count_query_tiles(int rows) { return (rows + kTile - 1) / kTile; }
RT_HD int count_key_tiles(int rows, int committed, int window) {
    return rows == 0 ? 0 : (committed + rows - 1) / kTile - first_key_tile(committed, window) + 1;
}
/// The most key tiles that `sequences` sequences with `rows` rows together need.
RT_HD int64_t most_key_tiles(int64_t sequences, int64_t rows, int window, int64_t max_pages, int page_rows) {
    if (window > 0) return rows / kTile + sequences * (window / kTile + 3);
    return sequences * ((max_pages * page_rows + kTile - 1) / kTile);
}

}  // namespace riptide::ops::cuda::prefill
