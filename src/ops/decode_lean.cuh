// The decode kernels for one row of Q4_K_M models, trimmed: same arithmetic and bits as decode_dot.cuh, a third of the
// instructions. (At one row the general kernels are bound by instructions, not by memory: 1,700 a warp for q, k, v and
// the gate measured on an H200, where the memory needs 2.6 us and 900 instructions a warp take as long.)
//
// What makes them lean: rows are a whole number of 1,024 columns, so no lane is ever idle and all addresses are one
// base and constants; a batch of rows has one type; activations are read from shared memory once for all rows of a
// batch. Nibbles wait in registers, all other planes in shared memory (cp.async, no registers).
#pragma once

#include "ops/decode_dot.cuh"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

/// Planes of one matrix of Q4_K or Q6_K rows (quant/planes.h).
struct LeanPlanes {
    const char* data;
    const char* high;
    const char* scales;
    const char* d;  // planes_q6_k: behind the scales
};

/// The planes beside the nibbles of a few rows, in shared memory. groups: sub-blocks of a row.
template <bool Q6>
struct LeanAux {
    char* memory;
    int groups, rows;

    /// Bytes for one row: KHeaders; or high bits, scales, d.
    static constexpr __host__ __device__ int row_bytes(int groups) {
        return Q6 ? 10 * groups + groups / 4 : 2 * groups;
    }
    __device__ __forceinline__ char* high() const { return memory; }
    __device__ __forceinline__ char* scales() const { return memory + (Q6 ? 8 * groups * rows : 0); }
    __device__ __forceinline__ char* d() const { return memory + 10 * groups * rows; }
};

/// What a lane needs of the activations of its sub-block.
struct LeanActs {
    uint4 lo, hi;
    float d, a, a0;  // scale; sum of the int8; of their first half
};

template <bool Q6>
__device__ __forceinline__ LeanActs lean_acts(const char* staged, int groups, int j) {
    LeanActs x;
    x.lo = *reinterpret_cast<const uint4*>(staged + 16 * j);
    x.hi = *reinterpret_cast<const uint4*>(staged + 16 * (groups + j));
    const float2 d = *reinterpret_cast<const float2*>(staged + 32 * groups + 8 * j);
    x.d = d.x, x.a = d.y;
    x.a0 = Q6 ? *reinterpret_cast<const float*>(staged + 40 * groups + 4 * j) : 0.0f;
    return x;
}

/// `bytes` (a multiple of 16) to shared memory by part `part` of `parts` lanes.
__device__ __forceinline__ void lean_fetch(char* shared, const char* from, int bytes, int part, int parts) {
#pragma unroll 1
    for (int i = part; i < bytes / 16; i += parts) copy_async16(shared + 16 * i, from + 16 * i);
}

/// Rows [row, row + count) of one matrix to the first rows of `aux`, by one warp.
template <bool Q6>
__device__ __forceinline__ void lean_fetch_rows(const LeanPlanes& m, int row, int count, int lane,
                                                const LeanAux<Q6>& aux) {
    const int64_t first = static_cast<int64_t>(row) * aux.groups;
    const int n = count * aux.groups;
    lean_fetch(aux.scales(), m.scales + 2 * first, 2 * n, lane, 32);
    if constexpr (Q6) {
        lean_fetch(aux.high(), m.high + 8 * first, 8 * n, lane, 32);
        lean_fetch(aux.d(), m.d + first / 4, n / 4, lane, 32);
    }
}

__device__ __forceinline__ int lean_dp4a(uint32_t a, uint32_t b, int c) {
    return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}

/// acc + the product of sub-block `index` of `aux`, as dot_plane() has it. index % 8 == lane % 8.
template <bool Q6>
__device__ __forceinline__ float lean_dot(const uint4& q, const LeanAux<Q6>& aux, int index, const LeanActs& x,
                                          int lane, float acc) {
    constexpr uint32_t kLow = 0x0F0F0F0Fu;
    const uint32_t w[4] = {q.x, q.y, q.z, q.w};
    const uint32_t lo[4] = {x.lo.x, x.lo.y, x.lo.z, x.lo.w}, hi[4] = {x.hi.x, x.hi.y, x.hi.z, x.hi.w};
    float v;
    if constexpr (Q6) {
        const uint2 high = *reinterpret_cast<const uint2*>(aux.high() + 8 * index);
        const uint32_t scales = *reinterpret_cast<const uint16_t*>(aux.scales() + 2 * index);
        int s0 = 0, s1 = 0;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            s0 = lean_dp4a((w[t] & kLow) | ((high.x >> (2 * t)) & 0x03030303u) << 4, lo[t], s0);
            s1 = lean_dp4a(((w[t] >> 4) & kLow) | ((high.y >> (2 * t)) & 0x03030303u) << 4, hi[t], s1);
        }
        const float d = half_bits(*reinterpret_cast<const uint16_t*>(aux.d() + index / 8 * 2));
        const float scale0 = d * static_cast<float>(static_cast<int8_t>(scales));
        const float scale1 = d * static_cast<float>(static_cast<int8_t>(scales >> 8));
        v = __fmul_rn(scale0, fmaf(-32.0f, x.a0, static_cast<float>(s0)));
        v = fmaf(scale1, fmaf(-32.0f, x.a - x.a0, static_cast<float>(s1)), v);
    } else {
        const uint4 h = *reinterpret_cast<const uint4*>(aux.scales() + index / 8 * 16);
        int s = 0;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            s = lean_dp4a(w[t] & kLow, lo[t], s);
            s = lean_dp4a((w[t] >> 4) & kLow, hi[t], s);
        }
        const int g = lane % 8;
        const float scale = half_bits(h.w & 0xFFFFu) * static_cast<float>(k_scale(h.x, h.z, g));
        const float min = half_bits(h.w >> 16) * static_cast<float>(k_scale(h.y, h.z >> 16, g));
        v = fmaf(-min, x.a, __fmul_rn(scale, static_cast<float>(s)));
    }
    return fmaf(v, x.d, acc);
}

/// Nibbles of G rows of S * 32 sub-blocks.
template <int S, int G>
__device__ __forceinline__ void lean_load_rows(const LeanPlanes& m, int row, int count, int lane, uint4 (&raw)[G][S]) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
        const char* from = m.data + (static_cast<uint32_t>(row + min(g, count - 1)) * (32u * S) + lane) * 16u;
#pragma unroll
        for (int s = 0; s < S; ++s) raw[g][s] = load_weights(from + 512 * s);
    }
}

/// Their products with one staged row. Rows beyond those in `aux` give anything.
template <bool Q6, int S, int G>
__device__ __forceinline__ void lean_dot_rows(const uint4 (&raw)[G][S], const LeanAux<Q6>& aux, const char* staged,
                                              int lane, float (&acc)[G]) {
#pragma unroll
    for (int g = 0; g < G; ++g) acc[g] = 0.0f;
#pragma unroll
    for (int s = 0; s < S; ++s) {
        const LeanActs x = lean_acts<Q6>(staged, 32 * S, 32 * s + lane);
#pragma unroll
        for (int g = 0; g < G; ++g) acc[g] = lean_dot<Q6>(raw[g][s], aux, g * 32 * S + 32 * s + lane, x, lane, acc[g]);
    }
}

/// emit(g, sum) in one lane for each of G sums over the lanes.
template <int G, int Width = 32, class Emit>
__device__ __forceinline__ void lean_reduce(const float (&acc)[G], int lane, const Emit& emit) {
    constexpr int kValues = pow2_ceil(G), kShift = log2_floor(Width) - log2_floor(kValues);
    float v[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) v[i] = i < G ? acc[i < G ? i : 0] : 0.0f;
    const float sum = reduce_lanes<kValues, Width>(v, lane);
    const int g = (lane % Width) >> kShift;
    if ((lane & ((1 << kShift) - 1)) == 0 && g < G) emit(g, sum);
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
