// Sub-blocks of Q4_K and Q6_K in few instructions: same bits as dot_plane() of dot.cuh.
#pragma once

#include "ops/cuda/linear/shared/dot.cuh"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

/// What a lane needs of the activations of its sub-block.
struct KActs {
    uint4 lo, hi;
    float d, a, a0;  // scale; sum of the int8; of their first half
};

template <bool Q6>
__device__ __forceinline__ KActs k_acts(const char* staged, int groups, int j) {
    KActs x;
    x.lo = *reinterpret_cast<const uint4*>(staged + 16 * j);
    x.hi = *reinterpret_cast<const uint4*>(staged + 16 * (groups + j));
    const float2 d = *reinterpret_cast<const float2*>(staged + 32 * groups + 8 * j);
    x.d = d.x, x.a = d.y;
    x.a0 = Q6 ? *reinterpret_cast<const float*>(staged + 40 * groups + 4 * j) : 0.0f;
    return x;
}

/// acc + a . b, a of four unsigned bytes, b of four signed ones.
__device__ __forceinline__ int k_dp4a(uint32_t a, uint32_t b, int acc) {
    int sum;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(acc));
    return sum;
}

/// Bits of `a` where `mask` is set, of `b` elsewhere.
__device__ __forceinline__ uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b) {
    return (a & mask) | (b & ~mask);
}

/// By how much k_scale() shifts the three words of a header for sub-block `sub`.
struct KShifts {
    int low, high, min_high;
    __device__ __forceinline__ explicit KShifts(int sub)
        : low(4 * (sub % 8)), high((2 * (sub % 8) + 28) & 31), min_high((2 * (sub % 8) + 44) & 31) {}
};

/// k_scale() as a float, divided by 16 if `Sixteenth`; exact.
template <bool Sixteenth>
__device__ __forceinline__ float k_scale_float(uint32_t low, uint32_t high, int by, int high_by) {
    const uint32_t six = select_bits(0x0Fu, low >> by, __funnelshift_r(high, high, static_cast<uint32_t>(high_by)));
    // As the last bits of 2^19, the last of which is worth 1/16, or of 2^23.
    return __uint_as_float((six & 0x3Fu) | (Sixteenth ? 0x49000000u : 0x4B000000u)) -
           (Sixteenth ? 524288.0f : 8388608.0f);
}

/// Scale (of Q4_K for k_value(): a sixteenth of it) and minimum of a sub-block from its header.
template <bool Sixteenth>
__device__ __forceinline__ float2 q4_scales(const uint4& header, const KShifts& at) {
    return {half_bits(header.w & 0xFFFFu) * k_scale_float<Sixteenth>(header.x, header.z, at.low, at.high),
            half_bits(header.w >> 16) * k_scale_float<false>(header.y, header.z, at.low, at.min_high)};
}
/// The scales of the halves of a sub-block from its two bytes and d.
__device__ __forceinline__ float2 q6_scales(uint32_t scales, uint32_t d) {
    const float all = half_bits(d);
    return {all * static_cast<float>(static_cast<int8_t>(scales)),
            all * static_cast<float>(static_cast<int8_t>(scales >> 8))};
}

/// The product of a sub-block (nibbles; Q6: and high bits) with x but for x's scale, as dot_plane() has it. by:
/// q4_scales<true>() or q6_scales().
/// Q4_K: high nibbles are multiplied where they stand, so the integer sum is 16 S (below 2^22, held as the float
/// 1.5 * 2^23 + 16 S) and the scale is divided by 16: exact, as all of it but the last two products.
template <bool Q6>
__device__ __forceinline__ float k_value(const uint4& q, uint2 high, const KActs& x, float2 by) {
    constexpr uint32_t kLow = 0x0F0F0F0Fu;
    const uint32_t w[4] = {q.x, q.y, q.z, q.w};
    const uint32_t lo[4] = {x.lo.x, x.lo.y, x.lo.z, x.lo.w}, hi[4] = {x.hi.x, x.hi.y, x.hi.z, x.hi.w};
    if constexpr (Q6) {
        int s0 = 0, s1 = 0;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            const uint32_t h0 = t < 2 ? high.x << (4 - 2 * t) : high.x >> (2 * t - 4);
            const uint32_t h1 = t < 2 ? high.y << (4 - 2 * t) : high.y >> (2 * t - 4);
            s0 = k_dp4a(select_bits(kLow, w[t], h0) & 0x3F3F3F3Fu, lo[t], s0);
            s1 = k_dp4a(select_bits(kLow, w[t] >> 4, h1) & 0x3F3F3F3Fu, hi[t], s1);
        }
        const float v = __fmul_rn(by.x, fmaf(-32.0f, x.a0, static_cast<float>(s0)));
        return fmaf(by.y, fmaf(-32.0f, x.a - x.a0, static_cast<float>(s1)), v);
    } else {
        int low = 0, high_sum = 0x4B400000;  // 1.5 * 2^23
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            low = k_dp4a(w[t] & kLow, lo[t], low);
            high_sum = k_dp4a(w[t] & ~kLow, hi[t], high_sum);
        }
        const float s = __int_as_float(16 * low + high_sum) - 12582912.0f;
        return fmaf(-by.y, x.a, __fmul_rn(by.x, s));
    }
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
