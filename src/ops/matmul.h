// y = W x for every weight format.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quant/dot.h"
#include "tensor/context.h"

namespace riptide::ops {

/// y[r, o] = sum_c W[o, c] x[r, c].
/// x: f32 [n, cols], contiguous. y: f32 [n, rows], fresh. W: any type for which has_dot() holds.
/// Float weights multiply f32 activations; block weights multiply activations quantised to int8 with one f32 scale for
/// 32 values; on Hopper large Q4_K and Q6_K matrices multiply activations rounded to f16, one power of two for 256
/// values (ops/cuda/linear/shared/kquant_f16.cuh). quant/dot.h gives the exact definition and the error bounds.
/// Determinism: y[r] is a function of x[r] and W alone, bit for bit: the number of rows, of threads, and the
/// instruction set do not matter. Errors: throws Error if W has a type without a product or x has another width. Cost:
/// reads W once for up to 256 rows (n = 1: memory-bound); 2 * n * rows * cols operations. One parallel region, and one
/// more to quantise x if n >= 16.
Tensor matmul(Context& ctx, const Weight& w, const Tensor& x);

/// The products of several matrices with one x, in one parallel region and with x quantised once. All have x's width.
/// matmul_group({a, b}) gives the same bits as matmul(a) and matmul(b).
std::vector<Tensor> matmul_group(Context& ctx, std::span<const Weight* const> weights, const Tensor& x);

/// Whether products with w take x as int8 rows, too (Tensor::int8), if the kernel that makes x leaves them; gpu: or
/// null.
bool wants_int8(const Gpu* gpu, const Weight& w);

/// What a layer normalises its input by: RMSNorm(x) = rms_norm(x, weight, eps).
struct Norm {
    std::span<const float> weight;
    float eps = 0;
};

/// The products of several matrices with RMSNorm(x). x: f32 [n, d], d = norm.weight.size().
/// The same bits as rms_norm and matmul_group, but for matrices multiplied in f16: they take 1 / rms last. How many
/// kernels: cuda/linear/plan.h.
std::vector<Tensor> norm_matmul_group(Context& ctx, const Tensor& x, const Norm& norm,
                                      std::span<const Weight* const> weights);

struct MoeLayer;  // ops/moe.h

/// y = W x; residual += y; returns y. residual: f32 [n, rows], not x. The same bits as matmul and add.
/// next: the sparse layer whose moe_add takes the residual next, with nothing in between; or null. On a GPU the kernel
/// may then multiply few rows with the layer's router, too (Tensor::routed).
Tensor matmul_add(Context& ctx, const Weight& w, const Tensor& x, Tensor& residual, const MoeLayer* next = nullptr);

/// The same on the CPU, with x also given as Int8Row rows if int8 is not null.
Tensor matmul_add(Context& ctx, const Weight& w, const Tensor& x, const std::byte* int8, Tensor& residual);

/// y = swiglu_ffn(RMSNorm(x)); x += y; returns y. The same bits as norm_matmul_group, swiglu and matmul_add.
Tensor swiglu_ffn_add(Context& ctx, Tensor& x, const Norm& norm, const Weight& w_gate, const Weight& w_up,
                      const Weight& w_down);

/// y = w_down (silu(w_gate x) * (w_up x)): a dense SwiGLU feed-forward layer in two parallel regions.
/// x: f32 [n, cols] -> y: f32 [n, w_down.rows]. The same bits as matmul, swiglu and matmul.
/// REQUIRES w_gate and w_up of one shape, w_down.cols == w_gate.rows.
Tensor swiglu_ffn(Context& ctx, const Tensor& x, const Weight& w_gate, const Weight& w_up, const Weight& w_down);

/// The formula on one row, in Acc: y[o] = sum_c w[o, c] x[c] with w dequantised, f32 [rows, cols]. Judges the kernels.
template <class Acc>
void matmul_ref(const float* w, const float* x, int64_t rows, int64_t cols, Acc* y);

/// The rows of x in the forms that products need: made once, used by any number of weights. Part of the engine room of
/// matmul and moe; models do not need it. Memory comes from the arena.
struct DotInput {
    const void* f32 = nullptr;
    const void* int8 = nullptr;  // Int8Row rows; nullptr if no weight wants them
    int64_t cols = 0;

    /// Fills x, x_stride of a task for w.
    void set(DotTask& task, const Weight& w) const;
};
/// Fetches the beginnings of the two streams as which kernels read rows [begin, end) of w for one row of x. For whoever
/// multiplies other rows before.
void fetch_streams(const Weight& w, int64_t begin, int64_t end);

DotInput dot_input(Context& ctx, const DotKernels& kernels, const Tensor& x, bool want_int8);

/// As the functions above, with an explicit instruction set.
std::vector<Tensor> matmul_group(Context& ctx, const DotKernels& kernels, std::span<const Weight* const> weights,
                                 const Tensor& x);

}  // namespace riptide::ops
