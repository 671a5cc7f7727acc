// The persistent kernel's products: rows of bf16 weights times a row of x in shared memory, a warp for each few rows.
//
// The sums are those of dot.cuh: piece c of a row (eight columns) adds to accumulator (c / 32) % 4 of lane
// c % 32 in ascending order, each accumulator goes through the butterfly, y = (a0 + a1) + (a2 + a3). Here a warp has
// all four accumulators of its rows, so nothing is exchanged between warps. Weights are copied to shared memory before
// the phase's input is waited for, each lane its own pieces, which no other lane reads: no barrier. Tried: the same in
// registers (64 a lane). Register arrays need unrolled code, 135 KB for a layer of Gated DeltaNet, with spills; that
// layer took 55 us on an H200, 47 of them between phases (clocks of one CTA), where the exchanges should take 8. That
// it waited for instructions is a guess.
#pragma once

#include "ops/cuda/linear/shared/dot.cuh"
#include "ops/cuda/megakernel/persistent_words.cuh"

namespace riptide::ops {

inline constexpr int kPersistentWarps = 16, kPersistentThreads = 32 * kPersistentWarps;
inline constexpr int kNormColumns = 8 * cuda::decode::kThreads;  // of a row that is normalised, at most

#ifdef __CUDACC__

/// The part of `count` things that CTA b of `ctas` has begins here.
__device__ __forceinline__ int share_begin(int count, int b, int ctas) {
    return static_cast<int>(static_cast<int64_t>(count) * b / ctas);
}

/// Pieces of a lane that wait in shared memory, [kSlots][kPersistentThreads].
inline constexpr int kSlots = 16, kNarrowColumns = 1024, kWideColumns = 8 * 32 * kSlots;

__device__ __forceinline__ void copy_piece(uint4* slots, int slot, const char* from) {
    cuda::decode::copy_async16(slots + slot * kPersistentThreads + threadIdx.x, from);
}

/// acc += the piece in `slot` times eight columns.
__device__ __forceinline__ float add_piece(const uint4* slots, int slot, float4 low, float4 high, float acc) {
    const uint4 w = slots[slot * kPersistentThreads + threadIdx.x];
    const uint32_t raw[4] = {w.x, w.y, w.z, w.w};
    acc = cuda::decode::fma4(cuda::decode::decode4(DType::bf16, raw, 0), low, acc);
    return cuda::decode::fma4(cuda::decode::decode4(DType::bf16, raw, 1), high, acc);
}
/// The sum of a warp's four accumulators of each lane, in every lane.
__device__ __forceinline__ float row_sum(float (&acc)[4]) {
    float sum = cuda::decode::reduce_lanes<4>(acc, static_cast<int>(threadIdx.x % 32));
    sum += __shfl_xor_sync(~0u, sum, 8);
    return sum + __shfl_xor_sync(~0u, sum, 16);
}

/// Up to four rows of up to kNarrowColumns columns. row_of(g): where row g begins.
template <class RowOf>
__device__ __forceinline__ void copy_rows(uint4* slots, const RowOf& row_of, int rows, int pieces) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int g = 0; g < rows; ++g) {
        const char* const row = row_of(g) + 16 * lane;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (32 * j + lane < pieces) copy_piece(slots, 4 * g + j, row + 512 * j);
    }
}
/// Their products with x (staged: float_piece), that of row g in lanes 8 g to 8 g + 7. All lanes.
__device__ __forceinline__ float multiply_rows(const uint4* slots, const float4* x, int rows, int pieces) {
    using cuda::decode::float_piece;
    const int lane = static_cast<int>(threadIdx.x % 32);
    float4 low[4], high[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
        if (32 * j + lane < pieces) {
            low[j] = x[float_piece(2 * (32 * j + lane))];
            high[j] = x[float_piece(2 * (32 * j + lane) + 1)];
        }
    cuda::decode::copy_async_wait();
    float own = 0.0f;
#pragma unroll 1
    for (int g = 0; g < rows; ++g) {
        float acc[4] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (32 * j + lane < pieces) acc[j] = add_piece(slots, 4 * g + j, low[j], high[j], acc[j]);
        const float sum = row_sum(acc);
        if (lane / 8 == g) own = sum;
    }
    return own;
}

/// One row of up to kWideColumns columns.
__device__ __forceinline__ void copy_row(uint4* slots, const char* row, int pieces) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int slot = 0; 32 * slot + lane < pieces; ++slot) copy_piece(slots, slot, row + 16 * (32 * slot + lane));
}
/// Its product with x, in all lanes. All lanes.
__device__ __forceinline__ float multiply_row(const uint4* slots, const float4* x, int pieces) {
    using cuda::decode::float_piece;
    const int lane = static_cast<int>(threadIdx.x % 32);
    float acc[4] = {};
    cuda::decode::copy_async_wait();
#pragma unroll 1
    for (int slot = 0; 32 * slot < pieces; slot += 4)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (const int c = 32 * (slot + j) + lane; c < pieces)
                acc[j] = add_piece(slots, slot + j, x[float_piece(2 * c)], x[float_piece(2 * c + 1)], acc[j]);
    return row_sum(acc);
}

/// The four rows that a warp of the head's product has in registers.
struct HeadTile {
    uint4 w[4][4];
};
/// Sums of four rows at once: that of row g in lanes 8 g to 8 g + 7.
__device__ __forceinline__ float row_sums(const float (&acc)[4][4], int lane) {
    float v[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = acc[i / 4][i % 4];
    float sum = cuda::decode::reduce_lanes<16>(v, lane);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return sum + __shfl_xor_sync(~0u, sum, 4);
}

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

/// RMSNorm of a row of `cols` values to shared memory, by the whole CTA, in the order of block_rms_scale(): thread c
/// has piece c, eight columns. load(c, v). Synchronises, also at the end.
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
