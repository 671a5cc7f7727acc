// What decode attention's kernels take of a chip. Without CUDA.
#pragma once

#include <cstdint>

#include "ops/cuda/device/key_chunks.h"
#include "quant/kv_row.h"

namespace riptide::ops::cuda::attn {

inline constexpr int kMostGroup = 8;  // query heads of a K/V head that tensor cores take at a time

// Heads of 128.
inline constexpr int kNarrow = 128;
inline constexpr int kMostCluster = 8;  // CTAs that share a row, each with a chunk
inline constexpr int kRow1Cluster = 2;  // of decode_d128_row1_sm90
inline constexpr int kFewRows = 8;      // have kernels with a chunk for each CTA
/// Whether two CTAs of heads of 128 have registers on an SM: rows of K and V of up to 3 bytes an element together.
RT_HD constexpr bool two_ctas(DType k, DType v) {
    return kv_row_bytes(k, kNarrow) + kv_row_bytes(v, kNarrow) <= 3 * kNarrow;
}

// Heads of 256.
inline constexpr int kWide = 256, kWideChunk = 512, kTile = 64, kTileSteps = kTile / kStepKeys;
inline constexpr int kQuerySteps = kWide / 16;    // of a score
inline constexpr int kScoreStride = kTile + 4;    // floats of a row of scores, padded against bank conflicts
inline constexpr int kWeightStep = 32 * 16 + 32;  // bytes of a group's weights for 16 keys, padded likewise
inline constexpr int kWideCluster = 4;            // CTAs of decode_d256_row1_sm90 that share a chunk

/// Bytes of a stored row in shared memory: an odd number of 16-byte pieces.
constexpr int64_t staged_row_bytes(DType type) { return (kv_row_bytes(type, kWide) / 16 | 1) * 16; }
/// Shared memory of a CTA of decode_d256_sm80 that has groups of eight (row, query head) pairs: two tiles of keys,
/// where they lie, and of each group queries, weights, scores and factors.
constexpr int64_t wide_shared_bytes(DType k, DType v, int64_t groups) {
    const int64_t tiles = 2 * kTile * (staged_row_bytes(k) + staged_row_bytes(v));
    const int64_t places = 4 * (kWideChunk + 2 * kMostDecodeRows + 1);
    const int64_t scores = (groups == 1 ? 2 : groups) * 8 * kScoreStride * 4;
    const int64_t group = kQuerySteps * 32 * 16 + kTileSteps * kWeightStep + 8 * 4;
    return (tiles + places + 15) / 16 * 16 + groups * group + scores;
}

}  // namespace riptide::ops::cuda::attn
