// The scalar formulas of the ops on a GPU, with every rounding spelled out: a kernel that fuses ops gets the same bits
// as the ops one by one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace riptide::ops {

/// 1 / (1 + exp(-t)).
__device__ __forceinline__ float sigmoid(float t) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-t))); }

/// silu(gate) * up.
__device__ __forceinline__ float swiglu_value(float gate, float up) {
    return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate))), up);
}

/// max(t, 0) + log1p(exp(-|t|)).
__device__ __forceinline__ float softplus(float t) { return __fadd_rn(fmaxf(t, 0.0f), log1pf(expf(-fabsf(t)))); }

/// cos and sin of f32(position) * inv_freq, times magnitude.
__device__ __forceinline__ float2 rope_turn(int32_t position, float inv_freq, float magnitude) {
    float s, c;
    sincosf(__fmul_rn(static_cast<float>(position), inv_freq), &s, &c);
    return {__fmul_rn(c, magnitude), __fmul_rn(s, magnitude)};
}

/// (a c - b s, b c + a s).
__device__ __forceinline__ float2 rope_rotate(float a, float b, float2 turn) {
    return {__fsub_rn(__fmul_rn(a, turn.x), __fmul_rn(b, turn.y)),
            __fadd_rn(__fmul_rn(b, turn.x), __fmul_rn(a, turn.y))};
}

/// The sum over the 32 lanes of a warp, in every lane: xor 16, 8, 4, 2, 1.
__device__ __forceinline__ float warp_sum(float v) {
    for (int mask = 16; mask > 0; mask /= 2) v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, mask));
    return v;
}

/// a[i] / b[i], correctly rounded as __fdiv_rn() has it, b[i] >= 1. Quotients of usual size go side by side:
/// __fdiv_rn() branches, so that each would wait for the one before.
template <int N>
__device__ __forceinline__ void quotients(const float (&a)[N], const float (&b)[N], float (&q)[N]) {
    constexpr float kLarge = 0x1p60f, kSmall = 0x1p-60f;
    bool usual = true;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        float r;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b[i]));
        r = __fmaf_rn(r, __fmaf_rn(-b[i], r, 1.0f), r);
        q[i] = __fmul_rn(a[i], r);
        q[i] = __fmaf_rn(__fmaf_rn(-b[i], q[i], a[i]), r, q[i]);
        q[i] = __fmaf_rn(__fmaf_rn(-b[i], q[i], a[i]), r, q[i]);
        usual = usual && fabsf(a[i]) < kLarge && fabsf(a[i]) > kSmall && b[i] < kLarge;
    }
    if (usual) return;
#pragma unroll
    for (int i = 0; i < N; ++i) q[i] = __fdiv_rn(a[i], b[i]);
}

/// 1 / sqrt(squares / d + eps).
__device__ __forceinline__ float rms_scale(float squares, int d, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, static_cast<float>(d)), eps)));
}

/// weight * (x * scale).
__device__ __forceinline__ float rms_value(float x, float scale, float weight) {
    return __fmul_rn(weight, __fmul_rn(x, scale));
}

/// The scale of one head's RMSNorm, by one warp. Lane l holds elements l, l + 32, ... of the head in `x(i)`, i counting
/// them; acc = fma(x, x, acc) in ascending order, then warp_sum.
template <class X>
__device__ __forceinline__ float warp_rms_scale(const X& x, int d, float eps) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float squares = 0.0f;
    for (int i = lane, j = 0; i < d; i += 32, ++j) {
        const float v = x(j);
        squares = __fmaf_rn(v, v, squares);
    }
    return rms_scale(warp_sum(squares), d, eps);
}

/// Where part `part` of `parts` about equal ones of `count` things begins.
__device__ __forceinline__ int part_of(int count, int part, int parts) {
    return static_cast<int>(static_cast<int64_t>(count) * part / parts);
}

}  // namespace riptide::ops
