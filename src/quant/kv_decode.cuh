// K/V rows on a GPU: encoding, single values, and sixteen values at a time as tensor cores read them.
//
// A warp holds a row in registers: lane l has elements l, l + 32, ..., so that register k is block k of 32 values. The
// stored bytes are those of encode_kv_row on the CPU for the same values.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "quant/kv_levels.h"
#include "quant/kv_row.h"

namespace riptide {

/// Which elements of a row of 128 are in unit u (0..7), the values that kv_unit_decode gives, i = 0..15.
RT_HD constexpr int kv_unit_element(DType type, int u, int i) {
    if (type == DType::f16 || type == DType::bf16) return 64 * (u / 4) + 8 * (u % 4) + i % 8 + 32 * (i / 8);
    if (type == DType::q4_0) return 32 * (u / 2) + 8 * (u % 2) + i % 8 + 16 * (i / 8);
    return 16 * u + i;
}

#ifdef __CUDACC__

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// ---- the rotation -------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t kv_sign_word(int k, bool after) {
    constexpr KvSigns s = kKvSigns;
    if (after) return k == 0 ? s.after[0] : k == 1 ? s.after[1] : k == 2 ? s.after[2] : s.after[3];
    return k == 0 ? s.before[0] : k == 1 ? s.before[1] : k == 2 ? s.before[2] : s.before[3];
}

/// kv_rotate (inverse: kv_unrotate) of a row of d values, d a multiple of 32. The same bits as on the CPU.
template <int R>
__device__ __forceinline__ void kv_rotate_lanes(float (&x)[R], int d, bool inverse) {
    const int lane = static_cast<int>(threadIdx.x % 32), regs = d / 32;
#pragma unroll
    for (int base = 0; base < R; base += 4) {
        const int c = min(4, regs - base);  // registers of this stretch: groups of 4, of 2, of 2 + 1 or of 1
        if (c <= 0) break;
#pragma unroll
        for (int k = base; k < R && k < base + 4; ++k) {
            const int place = c == 3 && k - base == 2 ? 0 : k - base;
            if (kv_sign_word(place, inverse) >> lane & 1) x[k] = -x[k];
#pragma unroll
            for (int half = 1; half < 32; half *= 2) {
                const float other = __shfl_xor_sync(kAllLanes, x[k], half);
                x[k] = (lane & half) != 0 ? __fsub_rn(other, x[k]) : __fadd_rn(x[k], other);
            }
        }
        const auto butterfly = [&x](int i, int j) {
            const float a = x[i], b = x[j];
            x[i] = __fadd_rn(a, b);
            x[j] = __fsub_rn(a, b);
        };
        if (base + 1 < R && c >= 2) butterfly(base, base + 1);
        if (base + 3 < R && c == 4) {
            butterfly(base + 2, base + 3);
            butterfly(base, base + 2);
            butterfly(base + 1, base + 3);
        }
#pragma unroll
        for (int k = base; k < R && k < base + 4; ++k) {
            const bool last_of_three = c == 3 && k - base == 2;
            const float size = c == 4 ? 128.0f : c == 1 || last_of_three ? 32.0f : 64.0f;
            const float norm = __fdiv_rn(1.0f, __fsqrt_rn(size));
            x[k] = __fmul_rn(x[k], kv_sign_word(last_of_three ? 0 : k - base, !inverse) >> lane & 1 ? -norm : norm);
        }
    }
}

// ---- encoding -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ float kv_warp_max(float v) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, mask));
    return v;
}

/// The f16 nearest to x, saturating.
__device__ __forceinline__ __half kv_half_scale(float x) {
    return __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f));
}
__device__ __forceinline__ float kv_inverse(float d) { return d != 0.0f ? __fdiv_rn(1.0f, d) : 0.0f; }

/// The best scale for the codes that scale d gives, and by how much it lowers the sum of squares: the CPU's search, sum
/// for sum. m: the magnitude that this lane holds of the block.
__device__ __forceinline__ float kv_tq3_step(float m, float d, float& gain) {
    constexpr float k0 = kTQ3Values[4], k1 = kTQ3Values[5] - k0, k2 = kTQ3Values[6] - k1 - k0;
    constexpr float k3 = kTQ3Values[7] - k2 - k1 - k0;
    constexpr float edge1 = kTQ3Edges[4], edge2 = kTQ3Edges[5], edge3 = kTQ3Edges[6];
    const float e1 = __fmul_rn(edge1, d), e2 = __fmul_rn(edge2, d), e3 = __fmul_rn(edge3, d);
    float xc[4] = {}, cc[4] = {};
#pragma unroll 2
    for (int i = 0; i < 32; i += 4)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float a = __shfl_sync(kAllLanes, m, i + j);
            float c = __fadd_rn(k0, a >= e1 ? k1 : 0.0f);
            c = __fadd_rn(__fadd_rn(c, a >= e2 ? k2 : 0.0f), a >= e3 ? k3 : 0.0f);
            xc[j] = __fadd_rn(xc[j], __fmul_rn(a, c));
            cc[j] = __fadd_rn(cc[j], __fmul_rn(c, c));
        }
    const float x = __fadd_rn(__fadd_rn(xc[0], xc[2]), __fadd_rn(xc[1], xc[3]));
    const float c = __fadd_rn(__fadd_rn(cc[0], cc[2]), __fadd_rn(cc[1], cc[3]));
    gain = __fdiv_rn(__fmul_rn(x, x), c);
    return __fdiv_rn(x, c);
}

/// The scale of a TQ3_0 block: lanes 0..11 try the twelve starts, then two refinements of the best.
__device__ __forceinline__ float kv_fit_tq3(float x) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float m = fabsf(x);
    float square = 0.0f;
#pragma unroll 4
    for (int i = 0; i < 32; ++i) {
        const float a = __shfl_sync(kAllLanes, m, i);
        square = __fadd_rn(square, __fmul_rn(a, a));
    }
    const float usual = __fsqrt_rn(__fmul_rn(square, 4.0f));
    const float factor = __fadd_rn(1.0f, __fmul_rn(0.06f, static_cast<float>(min(lane, 11) - 5)));
    float gain;
    const float d = kv_tq3_step(m, __fmul_rn(usual, factor), gain);
    float best = 0.0f, best_gain = -1.0f;
    for (int k = 0; k < 12; ++k) {
        const float g = __shfl_sync(kAllLanes, gain, k), s = __shfl_sync(kAllLanes, d, k);
        if (g > best_gain) best_gain = g, best = s;
    }
    for (int i = 0; i < 2; ++i) {
        const float s = kv_tq3_step(m, best, gain);
        if (gain > best_gain) best_gain = gain, best = s;
    }
    return best;
}

/// The largest of a word over the warp.
__device__ __forceinline__ uint32_t kv_warp_max(uint32_t v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(kAllLanes, v);
#else
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) v = max(v, __shfl_xor_sync(kAllLanes, v, mask));
    return v;
#endif
}

/// A row of q8_0. Its blocks side by side: lane k works out the scale of block k.
template <int R>
__device__ __forceinline__ void kv_encode_q8(const float (&x)[R], int d, unsigned char* row) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint32_t most[R], mine = 0;
#pragma unroll
    for (int k = 0; k < R; ++k) most[k] = 32 * k < d ? kv_warp_max(__float_as_uint(x[k]) & 0x7FFFFFFFu) : 0u;
#pragma unroll
    for (int k = 0; k < R; ++k)
        if (lane == k) mine = most[k];
    const bool bad = mine >= 0x7F800000u;
    const __half scale = kv_half_scale(__fdiv_rn(bad ? 0.0f : __uint_as_float(mine), 127.0f));
    const float inverse = kv_inverse(__half2float(scale));
    if (32 * lane < d)
        reinterpret_cast<uint16_t*>(row + kv_scales_at(DType::q8_0, d))[lane] =
            bad ? kKvPoison : __half_as_ushort(scale);
#pragma unroll
    for (int k = 0; k < R; ++k) {
        const float v = __fmul_rn(most[k] >= 0x7F800000u ? 0.0f : x[k], __shfl_sync(kAllLanes, inverse, k));
        if (32 * k < d)
            row[32 * k + lane] = static_cast<unsigned char>(__float2int_rn(fminf(fmaxf(v, -127.0f), 127.0f)));
    }
}

/// Block k of a row of q4_0 or tq3_0.
__device__ __forceinline__ void kv_encode_block(DType type, float x, int k, int d, unsigned char* row) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    auto* scales = reinterpret_cast<uint16_t*>(row + kv_scales_at(type, d));
    const bool bad = __any_sync(kAllLanes, (__float_as_uint(x) & 0x7F800000u) == 0x7F800000u);
    if (bad) x = 0.0f;
    const float most = kv_warp_max(fabsf(x));
    __half scale;
    if (type == DType::q4_0) {
        const int first = __ffs(static_cast<int>(__ballot_sync(kAllLanes, fabsf(x) == most))) - 1;
        const float extreme = __shfl_sync(kAllLanes, x, first);
        scale = kv_half_scale(__fmul_rn(most == 0.0f ? 0.0f : extreme, -0.125f));
        const float v = __fmul_rn(x, kv_inverse(__half2float(scale)));
        const int code = bad ? 0 : __float2int_rn(fminf(fmaxf(v, -8.0f), 7.0f)) + 8;
        const int high = __shfl_down_sync(kAllLanes, code, 16);
        if (lane < 16) row[16 * k + lane] = static_cast<unsigned char>(code | high << 4);
    } else {
        scale = kv_half_scale(kv_fit_tq3(x));
        const float v = __fmul_rn(x, kv_inverse(__half2float(scale)));
        int code = 0;
#pragma unroll
        for (int e = 0; e < 7; ++e) {
            constexpr float edges[7] = {kTQ3Edges[0], kTQ3Edges[1], kTQ3Edges[2], kTQ3Edges[3],
                                        kTQ3Edges[4], kTQ3Edges[5], kTQ3Edges[6]};
            code += v >= edges[e] ? 1 : 0;
        }
        if (bad) code = 0;
        const unsigned high = __ballot_sync(kAllLanes, code >= 4);
        int low = (code & 3) << (2 * (lane % 4));
        low |= __shfl_xor_sync(kAllLanes, low, 1);
        low |= __shfl_xor_sync(kAllLanes, low, 2);
        if (lane % 4 == 0) row[8 * k + lane / 4] = static_cast<unsigned char>(low);
        if (lane < 4) row[d / 4 + 4 * k + lane] = static_cast<unsigned char>(high >> (8 * lane));
    }
    if (lane == 0) scales[k] = bad ? kKvPoison : __half_as_ushort(scale);
}

/// The same bytes as encode_kv_row(type, x, row, d). row aligned to 4 bytes for f32 and to 2 otherwise.
template <int R>
__device__ __forceinline__ void kv_encode_lanes(DType type, const float (&x)[R], int d, unsigned char* row) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (type == DType::q8_0) return kv_encode_q8(x, d, row);
#pragma unroll
    for (int k = 0; k < R; ++k) {
        const int i = 32 * k + lane;
        if (type == DType::q4_0 || type == DType::tq3_0) {
            if (32 * k < d) kv_encode_block(type, x[k], k, d, row);
        } else if (i < d) {
            if (type == DType::f32) reinterpret_cast<float*>(row)[i] = x[k];
            else if (type == DType::f16) reinterpret_cast<__half*>(row)[i] = __float2half_rn(x[k]);
            else if (type == DType::bf16) reinterpret_cast<__nv_bfloat16*>(row)[i] = __float2bfloat16_rn(x[k]);
            else row[i] = __nv_cvt_float_to_fp8(x[k], __NV_SATFINITE, __NV_E4M3);
        }
    }
}

// ---- decoding -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ float kv_f8_value(unsigned char v) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(v, __NV_E4M3)));
}

/// Element i of a row of d values, exactly.
__device__ __forceinline__ float kv_value(DType type, const unsigned char* row, int d, int i) {
    switch (type) {
        case DType::f32:
            return reinterpret_cast<const float*>(row)[i];
        case DType::f16:
            return __half2float(reinterpret_cast<const __half*>(row)[i]);
        case DType::bf16:
            return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[i]);
        case DType::f8_e4m3:
            return kv_f8_value(row[i]);
        default:
            break;
    }
    const float scale = __half2float(reinterpret_cast<const __half*>(row + kv_scales_at(type, d))[i / 32]);
    if (type == DType::q8_0) return __fmul_rn(scale, static_cast<float>(static_cast<signed char>(row[i])));
    if (type == DType::q4_0) {
        const int code = row[i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4) & 15;
        return __fmul_rn(scale, static_cast<float>(code - 8));
    }
    constexpr float v4 = kTQ3Values[4], v5 = kTQ3Values[5], v6 = kTQ3Values[6], v7 = kTQ3Values[7];
    const int low = row[i / 4] >> (2 * (i % 4)) & 3, positive = row[d / 4 + i / 8] >> (i % 8) & 1;
    const int place = positive ? low : 3 - low;
    const float level = place == 0 ? v4 : place == 1 ? v5 : place == 2 ? v6 : v7;
    return __fmul_rn(scale, positive ? level : -level);
}

/// The bytes of one unit, as loaded. f16, bf16, f8_e4m3 rows are aligned to 16 bytes, others to 8. Block types: the
/// last word holds the scales of two blocks, that of unit u and its neighbour's: loads of 16 bits would need another
/// instruction each that waits for them.
template <DType T>
struct KvUnit {
    static constexpr int kWords = T == DType::f16 || T == DType::bf16 ? 8
                                  : T == DType::f8_e4m3               ? 4
                                  : T == DType::q8_0                  ? 5
                                                                      : 3;
    uint32_t w[kWords];
};
constexpr bool kv_has_scales(DType type) { return type == DType::q8_0 || type == DType::q4_0 || type == DType::tq3_0; }

/// Loads that stay where they are in the order of memory operations, from the L2 cache: device memory that an earlier
/// kernel wrote and that is known to be complete, also above pdl_wait().
struct EarlyLoad {
    static __device__ __forceinline__ uint4 four(const void* p) {
        uint4 v;
        asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(p)
                     : "memory");
        return v;
    }
    static __device__ __forceinline__ uint2 two(const void* p) {
        uint2 v;
        asm volatile("ld.global.cg.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
        return v;
    }
    static __device__ __forceinline__ uint32_t one(const void* p) {
        uint32_t v;
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
        return v;
    }
};
/// Plain loads, in device or shared memory: never above pdl_wait().
struct PlainLoad {
    static __device__ __forceinline__ uint4 four(const void* p) { return *static_cast<const uint4*>(p); }
    static __device__ __forceinline__ uint2 two(const void* p) { return *static_cast<const uint2*>(p); }
    static __device__ __forceinline__ uint32_t one(const void* p) { return *static_cast<const uint32_t*>(p); }
};

/// Reads unit u of a row of 128 values, but for scales. kWide: the row is aligned to 16 bytes.
template <DType T, class Load, bool kWide>
__device__ __forceinline__ void kv_load_codes(KvUnit<T>& unit, const unsigned char* row, int u) {
    const auto put4 = [&unit](int at, const unsigned char* p) {
        const uint4 v = Load::four(p);
        unit.w[at] = v.x, unit.w[at + 1] = v.y, unit.w[at + 2] = v.z, unit.w[at + 3] = v.w;
    };
    const auto put2 = [&unit](int at, const unsigned char* p) {
        const uint2 v = Load::two(p);
        unit.w[at] = v.x, unit.w[at + 1] = v.y;
    };
    if constexpr (T == DType::f16 || T == DType::bf16) {
        put4(0, row + 128 * (u / 4) + 16 * (u % 4));
        put4(4, row + 128 * (u / 4) + 16 * (u % 4) + 64);
    } else if constexpr (T == DType::f8_e4m3 || (T == DType::q8_0 && kWide)) {
        put4(0, row + 16 * u);
    } else if constexpr (T == DType::q8_0) {
        put2(0, row + 16 * u);
        put2(2, row + 16 * u + 8);
    } else if constexpr (T == DType::q4_0) {
        put2(0, row + 8 * u);
    } else {
        unit.w[0] = Load::one(row + 4 * u);
        unit.w[1] = Load::one(row + 32 + 4 * (u / 2));
    }
}
/// Reads unit u.
template <DType T, class Load = PlainLoad, bool kWide = false>
__device__ __forceinline__ void kv_load_unit(KvUnit<T>& unit, const unsigned char* row, int u) {
    kv_load_codes<T, Load, kWide>(unit, row, u);
    if constexpr (kv_has_scales(T)) unit.w[unit.kWords - 1] = Load::one(row + kv_scales_at(T, 128) + 4 * (u / 4));
}
/// Reads units u and u + 4, u < 4.
template <DType T, class Load = PlainLoad, bool kWide = false>
__device__ __forceinline__ void kv_load_units(KvUnit<T> (&units)[2], const unsigned char* row, int u) {
    kv_load_codes<T, Load, kWide>(units[0], row, u);
    kv_load_codes<T, Load, kWide>(units[1], row, u + 4);
    if constexpr (kv_has_scales(T)) {
        const uint2 scales = Load::two(row + kv_scales_at(T, 128));
        units[0].w[units[0].kWords - 1] = scales.x;
        units[1].w[units[1].kWords - 1] = scales.y;
    }
}

/// Unit u's scale in each half of a pair of values of rows a (low half) and b. The same row twice: of two values.
template <DType T>
__device__ __forceinline__ uint32_t kv_scale_pair(const KvUnit<T>& a, const KvUnit<T>& b, int u) {
    return __byte_perm(a.w[a.kWords - 1], b.w[b.kWords - 1], u / 2 % 2 == 0 ? 0x5410 : 0x7632);
}

/// d * (u - z) for two codes u in f16 bits 0x6400 | u, that is 1024 + u. The difference is exact; the product is
/// rounded.
__device__ __forceinline__ uint32_t kv_scaled(uint32_t codes, uint32_t z, uint32_t d) {
    const auto as_half2 = [](uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); };
    const __half2 v = __hmul2(__hsub2(as_half2(codes), as_half2(z)), as_half2(d));
    return *reinterpret_cast<const uint32_t*>(&v);
}

/// Sixteen 2-bit fields to nibbles.
__device__ __forceinline__ uint32_t kv_spread2(uint32_t x) {  // 16 bits -> 8 nibbles
    x = (x | x << 8) & 0x00FF00FFu;
    x = (x | x << 4) & 0x0F0F0F0Fu;
    return (x | x << 2) & 0x33333333u;
}
__device__ __forceinline__ uint32_t kv_spread1(uint32_t x) {  // 8 bits -> bit 0 of 8 nibbles
    x = (x | x << 12) & 0x000F000Fu;
    x = (x | x << 6) & 0x03030303u;
    return (x | x << 3) & 0x11111111u;
}

/// Four e4m3 codes as two pairs of f16. Halves of a word by name: a shift less than with the toolkit's functions.
__device__ __forceinline__ void kv_e4m3_pairs(uint32_t word, uint32_t& low, uint32_t& high) {
#if __CUDA_ARCH__ >= 890
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}"
        : "=r"(low), "=r"(high)
        : "r"(word));
#else
    const auto pair = [](uint32_t codes) {
        const __half2_raw v = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
        return static_cast<uint32_t>(v.x) | static_cast<uint32_t>(v.y) << 16;
    };
    low = pair(word), high = pair(word >> 16);
#endif
}

/// The sixteen values of unit u as pairs of f16 (bf16 rows: of bf16), rounded once from the exact values (tq3_0:
/// twice).
template <DType T>
__device__ __forceinline__ void kv_unit_decode(const KvUnit<T>& unit, int u, uint32_t (&h)[8]) {
    if constexpr (T == DType::f16 || T == DType::bf16) {
#pragma unroll
        for (int i = 0; i < 8; ++i) h[i] = unit.w[i];
    } else if constexpr (T == DType::f8_e4m3) {
#pragma unroll
        for (int i = 0; i < 4; ++i) kv_e4m3_pairs(unit.w[i], h[2 * i], h[2 * i + 1]);
    } else if constexpr (T == DType::q8_0) {
        const uint32_t d = kv_scale_pair(unit, unit, u);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t codes = unit.w[i] ^ 0x80808080u;
            h[2 * i] = kv_scaled(__byte_perm(codes, 0x64646464u, 0x4140), 0x64806480u, d);  // 1152 = 1024 + 128
            h[2 * i + 1] = kv_scaled(__byte_perm(codes, 0x64646464u, 0x4342), 0x64806480u, d);
        }
    } else if constexpr (T == DType::q4_0) {
        const uint32_t d = kv_scale_pair(unit, unit, u);
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // low nibbles of both words, then high nibbles
            const uint32_t codes = unit.w[i % 2] >> (4 * (i / 2)) & 0x0F0F0F0Fu;
            h[2 * i] = kv_scaled(__byte_perm(codes, 0x64646464u, 0x4140), 0x64086408u, d);  // 1032 = 1024 + 8
            h[2 * i + 1] = kv_scaled(__byte_perm(codes, 0x64646464u, 0x4342), 0x64086408u, d);
        }
    } else {
        // The eight levels as f16: their low bytes in one pair of words, their high bytes in another.
        constexpr uint32_t kLow0 = 0x7E358B1Au, kLow1 = 0x1A8B357Eu, kHigh0 = 0xA5ACAFB2u, kHigh1 = 0x322F2C25u;
        const uint32_t d = kv_scale_pair(unit, unit, u), high_bits = unit.w[1] >> (16 * (u % 2));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t codes =
                kv_spread2(unit.w[0] >> (16 * i) & 0xFFFFu) | kv_spread1(high_bits >> (8 * i) & 0xFFu) << 2;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const uint32_t four = codes >> (16 * j);
                const uint32_t low = __byte_perm(kLow0, kLow1, four), high = __byte_perm(kHigh0, kHigh1, four);
                const uint32_t a = __byte_perm(low, high, 0x5140), b = __byte_perm(low, high, 0x7362);
                h[4 * i + 2 * j] = kv_scaled(a, 0, d);
                h[4 * i + 2 * j + 1] = kv_scaled(b, 0, d);
            }
        }
    }
}

/// Values 4 i .. 4 i + 3 of unit u of two rows side by side: h[j] = value 4 i + j of a (low half) and of b, as
/// kv_unit_decode gives them. Bytes are paired before they become floats: half as many instructions as behind it.
template <DType T>
__device__ __forceinline__ void kv_pair_decode(const KvUnit<T>& a, const KvUnit<T>& b, int u, int i, uint32_t (&h)[4]) {
    const auto interleave = [](uint32_t x, uint32_t y, uint32_t(&z)[2]) {
        z[0] = __byte_perm(x, y, 0x5140);
        z[1] = __byte_perm(x, y, 0x7362);
    };
    const auto scaled = [&h](const uint32_t(&codes)[2], uint32_t z, uint32_t d) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            h[2 * j] = kv_scaled(__byte_perm(codes[j], 0x64646464u, 0x4140), z, d);
            h[2 * j + 1] = kv_scaled(__byte_perm(codes[j], 0x64646464u, 0x4342), z, d);
        }
    };
    uint32_t z[2];
    if constexpr (T == DType::f8_e4m3) {
        interleave(a.w[i], b.w[i], z);
#pragma unroll
        for (int j = 0; j < 2; ++j) kv_e4m3_pairs(z[j], h[2 * j], h[2 * j + 1]);
    } else if constexpr (T == DType::q8_0) {
        interleave(a.w[i], b.w[i], z);
        z[0] ^= 0x80808080u, z[1] ^= 0x80808080u;
        scaled(z, 0x64806480u, kv_scale_pair(a, b, u));
    } else if constexpr (T == DType::q4_0) {
        interleave(a.w[i % 2], b.w[i % 2], z);
        z[0] = z[0] >> (4 * (i / 2)) & 0x0F0F0F0Fu, z[1] = z[1] >> (4 * (i / 2)) & 0x0F0F0F0Fu;
        scaled(z, 0x64086408u, kv_scale_pair(a, b, u));
    } else {
        uint32_t x[8], y[8];
        kv_unit_decode(a, u, x);
        kv_unit_decode(b, u, y);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            h[2 * j] = __byte_perm(x[2 * i + j], y[2 * i + j], 0x5410);
            h[2 * j + 1] = __byte_perm(x[2 * i + j], y[2 * i + j], 0x7632);
        }
    }
}

#endif

}  // namespace riptide
