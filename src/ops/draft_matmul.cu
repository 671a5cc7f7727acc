// Products of the draft family on Hopper: bf16, f16 and Q8_0 matrices times up to 24 rows on tensor cores.
//
// What a drafter proposes is checked, so its products need no bits of one row alone; its blocks have 8 or 16 rows of
// 2,048 to 25,600 columns, and its weights come in bf16 as a rule. Bytes: those of the weights. The drafter of
// Qwen3.6-27B in bf16: q, k, v 63 MB, o 42, gate and up 357, down 178, fc 262 MB: at 4.65 TB/s 14, 9, 77, 38 and 56 us.
//
// Arithmetic. x (times the norm's weights, if there is a norm) is rounded to bf16; for f16 and int8 weights each chunk
// of columns (128; int8: 256) is scaled by a power of two, so that the largest magnitude is in [2^8, 2^9), and rounded
// to f16. mma sums a chunk; int8: 32 columns, whose sum is multiplied by the weights' scale. A slice's columns are
// added one chunk after the other, parts of a slice in order, slices in order; 1 / rms comes last. How columns are cut
// depends on the matrices of the launch and on the chip, not on x: a row has the same bits in any company.
//
// Design. x does not fit into shared memory, so columns are cut into slices of at most 1,280, and a slice has a share
// of the CTAs. A slice's units, sixteen rows by one chunk (4 KB), strip after strip, are dealt out to its warps in
// equal runs, which begin and end anywhere; each warp has a ring of its own, filled by tensor copies, so that nothing
// waits for another warp. What a run has of a strip goes to device memory (3 to 7 % of the weights' bytes), and a
// second kernel adds up and stores.
//
// A lane of m16n8k16 (g = lane / 4, t = lane % 4) has four columns of rows g and g + 8, and of x's row g. Which columns
// is free as long as weights and x agree: bf16 and f16: of 64 columns eight from 16 t on, then the next eight; int8: of
// 32 columns eight from 8 t on.
#include "ops/draft_matmul.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "base/error.h"
#include "ops/cluster_memory.cuh"
#include "ops/decode_half.cuh"
#include "ops/prefill_gemm_hopper.cuh"
#include "ops/row_math.cuh"
#include "tensor/cuda_check.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kStrip = 16, kUnitBytes = 4096, kMostColumns = 1280, kMostSlices = 32, kMostX = 24, kMostMatrices = 12;
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
    int32_t chunk;   // columns
    int32_t ctas;    // of the first kernel
    int32_t parts;   // runs that have some of a strip in one slice, at most
    ActSource x;     // plain or norm
    float4* sums;    // [slice][part][strip][piece of eight rows of x][lane], as mma.m16n8k16 has them
    float* squares;  // [slice][kMostX]: of the rows of x, if they are normalised
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

/// From row to row of x in shared memory, bytes: for int8 weights neighbouring rows 64 bytes apart in the banks,
/// else 16.
template <DType Type>
RT_HD constexpr int draft_stride() {
    return 2 * kMostColumns + (DraftUnit<Type>::kInt8 ? 64 : 16);
}

#ifdef __CUDACC__

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int row, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(row), "r"(z)
        : "memory");
}
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(row)
        : "memory");
}

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
    copy_box(ring.data + slot * kUnitBytes, &maps.data[i], full, 0, row, 2 * chunk);
    if constexpr (U::kInt8) copy_box(ring.scales + slot * U::kScales, &maps.scales[i], full, chunk * U::kScaleRow, row);
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
    char* rows;      // [n][draft_stride()]
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
                put_draft_columns<Type>(x.rows + p * draft_stride<Type>() + 2 * kPiece * piece_, v[k], back);
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
                mma_half(block, w[0][0], w[1][0], w[0][1], w[1][1], b.x, b.y);
                mma_half(block, w[0][2], w[1][2], w[0][3], w[1][3], b.z, b.w);
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
                if constexpr (Type == DType::bf16) {
                    mma_bf16(to, w.x, v.x, w.y, v.y, b.x, b.y);
                    mma_bf16(to, w.z, v.z, w.w, v.w, b.z, b.w);
                } else {
                    mma_half(to, w.x, v.x, w.y, v.y, b.x, b.y);
                    mma_half(to, w.z, v.z, w.w, v.w, b.z, b.w);
                }
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

template <DType Type, int NT>
__global__ void __maxnreg__(kDraftRegisters)
    draft_kernel(const __grid_constant__ DraftArgs a, const __grid_constant__ DraftMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using U = DraftUnit<Type>;
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[kWorkers * kMostStages];
    __shared__ alignas(16) float scales[U::kMostChunks * kMostX];
    __shared__ float squares[kMostX * (kMostColumns / 256)];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int block = blockIdx.x, number = ((block + 1) * a.slices - 1) / a.ctas;
    const DraftSlice slice(a, number);
    const int worker = kWorkers * (block - slice.cta) + warp;
    char* const units = reinterpret_cast<char*>(dynamic) + (1024 - shared_address(dynamic) % 1024) % 1024 +
                        warp * a.stages * kUnitBytes;
    char* const by = units + (kWorkers - warp) * a.stages * kUnitBytes + warp * a.stages * U::kScales;
    char* const x = by + (kWorkers - warp) * a.stages * U::kScales;
    const DraftRing ring{shared_address(units), shared_address(by), shared_address(barriers + warp * kMostStages)};
    DraftUnits now(slice, worker), next(slice, worker);
    if (lane == 0) {
        for (int i = 0; i < a.stages; ++i)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(ring.full + 8 * i) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < a.stages && next.left > 0; ++i, next.next())
        if (lane == 0) ask_for_unit<Type>(a, maps, next, slice.chunk, ring, i);
    DraftStager<Type> stager(a, slice);
    pdl_trigger();
    pdl_wait();
    stager.run({x, scales, squares}, block == slice.cta, number);
    const char* rows[NT];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) rows[nt] = x + min(8 * nt + g, a.n - 1) * draft_stride<Type>();
    float acc[NT][4] = {};
    int slot = 0;
    uint32_t parity = 0;
#pragma unroll 1
    while (now.left > 0) {
        const char* chunk[NT];
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) chunk[nt] = rows[nt] + 2 * U::kCols * now.chunk;
        wait_cluster(ring.full + 8 * slot, parity);
        multiply_unit<Type, NT>(units + slot * kUnitBytes, by + slot * U::kScales, chunk,
                                scales + kMostX * now.chunk + 2 * t, acc);
        __syncwarp();  // the slot has been read
        if (next.left > 0) {
            if (lane == 0) ask_for_unit<Type>(a, maps, next, slice.chunk, ring, slot);
            next.next();
        }
        if (++slot == a.stages) slot = 0, parity ^= 1;
        const int strip = now.strip;
        now.next();
        if (now.left > 0 && now.strip == strip) continue;
        const int part = worker - slice.first_worker(strip);
        float4* const to =
            a.sums + (static_cast<int64_t>(number * a.parts + part) * a.strips + strip) * (32 * NT) + lane;
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            to[32 * nt] = make_float4(acc[nt][0], acc[nt][1], acc[nt][2], acc[nt][3]);
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[nt][e] = 0.0f;
        }
    }
#endif
}

/// Adds up what the runs have of each piece (sixteen rows, eight rows of x), a warp for each, and stores it.
template <int NT>
__global__ void __launch_bounds__(kFinishThreads, 4) draft_finish_kernel(const __grid_constant__ DraftArgs a) {
    constexpr int kPieces = kFinishThreads / 32, kBatch = 4;
    __shared__ float factors[kMostX];
    __shared__ int8_t parts[2][kPieces][kMostSlices];  // of the strip, and of that of up
    pdl_trigger();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int piece = blockIdx.x * kPieces + warp, nt = piece % NT, strip = piece / NT;
    const int strips = a.gate_up != 0 ? a.strips / 2 : a.strips;
    if (strip < strips && lane < a.slices) {
        const DraftSlice slice(a, lane);
        parts[0][warp][lane] = static_cast<int8_t>(slice.parts(strip));
        if (a.gate_up != 0) parts[1][warp][lane] = static_cast<int8_t>(slice.parts(strip + strips));
    }
    pdl_wait();
    if (a.x.kind == ActKind::norm && static_cast<int>(threadIdx.x) < a.n) {
        float sum = 0.0f;
#pragma unroll 4
        for (int s = 0; s < a.slices; ++s) sum = __fadd_rn(sum, a.squares[s * kMostX + threadIdx.x]);
        factors[threadIdx.x] = rms_scale(sum, a.cols, a.x.eps);
    }
    __syncthreads();
    if (strip >= strips) return;
    const int64_t next_part = static_cast<int64_t>(a.strips) * (32 * NT), next_slice = a.parts * next_part;
    const auto add_up = [&](int of, const int8_t(&counts)[kMostSlices], float(&v)[4]) {
        const float4* from = a.sums + static_cast<int64_t>(of) * (32 * NT) + 32 * nt + lane;
        const auto add = [&](const float4& sum) {
            v[0] = __fadd_rn(v[0], sum.x), v[1] = __fadd_rn(v[1], sum.y);
            v[2] = __fadd_rn(v[2], sum.z), v[3] = __fadd_rn(v[3], sum.w);
        };
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = 0.0f;
#pragma unroll 1
        for (int s = 0; s < a.slices; s += kBatch, from += kBatch * next_slice) {
            float4 first[kBatch], second[kBatch];
            int count[kBatch];
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                count[k] = s + k < a.slices ? counts[s + k] : 0;
                if (count[k] > 0) first[k] = from[k * next_slice];
                if (count[k] > 1) second[k] = from[k * next_slice + next_part];
            }
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                if (count[k] > 0) add(first[k]);
                if (count[k] > 1) add(second[k]);
#pragma unroll 1
                for (int part = 2; part < count[k]; ++part) add(from[k * next_slice + part * next_part]);
            }
        }
        if (a.x.kind == ActKind::norm)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (8 * nt + 2 * t + e % 2 < a.n) v[e] = __fmul_rn(v[e], factors[8 * nt + 2 * t + e % 2]);
            }
    };
    int i = 0;
    while (i + 1 < a.matrices && strip >= a.m[i + 1].first) ++i;
    const DraftMatrix& m = a.m[i];
    const int first = kStrip * (strip - m.first) + g, col = 8 * nt + 2 * t;  // row of weights and of x of element 0
    const auto place = [&](int e) { return static_cast<int64_t>(col + e % 2) * m.rows + first + e / 2 * 8; };
    const auto there = [&](int e) { return col + e % 2 < a.n && first + e / 2 * 8 < m.rows; };
    float v[4], old[4] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e)
        if (a.residual != nullptr && there(e)) old[e] = load_shared_f32(a.residual + place(e));
    add_up(strip, parts[0][warp], v);
    if (a.gate_up != 0) {
        float up[4];
        add_up(strip + strips, parts[1][warp], up);
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = swiglu_value(v[e], up[e]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        if (!there(e)) continue;
        m.y[place(e)] = v[e];
        if (a.residual != nullptr) a.residual[place(e)] = __fadd_rn(old[e], v[e]);
    }
}

#endif  // __CUDACC__

// ---- The host's side.

/// Cuts columns so that the slice with the most units for each CTA has few of them.
int32_t cut_columns(int chunks, int most, int ctas) {
    const int least = (chunks + most - 1) / most;
    int32_t best = least;
    double best_share = 1e30;
    for (int slices = least; slices <= std::min({least + 2, chunks, kMostSlices, ctas}); ++slices) {
        double share = 0;
        for (int s = 0; s < slices; ++s)
            share = std::max(share, static_cast<double>(chunks * (s + 1) / slices - chunks * s / slices) /
                                        (ctas * (s + 1) / slices - ctas * s / slices));
        if (share < 0.99 * best_share) best = slices, best_share = share;
    }
    return best;
}

CUtensorMap data_boxes(const Weight& w) {
    prefill::BoxedTensor t;
    t.data = static_cast<const char*>(w.data);
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    t.rank = 3;
    const auto bytes = static_cast<cuuint64_t>(w.row_bytes);
    t.extents[0] = 128, t.extents[1] = static_cast<cuuint64_t>(w.rows), t.extents[2] = bytes / 128;
    t.strides[0] = bytes, t.strides[1] = 128;
    t.box[0] = 128, t.box[1] = kStrip, t.box[2] = 2;
    return prefill::encode(t);
}
CUtensorMap scale_boxes(const Weight& w) {
    prefill::BoxedTensor t;
    t.data = static_cast<const char*>(w.scales);
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
    t.extents[0] = static_cast<cuuint64_t>(w.cols / 16), t.extents[1] = static_cast<cuuint64_t>(w.rows);
    t.strides[0] = static_cast<cuuint64_t>(w.cols / 16);
    t.box[0] = DraftUnit<DType::planes_int8>::kScaleRow, t.box[1] = kStrip;
    return prefill::encode(t);
}

/// Matrices of one type that are multiplied at once.
struct DraftGroup {
    DraftArgs a = {};
    DraftMaps maps = {};
    DType type = DType::bf16;

    bool add(const Gpu& gpu, const Weight& w, float* y) {
        if (a.matrices == 0) type = w.dtype;
        if (!draft_weight(gpu, w) || w.dtype != type || a.matrices == kMostMatrices) return false;
        maps.data[a.matrices] = data_boxes(w);
        if (type == DType::planes_int8) maps.scales[a.matrices] = scale_boxes(w);
        a.m[a.matrices++] = {y, static_cast<int32_t>(w.rows), a.strips};
        a.strips += static_cast<int32_t>((w.rows + kStrip - 1) / kStrip);
        return true;
    }
};

template <DType Type, int NT>
void launch_draft(Context& ctx, DraftArgs& a, const DraftMaps& maps) {
    using U = DraftUnit<Type>;
    constexpr int64_t kStatic = 4 << 10, kAlign = 1024;
    const int64_t x = int64_t{a.n} * draft_stride<Type>(), stage = kWorkers * (kUnitBytes + U::kScales);
    a.stages = static_cast<int32_t>(
        std::min<int64_t>(kMostStages, (ctx.gpu->info().shared_bytes - kStatic - kAlign - x) / stage));
    RT_ASSERT(a.stages >= 2);
    const int64_t shared = kAlign + x + a.stages * stage;
    const ArenaScope scope(*ctx.arena);
    a.sums = static_cast<float4*>(
        ctx.arena->allocate(int64_t{a.slices} * a.parts * a.strips * (32 * NT) * int64_t{sizeof(float4)}));
    a.squares = static_cast<float*>(ctx.arena->allocate(int64_t{a.slices} * kMostX * int64_t{sizeof(float)}));
    const auto kernel = draft_kernel<Type, NT>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(a.ctas)), kDraftThreads, static_cast<size_t>(shared), a, maps);
    const int pieces = (a.gate_up != 0 ? a.strips / 2 : a.strips) * NT, each = kFinishThreads / 32;
    launch(*ctx.gpu, draft_finish_kernel<NT>, dim3(static_cast<unsigned>((pieces + each - 1) / each)), kFinishThreads,
           0, a);
}

template <DType Type>
void launch_draft_rows(Context& ctx, DraftArgs& a, const DraftMaps& maps) {
    if (a.n <= 16) launch_draft<Type, 2>(ctx, a, maps);
    else launch_draft<Type, 3>(ctx, a, maps);
}

/// All rows, 24 at a time.
void multiply_draft(Context& ctx, DraftGroup& group, const ActSource& x, int64_t cols, int64_t n) {
    DraftArgs& a = group.a;
    a.cols = static_cast<int32_t>(cols);
    a.ctas = ctx.gpu->info().sm_count;
    a.chunk = group.type == DType::planes_int8 ? 256 : 128;
    a.slices = cut_columns(a.cols / a.chunk, kMostColumns / a.chunk, a.ctas);
    a.parts = 1;
    for (int s = 0; s < a.slices; ++s) {
        const DraftSlice slice(a, s);
        RT_ASSERT(static_cast<int64_t>(slice.units) * slice.workers < int64_t{1} << 31);
        const int least = slice.units / slice.workers;
        a.parts = std::max(a.parts, std::min(slice.chunks, (slice.chunks - 2) / std::max(1, least) + 2));
    }
    for (int64_t row = 0; row < n; row += kMostX) {
        DraftArgs part = a;
        part.n = static_cast<int32_t>(std::min<int64_t>(kMostX, n - row));
        part.x = x;
        part.x.rows += row * x.stride;
        const int outputs = a.gate_up != 0 ? 1 : a.matrices;
        for (int i = 0; i < outputs; ++i) part.m[i].y += row * a.m[i].rows;
        if (a.residual != nullptr) part.residual += row * a.m[0].rows;
        if (group.type == DType::bf16) launch_draft_rows<DType::bf16>(ctx, part, group.maps);
        else if (group.type == DType::f16) launch_draft_rows<DType::f16>(ctx, part, group.maps);
        else launch_draft_rows<DType::planes_int8>(ctx, part, group.maps);
    }
}

bool draft_source(const ActSource& x) {
    const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    return (x.kind == ActKind::plain || x.kind == ActKind::norm) && aligned(x.rows) && x.stride % 16 == 0 &&
           aligned(x.norm);
}

}  // namespace

bool draft_weight(const Gpu& gpu, const Weight& w) {
    constexpr int64_t kMostRows = 1 << 20;
    const bool plain =
        (w.dtype == DType::bf16 || w.dtype == DType::f16) && w.scales == nullptr && w.row_bytes == 2 * w.cols;
    const bool int8 =
        w.dtype == DType::planes_int8 && w.scale_dtype == DType::f16 && w.scale_cols == 32 && w.scale_rows == 1;
    return gpu.info().major == 9 && gpu.info().shared_bytes >= (220 << 10) && (plain || int8) && w.scale == 1.0f &&
           w.cols % 256 == 0 && w.cols <= kMostColumns * kMostSlices && w.rows > 0 && w.rows <= kMostRows &&
           reinterpret_cast<uintptr_t>(w.data) % 16 == 0 && reinterpret_cast<uintptr_t>(w.scales) % 16 == 0;
}

bool draft_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual) {
    const Gpu& gpu = *ctx.gpu;
    if (!draft_source(x) || weights.empty() || !std::ranges::all_of(weights, [&](const Weight* w) {
            return draft_weight(gpu, *w) && w->dtype == weights[0]->dtype;
        }))
        return false;
    for (size_t i = 0; i < weights.size();) {
        DraftGroup group;
        for (; i < weights.size() && group.add(gpu, *weights[i], y[i].row(0)); ++i) {
        }
        group.a.residual = residual == nullptr ? nullptr : residual->row(0);
        multiply_draft(ctx, group, x, cols, n);
    }
    return true;
}

bool draft_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate, const Weight& up,
                   float* out) {
    DraftGroup group;
    if (!draft_source(x) || gate.rows != up.rows || !group.add(*ctx.gpu, gate, out) ||
        !group.add(*ctx.gpu, up, nullptr))
        return false;
    group.a.gate_up = 1;
    multiply_draft(ctx, group, x, cols, n);
    return true;
}

}  // namespace riptide::ops::cuda::decode
