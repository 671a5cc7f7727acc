// The engine room of the prefill family: weights expanded to bf16, and one product of bf16 matrices with several
// endings. Host interface; no CUDA headers, so that tests and benches may use it. Models do not need it.
//
//   D[m, n] = sum_k A[m, k] B[n, k]      A: activations bf16 [rows, k]; B: weights bf16 [n, k]; sums in f32
//
// k is padded with zeros to a multiple of 64. The rows of B lie in the order that lets one thread of a tensor-core
// kernel hold neighbouring results (RowOrder). The steps over k are the same for every row: a row's bits do not depend
// on how many rows there are nor on where it lies.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/context.h"
#include "tensor/host_device.h"

namespace riptide::ops::cuda::prefill {

constexpr int kTileM = 128;  // rows of A of one block's tile; groups of experts are cut into such tiles

RT_HD int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
RT_HD int ceil_div(int x, int by) { return (x + by - 1) / by; }

/// Rows [begin, end) of `rows` for tile `index` of `tiles`, ceil_div(rows, kTileM) of them: as even as sixteens allow.
/// Of 137 the two have 80 and 57.
struct EvenRows {
    int begin, end;
};
RT_HD EvenRows even_rows(int rows, int tiles, int index) {
    const int height = ceil_div(ceil_div(rows, tiles), 16) * 16, begin = index * height;
    return {begin, begin + height < rows ? begin + height : rows};
}

/// Where result column c comes to lie among the rows of B. A lane t of a quad holds columns 2 t and 2 t + 1 of each
/// eight, for eight eights in a row. With these orders they are, of 64 rows of B:
///   f32     four times four neighbouring columns (one 16-byte store each)
///   swiglu  the gate (which = 0) and the up (which = 1) of eight neighbouring columns
enum class RowOrder { f32, swiglu };
RT_HD int scratch_row(RowOrder order, int which, int c) {
    return order == RowOrder::f32 ? (c & ~15) | (c >> 1 & 1) << 3 | (c >> 2 & 3) << 1 | (c & 1)
                                  : (c & ~31) << 1 | (c & 7) << 3 | (c >> 3 & 3) << 1 | which;
}
/// Rows of B for `columns` results: whole groups of 64. For swiglu they cover round_up(columns, 64) columns, each
/// twice.
RT_HD int64_t scratch_rows(RowOrder order, int64_t columns) {
    return order == RowOrder::swiglu ? 2 * round_up(columns, 64) : round_up(columns, 64);
}

/// How slots (rows of A) are grouped by expert. In device memory, made by sort_routing(). Expert `experts` is the
/// shared one: all rows, behind the others.
struct GroupPlan {
    const int32_t* row_first = nullptr;    // [experts + 2] first slot of an expert
    const int32_t* tile_first = nullptr;   // [experts + 2] first tile of kTileM slots of an expert
    const int32_t* tile_expert = nullptr;  // expert of a tile
    int experts = 0;                       // without the shared one
};

/// One product, or one for each expert of [expert_begin, expert_end) if plan.row_first is set; then B holds those
/// experts one after the other, `n` rows each.
struct GemmProblem {
    const void* a = nullptr;  // bf16 [rows, k]
    const void* b = nullptr;  // bf16 [experts * n, k]
    int rows = 0;             // of A, all groups together
    int n = 0;                // rows of B, for each expert: scratch_rows()
    int k = 0;                // a multiple of 64
    GroupPlan plan;
    int expert_begin = 0;
    int expert_end = 0;
};

/// f32 results, split by columns into up to eight tensors; each begins at a multiple of 64 rows of B. RowOrder::f32.
struct OutF32 {
    struct Piece {
        float* y = nullptr;  // [rows, stride]; column 0 of this piece
        int begin = 0;       // first row of B
        int cols = 0;
        int64_t stride = 0;
        float* residual = nullptr;  // like y, += the result; or null
        bool vectors = false;       // 16-byte stores are aligned
    };
    static constexpr int kPieces = 8;
    Piece piece[kPieces];
    int pieces = 0;

    void add(float* y, int begin, int cols, int64_t stride, float* residual = nullptr);
};

/// bf16 results of one matrix, nearest even. RowOrder::f32.
struct OutBf16 {
    uint16_t* y = nullptr;  // [rows, stride], 16-byte aligned; what lies behind the columns is undefined
    int64_t stride = 0;     // in eights
};

/// bf16 swiglu_value(gate, up) (row_math.cuh), [rows, stride], zero from column `cols` up to round_up(cols, 64).
/// RowOrder::swiglu.
struct OutSwiglu {
    uint16_t* y = nullptr;
    int cols = 0;
    int64_t stride = 0;
};

void gemm(const Gpu& gpu, const GemmProblem& problem, const OutF32& out);
void gemm(const Gpu& gpu, const GemmProblem& problem, const OutBf16& out);
void gemm(const Gpu& gpu, const GemmProblem& problem, const OutSwiglu& out);

/// The experts' product from weights as they lie on the device, decoded in the kernel. The bits are those of expand()
/// and gemm(). Shapes as there; experts [0, gemm.expert_end), gemm.b unused.
struct DecodingProblem {
    GemmProblem gemm;
    const Weight* first[2] = {};   // of expert 0: one for RowOrder::f32, gate and up for swiglu
    int64_t stride[2] = {};        // bytes from one expert to the next
    const Weight* shared[2] = {};  // of expert gemm.expert_end - 1, if that is the shared one; same type and shape
};
/// Whether gemm_decoding takes such weights: Hopper; q4_k, q5_k, q6_k; rows in 64s; q6_k of up to 2048 columns.
bool can_decode(const Gpu& gpu, const Weight& w, int64_t stride);
/// REQUIRES can_decode() of all weights.
void gemm_decoding(const Gpu& gpu, const DecodingProblem& job, const OutBf16& out);
void gemm_decoding(const Gpu& gpu, const DecodingProblem& job, const OutSwiglu& out);

/// Weight rows [row_begin, row_begin + rows) as bf16 rows of B, nearest even, in `order`; `which`: see RowOrder.
/// With several experts (each `expert_stride` bytes behind the one before): expert e goes to row (e - expert_begin) *
/// expert_rows of B; those without slots in the plan are left out. Cost: bandwidth, 0.56 + 2 bytes for a weight of
/// q4_k.
struct Expansion {
    Weight w;  // of expert 0
    int row_begin = 0;
    int rows = 0;
    void* b = nullptr;
    int k = 0;  // padded
    RowOrder order = RowOrder::f32;
    int which = 0;
    int64_t expert_stride = 0;
    int64_t expert_rows = 0;
    int expert_begin = 0;
    int experts = 1;
    const int32_t* row_first = nullptr;  // GroupPlan::row_first, or null
};
void expand(const Gpu& gpu, const Expansion& job);
/// All of them, single matrices of q4_k, q5_k and q6_k in one kernel.
void expand(const Gpu& gpu, std::span<const Expansion> jobs);

/// bf16 rows of x, nearest even, [n, k] with zeros behind x's columns; normalised first if norm_weight is set. f32: the
/// same rows before rounding, [n, d], or null. The bits of rms_norm.
void to_bf16(const Gpu& gpu, const Tensor& x, const float* norm_weight, float eps, void* bf16, int64_t k, float* f32);

/// results[i] = A W_i^T (f32 [n, rows of W_i], contiguous); residual (one weight only, or null) += it. a: bf16 [n, k].
/// Expands the weights to arena memory, as many at a time as kScratchBytes hold.
void multiply(Context& ctx, const void* a, int64_t n, int64_t k, std::span<const Weight* const> weights,
              std::span<const Tensor> results, Tensor* residual);

/// act = bf16 silu(A Wg^T) * (A Wu^T), [n, round_up(rows of Wg, 64)], zero behind. a: bf16 [n, k].
void multiply_swiglu(Context& ctx, const void* a, int64_t n, int64_t k, const Weight& w_gate, const Weight& w_up,
                     uint16_t* act);

/// Most scratch for expanded weights at a time, in bytes.
constexpr int64_t kScratchBytes = int64_t{520} << 20;

}  // namespace riptide::ops::cuda::prefill
