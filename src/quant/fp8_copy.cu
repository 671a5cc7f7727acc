// FP8 copies of weights, made once when a model is loaded.
//
// Bytes: 0.56 in + 1 out for a weight of q4_k: 33 G weights in 12 ms at 4.3 TB/s; it need not be that fast. A block for
// 64 rows x 128 columns: each thread has 32 columns of a row, kept in registers from the largest magnitude to the end.
#include "base/error.h"
#include "quant/decode.cuh"
#include "quant/fp8_copy.h"
#include "tensor/fp8.cuh"
#include "tensor/launch.cuh"

namespace riptide {

namespace {

constexpr int kThreads = 256;

struct CopyArgs {
    Weight w;  // the first
    int64_t stride;
    uint8_t* values;
    float* scales;
};

/// Whether the codes of an e4m3 matrix may stay: one scale for each block.
RT_HD bool keeps_codes(const Weight& w) {
    return w.dtype == DType::f8_e4m3 &&
           (w.scales == nullptr || (w.scale_rows % kFp8Rows == 0 && w.scale_cols % kFp8Cols == 0));
}

__device__ __forceinline__ float block_largest(float v) {
    __shared__ float warps[kThreads / 32];
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, mask));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
    v = warps[0];
#pragma unroll
    for (int i = 1; i < kThreads / 32; ++i) v = fmaxf(v, warps[i]);
    return v;
}

__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ CopyArgs args) {
    Weight w = args.w;
    const int64_t offset = static_cast<int64_t>(blockIdx.z) * args.stride;
    w.data = static_cast<const char*>(w.data) + offset;
    if (w.scales != nullptr) w.scales = static_cast<const char*>(w.scales) + offset;
    if (w.high != nullptr) w.high = static_cast<const char*>(w.high) + offset;
    const int64_t rows = fp8_rows(w.rows), across = w.cols / kFp8Cols;
    const int inside = static_cast<int>(threadIdx.x) / 4;
    const int64_t row = int64_t{blockIdx.y} * kFp8Rows + inside,
                  col = int64_t{blockIdx.x} * kFp8Cols + threadIdx.x % 4 * 32;
    float v[2][16] = {};
    float largest = 0.0f;
    const bool keep = keeps_codes(w);
    if (keep) {  // as they are
        const float scale = w.scale;
        w.scale = 1.0f;
        if (row < w.rows)
            for (int j = 0; j < 32; ++j)
                v[j / 16][j % 16] = float_of_f8(load_as<uint8_t>(w.data, row * w.row_bytes + col + j));
        w.scale = scale;
    } else if (row < w.rows) {
        decode16(w, row, col, v[0]);
        decode16(w, row, col + 16, v[1]);
    }
    bool odd = false;  // not finite
#pragma unroll
    for (int j = 0; j < 32; ++j) {
        const float x = fabsf(v[j / 16][j % 16]);
        odd = odd || !(x <= 3.0e38f);
        largest = fmaxf(largest, x);
    }
    largest = block_largest(odd ? INFINITY : largest);
    const int64_t first_row = int64_t{blockIdx.y} * kFp8Rows;
    const float scale = keep ? plane_at(w, first_row, col) * w.scale : fp8_scale(largest);
    const float inverse = keep ? 1.0f : 1.0f / scale;
    uint32_t words[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float* from = &v[i / 4][4 * (i % 4)];
        words[i] = pack_e4m3(from[0] * inverse, from[1] * inverse, from[2] * inverse, from[3] * inverse);
    }
    const int64_t to = blockIdx.z * rows + first_row + fp8_row(inside);
    auto* out = reinterpret_cast<uint4*>(args.values + to * w.cols + col);
    out[0] = make_uint4(words[0], words[1], words[2], words[3]);
    out[1] = make_uint4(words[4], words[5], words[6], words[7]);
    if (threadIdx.x == 0)
        args.scales[(int64_t{blockIdx.z} * (rows / kFp8Rows) + blockIdx.y) * across + blockIdx.x] = scale;
}

}  // namespace

void write_fp8(Gpu& gpu, const Weight& first, int64_t count, int64_t stride, void* values, float* scales) {
    RT_ASSERT(has_fp8_form(first) && count > 0 && count <= 65535);
    const dim3 grid(static_cast<unsigned>(first.cols / kFp8Cols),
                    static_cast<unsigned>(fp8_rows(first.rows) / kFp8Rows), static_cast<unsigned>(count));
    RT_ASSERT(grid.y <= 65535);
    copy_kernel<<<grid, kThreads, 0, gpu.stream()>>>({first, stride, static_cast<uint8_t*>(values), scales});
    RT_CUDA(cudaGetLastError());
}

}  // namespace riptide
