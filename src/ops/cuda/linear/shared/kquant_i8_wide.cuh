// What the kernels for large matrices of any width share: a row of x, normalised and quantised by a CTA of 256 threads.
#pragma once

#include "ops/cuda/device/int8_rows.cuh"
#include "ops/cuda/linear/shared/shapes.h"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

/// Norm weights 8 c .. 8 c + 7; nothing behind the end.
__device__ __forceinline__ void load_norm8(const float* norm, int c, int cols, float (&v)[8]) {
    if (8 * c >= cols) return;
    if (reinterpret_cast<uintptr_t>(norm) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            const uint4 w = load_weights(norm + 8 * c + i);
            v[i] = __uint_as_float(w.x), v[i + 1] = __uint_as_float(w.y);
            v[i + 2] = __uint_as_float(w.z), v[i + 3] = __uint_as_float(w.w);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = __uint_as_float(load_weight32(norm + 8 * c + i));
    }
}
/// Those of this thread's pieces, for stage_whole_row(); may stand above pdl_wait().
template <int R>
__device__ __forceinline__ void load_norms(const ActSource& s, int cols, float (&norm)[R][8]) {
    if (s.kind != ActKind::norm) return;
#pragma unroll
    for (int r = 0; r < R; ++r) load_norm8(s.norm, r * kThreads + threadIdx.x, cols, norm[r]);
}

/// One row x of at most 2,048 R columns (multiples of 8), normalised if s says so: put(c, v) gets columns 8 c .. + 7,
/// by the thread that put8() wants. All loads go out at once, and the norm's weights are in registers. Behind
/// pdl_wait(), by the first 256 threads of a CTA. partial: kWarps floats of shared memory.
template <int R, class Put>
__device__ __forceinline__ void whole_row(const ActSource& s, const float* x, int cols, const float (&norm)[R][8],
                                          float* partial, const Put& put) {
    float v[R][8];
#pragma unroll
    for (int r = 0; r < R; ++r) load8(x, r * kThreads + threadIdx.x, cols, v[r]);
    if (s.kind == ActKind::norm) {
        float sum = 0.0f;
#pragma unroll
        for (int r = 0; r < R; ++r) sum = add_squares(v[r], sum);
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
        asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
        const float scale = row_scale(partial, cols, s.eps);
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int i = 0; i < 8; ++i) v[r][i] = rms_value(v[r][i], scale, norm[r][i]);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) put(r * kThreads + threadIdx.x, v[r]);
}
/// stage_floats() for such a row: same bits.
template <int R>
__device__ __forceinline__ void stage_whole_row(const ActSource& s, const float* x, const ActLayout& l,
                                                const float (&norm)[R][8], char* out, float* partial) {
    whole_row(s, x, l.cols, norm, partial, [&](int c, const float(&v)[8]) { put8(l, out, c, v); });
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
