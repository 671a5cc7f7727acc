// THE TABLE for matrix products: which kernel runs. kTable in plan.cpp is read from top to bottom: rows for drafters,
// then those for whole groups, then those for weights of one kind, of which the last one always matches. Without CUDA:
// tests/ops/plan/*.txt hold the choices for six chips, and `riptide kernels` prints those for a model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/cuda/device/chip.h"
#include "ops/cuda/device/int8_layout.h"
#include "tensor/context.h"
#include "tensor/tensor.h"

namespace riptide::ops::cuda::linear {

/// A group of products with one x.
struct Case {
    Family family = Family::decode;
    int64_t rows = 0;  // of x
    int64_t cols = 0;
    decode::ActKind x = decode::ActKind::plain;
    bool aligned = true;    // x and the norm's weights, to sixteen bytes
    bool residual = false;  // the product is added to something else, too: one weight
    std::span<const Weight* const> weights;
    Chip chip;
    bool router = false;  // a router reads the residual next, and takes words (shared/router_words.h)

    /// Whether x is given as floats, perhaps to be normalised.
    bool floats_as_given() const { return x == decode::ActKind::plain || x == decode::ActKind::norm; }
    /// Whether the kernels of this name take x: kquant_i8_wide_*, bf16_small_sm90.
    bool wide_source() const;
    bool small_bf16_source() const;
};

enum class Kernel {
    draft_f16_sm90,
    kquant_f16_row1_sm90,
    kquant_f16_mma_sm90,
    kquant_f16_wgmma_sm90,
    kquant_i8_whole5,        // kquant_i8.cu: a warp has whole rows, 5 of Q4_K or 3 of Q6_K
    kquant_i8_whole6,        // 6 or 3
    kquant_i8_split_router,  // split, and the words of a router
    kquant_i8_split,         // 16 warps share a row
    kquant_i8_stream,        // rows come one after the other
    planes_i8_whole5,        // planes_i8_sm90.cu: the same for planes of any type, 5 rows a warp
    planes_i8_whole6,
    planes_i8_split_router,
    planes_i8_split,
    kquant_i8_rows4_whole5,
    kquant_i8_rows4_whole6,
    kquant_i8_rows4_split_router,
    kquant_i8_rows4_split,
    bf16_small_sm90,
    float_row1,  // float.cu
    float_rows,
    kquant_i8_wide_row1_sm90,
    kquant_i8_wide_sm90,
    kquant_i8_narrow_sm90,
    kquant_i8_sm80,
    q8_i8_sm80,
    any,
    gemm_fp8_sm90,  // prefill: weights that have a copy in FP8
    gemm_bf16_sm90,
    gemm_bf16_sm80,
};
/// Whether it leaves the words of a router (shared/router_words.h).
bool leaves_words(Kernel kernel);
/// "kquant_i8_split"; the source file below src/ops/cuda/linear/, "gemv/kquant_i8.cu".
const char* kernel_name(Kernel kernel);
const char* kernel_file(Kernel kernel);

/// One launch (choose_pair: `any` is ../moe/experts_any.cuh, float_row1 ../moe/experts_float.cu): rows [row, row +
/// rows) of x times weights[i] of the case for each i of `weights`.
struct Launch {
    Kernel kernel = Kernel::any;
    int64_t row = 0, rows = 0;
    std::vector<size_t> weights;
    bool beside = false;  // it runs beside the launch before, which waits for the rows before it lets others start
};

/// What is launched for a group, in order: each weight once.
using Choice = std::vector<Launch>;
/// Throws Error if rows this long fit in no kernel that has the weights' bits.
Choice choose(const Case& c);
/// The same for silu(gate x) * (up x) in one launch or several of the same kernel, if there is such a kernel: the
/// weights are gate and up, and down takes the product. Nothing: the products one by one, then the rest.
Choice choose_pair(const Case& c, const Weight& down);
/// For f16_weight()s, perhaps with few floats: as many rows at a time as fit.
Choice choose_halves(const Case& c);
/// The product of the prefill family with weights as bf16.
Kernel gemm_kernel(const Chip& chip);
/// Whether float_row1 multiplies this one row, and the weights' rows are all floats.
bool float_row1_fits(const Case& c);
/// Whether q8_i8_sm80 normalises x itself.
bool q8_norms(const Case& c);

/// Whether a weight belongs to the kernels of that name on this chip, whatever x is. half: multiplied in half
/// precision, so that a row has the same bits whatever its company.
bool tile_weight(const Chip& chip, const Weight& w);   // kquant_i8_sm80
bool wide_weight(const Chip& chip, const Weight& w);   // kquant_i8_wide_sm90
bool f16_weight(const Chip& chip, const Weight& w);    // kquant_f16_*_sm90
bool q8_weight(const Chip& chip, const Weight& w);     // q8_i8_sm80
bool draft_weight(const Chip& chip, const Weight& w);  // draft_f16_sm90
/// f32, f16, bf16; fp8 whose scale plane, if any, has one entry for a power of two of columns (64 or more) or for whole
/// rows, and for one row, an even number of rows or all.
bool float_weight(const Weight& w);
/// Whether kernels may take one for the other: type, shape, bytes of a row, scale planes.
bool alike(const Weight& a, const Weight& b);
/// float_weight() of a matrix: scale_rows and scale_cols share an entry.
bool float_matrix(DType type, bool scales, int64_t rows, int64_t cols, int64_t scale_rows, int64_t scale_cols);

}  // namespace riptide::ops::cuda::linear
