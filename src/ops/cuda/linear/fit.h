// Whether a kernel of linear/ fits on a chip, and how it divides the shared memory there. Without CUDA: the plan asks
// before it chooses, the launchers ask to launch, and both get the same answer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ops/cuda/device/chip.h"
#include "ops/cuda/linear/shared/shapes.h"
#include "tensor/tensor.h"

namespace riptide::ops::cuda::decode {

// Every function below gives nothing if the kernel does not fit.

/// kquant_i8.cu, kquant_i8_rows4.cu: a warp has `batch` rows of Q4_K (or batch6 of Q6_K) of 2,048 columns at once.
struct Row1Fit {
    int32_t warp_bytes = 0;
    int64_t shared = 0;
};
/// batches: of all matrices. n: rows of x.
std::optional<Row1Fit> fit_row1_whole(const Chip& chip, int64_t n, int64_t batches, bool any_q6, int batch, int batch6);
/// The shared memory of a CTA that has a row of Q4_K in 16 warps: `rows` of them, 1,024 * steps columns.
std::optional<int64_t> fit_row1_split(const Chip& chip, int64_t n, int64_t rows, int steps);
/// planes_i8_sm90.cu, the shared memory of a CTA for n rows of x: batches of rows of 2,048 columns, of up to `bytes`
/// each, one a warp; and rows of 1,024 * steps columns, of `bytes` each, one a warp.
std::optional<int64_t> fit_planes_whole(const Chip& chip, int64_t n, int64_t batches, int64_t bytes);
std::optional<int64_t> fit_planes_split(const Chip& chip, int64_t n, int64_t rows, int steps, int64_t bytes);
/// How many of n rows of x it multiplies at a time with a group of weights of `cols` columns, `batch` (5, 6; above
/// 2,048 columns 1) rows a warp; 0: none.
int64_t planes_rows(const Chip& chip, int64_t cols, int64_t n, std::span<const Weight* const> weights, int64_t batch);

/// bf16_small_sm90.cu. singles: whether f32 rows come last.
struct Bf16SmallFit {
    int windows = 0, quads = 0;
    int64_t ctas = 0, shared = 0;
};
/// Dynamic shared memory of a CTA at most.
int64_t bf16_small_room(const Chip& chip);
std::optional<Bf16SmallFit> fit_bf16_small(const Chip& chip, int64_t cols, int64_t batches, bool singles);

/// float.cu: batches of four rows of weights.
struct FloatFit {
    int64_t ctas = 0, shared = 0;
    int rows = 1;       // of x, that a CTA multiplies at once
    bool huge = false;  // two CTAs an SM
};
std::optional<FloatFit> fit_float_row(const Chip& chip, int64_t cols, ActKind kind, int64_t batches);
/// Gate and up of `rows` rows (experts_float.cu).
std::optional<FloatFit> fit_float_pair(const Chip& chip, int64_t cols, ActKind kind, int64_t rows);
/// one: all weights are bf16, or all are fp8. The rows of x are staged by a kernel before if there are more than four.
std::optional<FloatFit> fit_float_rows(const Chip& chip, int64_t cols, ActKind kind, int64_t n, int64_t batches,
                                       bool one);
/// Dynamic shared memory to ask for: `need`, and on chips that overlap kernels as much as keeps a second CTA of the
/// same kernel off the SM. 0: too much.
int64_t float_shared(const Chip& chip, int64_t need, bool large);

/// kquant_i8_wide_row1_sm90.cu: the shared memory. q4: all matrices are.
std::optional<int64_t> fit_wide_row(const Chip& chip, int64_t cols, bool floats, bool q4);

constexpr int64_t kMostTileStages = 6;
/// How the shared memory of a tile kernel is divided.
struct TilePlan {
    int32_t stages = 0;  // 0: it does not fit
    int32_t ctas = 0;    // on the whole device
    int64_t shared = 0;  // bytes
};
/// `fixed` bytes and as many stages (2 to kMostTileStages) as leave room for `most_ctas` CTAs on an SM, or else for
/// fewer.
TilePlan plan_tiles(const Chip& chip, int32_t most_ctas, int64_t fixed, int64_t stage_bytes);

/// kquant_i8_sm80.cu for n rows of x, and q8_i8_sm80.cu.
struct TileFit {
    int tiles = 0;     // of eight rows of x, that a CTA multiplies at once
    int partials = 0;  // places for sums
    TilePlan plan;
};
std::optional<TileFit> fit_tile(const Chip& chip, int64_t cols, int64_t n, int64_t stage_bytes, bool q6);
/// normed: the kernel normalises x itself. pairs: it multiplies gate and up.
std::optional<TileFit> fit_q8(const Chip& chip, int64_t cols, int64_t n, bool normed, bool pairs);

/// kquant_i8_narrow_sm90.cu: of 2,048 columns a CTA has all, of more the four CTAs of a cluster have `blocks` each.
struct NarrowFit {
    int tiles = 0, cluster = 1, blocks = 8;
    int32_t stages = 0;
    int64_t shared = 0;
};
std::optional<NarrowFit> fit_narrow(const Chip& chip, int64_t cols, int64_t n, int64_t stage_bytes);

/// kquant_i8_wide_sm90.cu.
struct WideFit {
    int tiles = 0, cluster = 0;
    int32_t stages = 0, stage_bytes = 0, buffers = 0, groups = 0;  // groups: sub-blocks that a CTA has at most
    int64_t shared = 0;
};
/// type: the one with the largest stages; q6: whether any matrix is Q6_K.
std::optional<WideFit> fit_wide(const Chip& chip, int64_t cols, int64_t n, DType type, bool q6);

/// kquant_f16_mma_sm90.cu, kquant_f16_wgmma_sm90.cu, kquant_f16_row1_sm90.cu: where things lie in shared memory.
struct F16Fit {
    int tiles = 0, cluster = 1;
    int32_t teams = 0, stages = 0, slot_bytes = 0;
    int32_t sums_at = 0, scales_at = 0, data_at = 0, high_at = 0, heads_at = 0, meeting_at = 0, inbox_at = 0,
            terms_at = 0, floats_at = 0, float_weights_at = 0;
    int64_t shared = 0;
};
std::optional<F16Fit> fit_f16_rows(const Chip& chip, int64_t cols, int64_t n, bool q6);
std::optional<F16Fit> fit_f16_chain(const Chip& chip, int64_t cols, int64_t n, bool q6);
/// floats: bytes of a staged row of floats, if float matrices are beside; float_row: those of their longest row.
std::optional<F16Fit> fit_f16_row(const Chip& chip, int64_t cols, ActKind kind, bool q6, int64_t floats,
                                  int64_t float_row);

}  // namespace riptide::ops::cuda::decode
