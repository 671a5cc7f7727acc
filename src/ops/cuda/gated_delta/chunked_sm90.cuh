// Gated DeltaNet in chunks (chunked_sm90.cu): what its two kernels hand over, and matrices of pairs of bf16 in
// shared memory as operands of tensor cores.
#pragma once

#include "ops/cuda/attention/prefill_sm80.cuh"
#include "ops/cuda/gated_delta/prepare_rows.cuh"

namespace riptide::ops {

constexpr int kChunk = kDeltaChunk, kChunkKey = 128, kChunkColumns = 64, kChunkThreads = 256;
// Rows of bf16 in shared memory, 16 bytes longer than they need: eight rows lie in different banks.
constexpr int kKeyStride = kChunkKey + 8, kTileStride = kChunk + 8;
constexpr int kKeyBytes = kChunk * kKeyStride * 2, kTileBytes = kChunk * kTileStride * 2,
              kStateBytes = kChunkKey * kTileStride * 2;

/// Of a chunk and key head: k and q, each as hi and lo.
struct ChunkKeys {
    unsigned char k[2][kKeyBytes], q[2][kKeyBytes];
};
/// Of a chunk and value head. `tail`: D_63.
struct ChunkHead {
    unsigned char m[2][kTileBytes], b[2][kTileBytes];
    float p[kChunk], beta[kChunk], tail[kChunk];
};

struct ChunkArgs {
    DeltaSizes sizes;
    const float* q;     // [n, key_heads * key_dim]
    const float* kept;  // k, v and gates of each row, as DeltaKept has them
    int64_t stride;
    float* state;
    float* out;  // [n, value_heads * value_dim], before the norm
    const int32_t *row_begin, *state_slot, *committed;
    ChunkKeys* keys;   // [sequences, chunks, key_heads]
    ChunkHead* heads;  // [sequences, chunks, value_heads]
    int chunks;        // of a sequence, in a part
    int first_chunk;   // of the part
};

/// A, B and M of a.chunks chunks of each sequence from a.first_chunk on.
void launch_chunk_matrices(const Gpu& gpu, const ChunkArgs& a, int64_t sequences);

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

/// Rows of one sequence in one chunk; rows behind its end: none.
struct ChunkRows {
    int first, count;
};
__device__ __forceinline__ ChunkRows chunk_rows(const ChunkArgs& a, int sequence, int chunk) {
    const int begin = a.row_begin[sequence] + kChunk * (a.first_chunk + chunk), end = a.row_begin[sequence + 1];
    return {begin, min(kChunk, end - begin)};
}

__device__ __forceinline__ uint32_t chunk_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Four 8 x 8 matrices; lane l points at row l % 8 of matrix l / 8.
struct ChunkFragment {
    uint32_t x[4];
};
template <bool kTransposed>
__device__ __forceinline__ ChunkFragment load_fragment(const unsigned char* lane) {
    ChunkFragment f;
    cuda::prefill::load_matrices<kTransposed>(f.x, chunk_address(lane));
    return f;
}
/// A [16, 16] at (row, col) of a matrix in rows; or of the transpose of one.
__device__ __forceinline__ ChunkFragment rows_of(const unsigned char* m, int stride, int row, int col) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return load_fragment<false>(m + 2 * ((row + lane % 16) * stride + col + lane / 16 * 8));
}
__device__ __forceinline__ ChunkFragment rows_of_transposed(const unsigned char* m, int stride, int row, int col) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return load_fragment<true>(m + 2 * ((col + lane / 16 * 8 + lane % 8) * stride + row + lane / 8 % 2 * 8));
}
/// B [16, 16], two tiles of eight columns side by side (x[0], x[1] and x[2], x[3]), at (row, col) of a matrix in rows.
__device__ __forceinline__ ChunkFragment columns_of(const unsigned char* m, int stride, int row, int col) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return load_fragment<true>(m + 2 * ((row + lane % 16) * stride + col + lane / 16 * 8));
}
/// The same of the transpose of one.
__device__ __forceinline__ ChunkFragment columns_of_transposed(const unsigned char* m, int stride, int row, int col) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return load_fragment<false>(m + 2 * ((col + lane / 16 * 8 + lane % 8) * stride + row + lane / 8 % 2 * 8));
}

/// c[0], c[1] += A B for two tiles of columns, as pairs.
__device__ __forceinline__ void multiply_pairs(float (&c)[2][4], const ChunkFragment (&a)[2],
                                               const ChunkFragment (&b)[2]) {
#pragma unroll
    for (int part = 0; part < 3; ++part) {  // lo hi, hi lo, hi hi
        const ChunkFragment &x = a[part == 0], &y = b[part == 1];
#pragma unroll
        for (int t = 0; t < 2; ++t) cuda::prefill::mma<__nv_bfloat16>(c[t], x.x, y.x[2 * t], y.x[2 * t + 1]);
    }
}

/// Two floats as pairs: two bf16 of hi in [0], of lo in [1], the first in the lower half.
struct Pairs {
    uint32_t part[2];
};
__device__ __forceinline__ Pairs pairs(float x, float y) {
    const __nv_bfloat162 hi = __floats2bfloat162_rn(x, y);
    const __nv_bfloat162 lo = __floats2bfloat162_rn(x - __low2float(hi), y - __high2float(hi));
    return {{*reinterpret_cast<const uint32_t*>(&hi), *reinterpret_cast<const uint32_t*>(&lo)}};
}

#endif

}  // namespace riptide::ops
