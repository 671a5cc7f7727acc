// What the two prefill products (bf16_sm90.cu for Hopper, bf16_sm80.cu) share: which tiles there are,
// and what becomes of a thread's sums.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/linear/gemm/gemm.h"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

/// One tile of the result.
struct Tile {
    int row;      // first row of A
    int row_end;  // rows behind this one belong to another expert, or to nobody
    int b_row;    // first row of B
    int n;        // the same, counted from the expert's first
    int expert;   // 0 without a plan
};

/// Number of tiles `tile_n` wide. Reads what the plan's kernels wrote: only behind pdl_wait().
RT_HD int tile_count(const GemmProblem& p, int tile_n) {
    const int across = ceil_div(p.n, tile_n);
    if (p.plan.row_first == nullptr) return ceil_div(p.rows, kTileM) * across;
    return (p.plan.tile_first[p.expert_end] - p.plan.tile_first[p.expert_begin]) * across;
}

/// The tile of a plan whose rows are those of tile `down` of all experts' rows, from row n of the expert's B.
RT_HD Tile expert_tile(const GemmProblem& p, int down, int n) {
    const int expert = p.plan.tile_expert[down];
    Tile tile;
    tile.row = p.plan.row_first[expert] + (down - p.plan.tile_first[expert]) * kTileM;
    tile.row_end = p.plan.row_first[expert + 1];
    tile.n = n;
    tile.expert = expert;
    tile.b_row = (expert - p.expert_begin) * p.n + n;
    return tile;
}

/// The same tile, but the expert's rows shared out evenly among its tiles.
RT_HD Tile even_tile(const GemmProblem& p, Tile tile) {
    const int first = p.plan.row_first[tile.expert], end = p.plan.row_first[tile.expert + 1];
    const int tiles = p.plan.tile_first[tile.expert + 1] - p.plan.tile_first[tile.expert];
    const EvenRows rows = even_rows(end - first, tiles, (tile.row - first) / kTileM);
    tile.row = first + rows.begin, tile.row_end = first + rows.end;
    return tile;
}

/// Tile t. Dense: bands of 16 x 128 rows, column by column inside, so that what runs at one time shares A and B in L2.
/// Experts: tiles that share rows follow each other, and an expert's tiles do.
RT_HD Tile tile_at(const GemmProblem& p, int tile_n, int t) {
    const int across = ceil_div(p.n, tile_n);
    Tile tile;
    if (p.plan.row_first == nullptr) {
        constexpr int kBand = 16;
        const int down = ceil_div(p.rows, kTileM), band = t / (kBand * across), inside = t - band * kBand * across;
        const int height = down - band * kBand < kBand ? down - band * kBand : kBand;
        tile.row = (band * kBand + inside % height) * kTileM;
        tile.row_end = p.rows;
        tile.n = tile.b_row = inside / height * tile_n;
        tile.expert = 0;
        return tile;
    }
    return expert_tile(p, p.plan.tile_first[p.expert_begin] + t / across, t % across * tile_n);
}

#ifdef __CUDACC__

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&v);
}

__device__ __forceinline__ uint4 pack_bf16(const float* v) {
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}

/// Takes the next bf16 part off two values.
__device__ __forceinline__ uint32_t next_part(float& low, float& high) {
    const uint32_t part = pack_bf16(low, high);
    low -= __uint_as_float(part << 16);
    high -= __uint_as_float(part & 0xFFFF0000u);
    return part;
}

// store_row64: what lane t of a quad does with its sixteen sums of one row: v[2 j + b] is the sum for row n + 8 j + 2 t
// + b of the expert's B. n is a multiple of 64.

__device__ __forceinline__ void store_row64(const OutF32& out, int64_t row, int n, int t, const float (&v)[16]) {
    int i = 0;
    while (i + 1 < out.pieces && n >= out.piece[i + 1].begin) ++i;
    const OutF32::Piece& piece = out.piece[i];
    const int first = n - piece.begin + 4 * t;
    float* y = piece.y + row * piece.stride;
    float* residual = piece.residual == nullptr ? nullptr : piece.residual + row * piece.stride;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        const int c = first + 16 * g;
        if (piece.vectors) {
            if (c >= piece.cols) continue;  // columns come in fours
            const float4 value = make_float4(v[4 * g], v[4 * g + 1], v[4 * g + 2], v[4 * g + 3]);
            *reinterpret_cast<float4*>(y + c) = value;
            if (residual == nullptr) continue;
            float4* x = reinterpret_cast<float4*>(residual + c);
            const float4 old = *x;
            *x = make_float4(old.x + value.x, old.y + value.y, old.z + value.z, old.w + value.w);
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (c + j >= piece.cols) continue;
                y[c + j] = v[4 * g + j];
                if (residual != nullptr) residual[c + j] += v[4 * g + j];
            }
        }
    }
}

__device__ __forceinline__ void store_row64(const OutBf16& out, int64_t row, int n, int t, const float (&v)[16]) {
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        const int c = n + 4 * t + 16 * g;
        if (c < out.stride)
            *reinterpret_cast<uint2*>(out.y + row * out.stride + c) =
                make_uint2(pack_bf16(v[4 * g], v[4 * g + 1]), pack_bf16(v[4 * g + 2], v[4 * g + 3]));
    }
}

__device__ __forceinline__ void store_row64(const OutSwiglu& out, int64_t row, int n, int t, const float (&v)[16]) {
    const int c = n / 2 + 8 * t;
    float act[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) act[j] = c + j < out.cols ? swiglu_value(v[2 * j], v[2 * j + 1]) : 0.0f;
    *reinterpret_cast<uint4*>(out.y + row * out.stride + c) = pack_bf16(act);
}

#endif

// The two kernels. gemm() chooses.
template <class Out>
void gemm_hopper(const Gpu& gpu, const GemmProblem& problem, const Out& out);
template <class Out>
void gemm_portable(const Gpu& gpu, const GemmProblem& problem, const Out& out);

}  // namespace riptide::ops::cuda::prefill
