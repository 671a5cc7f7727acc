// Tiles of Q4_K, Q5_K or Q6_K rows of any width times up to 8 NT rows of x, shared out over a cluster of four CTAs:
// what kquant_i8_wide_sm90.cu is made of. The arithmetic is that of tile.cuh, the bits are those of
// dot.cuh.
//
// The canonical sum of a product has 32 accumulators, sub-blocks j mod 32, each a chain; they are added xor 16, 8, 4,
// 2,
// 1. Bits 4 and 3 of j are the number of a block of 256 columns mod 4. So CTA q of a cluster takes blocks q, q + C, ...
// of every row: a part of the weights, of x and of the chains, whatever the width. Warp w of its 16 has sixteen rows
// (w / 8) and the sub-blocks with low bits w % 8: 4 / C chains, each with one accumulator for each product of
// mma.m16n8k32. Two CTAs exchange half as many sums as four; x of 17,408 columns needs four.
#pragma once

#include "ops/cuda/device/cluster.cuh"
#include "ops/cuda/linear/shared/tile.cuh"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

__device__ __forceinline__ void copy_async8(void* shared, const void* p) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
        "l"(p)
        : "memory");
#endif
}
__device__ __forceinline__ void copy_async4(void* shared, const void* p) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
        "l"(p)
        : "memory");
#endif
}

/// A lane's places in a CTA's share of x.
struct WideLane {
    const char* b;       // for load_matrices: lanes 0 to 15 the two halves of eight rows, 16 to 31 of the next block
    const char* pairs;   // {d, A} of columns 2 t, 2 t + 1
    const char* halves;  // A0 of them
    int stride;
};

/// The sums of a warp, of each of its chains: 16 weight rows times 8 NT rows of x, as mma.m16n8k32 has them.
template <int C, int NT>
using WideColumnSums = float[4 / C][NT][4];

/// acc += block `block` (Both: and the next) of rows 16 half .. + 15 of a stage times x, sub-blocks `low` of the
/// blocks; group: of the first within this CTA's share of x.
template <DType Type, int C, int NT, bool Both>
__device__ __forceinline__ void wide_blocks(const char* stage, int half, int block, int low, const KShifts& at,
                                            const WideLane& x, int group, int lane, WideColumnSums<C, NT>& acc) {
    using S = WideStage<Type, C>;
    constexpr uint32_t kNibble = 0x0F0F0F0Fu, kTwo = 0x03030303u, kOne = 0x01010101u;
    const int g = lane / 4, t = lane % 4, mine = 16 * half + lane % 16, second = Both ? lane / 16 : 0;
    uint32_t w[4], xs[NT][4];
    load_matrices(w, stage + mine * S::kDataStride + 128 * (block + second) + 16 * low);
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) load_matrices(xs[nt], x.b + 8 * nt * x.stride + 16 * (group + 8 * second));
    float2 scales;  // of row `mine` in this lane's block
    const char* const head = stage + S::kHeads + mine * S::kHeadStride + 16 * (block + second);
    if constexpr (S::kQ6)
        scales =
            q6_scales(*reinterpret_cast<const uint16_t*>(head + 2 * low),
                      *reinterpret_cast<const uint16_t*>(stage + S::kD + 2 * (mine * S::kBlocks + block + second)));
    else scales = q4_scales<false>(load_shared16(head), at);
#pragma unroll
    for (int u = 0; u < (Both ? 2 : 1); ++u) {
        float s[2], m[2], shift[2];  // rows g, g + 8
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            s[h] = __shfl_sync(~0u, scales.x, g + 8 * h + 16 * u);
            m[h] = __shfl_sync(~0u, scales.y, g + 8 * h + 16 * u);
            shift[h] = -__fmul_rn(s[h], kMagic);
        }
        uint32_t a[4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            a[h] = w[2 * u + h] & kNibble;
            a[2 + h] = (w[2 * u + h] >> 4) & kNibble;
            const char* const high =
                stage + S::kHigh + (16 * half + g + 8 * h) * S::kHighStride + (block + u) * S::kHighEach;
            if constexpr (S::kQ6) {
                const uint2 bits = *reinterpret_cast<const uint2*>(high + 8 * low);
                a[h] |= ((bits.x >> (2 * t)) & kTwo) << 4;
                a[2 + h] |= ((bits.y >> (2 * t)) & kTwo) << 4;
            } else if constexpr (S::kQ5) {
                const uint32_t bits = *reinterpret_cast<const uint32_t*>(high + 4 * low);
                a[h] |= ((bits >> t) & kOne) << 4;
                a[2 + h] |= ((bits >> (4 + t)) & kOne) << 4;
            }
        }
        const int j = group + 8 * u;
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            const float4 pair = *reinterpret_cast<const float4*>(x.pairs + 64 * (NT * j + nt));
            const float d[2] = {pair.x, pair.z}, sum[2] = {pair.y, pair.w};
            float(&sum_of)[4] = acc[u % (4 / C)][nt];
            if constexpr (S::kQ6) {
                const float2 first = *reinterpret_cast<const float2*>(x.halves + 32 * (NT * j + nt));
                const float a0[2] = {first.x, first.y};
                int c[4], e[4];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    c[i] = c[2 + i] = __float_as_int(fmaf(-32.0f, a0[i], kMagic));
                    e[i] = e[2 + i] = __float_as_int(fmaf(-32.0f, sum[i] - a0[i], kMagic));
                }
                mma_k16(c, a[0], a[1], xs[nt][2 * u]);
                mma_k16(e, a[2], a[3], xs[nt][2 * u + 1]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float v = fmaf(s[i / 2], __int_as_float(c[i]), shift[i / 2]);
                    v = fmaf(m[i / 2], __fsub_rn(__int_as_float(e[i]), kMagic), v);
                    sum_of[i] = fmaf(v, d[i % 2], sum_of[i]);
                }
            } else {
                int c[4] = {};
                mma_k32(c, a, xs[nt][2 * u], xs[nt][2 * u + 1], kMagicBits);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float v = fmaf(s[i / 2], __int_as_float(c[i]), shift[i / 2]);
                    v = fmaf(-m[i / 2], sum[i % 2], v);
                    sum_of[i] = fmaf(v, d[i % 2], sum_of[i]);
                }
            }
        }
    }
}

/// All `count` blocks of a stage; first: the number of its first block in this CTA's share of a row.
template <DType Type, int C, int NT>
__device__ __forceinline__ void wide_stage(const char* stage, int half, int low, const KShifts& at, const WideLane& x,
                                           int first, int count, int lane, WideColumnSums<C, NT>& acc) {
    int b = 0;
#pragma unroll 1
    for (; b + 1 < count; b += 2)
        wide_blocks<Type, C, NT, true>(stage, half, b, low, at, x, 8 * (first + b) + low, lane, acc);
    if (b < count) wide_blocks<Type, C, NT, false>(stage, half, b, low, at, x, 8 * (first + b) + low, lane, acc);
}

// ---- A cluster's CTAs give each other their sums.

/// One arrival of this warp at a barrier of each CTA of the cluster: what its lanes wrote before is visible behind it.
template <int C>
__device__ __forceinline__ void arrive_everywhere(uint32_t barrier, int lane) {
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    if (lane < C)
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                         in_cta(barrier, static_cast<uint32_t>(lane)))
                     : "memory");
#endif
}
/// A warp's sums to the CTAs that add them up, its chains (xor 16) added. Two CTAs: CTA r has rows 16 r .. + 15 of the
/// tile; four: of rows 16 (r / 2) .. + 15 rows 4 (r % 2) .. + 3 and those eight further on. Product o is number
/// o / kRows of the rows of x and row 8 (o % 2) + (o % kRows) / 2 of those of the CTA.
template <int C, int NT>
__device__ __forceinline__ void send_sums(uint32_t sums, uint32_t barrier, uint32_t rank, int warp, int lane,
                                          const WideColumnSums<C, NT>& acc) {
    using F = WideFinish<C, NT>;
    const int g = lane / 4, t = lane % 4;
    const auto cta = static_cast<uint32_t>(C == 4 ? 2 * (warp / 8) + g / 4 : warp / 8);
    const uint32_t there = in_cta(barrier, cta),
                   to = in_cta(sums, cta) + 4 * ((rank * 8 + static_cast<uint32_t>(warp) % 8) * F::kPart +
                                                 2 * t * F::kRows + 2 * (g % (F::kRows / 2)));
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            float v[2];
#pragma unroll
            for (int h = 0; h < 2; ++h)
                v[h] = C == 4 ? acc[0][nt][c + 2 * h] : __fadd_rn(acc[0][nt][c + 2 * h], acc[4 / C - 1][nt][c + 2 * h]);
            send(to + 4 * (8 * nt + c) * F::kRows, make_float2(v[0], v[1]), there);
        }
}

/// Product o, by kShare neighbouring lanes, of which this is number k.
template <int C, int NT>
__device__ __forceinline__ float add_sums(const float* sums, int o, int k) {
    using F = WideFinish<C, NT>;
    const auto low = [&](int l) {  // xor 16 (four CTAs), then xor 8
        const float* const from = sums + l * F::kPart + o;
        constexpr int kNext = 8 * F::kPart;
        if constexpr (C == 2) return __fadd_rn(from[0], from[kNext]);
        else return __fadd_rn(__fadd_rn(from[0], from[2 * kNext]), __fadd_rn(from[kNext], from[3 * kNext]));
    };
    const auto four = [&](int l) { return __fadd_rn(low(l), low(l + 4)); };
    float sum = four(k);
    if constexpr (F::kShare == 4) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    else sum = __fadd_rn(sum, four(k + 2));
    if constexpr (F::kShare == 1) return __fadd_rn(sum, __fadd_rn(four(1), four(3)));
    else return __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
