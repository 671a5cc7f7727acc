// Tiles of Q4_K, Q5_K or Q6_K weight rows times up to sixteen rows of x: each weight is read once for all of them. What
// decode_mma.cu (matrices) and decode_group.cu (experts) are made of; the bits are those of decode_dot.cuh.
//
// A stage is 32,768 weights in shared memory, brought by cp.async: 16 rows of 2,048 columns ("wide"), or 64 rows of 512
// ("narrow"), padded so that ldmatrix and 16-byte reads have no bank conflicts. Eight warps share it in two ways:
//   dot_rows  one or two rows of x: dp4a as everywhere else, a warp takes whole weight rows. 30 + 16 (P - 1)
//             instructions for 32 sub-blocks a lane.
//   mma       up to 8 NT rows of x: mma.m16n8k32.s8 (Q6_K: two m16n8k16, one for each half of a sub-block) gives the
//             exact integers of 16 x 8 products of one sub-block; 40 (Q6_K 65) instructions for the first eight rows of
//             x, 17 (26) for the second, most of them the floating-point part.
// The canonical sum has 32 accumulators (sub-blocks j mod 32), added xor 16, 8, 4, 2, 1. A warp therefore takes the
// sub-blocks whose LOW bits of j it owns: wide, j mod 8 = warp, so that it needs the accumulators of four values of the
// bits 16 and 8, adds those itself, and the eight warps' sums meet in shared memory in the order 4, 2, 1. Narrow, a
// pair of warps has 16 rows; each warp owns one value of bit 1 and adds 8, 4, 2 by itself (xor 16 would add zeros).
//
// Integers to floats: the accumulators of an mma start at the bits of 1.5 2^23, so that the sum, seen as a float, is
// 1.5 2^23 + S (|S| < 2^22), without a conversion. s (1.5 2^23 + S) - s 1.5 2^23 in one fma is s S rounded once: s has
// at most 19 bits, so that its product with 1.5 2^23 is exact. (Not for a scale that is infinite: there S = 0 or not,
// the fma gives NaN where a product may give infinity. Such weights have no meaning.) Likewise -32 A0 of Q6_K is added
// as an integer: the sums stay below 2^18.
#pragma once

#include <type_traits>

#include "ops/decode_dot.cuh"

namespace riptide::ops::cuda::decode {

/// The planes of a matrix of planes_q4_k, planes_q5_k or planes_q6_k rows.
struct TilePlanes {
    const char* data = nullptr;
    const char* high = nullptr;
    const char* scales = nullptr;
    const char* d = nullptr;  // planes_q6_k: behind the scales

    RT_HD TilePlanes moved(int64_t data_bytes, int64_t high_bytes, int64_t scale_bytes) const {
        return {data + data_bytes, high == nullptr ? nullptr : high + high_bytes, scales + scale_bytes,
                d + scale_bytes};
    }
};

inline TilePlanes tile_planes(const Matrix& m) {
    return {m.data, m.high, m.scales, m.scales + static_cast<int64_t>(m.rows) * (m.cols / 16)};
}

/// Where everything lies in a stage.
template <DType Type, int Cols>
struct Tile {
    static_assert(Type == DType::planes_q4_k || Type == DType::planes_q5_k || Type == DType::planes_q6_k);
    static_assert(Cols == 2048 || Cols == 512);
    static constexpr bool kQ6 = Type == DType::planes_q6_k, kQ5 = Type == DType::planes_q5_k, kWide = Cols == 2048;
    static constexpr int kRows = 32768 / Cols, kGroups = Cols / 32, kBlocks = Cols / 256;
    static constexpr int kDataStride = Cols / 2 + 16, kHeadStride = 16 * kBlocks + 16;
    static constexpr int kHighBytes = kQ6 ? Cols / 4 : kQ5 ? Cols / 8 : 0, kHighStride = kHighBytes + 16;
    static constexpr int kHeads = kRows * kDataStride, kHigh = kHeads + kRows * kHeadStride;
    static constexpr int kD = kHigh + (kHighBytes > 0 ? kRows * kHighStride : 0);
    static constexpr int kBytes = kD + (kQ6 ? kRows * kBlocks * 2 : 0);
    static_assert(kBytes % 16 == 0);
};

/// Types that have tiles.
inline bool is_tile_type(DType t) {
    return t == DType::planes_q4_k || t == DType::planes_q5_k || t == DType::planes_q6_k;
}
template <int Cols>
constexpr int64_t stage_bytes(DType t) {
    return t == DType::planes_q4_k   ? Tile<DType::planes_q4_k, Cols>::kBytes
           : t == DType::planes_q5_k ? Tile<DType::planes_q5_k, Cols>::kBytes
                                     : Tile<DType::planes_q6_k, Cols>::kBytes;
}

/// Bytes from row to row of x in shared memory: an odd number of 16, so that ldmatrix has no bank conflicts.
RT_HD int32_t tile_x_stride(const ActLayout& l) { return l.bytes() / 16 % 2 == 0 ? l.bytes() + 16 : l.bytes(); }

/// Floats between the columns of a partial sum in shared memory, and bytes of all of them for NT * 8 rows of x.
constexpr int kPartialStride = 20;
constexpr int64_t partial_bytes(int nt) { return int64_t{4} * kWarps * 8 * nt * kPartialStride; }

#ifdef __CUDACC__

__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Until all but the newest `pending` (0 to 3) groups of copies of this thread are there.
__device__ __forceinline__ void wait_copies(int pending) {
#if __CUDA_ARCH__ >= 800
    if (pending == 3) asm volatile("cp.async.wait_group 3;" ::: "memory");
    else if (pending == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
    else if (pending == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
}

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
/// c += A B over the lanes 4 g + t of a warp: a: columns 4 t .. of row g, of row g + 8, columns 16 + 4 t .. of both; b:
/// rows 4 t .. and 16 + 4 t .. of column g; c: columns 2 t, 2 t + 1 of row g, of row g + 8.
__device__ __forceinline__ void mma_k32(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
/// The same for sixteen columns.
__device__ __forceinline__ void mma_k16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
#endif
}

// ---- Bringing a stage.

/// The number of the outer thing (a tile, a group) and of the part of it, in a walk over all parts.
struct Cursor {
    int outer, part;

    __device__ __forceinline__ void advance(int parts, int step) {
        if (++part == parts) part = 0, outer += step;
    }
};
/// The place in a ring of stages.
struct RingSlot {
    int at = 0;

    __device__ __forceinline__ int before(int stages) const { return at == 0 ? stages - 1 : at - 1; }
    __device__ __forceinline__ void advance(int stages) { at = at + 1 == stages ? 0 : at + 1; }
};

/// Row `row` of a matrix.
struct TileRow {
    TilePlanes planes;
    int row;
};

/// Columns [chunk * Cols, ...) of the rows row_of(0), row_of(1), ..., which have `cols` columns, by all threads of the
/// CTA. Narrow: cols = Cols, rows row_of(0).row + i of one matrix, a multiple of 64.
template <DType Type, int Cols, class RowOf>
__device__ __forceinline__ void fetch_stage(const RowOf& row_of, int cols, int chunk, char* stage) {
    using T = Tile<Type, Cols>;
    const int thread = threadIdx.x;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int i = k * kThreads + thread, r = i / T::kGroups, c = i % T::kGroups;
        const TileRow row = row_of(r);
        copy_async16(stage + r * T::kDataStride + 16 * c,
                     row.planes.data + static_cast<int64_t>(row.row) * (cols / 2) + chunk * (Cols / 2) + 16 * c);
    }
    if (thread < T::kRows * T::kBlocks) {
        const int r = thread / T::kBlocks, c = thread % T::kBlocks;
        const TileRow row = row_of(r);
        copy_async16(stage + T::kHeads + r * T::kHeadStride + 16 * c,
                     row.planes.scales + static_cast<int64_t>(row.row) * (cols / 16) + chunk * (Cols / 16) + 16 * c);
    }
    if constexpr (T::kHighBytes > 0) {
        constexpr int kPieces = T::kHighBytes / 16, kRounds = T::kRows * kPieces / kThreads;
#pragma unroll
        for (int k = 0; k < kRounds; ++k) {
            const int i = k * kThreads + thread, r = i / kPieces, c = i % kPieces;
            const TileRow row = row_of(r);
            copy_async16(stage + T::kHigh + r * T::kHighStride + 16 * c,
                         row.planes.high + static_cast<int64_t>(row.row) * (cols / (Cols / T::kHighBytes)) +
                             chunk * T::kHighBytes + 16 * c);
        }
    }
    if constexpr (T::kQ6) {
        const int i = thread - 128;  // 16 bytes: a wide row, or four narrow ones
        if (i >= 0 && i < 16) {
            const TileRow row = row_of(T::kWide ? i : 4 * i);
            copy_async16(stage + T::kD + 16 * i,
                         row.planes.d + static_cast<int64_t>(row.row) * (cols / 128) + chunk * (Cols / 128));
        }
    }
}

/// Rows of x in shared memory: int8 parts as in decode_act.cuh, `stride` bytes apart.
struct TileX {
    const char* rows;
    int stride, groups, count;
};

/// Staged rows row_of(0), ..., row_of(count - 1) of x to `out`, by the whole CTA, which synchronises afterwards.
template <class RowOf>
__device__ __forceinline__ void stage_x(const ActSource& s, const ActLayout& l, int stride, int count,
                                        const RowOf& row_of, char* out) {
    const int pieces = l.bytes() / 16;
#pragma unroll 1
    for (int c = threadIdx.x; c < pieces; c += kThreads) {
#pragma unroll 1
        for (int p0 = 0; p0 < count; p0 += 4) {
            uint4 v[4];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                v[k] = *reinterpret_cast<const uint4*>(s.rows + row_of(min(p0 + k, count - 1)) * s.stride + 16 * c);
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (p0 + k < count) *reinterpret_cast<uint4*>(out + (p0 + k) * stride + 16 * c) = v[k];
        }
    }
}

/// f(row, offset in a staged row, whether the piece is part of the first halves) for this thread's pieces of chunk
/// `chunk` (2,048 columns) of `count` rows.
template <class F>
__device__ __forceinline__ void for_chunk_pieces(int groups, int chunk, int count, bool int8, const F& f) {
    constexpr int kPieces = 176, kInt8 = 160;  // 64 + 64 of a, 32 of {d, A}, 16 of A0
#pragma unroll 1
    for (int q = threadIdx.x; q < count * kPieces; q += kThreads) {
        const int p = q / kPieces, c = q - p * kPieces;
        if (int8 && c >= kInt8) continue;
        const int at = c < 64    ? 16 * (64 * chunk + c)
                       : c < 128 ? 16 * (groups + 64 * chunk + c - 64)
                       : c < 160 ? 32 * groups + 512 * chunk + 16 * (c - 128)
                                 : 40 * groups + 256 * chunk + 16 * (c - 160);
        f(p, at, c < 64);
    }
}
/// Asks for chunk `chunk` of rows row0 .. row0 + count - 1 of x (kinds staged and int8): one group of copies.
__device__ __forceinline__ void fetch_x(const ActSource& s, int groups, int chunk, int row0, int count, int stride,
                                        char* out) {
    const char* const from = s.rows + row0 * s.stride;
    for_chunk_pieces(groups, chunk, count, s.kind == ActKind::int8,
                     [&](int p, int at, bool) { copy_async16(out + p * stride + at, from + p * s.stride + at); });
    commit_copies();
}
/// Q6_K's A0 of int8 rows, from what this thread brought with fetch_x() and has waited for.
__device__ __forceinline__ void sum_halves(int groups, int chunk, int count, int stride, char* out) {
    for_chunk_pieces(groups, chunk, count, true, [&](int p, int at, bool first) {
        if (!first) return;
        const uint32_t ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
        const int sum = dot4(ones, *reinterpret_cast<const uint4*>(out + p * stride + at));
        *reinterpret_cast<float*>(out + p * stride + 40 * groups + at / 4) = static_cast<float>(sum);
    });
}

// ---- One or two rows of x.

/// acc[i][p] += row i of this lane times x row p < P (P > x.count repeats row 0). Wide: rows warp, warp + 8; narrow:
/// rows 8 warp + 2 i + lane / 16.
template <DType Type, int Cols, int P>
__device__ __forceinline__ void dot_rows(const char* stage, const TileX& x, int chunk, int warp, int lane,
                                         float (&acc)[Cols == 2048 ? 2 : 4][P]) {
    using T = Tile<Type, Cols>;
    using Set = std::conditional_t<T::kQ5, AllPlanes, KQuants>;
#pragma unroll
    for (int s = 0; s < (T::kWide ? 2 : 1); ++s) {
        const int j = T::kWide ? 32 * s + lane : lane % 16;
#pragma unroll
        for (int i = 0; i < (T::kWide ? 2 : 4); ++i) {
            const int r = T::kWide ? warp + 8 * i : 8 * warp + 2 * i + lane / 16;
            uint32_t raw[Set::kWords];
            put_words(raw, 0, *reinterpret_cast<const uint4*>(stage + r * T::kDataStride + 16 * j));
            const char* head = stage + T::kHeads + r * T::kHeadStride;
            if constexpr (T::kQ6) {
                const uint2 high = *reinterpret_cast<const uint2*>(stage + T::kHigh + r * T::kHighStride + 8 * j);
                raw[4] = high.x, raw[5] = high.y;
                raw[6] = *reinterpret_cast<const uint16_t*>(head + 2 * j);
                raw[7] = *reinterpret_cast<const uint16_t*>(stage + T::kD + (r * T::kBlocks + j / 8) * 2);
            } else {
                put_words(raw, 4, *reinterpret_cast<const uint4*>(head + j / 8 * 16));
            }
            if constexpr (T::kQ5)
                raw[8] = *reinterpret_cast<const uint32_t*>(stage + T::kHigh + r * T::kHighStride + 4 * j);
            dot_plane<Set, P>(Type, Matrix{}, raw, T::kGroups * chunk + j, x.groups, x.rows, x.stride, x.count, acc[i]);
        }
    }
}

// ---- Up to sixteen rows of x.

constexpr float kMagic = 12582912.0f;  // 1.5 2^23
constexpr int kMagicBits = 0x4B400000;

/// This lane's addresses in the rows of x.
template <int NT>
struct LaneX {
    const char* b[NT];         // for load_matrices
    const char* pairs[NT][2];  // {d, A} of columns 2 t, 2 t + 1; 8 bytes for each sub-block
    int groups;

    __device__ __forceinline__ LaneX(const TileX& x, int lane) : groups(x.groups) {
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            const int row = min(8 * nt + lane % 8, x.count - 1);
            b[nt] = x.rows + row * x.stride + (lane / 8 % 2) * 16 * x.groups + (lane / 16) * 128;
#pragma unroll
            for (int i = 0; i < 2; ++i)
                pairs[nt][i] = x.rows + min(8 * nt + lane % 4 * 2 + i, x.count - 1) * x.stride + 32 * x.groups;
        }
    }
};

/// Scale and minimum (Q6_K: the two scales) of sub-block `low` of block b of a row.
template <DType Type, int Cols>
__device__ __forceinline__ float2 tile_scales(const char* stage, int row, int b, int low) {
    using T = Tile<Type, Cols>;
    const char* head = stage + T::kHeads + row * T::kHeadStride + 16 * b;
    if constexpr (T::kQ6) {
        const float d = half_bits(*reinterpret_cast<const uint16_t*>(stage + T::kD + (row * T::kBlocks + b) * 2));
        const uint32_t s = *reinterpret_cast<const uint16_t*>(head + 2 * low);
        return make_float2(__fmul_rn(d, static_cast<float>(static_cast<int8_t>(s))),
                           __fmul_rn(d, static_cast<float>(static_cast<int8_t>(s >> 8))));
    } else {
        const uint4 h = *reinterpret_cast<const uint4*>(head);
        return make_float2(__fmul_rn(half_bits(h.w & 0xFFFFu), static_cast<float>(k_scale(h.x, h.z, low))),
                           __fmul_rn(half_bits(h.w >> 16), static_cast<float>(k_scale(h.y, h.z >> 16, low))));
    }
}

/// The products of 16 rows (tile `tile` of a stage) and sub-blocks 8 b + low, 8 (b + 1) + low with the rows of x, there
/// sub-blocks j and j + 8: acc0 for the first, acc1 for the second.
template <DType Type, int Cols, int NT>
__device__ __forceinline__ void mma_pair(const char* stage, int tile, int b, int low, const LaneX<NT>& x, int j,
                                         int lane, float (&acc0)[NT][4], float (&acc1)[NT][4]) {
    using T = Tile<Type, Cols>;
    constexpr uint32_t kLow = 0x0F0F0F0Fu, kTwo = 0x03030303u, kOne = 0x01010101u;
    const int g = lane / 4, t = lane % 4;
    uint32_t w[4], xs[NT][4];
    load_matrices(w, stage + (16 * tile + lane % 16) * T::kDataStride + 16 * (8 * (b + lane / 16) + low));
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) load_matrices(xs[nt], x.b[nt] + 16 * j);
    const float2 mine = tile_scales<Type, Cols>(stage, 16 * tile + g + 8 * (t % 2), b + t / 2, low);
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
            a[h] = w[2 * u + h] & kLow;
            a[2 + h] = (w[2 * u + h] >> 4) & kLow;
            if constexpr (T::kQ6) {
                const uint2 high = *reinterpret_cast<const uint2*>(
                    stage + T::kHigh + (16 * tile + g + 8 * h) * T::kHighStride + 8 * (8 * (b + u) + low));
                a[h] |= ((high.x >> (2 * t)) & kTwo) << 4;
                a[2 + h] |= ((high.y >> (2 * t)) & kTwo) << 4;
            } else if constexpr (T::kQ5) {
                const uint32_t high = *reinterpret_cast<const uint32_t*>(
                    stage + T::kHigh + (16 * tile + g + 8 * h) * T::kHighStride + 4 * (8 * (b + u) + low));
                a[h] |= ((high >> t) & kOne) << 4;
                a[2 + h] |= ((high >> (4 + t)) & kOne) << 4;
            }
        }
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            float2 d[2];  // {d, A} of the two columns
#pragma unroll
            for (int i = 0; i < 2; ++i) d[i] = *reinterpret_cast<const float2*>(x.pairs[nt][i] + 8 * (j + 8 * u));
            float(&acc)[4] = u == 0 ? acc0[nt] : acc1[nt];
            if constexpr (T::kQ6) {
                int c[4], e[4];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float a0 = *reinterpret_cast<const float*>(x.pairs[nt][i] + 8 * x.groups + 4 * (j + 8 * u));
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
                int c[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
                mma_k32(c, a, xs[nt][2 * u], xs[nt][2 * u + 1]);
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

/// Accumulators of a wide tile: four values of the bits 8 and 16 of a sub-block's number.
template <int NT>
using WideSums = float[4][NT][4];

template <DType Type, int NT>
__device__ __forceinline__ void mma_wide(const char* stage, const LaneX<NT>& x, int chunk, int warp, int lane,
                                         WideSums<NT>& acc) {
#pragma unroll
    for (int b = 0; b < 8; b += 2)
        mma_pair<Type, 2048, NT>(stage, 0, b, warp, x, 64 * chunk + 8 * b + warp, lane, acc[b % 4], acc[b % 4 + 1]);
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
template <int NT>
__device__ __forceinline__ void put_wide(float* partial, int warp, int lane, const WideSums<NT>& acc) {
    float v[NT][4];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            v[nt][i] = __fadd_rn(__fadd_rn(acc[0][nt][i], acc[2][nt][i]), __fadd_rn(acc[1][nt][i], acc[3][nt][i]));
    put_partial<NT>(partial, warp, lane, v);
}
/// The product of row `row` of the tile and row `col` of x. Behind a barrier.
template <int NT>
__device__ __forceinline__ float wide_sum(const float* partial, int row, int col) {
    float p[8];
#pragma unroll
    for (int w = 0; w < 8; ++w) p[w] = partial[(w * 8 * NT + col) * kPartialStride + row];
    return __fadd_rn(__fadd_rn(__fadd_rn(p[0], p[4]), __fadd_rn(p[2], p[6])),
                     __fadd_rn(__fadd_rn(p[1], p[5]), __fadd_rn(p[3], p[7])));
}

/// A narrow stage: 64 rows times up to eight rows of x, to `partial`.
template <DType Type>
__device__ __forceinline__ void mma_narrow(const char* stage, const LaneX<1>& x, int warp, int lane, float* partial) {
    float two[2][4];
#pragma unroll
    for (int c2 = 0; c2 < 2; ++c2) {
        float four[2][4];
#pragma unroll
        for (int c4 = 0; c4 < 2; ++c4) {
            const int low = warp % 2 + 2 * c2 + 4 * c4;
            float acc[2][1][4] = {};
            mma_pair<Type, 512, 1>(stage, warp / 2, 0, low, x, low, lane, acc[0], acc[1]);
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
