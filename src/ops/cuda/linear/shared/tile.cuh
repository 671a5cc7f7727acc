// Tiles of Q4_K, Q5_K or Q6_K weight rows times up to sixteen rows of x: each weight is read once for all of them. What
// kquant_i8_sm80.cu (matrices) and experts_grouped_sm80.cu (experts) are made of; the bits are those of dot.cuh.
//
// A stage is 32,768 weights in shared memory, brought by cp.async: 16 rows of 2,048 columns ("wide"), or 64 rows of 512
// ("narrow"), padded so that ldmatrix and 16-byte reads have no bank conflicts. Eight warps share it in two ways:
//   dot_rows  one or two rows of x: dp4a as everywhere else, a warp takes whole weight rows. 30 + 16 (P - 1)
//             instructions for 32 sub-blocks a lane.
//   mma       up to 8 NT rows of x: mma.m16n8k32.s8 (Q6_K: two m16n8k16, one for each half of a sub-block) gives the
//             exact integers of 16 x 8 products of one sub-block; 40 (Q6_K 65) instructions for the first eight rows of
//             x, 17 (26) for the second, most of them the floating-point part.
// The canonical sum has 32 accumulators (sub-blocks j mod 32), added xor 16, 8, 4, 2, 1. A warp therefore takes the
// sub-blocks whose LOW bits of j it owns: wide, j mod W = warp, so that it needs the accumulators of the 32 / W values
// of the high bits, adds those itself, and the warps' sums meet in shared memory in the order (8,) 4, 2, 1. Narrow (W =
// 8), a pair of warps has 16 rows; each warp owns one value of bit 1 and adds 8, 4, 2 by itself (xor 16 would add
// zeros).
//
// Integers to floats: the accumulators of an mma start at the bits of 1.5 2^23, so that the sum, seen as a float, is
// 1.5 2^23 + S (|S| < 2^22), without a conversion. s (1.5 2^23 + S) - s 1.5 2^23 in one fma is s S rounded once: s has
// at most 19 bits, so that its product with 1.5 2^23 is exact. (Not for a scale that is infinite: there S = 0 or not,
// the fma gives NaN where a product may give infinity. Such weights have no meaning.) Likewise -32 A0 of Q6_K is added
// as an integer: the sums stay below 2^18.
#pragma once

#include "ops/cuda/linear/shared/weight_ring.cuh"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

/// Lane l's 16 bytes of shared memory are row l % 8 of matrix l / 8; afterwards word i of lane 4 g + t is word t of row
/// g of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const char* row) {
#if __CUDA_ARCH__ >= 800
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
#endif
}
/// A B + start (in every element) over the lanes 4 g + t of a warp. a: columns 4 t .. of row g, of row g + 8, then
/// columns 16 + 4 t .. of both; b: rows 4 t .. and 16 + 4 t .. of column g; c: columns 2 t, 2 t + 1 of row g, of g + 8.
__device__ __forceinline__ void mma_k32(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int start) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
#endif
}
/// c += A B for sixteen columns.
__device__ __forceinline__ void mma_k16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
#endif
}

/// Sixteen bytes as they are: the compiler would rather read their parts one by one.
__device__ __forceinline__ uint4 load_shared16(const void* p) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(p)))
                 : "memory");
    return v;
}

/// Rows of x in shared memory: int8 parts as in int8_rows.cuh, `stride` bytes apart.
struct TileX {
    const char* rows;
    int stride, groups, count;
};

/// Staged rows row_of(0), ..., row_of(x.count - 1) of s to `out`, with A0 or not, by threads 0 to kThreads - 1, which
/// synchronise afterwards.
template <class RowOf>
__device__ __forceinline__ void stage_x(const ActSource& s, const TileX& x, bool a0, const RowOf& row_of, char* out) {
    const int pieces = (a0 ? 44 : 40) * x.groups / 16;
#pragma unroll 1
    for (int c = threadIdx.x; c < pieces; c += kThreads) {
#pragma unroll 1
        for (int p0 = 0; p0 < x.count; p0 += 4) {
            uint4 v[4];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                v[k] = *reinterpret_cast<const uint4*>(s.rows + row_of(min(p0 + k, x.count - 1)) * s.stride + 16 * c);
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (p0 + k < x.count) *reinterpret_cast<uint4*>(out + (p0 + k) * x.stride + 16 * c) = v[k];
        }
    }
}

/// f(row, offset in a staged row, whether the piece is part of the first halves) for this thread's pieces of chunk
/// `chunk` (2,048 columns) of `count` rows, A0 or not. For threads 0 to kCta - 1, a multiple of 256.
template <int kCta, class F>
__device__ __forceinline__ void for_chunk_pieces(int groups, int chunk, int count, bool a0, const F& f) {
    constexpr int kPieces = 176, kWithoutA0 = 160;  // 64 + 64 of a, 32 of {d, A}, 16 of A0
    const int c = threadIdx.x % 256;
    if (c >= (a0 ? kPieces : kWithoutA0)) return;
    const int at = c < 64    ? 16 * (64 * chunk + c)
                   : c < 128 ? 16 * (groups + 64 * chunk + c - 64)
                   : c < 160 ? 32 * groups + 512 * chunk + 16 * (c - 128)
                             : 40 * groups + 256 * chunk + 16 * (c - 160);
#pragma unroll 4
    for (int p = threadIdx.x / 256; p < count; p += kCta / 256) f(p, at, c < 64);
}
/// Asks for chunk `chunk` of rows row0 .. row0 + count - 1 of x (kinds staged and int8): one group of copies.
template <int kCta>
__device__ __forceinline__ void fetch_x(const ActSource& s, int groups, int chunk, int row0, int count, bool a0,
                                        int stride, char* out) {
    const char* const from = s.rows + row0 * s.stride;
    for_chunk_pieces<kCta>(groups, chunk, count, a0 && s.kind != ActKind::int8,
                           [&](int p, int at, bool) { copy_async16(out + p * stride + at, from + p * s.stride + at); });
    commit_copies();
}
/// Q6_K's A0 of int8 rows, from what this thread brought with fetch_x() and has waited for.
template <int kCta>
__device__ __forceinline__ void sum_halves(int groups, int chunk, int count, int stride, char* out) {
    for_chunk_pieces<kCta>(groups, chunk, count, false, [&](int p, int at, bool first) {
        if (!first) return;
        const uint32_t ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
        const int sum = dot4(ones, *reinterpret_cast<const uint4*>(out + p * stride + at));
        *reinterpret_cast<float*>(out + p * stride + 40 * groups + at / 4) = static_cast<float>(sum);
    });
}

// ---- One or two rows of x.

/// What a lane needs of the rows of x to multiply stages of chunk `chunk` with them: row p < P (P > x.count repeats row
/// 0).
template <DType Type, int Cols, int P>
struct HeldX {
    using T = Tile<Type, Cols>;
    static constexpr int kSteps = T::kWide ? 2 : 1;
    KActs acts[kSteps][P];

    __device__ __forceinline__ HeldX(const TileX& x, int chunk, int lane) {
        if constexpr (!T::kQ5) {  // for which dot_plane() reads x itself
#pragma unroll
            for (int s = 0; s < kSteps; ++s)
#pragma unroll
                for (int p = 0; p < P; ++p)
                    acts[s][p] =
                        k_acts<T::kQ6>(x.rows + (p < x.count ? p : 0) * x.stride, x.groups, column(chunk, s, lane));
        }
    }
    /// The sub-block of step s within the stage, and within x.
    static __device__ __forceinline__ int sub_block(int s, int lane) { return T::kWide ? 32 * s + lane : lane % 16; }
    static __device__ __forceinline__ int column(int chunk, int s, int lane) {
        return T::kGroups * chunk + sub_block(s, lane);
    }
};

/// acc[i][p] += row i of this lane times held row p. Wide: rows warp, warp + 8 (16 warps: row warp); narrow: rows
/// 8 warp + 2 i + lane / 16.
template <DType Type, int Cols, int P, int kRowsEach>
__device__ __forceinline__ void dot_rows(const char* stage, const HeldX<Type, Cols, P>& held, const TileX& x, int chunk,
                                         int warp, int lane, float (&acc)[kRowsEach][P]) {
    using T = Tile<Type, Cols>;
    using Held = HeldX<Type, Cols, P>;
    static_assert(T::kWide || kRowsEach == 4);
    const KShifts at(lane);
#pragma unroll
    for (int s = 0; s < Held::kSteps; ++s) {
        const int j = Held::sub_block(s, lane);
#pragma unroll
        for (int i = 0; i < kRowsEach; ++i) {
            const int r = T::kWide ? warp + 8 * i : 8 * warp + 2 * i + lane / 16;
            const uint4 q = *reinterpret_cast<const uint4*>(stage + r * T::kDataStride + 16 * j);
            const char* head = stage + T::kHeads + r * T::kHeadStride;
            if constexpr (T::kQ5) {
                uint32_t raw[AllPlanes::kWords];
                put_words(raw, 0, q);
                put_words(raw, 4, *reinterpret_cast<const uint4*>(head + j / 8 * 16));
                raw[8] = *reinterpret_cast<const uint32_t*>(stage + T::kHigh + r * T::kHighStride + 4 * j);
                dot_plane<AllPlanes, P>(Type, Matrix{}, raw, Held::column(chunk, s, lane), x.groups, x.rows, x.stride,
                                        x.count, acc[i]);
            } else {
                uint2 high = {};
                float2 by;
                if constexpr (T::kQ6) {
                    high = *reinterpret_cast<const uint2*>(stage + T::kHigh + r * T::kHighStride + 8 * j);
                    by = q6_scales(*reinterpret_cast<const uint16_t*>(head + 2 * j),
                                   *reinterpret_cast<const uint16_t*>(stage + T::kD + (r * T::kBlocks + j / 8) * 2));
                } else {
                    by = q4_scales<true>(load_shared16(head + j / 8 * 16), at);
                }
#pragma unroll
                for (int p = 0; p < P; ++p)
                    acc[i][p] = fmaf(k_value<T::kQ6>(q, high, held.acts[s][p], by), held.acts[s][p].d, acc[i][p]);
            }
        }
    }
}

// ---- Up to 8 NT rows of x.

constexpr float kMagic = 12582912.0f;  // 1.5 2^23
constexpr int kMagicBits = 0x4B400000;

/// This lane's places in the rows of x. Rows beyond the last hold anything: columns of a product do not meet.
struct LaneX {
    const char* b;      // for load_matrices
    const char* pairs;  // {d, A} of column 2 t; 8 bytes for each sub-block
    int stride, groups;

    /// kLow: sub-blocks between those of a pair.
    __device__ __forceinline__ LaneX(const TileX& x, int lane, int kLow)
        : b(x.rows + lane % 8 * x.stride + lane / 8 % 2 * 16 * x.groups + lane / 16 * 16 * kLow),
          pairs(x.rows + lane % 4 * 2 * x.stride + 32 * x.groups),
          stride(x.stride),
          groups(x.groups) {}
};

/// Scale and minimum (Q6_K: the two scales) of a sub-block of a row; at: of the sub-block.
template <DType Type, int Cols>
__device__ __forceinline__ float2 tile_scales(const char* stage, int row, int sub, const KShifts& at) {
    using T = Tile<Type, Cols>;
    const int b = sub / 8, low = sub % 8;
    const char* head = stage + T::kHeads + row * T::kHeadStride + 16 * b;
    if constexpr (T::kQ6)
        return q6_scales(*reinterpret_cast<const uint16_t*>(head + 2 * low),
                         *reinterpret_cast<const uint16_t*>(stage + T::kD + (row * T::kBlocks + b) * 2));
    else return q4_scales<false>(load_shared16(head), at);
}

/// The products of 16 rows (tile `tile` of a stage) and sub-blocks sub, sub + kLow with the rows of x, there sub-blocks
/// j and j + kLow: acc0 for the first, acc1 for the second. kLow: 8 or 16.
template <DType Type, int Cols, int NT, int kLow>
__device__ __forceinline__ void mma_pair(const char* stage, int tile, int sub, const KShifts& at, const LaneX& x, int j,
                                         int lane, float (&acc0)[NT][4], float (&acc1)[NT][4]) {
    using T = Tile<Type, Cols>;
    constexpr uint32_t kNibble = 0x0F0F0F0Fu, kTwo = 0x03030303u, kOne = 0x01010101u;
    const int g = lane / 4, t = lane % 4;
    uint32_t w[4], xs[NT][4];
    load_matrices(w, stage + (16 * tile + lane % 16) * T::kDataStride + 16 * (sub + lane / 16 * kLow));
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) load_matrices(xs[nt], x.b + 8 * nt * x.stride + 16 * j);
    const float2 mine = tile_scales<Type, Cols>(stage, 16 * tile + g + 8 * (t % 2), sub + t / 2 * kLow, at);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
        const int from = (lane & 28) + 2 * u;
        float s[2], m[2], shift[2];  // rows g, g + 8
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            s[h] = __shfl_sync(~0u, mine.x, from + h);
            m[h] = __shfl_sync(~0u, mine.y, from + h);
            shift[h] = -__fmul_rn(s[h], kMagic);
        }
        uint32_t a[4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            a[h] = w[2 * u + h] & kNibble;
            a[2 + h] = (w[2 * u + h] >> 4) & kNibble;
            if constexpr (T::kQ6) {
                const uint2 high = *reinterpret_cast<const uint2*>(
                    stage + T::kHigh + (16 * tile + g + 8 * h) * T::kHighStride + 8 * (sub + u * kLow));
                a[h] |= ((high.x >> (2 * t)) & kTwo) << 4;
                a[2 + h] |= ((high.y >> (2 * t)) & kTwo) << 4;
            } else if constexpr (T::kQ5) {
                const uint32_t high = *reinterpret_cast<const uint32_t*>(
                    stage + T::kHigh + (16 * tile + g + 8 * h) * T::kHighStride + 4 * (sub + u * kLow));
                a[h] |= ((high >> t) & kOne) << 4;
                a[2 + h] |= ((high >> (4 + t)) & kOne) << 4;
            }
        }
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            float2 d[2];  // {d, A} of the two columns
#pragma unroll
            for (int c = 0; c < 2; ++c)
                d[c] = *reinterpret_cast<const float2*>(x.pairs + (8 * nt + c) * x.stride + 8 * (j + kLow * u));
            float(&acc)[4] = u == 0 ? acc0[nt] : acc1[nt];
            if constexpr (T::kQ6) {
                int c[4], e[4];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float a0 = *reinterpret_cast<const float*>(x.pairs + (8 * nt + i) * x.stride + 8 * x.groups +
                                                                     4 * (j + kLow * u));
                    c[i] = c[2 + i] = __float_as_int(fmaf(-32.0f, a0, kMagic));
                    e[i] = e[2 + i] = __float_as_int(fmaf(-32.0f, d[i].y - a0, kMagic));
                }
                mma_k16(c, a[0], a[1], xs[nt][2 * u]);
                mma_k16(e, a[2], a[3], xs[nt][2 * u + 1]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float v = fmaf(s[i / 2], __int_as_float(c[i]), shift[i / 2]);
                    v = fmaf(m[i / 2], __fsub_rn(__int_as_float(e[i]), kMagic), v);
                    acc[i] = fmaf(v, d[i % 2].x, acc[i]);
                }
            } else {
                int c[4] = {};
                mma_k32(c, a, xs[nt][2 * u], xs[nt][2 * u + 1], kMagicBits);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float v = fmaf(s[i / 2], __int_as_float(c[i]), shift[i / 2]);
                    v = fmaf(-m[i / 2], d[i % 2].y, v);
                    acc[i] = fmaf(v, d[i % 2].x, acc[i]);
                }
            }
        }
    }
}

/// Accumulators of a wide tile: those of the 32 / kLow values of the high bits of a sub-block's number mod 32.
template <int NT, int kLow>
using WideSums = float[32 / kLow][NT][4];

/// kLow warps.
template <DType Type, int NT, int kLow>
__device__ __forceinline__ void mma_wide(const char* stage, const LaneX& x, int chunk, int warp, int lane,
                                         WideSums<NT, kLow>& acc) {
    constexpr int kSums = 32 / kLow;
    const KShifts at(warp);
#pragma unroll
    for (int b = 0; b < 64 / kLow; b += 2)
        mma_pair<Type, 2048, NT, kLow>(stage, 0, kLow * b + warp, at, x, 64 * chunk + kLow * b + warp, lane,
                                       acc[b % kSums], acc[b % kSums + 1]);
}

/// One warp's sums to shared memory.
template <int NT>
__device__ __forceinline__ void put_partial(float* partial, int warp, int lane, const float (&v)[NT][4]) {
    float* to = partial + warp * 8 * NT * kPartialStride;
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            to[(8 * nt + lane % 4 * 2 + i % 2) * kPartialStride + lane / 4 + 8 * (i / 2)] = v[nt][i];
}
template <int NT, int kLow>
__device__ __forceinline__ void put_wide(float* partial, int warp, int lane, const WideSums<NT, kLow>& acc) {
    float v[NT][4];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (kLow == 8)
                v[nt][i] = __fadd_rn(__fadd_rn(acc[0][nt][i], acc[2][nt][i]), __fadd_rn(acc[1][nt][i], acc[3][nt][i]));
            else v[nt][i] = __fadd_rn(acc[0][nt][i], acc[1][nt][i]);
        }
    put_partial<NT>(partial, warp, lane, v);
}
/// The values at from[warp * stride] of kCount warps, kEvery warps apart: those whose numbers differ in the highest bit
/// are added first.
template <int kCount, int kEvery>
__device__ __forceinline__ float sum_warps(const float* from, int stride) {
    if constexpr (kCount == 1) return *from;
    else
        return __fadd_rn(sum_warps<kCount / 2, 2 * kEvery>(from, stride),
                         sum_warps<kCount / 2, 2 * kEvery>(from + kEvery * stride, stride));
}
/// The product of row `row` of the tile and row `col` of x. Behind a barrier.
template <int NT, int kLow>
__device__ __forceinline__ float wide_sum(const float* partial, int row, int col) {
    return sum_warps<kLow, 1>(partial + col * kPartialStride + row, 8 * NT * kPartialStride);
}

/// A narrow stage: 64 rows times up to eight rows of x, to `partial`.
template <DType Type>
__device__ __forceinline__ void mma_narrow(const char* stage, const LaneX& x, int warp, int lane, float* partial) {
    float two[2][4];
#pragma unroll
    for (int c2 = 0; c2 < 2; ++c2) {
        float four[2][4];
#pragma unroll
        for (int c4 = 0; c4 < 2; ++c4) {
            const int low = warp % 2 + 2 * c2 + 4 * c4;
            float acc[2][1][4] = {};
            mma_pair<Type, 512, 1, 8>(stage, warp / 2, low, KShifts(low), x, low, lane, acc[0], acc[1]);
#pragma unroll
            for (int i = 0; i < 4; ++i) four[c4][i] = __fadd_rn(acc[0][0][i], acc[1][0][i]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) two[c2][i] = __fadd_rn(four[0][i], four[1][i]);
    }
    float v[1][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[0][i] = __fadd_rn(two[0][i], two[1][i]);
    put_partial<1>(partial, warp, lane, v);
}
__device__ __forceinline__ float narrow_sum(const float* partial, int row, int col) {
    const float* from = partial + (row / 16 * 2 * 8 + col) * kPartialStride + row % 16;
    return __fadd_rn(from[0], from[8 * kPartialStride]);
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
