// The FP8 path of the prefill family (Hopper): e4m3 activations by e4m3 copies of the weights (quant/fp8_copy.h). Host
// interface; no CUDA headers, so that tests and benches may use it.
//
//   D[m, n] = sum over blocks i of 128 columns, in order, of fma(a_scale[m, i] b_scale[n / 64, i], P_i, D)
//   P_i[m, n] = sum over the block of A[m, k] B[n, k]: four instructions of 32 columns
//
// The tensor cores keep some 14 bits of P_i; D is f32. The steps are the same for every row: a row's bits do not depend
// on how many rows there are nor on where it lies.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cuda/linear/gemm/gemm.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "quant/fp8_copy.h"

namespace riptide::ops::cuda::prefill {

/// Rows of activations: [n, k] values, [n, k / 128] powers of two (fp8_scale of the block's largest magnitude).
struct Fp8Rows {
    uint8_t* values = nullptr;
    float* scales = nullptr;
};

/// Rows [0, fp8_rows(w.rows)) of a matrix's copy; with experts, of all of them, one behind the other.
struct Fp8Matrix {
    const void* values = nullptr;
    const float* scales = nullptr;
    int rows = 0;  // of one expert: a multiple of 64
};

/// One product, or one for each expert if plan.row_first is set. With OutF32 the results of the matrices lie side by
/// side, each from a multiple of 128 on; with OutBf16 there is one; with OutFp8 there are two: gate and up.
struct Fp8Problem {
    static constexpr int kMost = 4;
    Fp8Rows a;
    Fp8Matrix b[kMost];
    Fp8Matrix shared[2];  // of expert `plan.experts`, if that has rows
    int matrices = 0;
    int rows = 0;  // of A, all groups together
    int k = 0;     // a multiple of 128
    GroupPlan plan;
    int experts = 0;  // with the shared one
};

/// swiglu_value(gate, up) as Fp8Rows; columns come in 128s.
struct OutFp8 {
    Fp8Rows y;
    int cols = 0;
};

void gemm_fp8(const Gpu& gpu, const Fp8Problem& problem, const OutF32& out);
void gemm_fp8(const Gpu& gpu, const Fp8Problem& problem, const OutBf16& out);
void gemm_fp8(const Gpu& gpu, const Fp8Problem& problem, const OutFp8& out);

/// Rows of x, normalised first if norm_weight is set (the bits of rms_norm), as Fp8Rows. f32: the same rows before
/// rounding, or null. REQUIRES columns in 128s.
void to_fp8(const Gpu& gpu, const Tensor& x, const float* norm_weight, float eps, const Fp8Rows& to, float* f32);

Fp8Matrix fp8_of(const Weight& w);

/// Whether such an op takes the FP8 path: all weights have copies, and the results of gate and up come in 128s.
bool fp8_swiglu_fits(const Weight& w_gate, const Weight& w_up, const Weight& w_down);

// What the functions of ops/cuda/backend.h do with such weights. fp8_matmul_group leaves out those without a copy.
void fp8_matmul_group(Context& ctx, const Tensor& x, const Norm& norm, std::span<const Weight* const> weights,
                      std::span<const Tensor> results, Tensor* residual);
void fp8_swiglu_ffn(Context& ctx, Tensor& x, const Norm& norm, const Weight& w_gate, const Weight& w_up,
                    const Weight& w_down, const Tensor& y, Tensor* residual);

/// A sparse layer's rows, in arena memory.
struct Fp8Slots {
    Fp8Rows inputs;     // sorted by expert, then ...
    Fp8Rows rows;       // ... the rows themselves
    uint16_t* results;  // bf16 [slots, d] when gate and up are done, in the same memory
};
Fp8Slots alloc_fp8_slots(Context& ctx, int64_t n, int64_t top_k, int64_t d);
/// y, x: as combine(). The rows are in slots.rows. share: logits of the shared expert's, or null.
void fp8_experts(Context& ctx, const Fp8Slots& slots, const Routing& routing, const ExpertWeights& weights,
                 const SharedExpert& shared, const float* share, const Tensor& y, Tensor* x);

}  // namespace riptide::ops::cuda::prefill
