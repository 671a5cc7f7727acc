// What the kernels of linear/ take of shared memory, as constants and sizes. Without CUDA: the plan counts with the
// same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/device/int8_layout.h"
#include "tensor/dtype.h"

namespace riptide::ops::cuda::decode {

// ---- The most matrices of a launch.

constexpr int kMaxMatrices = 8;        // any.cuh
constexpr int kRow1Matrices = 4;       // kquant_i8.cu, kquant_i8_rows4.cu, planes_i8_sm90.cu
constexpr int kBf16SmallMatrices = 4;  // bf16_small_sm90.cu
constexpr int kFloatMatrices = 4;      // float.cu
constexpr int kMostWide = 8;           // kquant_i8_wide_sm90.cu
constexpr size_t kQ8Matrices = 16;     // q8_i8_sm80.cu

// ---- Drafts (draft_f16_sm90.cuh).

constexpr int kMostColumns = 1280, kMostSlices = 32;  // of a slice; of a row

// ---- Tiles of 2,048 columns (tile.cuh).

/// Where everything lies in a stage.
template <DType Type, int Cols>
struct Tile {
    static_assert(Type == DType::planes_q4_k || Type == DType::planes_q5_k || Type == DType::planes_q6_k);
    static_assert(Cols == 2048 || Cols == 512);
    static constexpr bool kQ6 = Type == DType::planes_q6_k, kQ5 = Type == DType::planes_q5_k, kWide = Cols == 2048;
    static constexpr int kRows = 32768 / Cols, kGroups = Cols / 32, kBlocks = Cols / 256;
    static constexpr int kDataStride = Cols / 2 + 16, kHeadStride = 16 * kBlocks + 16;
    static constexpr int kHighBytes = kQ6 ? Cols / 4 : kQ5 ? Cols / 8 : 0, kHighStride = kHighBytes + 16;
    static constexpr int kHeads = kRows * kDataStride, kHigh = kHeads + kRows * kHeadStride;
    static constexpr int kD = kHigh + (kHighBytes > 0 ? kRows * kHighStride : 0);
    static constexpr int kBytes = kD + (kQ6 ? kRows * kBlocks * 2 : 0);
    static_assert(kBytes % 16 == 0);
};

/// Types that have tiles.
inline bool is_tile_type(DType t) {
    return t == DType::planes_q4_k || t == DType::planes_q5_k || t == DType::planes_q6_k;
}
template <int Cols>
constexpr int64_t stage_bytes(DType t) {
    return t == DType::planes_q4_k   ? Tile<DType::planes_q4_k, Cols>::kBytes
           : t == DType::planes_q5_k ? Tile<DType::planes_q5_k, Cols>::kBytes
                                     : Tile<DType::planes_q6_k, Cols>::kBytes;
}

/// Bytes from row to row of x in shared memory, with A0 (which only Q6_K needs) or without: an odd number of 16, so
/// that ldmatrix has no bank conflicts.
RT_HD int32_t tile_x_stride(const ActLayout& l, bool a0) {
    const int32_t bytes = (a0 ? 44 : 40) * l.groups;
    return bytes / 16 % 2 == 0 ? bytes + 16 : (bytes + 15) / 16 * 16;
}

/// Floats between the columns of a partial sum in shared memory, and bytes of those of `warps` warps for NT * 8 rows of
/// x.
constexpr int kPartialStride = 20;
constexpr int64_t partial_bytes(int nt, int warps) { return int64_t{4} * warps * 8 * nt * kPartialStride; }

constexpr int kTileWarps = 16;  // kquant_i8_sm80.cu: that multiply

// ---- Tiles of any width, by clusters (kquant_i8_wide_tile.cuh).

constexpr int kWideWarps = 16, kWideRows = 32;  // of a tile

/// Blocks of 256 columns of a row in a stage. Two chains: an even number, so that stages begin with the same one.
constexpr int stage_blocks(int c) { return c == 4 ? 5 : 6; }

/// Where everything lies in a stage: strides are odd multiples of 16, against bank conflicts.
template <DType Type, int C>
struct WideStage {
    static constexpr int kBlocks = stage_blocks(C);
    static constexpr bool kQ6 = Type == DType::planes_q6_k, kQ5 = Type == DType::planes_q5_k;
    static constexpr int kDataStride = 128 * kBlocks + 16, kHeadStride = 112;
    static constexpr int kHighEach = kQ6 ? 64 : kQ5 ? 32 : 0, kHighStride = kBlocks * kHighEach + 16;
    static constexpr int kHeads = kWideRows * kDataStride, kHigh = kHeads + kWideRows * kHeadStride;
    static constexpr int kD = kHigh + (kHighEach > 0 ? kWideRows * kHighStride : 0);
    static constexpr int kBytes = kD + (kQ6 ? kWideRows * kBlocks * 2 : 0);
    static_assert(kHeadStride >= 16 * kBlocks && kHeadStride % 32 == 16 && kDataStride % 32 == 16);
    static_assert(kBytes % 16 == 0 && (kHighEach == 0 || kHighStride % 32 == 16));
};
template <int C>
constexpr int64_t wide_stage_bytes(DType t) {
    return t == DType::planes_q4_k   ? WideStage<DType::planes_q4_k, C>::kBytes
           : t == DType::planes_q5_k ? WideStage<DType::planes_q5_k, C>::kBytes
                                     : WideStage<DType::planes_q6_k, C>::kBytes;
}

/// A CTA's share of up to 8 NT rows of x in shared memory: int8 parts row by row, {d, A} and A0 (which only Q6_K needs)
/// sub-block by sub-block, those of all rows one behind the other.
struct WideX {
    int groups, stride, pairs, halves, bytes;

    /// groups: sub-blocks of a row that a CTA has at most.
    RT_HD static WideX of(int groups, int rows, bool a0) {
        WideX x;
        x.groups = groups;
        x.stride = 32 * groups + 16;
        x.pairs = rows * x.stride;
        x.halves = x.pairs + 8 * rows * groups;
        x.bytes = x.halves + (a0 ? 4 * rows * groups : 0);
        return x;
    }
};

/// How a CTA adds up its 32 / C rows of a tile times 8 NT rows of x.
template <int C, int NT>
struct WideFinish {
    static constexpr int kRows = kWideRows / C, kProducts = 8 * NT * kRows;
    static constexpr int kShare = kProducts <= 128 ? 4 : kProducts <= 256 ? 2 : 1;  // threads for a product
    static constexpr int kPart = kProducts + 32 / kShare % 32;  // floats from one warp's sums to the next one's
    static constexpr int kBytes = 4 * 8 * C * kPart, kSent = 4 * 8 * C * kProducts;
};

constexpr int kMostWideStages = 6;

// ---- Many rows (kquant_i8_narrow_sm90.cuh).

constexpr int kNarrowWarps = 8, kNarrowProducers = 4, kNarrowConsumers = 32 * kNarrowWarps;
constexpr int kNarrowThreads = 32 * (kNarrowWarps + kNarrowProducers);
constexpr int kNarrowXStride = 2048 + 16;  // bytes from row to row of x: an odd number of 16

/// A CTA's columns: those of the blocks of 256 with number rank, rank + C, ... of a row, `B` of them, at most eight.
/// Two teams of warps (more than eight rows) have every second tile each.
template <int NT, int C, int B>
struct NarrowShape {
    static constexpr int kTeams = NT == 1 ? 1 : 2;
    static_assert((C == 1 && B == 8) || (C == 4 && B % 2 == 0 && B <= 8));
    static constexpr int kRows = 8 * NT, kXBytes = kRows * (kNarrowXStride + 64 * 8);
    static constexpr int kScaleBytes = kNarrowWarps * B / 2 * 32 * 8;
    /// Sums: C == 1 of eight warps; C == 4 those of 32 warps for a quarter of the products.
    static constexpr int kSumBytes = kNarrowWarps * NT * 512;
    /// Of one tile of one team.
    static constexpr int kTileSums = C == 1 ? kSumBytes / kTeams : kSumBytes;
    static constexpr int kFixed = kXBytes + kScaleBytes + 2 * kTeams * kTileSums;
    /// Which of its blocks a CTA takes as half `u` of pair `k`: C == 1 a chain of the canonical sum at a time, in the
    /// order in which chains are added.
    RT_HD static constexpr int block(int k, int u) { return C == 1 ? (k % 2 * 2 + k / 2) + 4 * u : 2 * k + u; }
};

constexpr int64_t kTileStageBarriers = 16;  // bytes of the barriers of a stage (weight_ring.cuh)

constexpr int kMostNarrowStages = 6;

// ---- Half precision (kquant_f16.cuh and what is made of it).

/// A block of 256 columns of a row of x: 32 units of eight halves, then for each t the sums of sub-blocks 2 t and 2 t +
/// 1, hi and lo. One row: its blocks lie side by side if they have the same b mod 4, two chains by turns. More: the
/// units of all rows of a block lie together, units 4 j + t of odd rows where even ones have 4 (j ^ 1) + t, so that
/// eight lanes read other banks; so do the sums, elsewhere.
constexpr int kF16Units = 512, kF16Sums = 32, kF16Block = kF16Units + kF16Sums;

constexpr int kMostF16 = 4;  // matrices of a group
[[maybe_unused]] constexpr int kMostF16Stages = 6;
constexpr int kStripRows = 16;
[[maybe_unused]] constexpr int64_t kBesideF16 =
    1280;  // of shared memory: kquant_f16_prepare_kernel(), what a CTA takes

constexpr int kF16Warps = 16, kF16Threads = 32 * kF16Warps;

/// How a kernel for 8 NT rows of x is made. C CTAs of a cluster share strips, each has T of the four chains, in teams
/// of W of its warps, one for each chain; of four CTAs two, of which one has the even quads and the other the odd ones,
/// with a ring each. A piece is eight columns of a strip's products: NT of them, dealt out to the warps of a team.
template <int NT, int C>
struct F16Shape {
    static constexpr int T = 4 / C, By = C == 4 ? 2 : 1, W = T * By, kTeams = kF16Warps / W, kRings = kF16Warps / T;
    static constexpr int kChains = 2 / By;  // of the eight that a warp adds to
    static constexpr int kMeeting =
        C == 1 ? 2 * W * NT : NT;                  // pieces that a team's warps leave each other; two places
    static constexpr int kOwn = (NT + W - 1) / W;  // pieces that a warp adds up within its CTA, at most
    static constexpr int kInbox = C == 1 ? 0 : (NT + C - 1) / C * (C - 1);  // that come to a team from others at once
};
constexpr int kPieceBytes = 512;

/// One row of x (kquant_f16_row1_sm90.cu): teams, slots of a team at most, bytes of one without the high bits of Q6_K.
constexpr int kF16RowTeams = 3, kF16RowStages = 3, kF16Slot = 9216;
/// Rows of up to 2,048 times that many columns can be normalised by stage_whole_row().
constexpr int kWholeRow = 3;

constexpr int kChainCtas = 8;    // of a cluster: one for each chain
constexpr int kChainRows = 64;   // of a strip
constexpr int kChainGroups = 3;  // of four warps that multiply; one more asks
constexpr int kChainThreads = 128 * (kChainGroups + 1);
constexpr int kMostChainTeams = 18 * kChainGroups;  // of 144 multiprocessors
[[maybe_unused]] constexpr int kMostChainStages = 6;
constexpr int kChainData = 128 * kChainRows, kChainHigh = 64 * kChainRows, kChainHeads = 16 * kChainRows;  // of a slot

/// Pieces of a strip's products with 8 NT rows of x are dealt out to the CTAs of a cluster: so many to one at most,
/// each of which gets the other chains' parts.
template <int NT>
constexpr int kChainPieces = (4 * NT + kChainCtas - 1) / kChainCtas;
constexpr int kChainParts = kChainCtas - 1;

/// 8 NT rows of x: bytes of a block of 256 columns.
template <int NT>
struct ChainX {
    static constexpr int kSumsAt = 8 * kF16Units * NT, kScalesAt = kSumsAt + 8 * kF16Sums * NT,
                         kBlock = kScalesAt + 8 * 4 * NT;
};

// ---- Q8_0 (q8_i8_sm80.cu).

/// A stage: rows of int8, then rows of f16 scales, padded so that ldmatrix and 2-byte reads have no bank conflicts.
struct Q8Shape {
    static constexpr int kUsers = 16, kCols = 2048, kGroups = kCols / 32, kTileRows = 16;
    static constexpr int kDataStride = kCols + 16, kScaleStride = 2 * kGroups + 16, kScales = kTileRows * kDataStride;
    static constexpr int kStageBytes = kScales + kTileRows * kScaleStride;
    static constexpr int kNormedRows = 8;  // of x, that the kernel normalises itself
    /// Bytes of a CTA's sums of gate and up for 8 nt rows of x.
    static constexpr int64_t tile_sums(int nt) { return int64_t{4} * 8 * nt * 2 * 2 * kTileRows; }
};

// ---- One row.

constexpr int kPlanesRows = 8;  // of x, that planes_i8_sm90.cu multiplies at once
constexpr int kRow1Warps = 16, kRow1Threads = 32 * kRow1Warps;

/// Dynamic shared memory that the kernels of a chain ask for, even if they need less: large and small ones alternate,
/// so that one of each fits on an SM but no two of the same kernel. (Otherwise an SM that is free early gets two CTAs
/// and others none.)
constexpr int kRow1Large = 116 << 10, kRow1Small = 48 << 10;

constexpr int staged_bytes(int cols) { return 44 * (cols / 32); }

constexpr int kFloatWarps = 16, kFloatThreads = 32 * kFloatWarps;
constexpr int kQuads = kFloatWarps / 4, kQuadRows = 4;
constexpr int kMostFloatRounds = 64;                // batches of a quad, whose sums a CTA keeps in shared memory
constexpr int64_t kDuoBytes = 16 + kQuadRows * 16;  // experts_float.cu: of a duo of gate and up, and of its sums
constexpr int kBf16SmallBatches = 16;               // bf16_small_sm90.cu: of a quad, in one window
/// Rows of a batch there.
constexpr int bf16_small_batch_rows(DType type) { return type == DType::f32 ? kQuadRows / 2 : kQuadRows; }
constexpr int kWindowPieces = 4 * 32;  // of a row, that the warps of a quad have in one tile each

constexpr int kRowWarps = 16;                    // kquant_i8_wide_row1_sm90.cuh
constexpr int kMostPlanes = 4, kMostFloats = 4;  // matrices of a group, with tiles and without

/// Slots of a warp, and the bytes of each: of a step of a pair of rows of one type, Q4_K or another.
constexpr int row_slots(bool q4) { return q4 ? 8 : 6; }
constexpr int row_slot_bytes(bool q4) { return q4 ? 1152 : 1728; }

}  // namespace riptide::ops::cuda::decode
