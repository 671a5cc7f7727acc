// The persistent kernel's products: rows of bf16 weights times a row of x in shared memory, a warp for each few rows.
//
// The sums are those of decode_dot.cuh: piece c of a row (eight columns) adds to accumulator (c / 32) % 4 of lane c % 32
// in ascending order, each accumulator goes through the butterfly, y = (a0 + a1) + (a2 + a3). Here a warp has all four
// accumulators of its rows, so nothing is exchanged between warps. Weights are loaded into registers before the phase's
// input is waited for: R rows of J pieces a lane, 64 registers.
#pragma once

#include "ops/decode_dot.cuh"
#include "ops/persistent_words.cuh"

namespace riptide::ops {

inline constexpr int kPersistentWarps = 16, kPersistentThreads = 32 * kPersistentWarps;
inline constexpr int kNormColumns = 8 * cuda::decode::kThreads;  // of a row that is normalised, at most

#ifdef __CUDACC__

/// The part of `count` things that CTA b of `ctas` has begins here.
__device__ __forceinline__ int share_begin(int count, int b, int ctas) {
    return static_cast<int>(static_cast<int64_t>(count) * b / ctas);
}

/// R rows of up to J steps of 32 pieces.
template <int R, int J>
struct RowTile {
    static_assert(J % 4 == 0);
    static constexpr int kColumns = 8 * 32 * J;  // that a row may have
    uint4 w[R][J];

    /// row_of(g): where row g begins.
    template <class RowOf>
    __device__ __forceinline__ void load(const RowOf& row_of, int pieces) {
        const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
        for (int g = 0; g < R; ++g) {
            const char* const row = row_of(g) + 16 * lane;
#pragma unroll
            for (int j = 0; j < J; ++j)
                if (32 * j + lane < pieces) w[g][j] = load_weights(row + 512 * j);
        }
    }
    /// The R products, that of row g in all lanes of the g-th R-th of the warp. x: staged (float_piece). All lanes.
    __device__ __forceinline__ float multiply(const float4* x, int pieces) const {
        const int lane = static_cast<int>(threadIdx.x % 32);
        float acc[R][4] = {};
#pragma unroll
        for (int j = 0; j < J; ++j)
            if (32 * j + lane < pieces) add_piece(x, j, acc);
        return row_sums(acc, lane);
    }
    /// acc[g][j % 4] += the lane's piece of step j.
    __device__ __forceinline__ void add_piece(const float4* x, int j, float (&acc)[R][4]) const {
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            const float4 v = x[cuda::decode::float_piece(2 * (32 * j + static_cast<int>(threadIdx.x % 32)) + t)];
#pragma unroll
            for (int g = 0; g < R; ++g) {
                const uint32_t raw[4] = {w[g][j].x, w[g][j].y, w[g][j].z, w[g][j].w};
                acc[g][j % 4] = cuda::decode::fma4(cuda::decode::decode4(DType::bf16, raw, t), v, acc[g][j % 4]);
            }
        }
    }

    /// multiply() from the accumulators.
    __device__ static __forceinline__ float row_sums(const float (&acc)[R][4], int lane) {
        constexpr int kShift = R == 4 ? 1 : R == 2 ? 2 : 3;  // lanes that hold the same of 4 R sums
        float v[4 * R];
#pragma unroll
        for (int i = 0; i < 4 * R; ++i) v[i] = acc[i / 4][i % 4];
        float sum = cuda::decode::reduce_lanes<4 * R>(v, lane);
        sum += __shfl_xor_sync(~0u, sum, 1 << kShift);
        sum += __shfl_xor_sync(~0u, sum, 2 << kShift);
        return sum;
    }
};

// ---- Staging x.

__device__ __forceinline__ void put_staged(float* staged, int column, float value) {
    staged[4 * cuda::decode::float_piece(column / 4) + column % 4] = value;
}

/// Words of a row to shared memory, by the whole CTA. The caller synchronises.
__device__ __forceinline__ void stage_words(const Word* words, int cols, uint32_t number, float* staged) {
    constexpr int kTogether = 4;
#pragma unroll 1
    for (int first = 2 * static_cast<int>(threadIdx.x); first < cols; first += 2 * kTogether * kPersistentThreads) {
        Word w[2 * kTogether];
        await(
            [&] {
#pragma unroll
                for (int i = 0; i < kTogether; ++i)
                    if (const int at = first + 2 * i * kPersistentThreads; at < cols)
                        load_words(words + at, w[2 * i], w[2 * i + 1]);
            },
            [&] {
                bool all = true;
#pragma unroll
                for (int i = 0; i < kTogether; ++i)
                    if (first + 2 * i * kPersistentThreads < cols)
                        all = all && is_numbered(w[2 * i], number) && is_numbered(w[2 * i + 1], number);
                return all;
            });
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
            if (const int at = first + 2 * i * kPersistentThreads; at < cols) {
                float* const to = staged + 4 * cuda::decode::float_piece(at / 4) + at % 4;
                *reinterpret_cast<float2*>(to) = make_float2(value_of(w[2 * i]), value_of(w[2 * i + 1]));
            }
    }
}

/// RMSNorm of a row of `cols` values to shared memory, by the whole CTA, in the order of block_rms_scale(): thread c has
/// piece c, eight columns. load(c, v). Synchronises, also at the end.
template <class Load>
__device__ __forceinline__ void stage_normed(const Load& load, const float* norm, int cols, float eps, float* partial,
                                             float* staged) {
    using namespace cuda::decode;
    const int c = static_cast<int>(threadIdx.x);
    const bool there = 8 * c < cols;
    float v[8] = {}, w[8];
    if (there) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 x = load_weights(norm + 8 * c + 4 * half);
            w[4 * half] = __uint_as_float(x.x), w[4 * half + 1] = __uint_as_float(x.y);
            w[4 * half + 2] = __uint_as_float(x.z), w[4 * half + 3] = __uint_as_float(x.w);
        }
        load(c, v);
    }
    if (c < kThreads) {
        const float sum = warp_sum(add_squares(v, 0.0f));
        if (c % 32 == 0) partial[c / 32] = sum;
    }
    __syncthreads();
    if (there) {
        const float scale = row_scale(partial, cols, eps);
#pragma unroll
        for (int half = 0; half < 2; ++half)
            reinterpret_cast<float4*>(staged)[float_piece(2 * c + half)] = make_float4(
                rms_value(v[4 * half], scale, w[4 * half]), rms_value(v[4 * half + 1], scale, w[4 * half + 1]),
                rms_value(v[4 * half + 2], scale, w[4 * half + 2]), rms_value(v[4 * half + 3], scale, w[4 * half + 3]));
    }
    __syncthreads();
}

#endif

}  // namespace riptide::ops
