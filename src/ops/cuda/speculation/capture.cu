// Copying hidden states aside for a drafter, and the norms in front of its first matrix.
//
// Bytes: each reads its input and writes its result once, f32; at n rows of 2048 values 16 KB n for each tap. Floor on
// the H200: the launch (about 1 us in a chain) up to some 200 rows, then 4.5 TB/s: 16K rows of five taps are 1.3 GB =
// 0.3 ms. FLOPs do not count. Design: a CTA for each row (piece), neighbouring threads on neighbouring elements.
#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/device/int8_rows.cuh"
#include "ops/cuda/device/row_math.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda {

namespace {

constexpr int kThreads = 256;
static_assert(kThreads == decode::kThreads, "block_rms_scale");

/// CTA (r, p): kThreads pieces of type T of row r.
template <class T>
__global__ void __launch_bounds__(kThreads) copy_columns_kernel(const T* x, int64_t width, T* out, int64_t stride) {
    pdl_trigger();
    pdl_wait();
    const int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
    if (i < width) out[blockIdx.x * stride + i] = x[blockIdx.x * width + i];
}

/// CTA (r, i): piece i of row r.
__global__ void __launch_bounds__(kThreads)
    rms_norm_parts_kernel(const float* x, const float* weight, int d, float eps, float* y) {
    __shared__ float partial[8];
    pdl_trigger();
    pdl_wait();
    const int64_t piece = int64_t{blockIdx.x} * gridDim.y + blockIdx.y;
    x += piece * d;
    y += piece * d;
    weight += int64_t{blockIdx.y} * d;
    const float scale = decode::block_rms_scale(x, d, eps, partial);
    for (int i = static_cast<int>(threadIdx.x); i < d; i += kThreads) y[i] = rms_value(x[i], scale, weight[i]);
}

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

void copy_columns(Context& ctx, const Tensor& x, Tensor& out, int64_t column) {
    const int64_t n = x.rows(), d = x.shape[1];
    if (n == 0 || d == 0) return;
    float* to = out.row(0) + column;
    const auto grid = [&](int64_t width) {
        return dim3(static_cast<unsigned>(n), static_cast<unsigned>((width + kThreads - 1) / kThreads));
    };
    if (d % 4 == 0 && out.row_stride % 4 == 0 && aligned16(x.data) && aligned16(to))
        launch(*ctx.gpu, copy_columns_kernel<float4>, grid(d / 4), kThreads, 0, static_cast<const float4*>(x.data),
               d / 4, reinterpret_cast<float4*>(to), out.row_stride / 4);
    else
        launch(*ctx.gpu, copy_columns_kernel<float>, grid(d), kThreads, 0, static_cast<const float*>(x.data), d, to,
               out.row_stride);
}

Tensor rms_norm_parts(Context& ctx, const Tensor& x, std::span<const float> weight, int64_t parts, float eps) {
    const int64_t n = x.rows(), d = x.shape[1] / parts;
    Tensor y = ctx.alloc(DType::f32, {n, x.shape[1]});
    if (y.elements() == 0) return y;
    launch(*ctx.gpu, rms_norm_parts_kernel, dim3(static_cast<unsigned>(n), static_cast<unsigned>(parts)), kThreads, 0,
           x.row(0), weight.data(), static_cast<int>(d), eps, y.row(0));
    return y;
}

}  // namespace riptide::ops::cuda
