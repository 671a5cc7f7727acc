// Operands of the prefill products: weights taken from their planes to bf16, activations normalised and rounded to
// bf16.
//
// expand: bytes: 0.56 in + 2 out for a weight of q4_k: 33 G weights in 19 ms at 4.5 TB/s. One warp expands 512
// neighbouring columns of kRows rows, a lane sixteen columns: one 16-byte load of codes for two lanes; lanes 2 i and 2
// i + 1 swap halves so that every store writes whole 32-byte sectors. (64 bytes a thread, stored as they come,
// reached 1.94 TB/s; contiguous stores 3.9 TB/s, in h200 microbenchmarks, 2026-11-21.) to_bf16: bytes: 4 in (8, the
// second time from L1) + 2 out (+ 4). One block for a row.
#include "base/error.h"
#include "ops/decode_act.cuh"
#include "ops/prefill_gemm.cuh"
#include "quant/decode.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kWarps = 8;
constexpr int kRows = 2;  // of a warp: loads of all before the first store

/// Sixteen columns of one row as bf16; zeros behind the last.
template <DType T>
__device__ __forceinline__ void expand16(const Weight& w, int64_t row, int64_t col, uint4 (&packed)[2]) {
    float v[16];
    if (row < w.rows && col < w.cols) {
        decode16<T>(w, row, col, v);
    } else {
#pragma unroll
        for (int j = 0; j < 16; ++j) v[j] = 0.0f;
    }
    packed[0] = pack_bf16(v);
    packed[1] = pack_bf16(v + 8);
}

__device__ __forceinline__ uint4 swap_with_neighbour(uint4 v) {
    return make_uint4(__shfl_xor_sync(~0u, v.x, 1), __shfl_xor_sync(~0u, v.y, 1), __shfl_xor_sync(~0u, v.z, 1),
                      __shfl_xor_sync(~0u, v.w, 1));
}

template <DType T>
__global__ void __launch_bounds__(32 * kWarps) expand_kernel(const __grid_constant__ Expansion job) {
    pdl_trigger();
    pdl_wait();
    const int expert = static_cast<int>(blockIdx.z), lane = static_cast<int>(threadIdx.x % 32);
    if (job.row_first != nullptr) {
        const int32_t* first = job.row_first + job.expert_begin + expert;
        if (first[0] == first[1]) return;
    }
    const int64_t offset = (job.expert_begin + expert) * job.expert_stride;
    Weight w = job.w;
    w.data = static_cast<const char*>(w.data) + offset;
    if (w.scales != nullptr) w.scales = static_cast<const char*>(w.scales) + offset;
    if (w.high != nullptr) w.high = static_cast<const char*>(w.high) + offset;

    const int first = (static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x / 32)) * kRows;
    const int col = (static_cast<int>(blockIdx.x) * 32 + lane) * 16;
    uint4 packed[kRows][2];
#pragma unroll
    for (int i = 0; i < kRows; ++i)
        expand16<T>(w, first + i < job.rows ? job.row_begin + first + i : w.rows, col, packed[i]);
    const bool odd = lane % 2 == 1;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        // Even lanes give their second half for the odd lane's first. The pair then writes 32 bytes side by side,
        // twice.
        const uint4 other = swap_with_neighbour(odd ? packed[i][0] : packed[i][1]);
        if (first + i >= job.rows || col >= job.k) continue;
        const int64_t row = expert * job.expert_rows + scratch_row(job.order, job.which, first + i);
        uint16_t* to = static_cast<uint16_t*>(job.b) + row * job.k + col;
        *reinterpret_cast<uint4*>(odd ? to - 8 : to) = odd ? other : packed[i][0];
        *reinterpret_cast<uint4*>(odd ? to + 8 : to + 16) = odd ? packed[i][1] : other;
    }
}

constexpr int kNormThreads = decode::kThreads;

/// One row: thread t rounds columns 4 t .. 4 t + 3 of every 1024.
__global__ void __launch_bounds__(kNormThreads)
    to_bf16_kernel(const float* x, int64_t stride, int d, const float* weight, float eps, uint16_t* bf16, int k,
                   float* f32) {
    pdl_trigger();
    pdl_wait();
    const int64_t row = blockIdx.x;
    x += row * stride;
    bf16 += row * k;
    if (f32 != nullptr) f32 += row * d;
    const int first = 4 * static_cast<int>(threadIdx.x), step = 4 * kNormThreads;
    const bool vectors = d % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
    const auto load = [&](int c, float(&v)[4]) {
        if (vectors && c < d) {
            const float4 four = *reinterpret_cast<const float4*>(x + c);
            v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) v[j] = c + j < d ? x[c + j] : 0.0f;
        }
    };
    float scale = 1.0f;
    if (weight != nullptr) {
        __shared__ float partial[8];
        scale = decode::block_rms_scale(x, d, eps, partial);
    }
    for (int c = first; c < k; c += step) {
        float v[4];
        load(c, v);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (weight != nullptr && c + j < d) v[j] = rms_value(v[j], scale, weight[c + j]);
            if (f32 != nullptr && c + j < d) f32[c + j] = v[j];
        }
        *reinterpret_cast<uint2*>(bf16 + c) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    }
}

}  // namespace

void expand(const Gpu& gpu, const Expansion& job) {
    RT_ASSERT(job.k % 64 == 0 && job.k >= job.w.cols && job.row_begin + job.rows <= job.w.rows);
    if (job.rows == 0 || job.experts == 0) return;
    const dim3 grid(static_cast<unsigned>(ceil_div(job.k, 512)),
                    static_cast<unsigned>(ceil_div(job.rows, kWarps * kRows)), static_cast<unsigned>(job.experts));
    RT_ASSERT(grid.y <= 65535 && grid.z <= 65535);
    switch (job.w.dtype) {
#define RT_CASE(type) \
    case DType::type: \
        return launch(gpu, expand_kernel<DType::type>, grid, 32 * kWarps, 0, job);
        RT_PLACED_TYPES(RT_CASE)
#undef RT_CASE
        default:
            fail("no GPU kernels for weights of type {}", dtype_name(job.w.dtype));
    }
}

void to_bf16(const Gpu& gpu, const Tensor& x, const float* norm_weight, float eps, void* bf16, int64_t k, float* f32) {
    RT_ASSERT(x.dtype == DType::f32 && x.rank == 2 && k % 64 == 0 && k >= x.shape[1]);
    if (x.rows() == 0) return;
    launch(gpu, to_bf16_kernel, static_cast<unsigned>(x.rows()), kNormThreads, 0, static_cast<const float*>(x.data),
           x.row_stride, static_cast<int>(x.shape[1]), norm_weight, eps, static_cast<uint16_t*>(bf16),
           static_cast<int>(k), f32);
}

}  // namespace riptide::ops::cuda::prefill
