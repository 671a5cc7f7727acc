// The FP8 path's other pieces: rows of activations to e4m3, and the dense ops (experts_fp8_sm90.cu has the sparse one).
//
// to_fp8: bytes: 4 in + 1 out (+ 4) for a value; a block for a row, read twice, the second time from L1. Sixteen
// threads have a block of 128 columns.
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ops/cuda/device/int8_rows.cuh"
#include "ops/cuda/linear/gemm/fp8_sm90.h"
#include "ops/cuda/linear/gemm/gemm.cuh"
#include "tensor/fp8.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kThreads = decode::kThreads;

struct RowArgs {
    const float* x;
    int64_t stride;
    int d;
    const float* weight;
    float eps;
    Fp8Rows to;
    float* f32;
    bool vectors;
};

__global__ void __launch_bounds__(kThreads) to_fp8_kernel(const __grid_constant__ RowArgs args) {
    pdl_trigger();
    pdl_wait();
    const int64_t row = blockIdx.x;
    const int d = args.d;
    const float* const x = args.x + row * args.stride;
    float rms = 1.0f;
    if (args.weight != nullptr) {
        __shared__ float partial[8];
        rms = decode::block_rms_scale(x, d, args.eps, partial);
    }
    for (int c = 8 * static_cast<int>(threadIdx.x); c < d; c += 8 * kThreads) {  // sixteen threads at a time
        float v[8];
        if (args.vectors) {
            *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(x + c);
            *reinterpret_cast<float4*>(v + 4) = *reinterpret_cast<const float4*>(x + c + 4);
        } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) v[j] = x[c + j];
        }
        float largest = 0.0f;
        bool odd = false;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (args.weight != nullptr) v[j] = rms_value(v[j], rms, args.weight[c + j]);
            if (args.f32 != nullptr) args.f32[row * d + c + j] = v[j];
            odd = odd || !(fabsf(v[j]) <= 3.0e38f);
            largest = fmaxf(largest, fabsf(v[j]));
        }
        if (odd) largest = INFINITY;
        const unsigned sixteen = 0xFFFFu << (threadIdx.x & 16);
#pragma unroll
        for (int mask = 8; mask > 0; mask /= 2) largest = fmaxf(largest, __shfl_xor_sync(sixteen, largest, mask));
        const float scale = fp8_scale(largest), inverse = 1.0f / scale;
        *reinterpret_cast<uint2*>(args.to.values + row * d + c) =
            make_uint2(pack_e4m3(v[0] * inverse, v[1] * inverse, v[2] * inverse, v[3] * inverse),
                       pack_e4m3(v[4] * inverse, v[5] * inverse, v[6] * inverse, v[7] * inverse));
        if (threadIdx.x % 16 == 0) args.to.scales[row * (d / kFp8Cols) + c / kFp8Cols] = scale;
    }
}

/// In the arena.
Fp8Rows alloc_rows(Context& ctx, int64_t rows, int64_t cols) {
    return {static_cast<uint8_t*>(ctx.arena->allocate(rows * cols)),
            static_cast<float*>(ctx.arena->allocate(4 * rows * (cols / kFp8Cols)))};
}

/// results[i] = A W_i^T of the weights that have copies, as many in one product as it takes.
void multiply(Context& ctx, const Fp8Rows& a, int64_t n, int64_t k, std::span<const Weight* const> weights,
              std::span<const Tensor> results, Tensor* residual) {
    RT_ASSERT(residual == nullptr || (weights.size() == 1 && residual->contiguous()));
    Fp8Problem problem;
    problem.a = a;
    problem.rows = static_cast<int>(n);
    problem.k = static_cast<int>(k);
    OutF32 out;
    int begin = 0;
    const auto flush = [&] {
        if (problem.matrices > 0) gemm_fp8(*ctx.gpu, problem, out);
        problem.matrices = begin = 0;
        out = {};
    };
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        if (w.fp8 == nullptr) continue;
        problem.b[problem.matrices++] = fp8_of(w);
        out.add(results[i].row(0), begin, static_cast<int>(w.rows), w.rows,
                residual == nullptr ? nullptr : residual->row(0));
        begin += static_cast<int>(round_up(w.rows, 128));
        if (problem.matrices == Fp8Problem::kMost) flush();
    }
    flush();
}

}  // namespace

Fp8Matrix fp8_of(const Weight& w) { return {w.fp8, w.fp8_scales, static_cast<int>(fp8_rows(w.rows))}; }

void to_fp8(const Gpu& gpu, const Tensor& x, const float* norm_weight, float eps, const Fp8Rows& to, float* f32) {
    RT_ASSERT(x.dtype == DType::f32 && x.rank == 2 && x.shape[1] % kFp8Cols == 0);
    if (x.rows() == 0) return;
    const auto* const from = static_cast<const float*>(x.data);
    const bool vectors = reinterpret_cast<uintptr_t>(from) % 16 == 0 && x.row_stride % 4 == 0;
    launch(gpu, to_fp8_kernel, static_cast<unsigned>(x.rows()), kThreads, 0,
           RowArgs{from, x.row_stride, static_cast<int>(x.shape[1]), norm_weight, eps, to, f32, vectors});
}

void fp8_matmul_group(Context& ctx, const Tensor& x, const Norm& norm, std::span<const Weight* const> weights,
                      std::span<const Tensor> results, Tensor* residual) {
    const ArenaScope scope(*ctx.arena);
    const Fp8Rows a = alloc_rows(ctx, x.rows(), x.shape[1]);
    to_fp8(*ctx.gpu, x, norm.weight.empty() ? nullptr : norm.weight.data(), norm.eps, a, nullptr);
    multiply(ctx, a, x.rows(), x.shape[1], weights, results, residual);
}

bool fp8_swiglu_fits(const Weight& w_gate, const Weight& w_up, const Weight& w_down) {
    return w_gate.fp8 != nullptr && w_up.fp8 != nullptr && w_down.fp8 != nullptr && w_gate.rows % 128 == 0;
}

void fp8_swiglu_ffn(Context& ctx, Tensor& x, const Norm& norm, const Weight& w_gate, const Weight& w_up,
                    const Weight& w_down, const Tensor& y, Tensor* residual) {
    const ArenaScope scope(*ctx.arena);
    const int64_t n = x.rows(), width = w_gate.rows;
    const Fp8Rows a = alloc_rows(ctx, n, x.shape[1]), act = alloc_rows(ctx, n, width);
    to_fp8(*ctx.gpu, x, norm.weight.empty() ? nullptr : norm.weight.data(), norm.eps, a, nullptr);
    Fp8Problem problem;
    problem.a = a;
    problem.b[0] = fp8_of(w_gate), problem.b[1] = fp8_of(w_up);
    problem.matrices = 2;
    problem.rows = static_cast<int>(n);
    problem.k = static_cast<int>(x.shape[1]);
    gemm_fp8(*ctx.gpu, problem, OutFp8{act, static_cast<int>(width)});
    const Weight* const down = &w_down;
    multiply(ctx, act, n, width, {&down, 1}, {&y, 1}, residual);
}

}  // namespace riptide::ops::cuda::prefill
