// What draft_f16_sm90.cu is made of: how columns and rows are dealt out, rows of x rounded, sixteen rows times a chunk.
//
// Arithmetic. x (times the norm's weights, if there is a norm) is rounded to bf16; for f16 and int8 weights each chunk
// of columns (128; int8: 256) is scaled by a power of two, so that the largest magnitude is in [2^8, 2^9), and rounded
// to f16. mma sums a chunk; int8: 32 columns, whose sum is multiplied by the weights' scale. A slice's columns are
// added one chunk after the other, parts of a slice in order, slices in order; 1 / rms comes last. How columns are cut
// depends on the matrices of the launch and on the chip, not on x: a row has the same bits in any company.
//
// A lane of m16n8k16 (g = lane / 4, t = lane % 4) has four columns of rows g and g + 8, and of x's row g. Which columns
// is free as long as weights and x agree: bf16 and f16: of 64 columns eight from 16 t on, then the next eight; int8: of
// 32 columns eight from 8 t on.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/device/cluster.cuh"
#include "ops/cuda/device/mma.cuh"
#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/device/tma_wgmma_gemm.cuh"
#include "ops/cuda/linear/shared/kquant_f16.cuh"
#include "ops/cuda/linear/shared/shapes.h"
#include "ops/cuda/linear/skinny/draft_f16_sm90.h"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::decode {

constexpr int kStrip = 16, kUnitBytes = 4096, kMostX = 24, kMostMatrices = 12;
constexpr int kWorkers = 16, kDraftThreads = 32 * kWorkers, kMostStages = 6, kFinishThreads = 128;
constexpr int kDraftRegisters = 96;  // room for the second kernel beside it

struct DraftMatrix {
    float* y;
    int32_t rows, first;  // first strip
};

/// Boxes of a unit: sixteen rows, 128 bytes each, two (int8) or one; int8: the rows' scales.
struct DraftMaps {
    CUtensorMap data[kMostMatrices], scales[kMostMatrices];
};

struct DraftArgs {
    DraftMatrix m[kMostMatrices];
    int32_t matrices, strips;
    int32_t gate_up;  // m[0].y gets silu(first) * second
    int32_t n, cols, slices, stages;
    int32_t chunk;     // columns
    int32_t x_stride;  // from row to row of x in shared memory
    int32_t ctas;      // of the first kernel
    int32_t parts;     // runs that have some of a strip in one slice, at most
    ActSource x;       // plain or norm
    float4* sums;      // [slice][part][strip][piece of eight rows of x][lane], as mma.m16n8k16 has them
    float* squares;    // [slice][kMostX]: of the rows of x, if they are normalised
    float* residual;
};

/// What a chip's warps have of the products of a slice.
struct DraftSlice {
    int chunk, chunks;  // first of the row; how many
    int cta, workers;   // first CTA; warps that have units
    int units;

    RT_HD DraftSlice(const DraftArgs& a, int slice) {
        const int all = a.cols / a.chunk;
        chunk = all * slice / a.slices;
        chunks = all * (slice + 1) / a.slices - chunk;
        cta = a.ctas * slice / a.slices;
        units = a.strips * chunks;
        const int warps = (a.ctas * (slice + 1) / a.slices - cta) * kWorkers;
        workers = warps < units ? warps : units;
    }
    /// The first unit of a warp; of the one behind the last: all units.
    RT_HD int begin(int worker) const {
        return static_cast<int>(static_cast<uint32_t>(units) * static_cast<uint32_t>(worker) /
                                static_cast<uint32_t>(workers));
    }
    RT_HD int worker_of(int unit) const {
        return static_cast<int>((static_cast<uint32_t>(unit + 1) * static_cast<uint32_t>(workers) - 1) /
                                static_cast<uint32_t>(units));
    }
    /// The warp that has the first unit of a strip, and how many have any.
    RT_HD int first_worker(int strip) const { return worker_of(strip * chunks); }
    RT_HD int parts(int strip) const { return worker_of(strip * chunks + chunks - 1) - first_worker(strip) + 1; }
};

/// A unit of a type's weights, as tensor copies leave it: for each 128 bytes of a row sixteen rows of these, swizzled.
template <DType Type>
struct DraftUnit {
    static constexpr bool kInt8 = Type == DType::planes_int8, kScaled = Type != DType::bf16;
    static constexpr int kCols = kInt8 ? 256 : 128, kBox = 2048, kMostChunks = kMostColumns / kCols;
    static constexpr int kScaleRow = kInt8 ? kCols / 16 : 0, kScales = kStrip * kScaleRow;  // lie apart
};

#ifdef __CUDACC__

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A walk over the units of a warp.
struct DraftUnits {
    int left, strip, chunk, chunks;

    __device__ __forceinline__ DraftUnits(const DraftSlice& slice, int worker) : left(0), chunks(slice.chunks) {
        if (worker >= slice.workers) return;
        const int begin = slice.begin(worker);
        left = slice.begin(worker + 1) - begin;
        strip = begin / chunks, chunk = begin % chunks;
    }
    __device__ __forceinline__ void next() {
        --left;
        if (++chunk == chunks) chunk = 0, ++strip;
    }
};

/// A warp's ring: slots of units, of scales, and a barrier for each that tells that they are there.
struct DraftRing {
    uint32_t data, scales, full;
};

/// Asks for a unit, to a slot. By one lane.
template <DType Type>
__device__ __forceinline__ void ask_for_unit(const DraftArgs& a, const DraftMaps& maps, const DraftUnits& unit,
                                             int first_chunk, const DraftRing& ring, int slot) {
    using U = DraftUnit<Type>;
    int i = 0;
    while (i + 1 < a.matrices && unit.strip >= a.m[i + 1].first) ++i;
    const int row = kStrip * (unit.strip - a.m[i].first), chunk = first_chunk + unit.chunk;
    const uint32_t full = ring.full + 8 * slot;
    expect_bytes(full, kUnitBytes + U::kScales);
    prefill::load_box(ring.data + slot * kUnitBytes, &maps.data[i], full, 0, row, 2 * chunk);
    if constexpr (U::kInt8)
        prefill::load_box(ring.scales + slot * U::kScales, &maps.scales[i], full, chunk * U::kScaleRow, row);
}

/// The exponent that a chunk is scaled by, from the bits of its largest magnitude (NaN lies above infinity).
struct DraftScale {
    float by, back;
    bool finite;

    __device__ __forceinline__ explicit DraftScale(uint32_t largest) : finite(largest < 0x7F800000u) {
        const bool zero = largest < 0x0D800000u;  // 2^-100
        const uint32_t exponent = largest & 0x7F800000u;
        by = finite && !zero ? __uint_as_float((262u << 23) - exponent) : 0.0f;  // 2^8 at the largest
        back = !finite ? __uint_as_float(0x7FC00000u) : zero ? 0.0f : __uint_as_float(exponent - (8u << 23));
    }
};

/// Columns 4 lane .. of each half of 256, rounded, by a whole warp; what they were scaled by.
template <DType Type>
__device__ __forceinline__ void put_draft_columns(char* to, const float (&v)[8], float (&back)[2]) {
    using U = DraftUnit<Type>;
    const int lane = threadIdx.x % 32;
    uint32_t largest[2] = {};
    if constexpr (U::kScaled) {
#pragma unroll
        for (int i = 0; i < 8; ++i) largest[i / 4] = max(largest[i / 4], __float_as_uint(v[i]) & 0x7FFFFFFFu);
        if constexpr (U::kCols == 256) largest[0] = largest[1] = max(largest[0], largest[1]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        uint32_t w[2];
        if constexpr (U::kScaled) {
            const DraftScale scale(__reduce_max_sync(~0u, largest[h]));
            back[h] = scale.back;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float first = v[4 * h + 2 * i], second = v[4 * h + 2 * i + 1];
                w[i] = half_word(__floats2half2_rn(scale.finite ? __fmul_rn(first, scale.by) : 0.0f,
                                                   scale.finite ? __fmul_rn(second, scale.by) : 0.0f));
            }
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const __nv_bfloat162 pair = __floats2bfloat162_rn(v[4 * h + 2 * i], v[4 * h + 2 * i + 1]);
                w[i] = *reinterpret_cast<const uint32_t*>(&pair);
            }
        }
        *reinterpret_cast<uint2*>(to + 256 * h + 8 * lane) = {w[0], w[1]};
    }
}

/// What DraftStager fills, in shared memory.
struct DraftX {
    char* rows;      // [n][x_stride]
    float* scales;   // [chunk][kMostX]
    float* squares;  // [kMostX][kMostColumns / 256]
};

/// Rounds the rows of x of a slice: a warp has 256 columns, a piece, of some rows.
template <DType Type>
class DraftStager {
    using U = DraftUnit<Type>;
    static constexpr int kPiece = 256, kMostPieces = kMostColumns / kPiece, kEach = 3;

  public:
    /// Asks for the norm's weights.
    __device__ __forceinline__ DraftStager(const DraftArgs& a, const DraftSlice& slice)
        : a_(a), cols_(a.chunk * slice.chunks), pieces_((cols_ + kPiece - 1) / kPiece) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        apart_ = kWorkers / pieces_;
        piece_ = warp % pieces_;
        row_ = warp < apart_ * pieces_ ? warp / pieces_ : a.n;
        second_ = kPiece * piece_ + 128 < cols_;
        column_ = a.chunk * slice.chunk + kPiece * piece_ + 4 * lane;
        if (a.x.kind == ActKind::norm) load(a.x.norm, norms_);
    }
    /// Behind pdl_wait(). tells: this CTA tells the sums of squares, as those of slice `number`.
    __device__ __forceinline__ void run(const DraftX& x, bool tells, int number) {
        const int lane = threadIdx.x % 32;
        const bool norm = a_.x.kind == ActKind::norm;
#pragma unroll 1
        for (int row = row_; row < a_.n; row += kEach * apart_) {
            float v[kEach][8];
#pragma unroll
            for (int k = 0; k < kEach; ++k)
                load(reinterpret_cast<const float*>(a_.x.rows + min(row + k * apart_, a_.n - 1) * a_.x.stride), v[k]);
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                const int p = row + k * apart_;
                if (p >= a_.n) break;
                if (norm) {
                    if (tells) {
                        const float sum = warp_sum(add_squares(v[k], 0.0f));
                        if (lane == 0) x.squares[p * kMostPieces + piece_] = sum;
                    }
#pragma unroll
                    for (int i = 0; i < 8; ++i) v[k][i] = __fmul_rn(v[k][i], norms_[i]);
                }
                float back[2];
                put_draft_columns<Type>(x.rows + p * a_.x_stride + 2 * kPiece * piece_, v[k], back);
                if (U::kScaled && lane < kPiece / U::kCols)
                    x.scales[kMostX * (kPiece / U::kCols * piece_ + lane) + p] = lane == 0 ? back[0] : back[1];
            }
        }
        __syncthreads();
        if (norm && tells && static_cast<int>(threadIdx.x) < a_.n) {
            float sum = 0.0f;
            for (int c = 0; c < pieces_; ++c) sum = __fadd_rn(sum, x.squares[threadIdx.x * kMostPieces + c]);
            a_.squares[number * kMostX + threadIdx.x] = sum;
        }
    }

  private:
    /// The lane's columns of a row; zeros behind the slice.
    __device__ __forceinline__ void load(const float* row, float (&v)[8]) const {
        *reinterpret_cast<uint4*>(v) = load_weights(row + column_);
        *reinterpret_cast<uint4*>(v + 4) = second_ ? load_weights(row + column_ + 128) : make_uint4(0, 0, 0, 0);
    }

    const DraftArgs& a_;
    int cols_, pieces_, apart_, piece_, row_, column_;
    bool second_;
    float norms_[8];
};

/// acc += a unit's rows times a chunk of x. x: columns 0 .. of the chunk in rows 8 nt + g; by: a unit's scales; scales:
/// of the chunk's columns 2 t of the results.
template <DType Type, int NT>
__device__ __forceinline__ void multiply_unit(const char* unit, const char* by, const char* const (&x)[NT],
                                              const float* scales, float (&acc)[NT][4]) {
    using U = DraftUnit<Type>;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float sum[NT][4] = {};
    if constexpr (U::kInt8) {
        uint4 both[2];  // eight scales of rows g and g + 8
#pragma unroll
        for (int h = 0; h < 2; ++h) both[h] = *reinterpret_cast<const uint4*>(by + (g + 8 * h) * U::kScaleRow);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            uint32_t w[2][4];
            float d[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const uint2 q = *reinterpret_cast<const uint2*>(unit + i / 4 * U::kBox + (g + 8 * h) * 128 +
                                                                (((2 * (i % 4) + t / 2) ^ g) << 4) + t % 2 * 8);
                const uint32_t two[2] = {q.x ^ 0x80808080u, q.y ^ 0x80808080u};
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    w[h][k] =
                        half_word(__hsub2(word_half(__byte_perm(two[k / 2], 0x64646464u, k % 2 == 0 ? 0x4140 : 0x4342)),
                                          __float2half2_rn(1152.0f)));
                const uint4& s = both[h];
                const uint32_t pair = i / 2 == 0 ? s.x : i / 2 == 1 ? s.y : i / 2 == 2 ? s.z : s.w;
                d[h] = i % 2 == 0 ? __low2float(word_half(pair)) : __high2float(word_half(pair));
            }
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
                const uint4 b = *reinterpret_cast<const uint4*>(x[nt] + 64 * i + 16 * t);
                float block[4] = {};
                mma<false>(block, w[0][0], w[1][0], w[0][1], w[1][1], b.x, b.y);
                mma<false>(block, w[0][2], w[1][2], w[0][3], w[1][3], b.z, b.w);
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[nt][e] = __fmaf_rn(d[e / 2], block[e], sum[nt][e]);
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // 64 columns in two steps
            const char* const at = unit + i / 2 * U::kBox + g * 128 + (((2 * t + i % 2) ^ g) << 4);
            const uint4 w = *reinterpret_cast<const uint4*>(at), v = *reinterpret_cast<const uint4*>(at + 1024);
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
                const uint4 b = *reinterpret_cast<const uint4*>(x[nt] + i / 2 * 128 + 32 * t + i % 2 * 16);
                float(&to)[4] = U::kScaled ? sum[nt] : acc[nt];
                mma<Type == DType::bf16>(to, w.x, v.x, w.y, v.y, b.x, b.y);
                mma<Type == DType::bf16>(to, w.z, v.z, w.w, v.w, b.z, b.w);
            }
        }
    }
    if constexpr (U::kScaled)
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            const float2 s = *reinterpret_cast<const float2*>(scales + 8 * nt);
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[nt][e] = __fmaf_rn(e % 2 == 0 ? s.x : s.y, sum[nt][e], acc[nt][e]);
        }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
