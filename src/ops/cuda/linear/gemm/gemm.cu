// The dense products of the prefill family: activations to bf16, weights to bf16 scratch, one product (gemm.h).
//
// FLOPs: 2 n rows cols; at 700 T/s 4096 rows of a [10304, 2048] group take 0.25 ms. Bytes: the expansion writes and the
// product reads 2 for a weight: 42 MB and 17 us for that group. Bound by arithmetic from about 1000 rows. Tried:
// K-quants decoded into wgmma's A registers for up to 1024 rows (512 rows, H200: q, k, v, gate 94 us instead of 65, o
// 81 for 75).
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/linear/gemm/fp8_sm90.h"
#include "ops/cuda/linear/gemm/gemm.h"
#include "ops/cuda/linear/plan.h"

namespace riptide::ops::cuda::prefill {

namespace {

/// Rows of B that fit in the scratch at a time, at most `wanted`; both multiples of 64.
int64_t rows_at_once(int64_t wanted, int64_t k) {
    return std::min(wanted, std::max<int64_t>(64, kScratchBytes / (2 * k) / 64 * 64));
}

uint16_t* alloc_bf16(Context& ctx, int64_t rows, int64_t cols) {
    return static_cast<uint16_t*>(ctx.arena->allocate(2 * rows * cols));
}

/// x: f32, or what to_bf16() would make of it.
void check_input(const Tensor& x, const Norm& norm) {
    RT_ASSERT(x.rank == 2);
    RT_ASSERT(x.dtype == DType::f32 ||
              (x.dtype == DType::bf16 && norm.weight.empty() && x.shape[1] % 64 == 0 && x.contiguous()));
    RT_ASSERT(norm.weight.empty() || static_cast<int64_t>(norm.weight.size()) == x.shape[1]);
    RT_CHECK(x.rows() <= INT32_MAX / 2, "a step of {} rows is too long", x.rows());
}

void check_weight(const Weight& w, int64_t cols) {
    RT_CHECK(w.cols == cols, "a weight of shape [{}, {}] cannot multiply rows of {} values", w.rows, w.cols, cols);
}

}  // namespace

void multiply(Context& ctx, const void* a, int64_t n, int64_t k, std::span<const Weight* const> weights,
              std::span<const Tensor> results, Tensor* residual) {
    RT_ASSERT(residual == nullptr || (weights.size() == 1 && residual->contiguous()));
    const ArenaScope scope(*ctx.arena);
    int64_t wanted = 0;
    for (const Weight* w : weights) wanted += round_up(w->rows, 64);
    const int64_t most = rows_at_once(wanted, k);
    uint16_t* b = alloc_bf16(ctx, most, k);

    OutF32 out;
    std::vector<Expansion> jobs;
    int64_t used = 0;
    const auto flush = [&] {
        expand(*ctx.gpu, jobs);
        jobs.clear();
        if (used > 0) gemm(*ctx.gpu, {a, b, static_cast<int>(n), static_cast<int>(used), static_cast<int>(k)}, out);
        out = {};
        used = 0;
    };
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        for (int64_t row = 0, rows = 0; row < w.rows; row += rows) {
            if (used == most || out.pieces == OutF32::kPieces) flush();
            rows = std::min(w.rows - row, most - used);
            Expansion job;
            job.w = w;
            job.row_begin = static_cast<int>(row);
            job.rows = static_cast<int>(rows);
            job.b = b + used * k;
            job.k = static_cast<int>(k);
            jobs.push_back(job);
            out.add(results[i].row(0) + row, static_cast<int>(used), static_cast<int>(rows), w.rows,
                    residual == nullptr ? nullptr : residual->row(0) + row);
            used += round_up(rows, 64);
        }
    }
    flush();
}

void multiply_swiglu(Context& ctx, const void* a, int64_t n, int64_t k, const Weight& w_gate, const Weight& w_up,
                     uint16_t* act) {
    const ArenaScope scope(*ctx.arena);
    const int64_t width = round_up(w_gate.rows, 64);
    const int64_t most = std::max<int64_t>(64, rows_at_once(2 * width, k) / 2 / 64 * 64);  // columns of act
    uint16_t* b = alloc_bf16(ctx, 2 * most, k);
    for (int64_t begin = 0; begin < w_gate.rows; begin += most) {
        const int64_t columns = std::min(most, w_gate.rows - begin);
        Expansion jobs[2];
        for (int which = 0; which < 2; ++which) {
            Expansion& job = jobs[which];
            job.w = which == 0 ? w_gate : w_up;
            job.row_begin = static_cast<int>(begin);
            job.rows = static_cast<int>(columns);
            job.b = b;
            job.k = static_cast<int>(k);
            job.order = RowOrder::swiglu;
            job.which = which;
        }
        expand(*ctx.gpu, jobs);
        const auto rows = static_cast<int>(scratch_rows(RowOrder::swiglu, columns));
        gemm(*ctx.gpu, {a, b, static_cast<int>(n), rows, static_cast<int>(k)},
             OutSwiglu{act + begin, static_cast<int>(columns), width});
    }
}

std::vector<Tensor> matmul_group(Context& ctx, const Tensor& x, const Norm& norm,
                                 std::span<const Weight* const> weights, Tensor* residual) {
    check_input(x, norm);
    std::vector<Tensor> results;
    for (const Weight* w : weights) {
        check_weight(*w, x.shape[1]);
        results.push_back(ctx.alloc(DType::f32, {x.rows(), w->rows}));
    }
    if (x.rows() == 0) return results;
    if (residual != nullptr) residual->int8 = nullptr;
    std::vector<const Weight*> others;  // without a copy in FP8
    std::vector<Tensor> others_results;
    for (const linear::Launch& launch : linear::choose({.family = Family::prefill,
                                        .rows = x.rows(),
                                        .cols = x.shape[1],
                                        .weights = weights,
                                        .chip = chip_of(*ctx.gpu)})) {
        if (launch.kernel == linear::Kernel::gemm_fp8_sm90) fp8_matmul_group(ctx, x, norm, weights, results, residual);
        else
            for (const size_t i : launch.weights) others.push_back(weights[i]), others_results.push_back(results[i]);
    }
    if (others.empty()) return results;
    const ArenaScope scope(*ctx.arena);
    const int64_t k = round_up(x.shape[1], 64);
    const void* a = x.data;
    if (x.dtype == DType::f32) {
        uint16_t* const rounded = alloc_bf16(ctx, x.rows(), k);
        to_bf16(*ctx.gpu, x, norm.weight.empty() ? nullptr : norm.weight.data(), norm.eps, rounded, k, nullptr);
        a = rounded;
    }
    multiply(ctx, a, x.rows(), k, others, others_results, residual);
    return results;
}

Tensor swiglu_ffn(Context& ctx, Tensor& x, const Norm& norm, const Weight& w_gate, const Weight& w_up,
                  const Weight& w_down, bool add) {
    check_input(x, norm);
    check_weight(w_gate, x.shape[1]);
    check_weight(w_up, x.shape[1]);
    check_weight(w_down, w_gate.rows);
    RT_ASSERT(w_gate.rows == w_up.rows && (!add || w_down.rows == x.shape[1]));
    const Tensor y = ctx.alloc(DType::f32, {x.rows(), w_down.rows});
    if (x.rows() == 0) return y;
    if (fp8_swiglu_fits(w_gate, w_up, w_down)) {
        fp8_swiglu_ffn(ctx, x, norm, w_gate, w_up, w_down, y, add ? &x : nullptr);
        if (add) x.int8 = nullptr;
        return y;
    }
    const ArenaScope scope(*ctx.arena);
    const int64_t k = round_up(x.shape[1], 64), width = round_up(w_gate.rows, 64);
    uint16_t* a = alloc_bf16(ctx, x.rows(), k);
    uint16_t* act = alloc_bf16(ctx, x.rows(), width);
    to_bf16(*ctx.gpu, x, norm.weight.empty() ? nullptr : norm.weight.data(), norm.eps, a, k, nullptr);
    multiply_swiglu(ctx, a, x.rows(), k, w_gate, w_up, act);
    const Weight* const down = &w_down;
    multiply(ctx, act, x.rows(), width, {&down, 1}, {&y, 1}, add ? &x : nullptr);
    if (add) x.int8 = nullptr;
    return y;
}

}  // namespace riptide::ops::cuda::prefill
