// What the kernels for one row of x times large matrices share: x, normalised or not, by a CTA's sixteen warps, and the
// float rows of a group, by one warp.
#pragma once

#include "ops/decode_batch.cuh"
#include "ops/decode_dense.cuh"

namespace riptide::ops::cuda::decode {

constexpr int kRowWarps = 16, kRowThreads = 32 * kRowWarps;

#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 900

/// A row that is normalised, by twice the threads of stage_whole_row() of decode_dense.cuh: same bits. The sum of
/// squares is that of 256 threads, which load what others will quantise besides.
struct NormedRow {
    static constexpr int kMost = 2048 * kWholeRow / 8;  // pieces of eight
    static constexpr int kOwn = (kMost + kRowThreads - 1) / kRowThreads, kSums = kMost / kThreads;
    float norm[kOwn][8] = {};

    __device__ __forceinline__ void load_weights_of(const ActSource& s, int cols) {
        if (s.kind != ActKind::norm) return;
#pragma unroll
        for (int r = 0; r < kOwn; ++r) load_norm8(s.norm, r * kRowThreads + threadIdx.x, cols, norm[r]);
    }
    template <class Put>
    __device__ __forceinline__ void stage(const ActSource& s, int cols, const Put& put, float* partial) const {
        const auto* x = reinterpret_cast<const float*>(s.rows);
        float v[kOwn][8];
#pragma unroll
        for (int r = 0; r < kOwn; ++r) load8(x, r * kRowThreads + threadIdx.x, cols, v[r]);
        if (threadIdx.x < kThreads) {
            float sum = 0.0f;
#pragma unroll
            for (int r = 0; r < kSums; ++r) {
                if (r * kThreads % kRowThreads == 0) {
                    sum = add_squares(v[r * kThreads / kRowThreads], sum);
                } else {
                    float other[8];
                    load8(x, r * kThreads + threadIdx.x, cols, other);
                    sum = add_squares(other, sum);
                }
            }
            sum = warp_sum(sum);
            if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
        }
        asm volatile("bar.sync 1, %0;" ::"n"(kRowThreads) : "memory");
        const float scale = row_scale(partial, cols, s.eps);
#pragma unroll
        for (int r = 0; r < kOwn; ++r) {
#pragma unroll
            for (int i = 0; i < 8; ++i) v[r][i] = rms_value(v[r][i], scale, norm[r][i]);
            put(r * kRowThreads + threadIdx.x, v[r]);
        }
    }
};

/// A row that is not normalised, several loads at once.
template <int kTogether, class Put>
__device__ __forceinline__ void stage_plain_row(const ActSource& s, int cols, const Put& put) {
    const auto* x = reinterpret_cast<const float*>(s.rows);
#pragma unroll 1
    for (int c = threadIdx.x; c - static_cast<int>(threadIdx.x) < cols / 8; c += kTogether * kRowThreads) {
        float v[kTogether][8];
#pragma unroll
        for (int r = 0; r < kTogether; ++r) load8(x, c + r * kRowThreads, cols, v[r]);
#pragma unroll
        for (int r = 0; r < kTogether; ++r) put(c + r * kRowThreads, v[r]);
    }
}

/// Float rows of the group, every so many-th: by one warp.
template <class Args>
struct FloatRows {
    const Args& a;
    __device__ __forceinline__ int matrix(int row) const {
        int k = 0;
        while (row >= a.floats[k].first_row + a.floats[k].rows) ++k;
        return k;
    }
    __device__ __forceinline__ RowRef operator()(int row) const {
        const int k = matrix(row);
        return {k, 0, row - a.floats[k].first_row};
    }
    /// So that multiply() finds them in the L2 cache. One thread; before pdl_wait().
    __device__ __forceinline__ void fetch(int first, int by) const {
        for (int row = first; row < a.float_rows; row += by) {
            const Matrix& m = a.floats[matrix(row)];
            const char* const from = m.data + (row - m.first_row) * m.row_bytes;
            const uint32_t bytes = static_cast<uint32_t>(m.row_bytes) & ~15u;
            if ((reinterpret_cast<uintptr_t>(from) & 15) == 0 && bytes > 0)
                asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
        }
    }
    __device__ __forceinline__ void multiply(int first, int by, int lane, const char* x,
                                             const ActLayout& layout) const {
        using Floats = FloatBatch<PlainFloats, 1, 8>;
        uint32_t raw[Floats::kWords];
        const auto nothing = [] {};
#pragma unroll 1
        for (int row = first; row < a.float_rows; row += by)
            run_rows<Floats, 1>(a.floats, *this, row, row + 1, lane, raw, false, x, layout, 1, nothing, nothing,
                                [&](int i, int, float sum) {
                                    const RowRef r = (*this)(i);
                                    a.floats[r.matrix].y[r.row] = __fmul_rn(sum, a.floats[r.matrix].scale);
                                });
    }
};

#endif  // __CUDA_ARCH__ >= 900
#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
