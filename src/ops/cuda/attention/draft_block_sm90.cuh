// What draft_block_sm90.cu computes with: 16 pairs of row and query head times 16 keys, by one warp, on tensor
// cores. Columns of Q K^T may be summed in any order, and columns of V may come out in any, so fragments are whole
// 16-byte pieces of rows. Queries and probabilities are the sum of two f16 values each, so that products have f32's
// precision (2^-22); K and V are f16 as they are.
#pragma once

#include "ops/cuda/device/heads.cuh"

namespace riptide::ops {

inline constexpr int kBlockDim = 128, kBlockPairs = 16, kBlockKeys = 16;

/// High and low halves of the queries: step of the product, lane.
using BlockQueries = uint4[2][8][32];

#ifdef __CUDACC__

__device__ __forceinline__ void mma_f16(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
    mma<false>(c, a.x, a.y, a.z, a.w, b0, b1);
}

/// Two values as f16, and what is left of them.
__device__ __forceinline__ void split_halves(float a, float b, uint32_t& high, uint32_t& low) {
    const __half2 h = __floats2half2_rn(a, b);
    const float2 f = __half22float2(h);
    const __half2 l = __floats2half2_rn(a - f.x, b - f.y);
    high = *reinterpret_cast<const uint32_t*>(&h);
    low = *reinterpret_cast<const uint32_t*>(&l);
}

/// Query p of the pairs, a warp's (lane l has elements l, l + 32, ..), to the fragments of all warps. Lane 4 g + t of
/// these has of rows g, g + 8 the elements 32 s + 8 t .. + 7; step 2 s + h of the product takes 8 t + 4 h .. + 3 of
/// them. Scaled by a power of two, so that halves lose nothing.
__device__ __forceinline__ void put_block_query(BlockQueries& q, float* unscale, int p,
                                                const float (&x)[kBlockDim / 32]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint32_t largest = 0;
#pragma unroll
    for (int k = 0; k < kBlockDim / 32; ++k) largest = max(largest, __float_as_uint(x[k]) & 0x7FFFFFFFu);
#if __CUDA_ARCH__ >= 800
    largest = __reduce_max_sync(~0u, largest);
#endif
    // To [2^10, 2^11); as far as both powers are numbers.
    const int power = min(max(137 - static_cast<int>(largest >> 23), -120), 120);
    const float scale = __uint_as_float(static_cast<uint32_t>(127 + power) << 23);
    if (lane == 0) unscale[p] = __uint_as_float(static_cast<uint32_t>(127 - power) << 23);
    const int t = lane / 8, h = lane / 4 % 2, m = lane % 4, half = 4 * (m / 2) + 2 * (p / 8) + m % 2;
#pragma unroll
    for (int k = 0; k < kBlockDim / 32; ++k) {
        const float v = x[k] * scale;
        const __half high = __float2half_rn(v), low = __float2half_rn(v - __half2float(high));
        reinterpret_cast<__half*>(&q[0][2 * k + h][4 * (p % 8) + t])[half] = high;
        reinterpret_cast<__half*>(&q[1][2 * k + h][4 * (p % 8) + t])[half] = low;
    }
}

/// What a warp knows of its keys; rows and columns as mma's results: element e of tile j is row lane / 4 + 8 (e / 2)
/// and element 16 (2 t + e % 2) + j of V.
struct BlockState {
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};
    float x[16][4] = {};
};

/// Keys that a lane's rows g, g + 8 see, and what their scores are multiplied with.
struct BlockRows {
    int low[2], end;
    float factor[2];
};

/// Scores of the keys key0 .. + 15 to probabilities against the new largest one; keep: what the state so far is worth.
/// k(j, c): piece 4 c + t of key 8 j + g.
template <class Keys>
__device__ __forceinline__ void score_keys(const BlockQueries& q, const Keys& k, int key0, const BlockRows& rows,
                                           BlockState& state, float (&p)[2][4], float (&keep)[2]) {
    const int lane = static_cast<int>(threadIdx.x % 32), t = lane % 4;
    float small[2][4] = {}, large[2][4] = {};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const uint4 piece[2] = {k(0, c), k(1, c)};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const uint4 high = q[0][2 * c + h][lane], low = q[1][2 * c + h][lane];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const uint32_t b0 = h == 0 ? piece[j].x : piece[j].z, b1 = h == 0 ? piece[j].y : piece[j].w;
                mma_f16(small[j], low, b0, b1);
                mma_f16(large[j], high, b0, b1);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int key = key0 + 8 * j + 2 * t + e % 2;
            const bool seen = key < rows.end && key >= rows.low[e / 2];
            p[j][e] = seen ? (small[j][e] + large[j][e]) * rows.factor[e / 2] : -INFINITY;
        }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float most = fmaxf(fmaxf(p[0][2 * r], p[0][2 * r + 1]), fmaxf(p[1][2 * r], p[1][2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(state.m[r], fmaxf(most, __shfl_xor_sync(~0u, most, 2)));
        keep[r] = most == -INFINITY ? 1.0f : exp2f(state.m[r] - most);
        state.m[r] = most;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; ++e) {
                p[j][e] = p[j][e] == -INFINITY ? 0.0f : exp2f(p[j][e] - most);
                sum += p[j][e];
            }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        state.l[r] = fmaf(state.l[r], keep[r], sum);
    }
}

/// v(i, h): piece 2 g + h of key 2 t + i % 2 + 8 (i / 2).
template <class Values>
__device__ __forceinline__ void add_values(const Values& v, const float (&p)[2][4], const float (&keep)[2],
                                           BlockState& state) {
    uint4 high, low;
    split_halves(p[0][0], p[0][1], high.x, low.x);
    split_halves(p[0][2], p[0][3], high.y, low.y);
    split_halves(p[1][0], p[1][1], high.z, low.z);
    split_halves(p[1][2], p[1][3], high.w, low.w);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint4 piece[4] = {v(0, h), v(1, h), v(2, h), v(3, h)};
#pragma unroll
        for (int j = 8 * h; j < 8 * h + 8; ++j) {
            const auto word = [&](int i) {
                const uint4& w = piece[i];
                return j / 2 % 4 == 0 ? w.x : j / 2 % 4 == 1 ? w.y : j / 2 % 4 == 2 ? w.z : w.w;
            };
            const uint32_t half = j % 2 == 0 ? 0x5410u : 0x7632u;
            const uint32_t b0 = __byte_perm(word(0), word(1), half), b1 = __byte_perm(word(2), word(3), half);
#pragma unroll
            for (int e = 0; e < 4; ++e) state.x[j][e] *= keep[e / 2];
            mma_f16(state.x[j], low, b0, b1);
            mma_f16(state.x[j], high, b0, b1);
        }
    }
}

__device__ __forceinline__ void put_state(const BlockState& state, float (*x)[kBlockDim], float2* ml) {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (t == 0) ml[g + 8 * r] = {state.m[r], state.l[r]};
#pragma unroll
        for (int e = 0; e < 2; ++e)
#pragma unroll
            for (int j = 0; j < 16; j += 4) {
                const int k = 2 * r + e;
                *reinterpret_cast<float4*>(&x[g + 8 * r][16 * (2 * t + e) + j]) =
                    make_float4(state.x[j][k], state.x[j + 1][k], state.x[j + 2][k], state.x[j + 3][k]);
            }
    }
}

#endif

}  // namespace riptide::ops
