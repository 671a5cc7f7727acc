// Activation rows of the decode family: RMSNorm and int8 quantisation by one CTA of 256 threads, into shared memory.
//
// A staged row is what the inner loops read, in shared memory or (rows prepared by an earlier kernel) in device memory:
//   int8 part   ActRow (quant/act_rows.h), then float A0 for each group: the sum of its first sixteen a; 44 bytes for
//   32
//               columns. Lanes read 16 bytes at stride 16: no bank conflicts.
//   float part  f32 in pieces of four columns; piece q lies at q ^ (q / 8 & 3): then lanes that read 1, 2 or 4
//               neighbouring pieces each (f32, 16-bit, 8-bit weights) have no bank conflicts either. Zeros behind cols.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include "ops/cuda/device/row_math.cuh"
#endif
#include "ops/cuda/device/int8_layout.h"
#include "ops/cuda/device/weight_loads.cuh"
#include "quant/act_rows.h"
#include "tensor/host_device.h"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

/// Elements 8 c .. 8 c + 7 of a row; zeros behind its end.
__device__ __forceinline__ void load8(const float* x, int c, int cols, float (&v)[8]) {
    if (cols % 4 == 0 && 8 * c + 8 <= cols) {
        const float4 a = *reinterpret_cast<const float4*>(x + 8 * c),
                     b = *reinterpret_cast<const float4*>(x + 8 * c + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = 8 * c + i < cols ? x[8 * c + i] : 0.0f;
    }
}

__device__ __forceinline__ float add_squares(const float (&v)[8], float sum) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(v[i], v[i], sum);
    return sum;
}

/// This thread's share of the squares of a row: pieces of eight, every 256th, ascending. The loads of three go out
/// together; a piece behind the end is zeros and changes nothing.
__device__ __forceinline__ float thread_squares(const float* x, int d) {
    constexpr int kAtOnce = 3;
    float sum = 0;
#pragma unroll 1
    for (int c = threadIdx.x; 8 * c < d; c += kAtOnce * kThreads) {
        float v[kAtOnce][8];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) load8(x, c + i * kThreads, d, v[i]);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) sum = add_squares(v[i], sum);
    }
    return sum;
}

/// 1 / sqrt(mean + eps) from the sums of the eight warps.
__device__ __forceinline__ float row_scale(const float* partial, int d, float eps) {
    const float squares = ((partial[0] + partial[4]) + (partial[2] + partial[6])) +
                          ((partial[1] + partial[5]) + (partial[3] + partial[7]));
    return ops::rms_scale(squares, d, eps);
}

/// What a row x[d] is multiplied with in RMSNorm: 1 / sqrt(mean(x^2) + eps), in every thread of a CTA of kThreads
/// threads, all of which call it. squares: thread_squares(). partial: 8 floats of shared memory; the caller
/// synchronises before it is used again. The order of the sum is that of every kernel of the GPU back end that
/// normalises whole rows.
__device__ __forceinline__ float block_rms_scale(float squares, int d, float eps, float* partial) {
    const float sum = warp_sum(squares);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    return row_scale(partial, d, eps);
}
__device__ __forceinline__ float block_rms_scale(const float* x, int d, float eps, float* partial) {
    return block_rms_scale(thread_squares(x, d), d, eps, partial);
}

/// Eight columns of 32 that four neighbouring lanes quantise together.
struct Act8 {
    uint2 words;
    float d;
    int half, all;  // sums over this lane's sixteen columns, over all
};
__device__ __forceinline__ Act8 quantise8(const float (&v)[8]) {
    uint32_t largest = 0;  // ordered like the magnitudes, NaN above infinity
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(v[i]) & 0x7FFFFFFFu);
    largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
    const bool finite = largest < 0x7F800000u, zero = largest < 0x0D800000u;  // 2^-100
    const float amax = __uint_as_float(largest);
    const float inverse = finite && !zero ? 127.0f / amax : 0.0f;
    Act8 q;
    q.d = !finite ? __uint_as_float(0x7FC00000u) : zero ? 0.0f : amax / 127.0f;
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int a = finite ? __float2int_rn(__fmul_rn(v[i], inverse)) : 0;
        words[i / 4] |= (static_cast<uint32_t>(a) & 255u) << (8 * (i % 4));
    }
    q.words = make_uint2(words[0], words[1]);
    int sum = __dp4a(static_cast<int>(words[0]), 0x01010101, 0);
    sum = __dp4a(static_cast<int>(words[1]), 0x01010101, sum);
    q.half = sum + __shfl_xor_sync(~0u, sum, 1);
    q.all = q.half + __shfl_xor_sync(~0u, q.half, 2);
    return q;
}

/// Columns 8 c .. 8 c + 7 to a staged row (shared or device memory). All lanes of a warp call it, with c % 4 == lane
/// % 4.
__device__ __forceinline__ void put8(const ActLayout& l, char* row, int c, const float (&v)[8]) {
    if (l.int8_bytes != 0) {
        const Act8 q = quantise8(v);
        const int g = c / 4, quarter = c % 4;
        if (g < l.groups) {
            *reinterpret_cast<uint2*>(row + (quarter / 2 * l.groups + g) * 16 + quarter % 2 * 8) = q.words;
            if (quarter == 0) {
                *reinterpret_cast<float2*>(row + 32 * l.groups + 8 * g) = make_float2(q.d, static_cast<float>(q.all));
                *reinterpret_cast<float*>(row + 40 * l.groups + 4 * g) = static_cast<float>(q.half);
            }
        }
    }
    if (l.float_bytes != 0) {
        auto* pieces = reinterpret_cast<float4*>(row + l.int8_bytes);
        if (32 * c < l.float_bytes) {
            pieces[float_piece(2 * c)] = make_float4(v[0], v[1], v[2], v[3]);
            pieces[float_piece(2 * c + 1)] = make_float4(v[4], v[5], v[6], v[7]);
        }
    }
}

/// Sends the norm weights of a row on their way into shared memory, without registers; may stand above pdl_wait().
/// Each thread takes the pieces of eight that it will use itself (stage_floats): the `thread`-th of kThreads.
__device__ __forceinline__ void fetch_norm(const ActSource& s, int cols, float* norm, int thread = threadIdx.x) {
    if (s.kind != ActKind::norm) return;
#pragma unroll 1
    for (int c = thread; 8 * c < cols; c += kThreads) {
        if (8 * c + 8 <= cols && reinterpret_cast<uintptr_t>(s.norm) % 16 == 0) {
            copy_async16(norm + 8 * c, s.norm + 8 * c);
            copy_async16(norm + 8 * c + 4, s.norm + 8 * c + 4);
        } else {
            for (int i = 8 * c; i < min(8 * c + 8, cols); ++i) norm[i] = __uint_as_float(load_weight32(s.norm + i));
        }
    }
}

/// Copies 16-byte pieces (8-byte ones if `bytes` is not a multiple of 16).
__device__ __forceinline__ void copy_bytes(char* to, const char* from, int bytes) {
    if (bytes % 16 == 0)
#pragma unroll 1
        for (int i = threadIdx.x; i < bytes / 16; i += kThreads)
            reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    else
#pragma unroll 1
        for (int i = threadIdx.x; i < bytes / 8; i += kThreads)
            reinterpret_cast<uint2*>(to)[i] = reinterpret_cast<const uint2*>(from)[i];
}

__device__ __forceinline__ void stage_int8(const ActSource& s, const ActLayout& l, int row0, int count, char* out) {
#pragma unroll 1
    for (int p = 0; p < count; ++p) {
        char* row = out + p * l.bytes();
        const char* from = s.rows + (row0 + p) * s.stride;
        copy_bytes(row, from, 40 * l.groups);
#pragma unroll 1
        for (int g = threadIdx.x; g < l.groups; g += kThreads) {
            int sum = 0;
#pragma unroll
            for (int t = 0; t < 2; ++t) {
                const uint2 a = reinterpret_cast<const uint2*>(from + 16 * g)[t];
                sum = __dp4a(static_cast<int>(a.x), 0x01010101, sum);
                sum = __dp4a(static_cast<int>(a.y), 0x01010101, sum);
            }
            *reinterpret_cast<float*>(row + 40 * l.groups + 4 * g) = static_cast<float>(sum);
        }
    }
}

/// f32 rows, normalised if asked. norm: from fetch_norm. partial: 2 * kWarps floats.
__device__ __forceinline__ void stage_floats(const ActSource& s, const ActLayout& l, int row0, int count, char* out,
                                             const float* norm_weight, float* partial) {
    const bool norm = s.kind == ActKind::norm;
    const int thread = threadIdx.x, pieces = (l.cols + 15) / 16 * 2;
#pragma unroll 1
    for (int p = 0; p < count; ++p) {
        const auto* x = reinterpret_cast<const float*>(s.rows + (row0 + p) * s.stride);
        float v[8], scale = 1.0f;
        load8(x, thread, l.cols, v);
        if (norm) {
            float sum = add_squares(v, 0.0f);
#pragma unroll 1
            for (int c = thread + kThreads; 8 * c < l.cols; c += kThreads) {
                float more[8];
                load8(x, c, l.cols, more);
                sum = add_squares(more, sum);
            }
            sum = warp_sum(sum);
            float* sums = partial + p % 2 * kWarps;  // the other half may still be read
            if (thread % 32 == 0) sums[thread / 32] = sum;
            copy_async_wait();
            __syncthreads();
            scale = row_scale(sums, l.cols, s.eps);
        }
#pragma unroll 1
        for (int c = thread;;) {
            if (norm && 8 * c < l.cols) {
                const auto* w = reinterpret_cast<const float4*>(norm_weight + 8 * c);  // may end in what nobody set
                const float4 low = w[0], high = w[1];
                v[0] = rms_value(v[0], scale, low.x), v[1] = rms_value(v[1], scale, low.y);
                v[2] = rms_value(v[2], scale, low.z), v[3] = rms_value(v[3], scale, low.w);
                v[4] = rms_value(v[4], scale, high.x), v[5] = rms_value(v[5], scale, high.y);
                v[6] = rms_value(v[6], scale, high.z), v[7] = rms_value(v[7], scale, high.w);
                if (8 * c + 8 > l.cols) {
#pragma unroll
                    for (int i = 0; i < 8; ++i) v[i] = 8 * c + i < l.cols ? v[i] : 0.0f;
                }
            }
            put8(l, out + p * l.bytes(), c, v);
            c += kThreads;
            if (c - thread >= pieces) break;
            load8(x, c, l.cols, v);
        }
    }
}

/// Rows row0 .. row0 + count - 1 to staged rows at `out`, l.bytes() apart, by the whole CTA. Call it behind pdl_wait().
/// norm: from fetch_norm. partial: 2 * kWarps floats of shared memory. The caller synchronises afterwards.
__device__ __forceinline__ void stage_rows(const ActSource& s, const ActLayout& l, int row0, int count, char* out,
                                           const float* norm, float* partial) {
    if (s.kind == ActKind::staged) copy_bytes(out, s.rows + row0 * s.stride, count * l.bytes());
    else if (s.kind == ActKind::int8) stage_int8(s, l, row0, count, out);
    else stage_floats(s, l, row0, count, out, norm, partial);
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
