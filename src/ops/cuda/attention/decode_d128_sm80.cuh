// The warps of decode attention on tensor cores: 16 keys at a time from stored rows to scores, weights and sums.
//
// Lane 4 g + t of a warp. A step's keys are its columns of scores and inner indices of values; which stored values a
// lane loads is in key_chunks.h.
#pragma once

#include <type_traits>

#include "ops/cuda/attention/decode.cuh"
#include "ops/cuda/attention/fit.h"
#include "ops/cuda/device/mma.cuh"

namespace riptide::ops {

namespace {

constexpr int kD = cuda::attn::kNarrow, kHeads = cuda::attn::kMostGroup, kRegs = kD / 32, kThreads = 32 * kAttentionWarps;
constexpr int kHeadFloats = kD + 4;                       // padded against bank conflicts
constexpr int kPartialFloats = kHeads * kD + 2 * kHeads;  // x[head][element], then (m, l)[head]
constexpr int kRowBytes = 2 * kD;

/// What every kernel keeps in shared memory of the row that its CTA is at.
struct HeadShared {
    uint4 q_fragments[8][32];
    float q[kHeads][kHeadFloats];
    float2 turn[kD / 2];  // of each pair of rotated elements
    alignas(16) unsigned char own_k[kRowBytes];
    alignas(16) unsigned char own_v[kRowBytes];
    int32_t path[kMostDecodeRows];
};
/// One CTA's shared memory.
struct Shared : HeadShared {
    alignas(16) float x[kAttentionWarps][kHeads][kHeadFloats];
    float2 ml[kAttentionWarps][kHeads];
};

/// A slot's row of the head.
__device__ __forceinline__ const unsigned char* slot_row(const unsigned char* head, int64_t slot_bytes, int32_t slot) {
    // Both factors have 32 bits, which the compiler forgets: one instruction, not five.
    const unsigned char* row;
    asm("mad.wide.u32 %0, %1, %2, %3;"
        : "=l"(row)
        : "r"(static_cast<uint32_t>(slot)), "r"(static_cast<uint32_t>(slot_bytes)), "l"(head));
    return row;
}

template <DType T>
struct KeyUnits {  // lane 4 g + t: keys g and g + 8, units t and t + 4
    KvUnit<T> unit[2][2];
};
/// Whether all rows of the head are aligned to 16 bytes. q8_0: those of every other head are.
__device__ __forceinline__ bool wide_rows(const unsigned char* head, int64_t slot_bytes) {
    return (reinterpret_cast<uintptr_t>(head) | static_cast<uintptr_t>(slot_bytes)) % 16 == 0;
}
/// slot: that of the step's key i in lane first + i.
template <class Load = PlainLoad, DType T>
__device__ __forceinline__ void load_keys(KeyUnits<T>& k, const unsigned char* head, int64_t slot_bytes, int32_t slot,
                                          int first = 0) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const unsigned char* rows[2];
#pragma unroll
    for (int j = 0; j < 2; ++j)
        rows[j] = slot_row(head, slot_bytes, __shfl_sync(kAllLanes, slot, first + lane / 4 + 8 * j));
    const auto load = [&]<bool kWide>(std::bool_constant<kWide>) {
#pragma unroll
        for (int j = 0; j < 2; ++j) kv_load_units<T, Load, kWide>(k.unit[j], rows[j], lane % 4);
    };
    if (T == DType::q8_0 && wide_rows(head, slot_bytes)) load(std::true_type());
    else load(std::false_type());
}
template <DType T>
struct ValueUnits {  // lane 4 g + t: keys value_key(t, 0..3), unit g
    KvUnit<T> unit[4];
};
template <class Load = PlainLoad, DType T>
__device__ __forceinline__ void load_values(ValueUnits<T>& v, const unsigned char* head, int64_t slot_bytes,
                                            int32_t slot, int first = 0) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const unsigned char* rows[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
        rows[j] = slot_row(head, slot_bytes, __shfl_sync(kAllLanes, slot, first + value_key(lane % 4, j)));
    const auto load = [&]<bool kWide>(std::bool_constant<kWide>) {
#pragma unroll
        for (int j = 0; j < 4; ++j) kv_load_unit<T, Load, kWide>(v.unit[j], rows[j], lane / 4);
    };
    if (T == DType::q8_0 && wide_rows(head, slot_bytes)) load(std::true_type());
    else load(std::false_type());
}

/// The own row takes the place of what was loaded for the step's key `own` (and for the keys behind it).
template <DType T>
__device__ __forceinline__ void take_own_key(KeyUnits<T>& k, const HeadShared& s, int own) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int j = 0; j < 2; ++j)
        if (lane / 4 + 8 * j >= own) kv_load_units(k.unit[j], s.own_k, lane % 4);
}
template <DType T>
__device__ __forceinline__ void take_own_value(ValueUnits<T>& v, const HeadShared& s, int own) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int j = 0; j < 4; ++j)
        if (value_key(lane % 4, j) >= own) kv_load_unit(v.unit[j], s.own_v, lane / 4);
}

/// (a, b) rounded to 16 bits, and what that left, rounded again.
template <bool kBf16>
__device__ __forceinline__ void split_pair(float a, float b, uint32_t& high, uint32_t& low) {
    if constexpr (kBf16) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
        const __nv_bfloat162 l = __floats2bfloat162_rn(__fsub_rn(a, __low2float(h)), __fsub_rn(b, __high2float(h)));
        high = *reinterpret_cast<const uint32_t*>(&h);
        low = *reinterpret_cast<const uint32_t*>(&l);
    } else {
        const __half2 h = __floats2half2_rn(a, b);
        const __half2 l = __floats2half2_rn(__fsub_rn(a, __low2float(h)), __fsub_rn(b, __high2float(h)));
        high = *reinterpret_cast<const uint32_t*>(&h);
        low = *reinterpret_cast<const uint32_t*>(&l);
    }
}

/// The A operand of the scores: the part of query head `head` of s.q, by the warp that wrote it there.
template <DType TK>
__device__ __forceinline__ void make_q_fragments(HeadShared& s, int head) {
    const int step = static_cast<int>(threadIdx.x % 32) / 4, t = static_cast<int>(threadIdx.x % 4);
    const ScoreColumn c = score_column(step, t);
    __syncwarp();
    const float4 x = *reinterpret_cast<const float4*>(&s.q[head][kv_unit_element(TK, c.unit, c.first)]);  // and on
    uint4 f;
    split_pair<TK == DType::bf16>(x.x, x.y, f.x, f.y);
    split_pair<TK == DType::bf16>(x.z, x.w, f.z, f.w);
    s.q_fragments[step][4 * head + t] = f;
}
/// Those of the heads that a group lacks, by the warps of the CTA.
template <int kWarps = kAttentionWarps>
__device__ __forceinline__ void clear_q_fragments(HeadShared& s, int group) {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int head = group + warp; head < kHeads; head += kWarps)
        s.q_fragments[lane / 4][4 * head + lane % 4] = make_uint4(0, 0, 0, 0);
}

/// Scores of 16 keys: this lane's head is lane / 4, its keys 2 t, 2 t + 1 (p[0], p[1]), 2 t + 8, 2 t + 9 (p[2], p[3]).
template <DType TK>
__device__ __forceinline__ void scores(const KeyUnits<TK>& k, const HeadShared& s, float (&p)[4]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float c[2][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint32_t b[2][8];
        kv_unit_decode(k.unit[0][half], lane % 4 + 4 * half, b[0]);
        kv_unit_decode(k.unit[1][half], lane % 4 + 4 * half, b[1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint4 q = s.q_fragments[4 * half + i][lane];
#pragma unroll
            for (int j = 0; j < 2; ++j) mma<TK == DType::bf16>(c[j], q.x, q.y, q.z, q.w, b[j][2 * i], b[j][2 * i + 1]);
        }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        p[2 * j] = __fadd_rn(c[j][0], c[j][2]);
        p[2 * j + 1] = __fadd_rn(c[j][1], c[j][3]);
    }
}

/// x += P V. Lane 4 g + t: x[i] holds elements 2 i, 2 i + 1 of unit g for heads 2 t, 2 t + 1: (h0 e0, h1 e0, h0 e1, h1
/// e1).
template <DType TV>
__device__ __forceinline__ void add_values(const ValueUnits<TV>& v, const float (&p)[4], float (&x)[8][4]) {
    const int u = static_cast<int>(threadIdx.x % 32) / 4;
    uint32_t high[2], low[2];
    split_pair<TV == DType::bf16>(p[0], p[1], high[0], low[0]);
    split_pair<TV == DType::bf16>(p[2], p[3], high[1], low[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        uint32_t first[4], second[4];
        kv_pair_decode(v.unit[0], v.unit[1], u, i, first);
        kv_pair_decode(v.unit[2], v.unit[3], u, i, second);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            float(&c)[4] = x[2 * i + j];
            const uint32_t *a = first + 2 * j, *b = second + 2 * j;
            mma<TV == DType::bf16>(c, a[0], a[1], b[0], b[1], high[0], high[1]);
            mma<TV == DType::bf16>(c, a[0], a[1], b[0], b[1], low[0], low[1]);
        }
    }
}

/// One warp's running state: m and l of head lane / 4, x as in add_values.
struct WarpState {
    float m = -INFINITY, l = 0;
    float x[8][4] = {};
};

/// p: scores to weights; the state to the new maximum. `left`: keys of the chunk from the first of this step on.
__device__ __forceinline__ void soften(float (&p)[4], int left, WarpState& w) {
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < 4; ++j)
        if (value_key(t, j) >= left) p[j] = -INFINITY;
    float m = fmaxf(fmaxf(fmaxf(p[0], p[1]), fmaxf(p[2], p[3])), w.m);
    m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, 1));
    m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, 2));
    if (__any_sync(kAllLanes, m != w.m)) {  // otherwise all factors are one
        const float factor = fast_exp2(__fsub_rn(w.m, m));
        const float f0 = __shfl_sync(kAllLanes, factor, 8 * t), f1 = __shfl_sync(kAllLanes, factor, 8 * t + 4);
        w.l = __fmul_rn(w.l, factor);
        w.m = m;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            w.x[i][0] = __fmul_rn(w.x[i][0], f0);
            w.x[i][1] = __fmul_rn(w.x[i][1], f1);
            w.x[i][2] = __fmul_rn(w.x[i][2], f0);
            w.x[i][3] = __fmul_rn(w.x[i][3], f1);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) p[j] = fast_exp2(__fsub_rn(p[j], m));
    w.l = __fadd_rn(w.l, __fadd_rn(__fadd_rn(p[0], p[1]), __fadd_rn(p[2], p[3])));
}

/// A warp's sums, as add_values leaves them, to [head][element].
template <DType TV>
__device__ __forceinline__ void store_sums(const float (&x)[8][4], float (&to)[kHeads][kHeadFloats], int group) {
    const int g = static_cast<int>(threadIdx.x % 32 / 4), t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        const int element = kv_unit_element(TV, g, 2 * i);  // and the three behind it
        if (2 * t < group)
            *reinterpret_cast<float4*>(&to[2 * t][element]) = {x[i][0], x[i][2], x[i + 1][0], x[i + 1][2]};
        if (2 * t + 1 < group)
            *reinterpret_cast<float4*>(&to[2 * t + 1][element]) = {x[i][1], x[i][3], x[i + 1][1], x[i + 1][3]};
    }
}

template <DType TV>
__device__ __forceinline__ void store_state(const WarpState& w, Shared& s, int group) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int g = lane / 4, t = lane % 4;
    float l = __fadd_rn(w.l, __shfl_xor_sync(kAllLanes, w.l, 1));
    l = __fadd_rn(l, __shfl_xor_sync(kAllLanes, l, 2));
    if (t == 0) s.ml[warp][g] = {w.m, l};
    store_sums<TV>(w.x, s.x[warp], group);
}

/// f(TK, TV), std::integral_constant each, for the pairs of K and V types that have kernels here. False: they have
/// none.
template <class F>
bool with_kv_types(DType k, DType v, F&& f) {
    const auto call = [&]<DType TK, DType TV>(std::integral_constant<DType, TK> key,
                                              std::integral_constant<DType, TV> value) {
        if (k == TK && v == TV) f(key, value);
        return k == TK && v == TV;
    };
    const auto same = [&]<DType T>(std::integral_constant<DType, T> type) { return call(type, type); };
    return same(std::integral_constant<DType, DType::f16>()) || same(std::integral_constant<DType, DType::bf16>()) ||
           same(std::integral_constant<DType, DType::f8_e4m3>()) ||
           same(std::integral_constant<DType, DType::q8_0>()) || same(std::integral_constant<DType, DType::q4_0>()) ||
           same(std::integral_constant<DType, DType::tq3_0>()) ||
           call(std::integral_constant<DType, DType::q8_0>(), std::integral_constant<DType, DType::q4_0>());
}

}  // namespace

}  // namespace riptide::ops
