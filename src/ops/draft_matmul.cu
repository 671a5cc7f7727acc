// Products of the draft family on Hopper: bf16, f16 and Q8_0 matrices times up to 24 rows on tensor cores.
//
// What a drafter proposes is checked, so its products need no bits of one row alone; its blocks have 8 or 16 rows of
// 2,048 to 25,600 columns, and its weights come in bf16 as a rule. Bytes: those of the weights. The drafter of
// Qwen3.6-27B in bf16: q, k, v 63 MB, o 42, gate and up 357, down 178, fc 262 MB: at 4.65 TB/s 14, 9, 77, 38 and 56 us.
//
// Arithmetic. x (times the norm's weights, if there is a norm) is rounded to bf16; for f16 and int8 weights each 256
// columns are scaled by a power of two, so that the largest magnitude is in [2^8, 2^9), and rounded to f16. mma sums
// 256 columns; int8: 32, whose sum is multiplied by the weights' scale. A slice's columns are added one chunk of 256
// after the other, parts of a slice in order, slices in order; 1 / rms comes last. How columns are cut depends on the
// matrices of the launch and on the chip, not on x: a row has the same bits in any company.
//
// Design. x does not fit into shared memory, so columns are cut into slices of at most six chunks; a slice has a share
// of the CTAs. Of each, eight warps multiply and the others help to round x. A slice's units, sixteen rows by one
// chunk, strip after strip, are dealt out to its warps in equal runs, which begin and end anywhere; each warp has a
// ring of its own, filled by bulk copies of a row's chunk, so that nothing waits for another warp. What a run has of a
// strip goes to device memory (3 to 7 % of the weights' bytes), and a second kernel adds up and stores.
#include "ops/draft_matmul.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "base/error.h"
#include "ops/cluster_memory.cuh"
#include "ops/decode_half.cuh"
#include "ops/row_math.cuh"
#include "tensor/cuda_check.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kStrip = 16, kChunk = 256, kMostChunks = 6, kMostSlices = 32, kMostX = 24, kMostMatrices = 16;
constexpr int kWorkers = 8, kDraftThreads = 512, kMostStages = 6, kFinishThreads = 256;

struct DraftMatrix {
    const char* data;
    const char* scales;  // int8
    float* y;
    int32_t rows, first;  // first strip
};

struct DraftArgs {
    DraftMatrix m[kMostMatrices];
    int32_t matrices, strips;
    int32_t gate_up;  // m[0].y gets silu(first) * second
    int32_t n, cols, slices, stages;
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
        const int all = a.cols / kChunk;
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

/// How weights of a type lie in a ring's slot: rows of a chunk, strides against bank conflicts; int8: then sixteen
/// bytes of scales of each row.
template <DType Type>
struct DraftStage {
    static constexpr bool kInt8 = Type == DType::planes_int8, kScaled = Type != DType::bf16;
    static constexpr int kRow = kInt8 ? kChunk : 2 * kChunk, kStride = kRow + (kInt8 ? 32 : 64);
    static constexpr int kScales = kStrip * kStride, kScaleRow = kChunk / 16;
    static constexpr int kBytes = kScales + (kInt8 ? kStrip * kScaleRow : 0);
    static constexpr int kCopied = kStrip * (kRow + (kInt8 ? kScaleRow : 0));
};

/// From row to row of x in shared memory, bytes: neighbouring rows 64 bytes apart in the banks.
RT_HD constexpr int draft_stride(int chunks) { return 2 * kChunk * chunks + 64; }

#ifdef __CUDACC__

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void copy_bulk(uint32_t to, const void* p, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(p), "r"(bytes), "r"(barrier)
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

/// Asks for a unit: a warp's slot at `to`, whose barrier tells that it is there. By a whole warp.
template <DType Type>
__device__ __forceinline__ void ask_for_unit(const DraftArgs& a, const DraftUnits& unit, int first_chunk, uint32_t to,
                                             uint32_t barrier) {
    using S = DraftStage<Type>;
    const int lane = threadIdx.x % 32;
    if (lane == 0) expect_bytes(barrier, S::kCopied);
    __syncwarp();
    int i = 0;
    while (i + 1 < a.matrices && unit.strip >= a.m[i + 1].first) ++i;
    const DraftMatrix& m = a.m[i];
    const int r = lane % kStrip, chunk = first_chunk + unit.chunk;
    const int64_t row = min(kStrip * (unit.strip - m.first) + r, m.rows - 1);
    if (lane < kStrip)
        copy_bulk(to + r * S::kStride, m.data + (row * (a.cols / kChunk) + chunk) * S::kRow, S::kRow, barrier);
    else if (S::kInt8)
        copy_bulk(to + S::kScales + r * S::kScaleRow, m.scales + (row * (a.cols / kChunk) + chunk) * S::kScaleRow,
                  S::kScaleRow, barrier);
}

/// Columns 8 lane .. + 7 of a chunk, rounded, by a whole warp; the chunk's scale.
template <bool Scaled>
__device__ __forceinline__ float put_draft_chunk(char* chunk, const float (&v)[8]) {
    uint32_t w[4];
    float scale = 1.0f;
    if constexpr (Scaled) {
        uint32_t largest = 0;  // ordered like the magnitudes, NaN above infinity
#pragma unroll
        for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(v[i]) & 0x7FFFFFFFu);
        largest = __reduce_max_sync(~0u, largest);
        const bool finite = largest < 0x7F800000u, zero = largest < 0x0D800000u;  // 2^-100
        const uint32_t exponent = largest & 0x7F800000u;
        const float by = finite && !zero ? __uint_as_float((262u << 23) - exponent) : 0.0f;  // 2^8 at the largest
#pragma unroll
        for (int i = 0; i < 4; ++i)
            w[i] = half_word(__floats2half2_rn(finite ? __fmul_rn(v[2 * i], by) : 0.0f,
                                               finite ? __fmul_rn(v[2 * i + 1], by) : 0.0f));
        scale = !finite ? __uint_as_float(0x7FC00000u) : zero ? 0.0f : __uint_as_float(exponent - (8u << 23));
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
            w[i] = *reinterpret_cast<const uint32_t*>(&pair);
        }
    }
    *reinterpret_cast<uint4*>(chunk + 16 * (threadIdx.x % 32)) = {w[0], w[1], w[2], w[3]};
    return scale;
}

/// The rows of x, rounded, to shared memory: by all warps. first: this CTA is the first of its slice, which tells the
/// sums of squares.
template <bool Scaled>
__device__ __forceinline__ void stage_draft_rows(const DraftArgs& a, const DraftSlice& slice, int number, bool first,
                                                 char* x, float* scales, float (&squares)[kMostX][kMostChunks]) {
    constexpr int kWarps = kDraftThreads / 32, kEach = 4;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, units = a.n * slice.chunks;
    const bool norm = a.x.kind == ActKind::norm;
#pragma unroll 1
    for (int unit = warp; unit < units; unit += kEach * kWarps) {
        float v[kEach][8];
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
            const int u = min(unit + k * kWarps, units - 1), at = kChunk * (slice.chunk + u / a.n) + 8 * lane;
            const auto* const row = reinterpret_cast<const float*>(a.x.rows + u % a.n * a.x.stride) + at;
            *reinterpret_cast<uint4*>(v[k]) = load_weights(row);
            *reinterpret_cast<uint4*>(v[k] + 4) = load_weights(row + 4);
        }
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
            const int u = unit + k * kWarps, p = u % a.n, c = u / a.n;
            if (u >= units) break;
            if (norm) {
                if (first) {
                    const float sum = warp_sum(add_squares(v[k], 0.0f));
                    if (lane == 0) squares[p][c] = sum;
                }
                float by[8];
                load8(a.x.norm, 32 * (slice.chunk + c) + lane, a.cols, by);
#pragma unroll
                for (int i = 0; i < 8; ++i) v[k][i] = __fmul_rn(v[k][i], by[i]);
            }
            const float scale = put_draft_chunk<Scaled>(x + p * draft_stride(slice.chunks) + 2 * kChunk * c, v[k]);
            if (Scaled && lane == 0) scales[kMostX * c + p] = scale;
        }
    }
    __syncthreads();
    if (norm && first && static_cast<int>(threadIdx.x) < a.n) {
        float sum = 0.0f;
        for (int c = 0; c < slice.chunks; ++c) sum = __fadd_rn(sum, squares[threadIdx.x][c]);
        a.squares[number * kMostX + threadIdx.x] = sum;
    }
}

/// acc += a slot's rows times a chunk of x. x: the lane's sixteen bytes of the first 32 columns of rows 8 nt + g;
/// scales: of the chunk's columns 2 t of the results.
template <DType Type, int NT>
__device__ __forceinline__ void multiply_unit(const char* slot, const char* const (&x)[NT], const float* scales,
                                              float (&acc)[NT][4]) {
    using S = DraftStage<Type>;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float sum[NT][4] = {};
    if constexpr (S::kInt8) {
        uint4 by[2];  // eight scales of rows g and g + 8
#pragma unroll
        for (int h = 0; h < 2; ++h)
            by[h] = *reinterpret_cast<const uint4*>(slot + S::kScales + (g + 8 * h) * S::kScaleRow);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            uint32_t w[2][4];
            float d[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const uint2 q = *reinterpret_cast<const uint2*>(slot + (g + 8 * h) * S::kStride + 32 * i + 8 * t);
                const uint32_t two[2] = {q.x ^ 0x80808080u, q.y ^ 0x80808080u};
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    w[h][k] =
                        half_word(__hsub2(word_half(__byte_perm(two[k / 2], 0x64646464u, k % 2 == 0 ? 0x4140 : 0x4342)),
                                          __float2half2_rn(1152.0f)));
                const uint32_t pair = i / 2 == 0 ? by[h].x : i / 2 == 1 ? by[h].y : i / 2 == 2 ? by[h].z : by[h].w;
                d[h] = i % 2 == 0 ? __low2float(word_half(pair)) : __high2float(word_half(pair));
            }
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
                const uint4 b = *reinterpret_cast<const uint4*>(x[nt] + 64 * i);
                float block[4] = {};
                mma_half(block, w[0][0], w[1][0], w[0][1], w[1][1], b.x, b.y);
                mma_half(block, w[0][2], w[1][2], w[0][3], w[1][3], b.z, b.w);
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[nt][e] = __fmaf_rn(d[e / 2], block[e], sum[nt][e]);
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const auto* const first = slot + g * S::kStride + 64 * i + 16 * t;
            const uint4 w = *reinterpret_cast<const uint4*>(first),
                        v = *reinterpret_cast<const uint4*>(first + 8 * S::kStride);
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
                const uint4 b = *reinterpret_cast<const uint4*>(x[nt] + 64 * i);
                if constexpr (Type == DType::bf16) {
                    mma_bf16(acc[nt], w.x, v.x, w.y, v.y, b.x, b.y);
                    mma_bf16(acc[nt], w.z, v.z, w.w, v.w, b.z, b.w);
                } else {
                    mma_half(sum[nt], w.x, v.x, w.y, v.y, b.x, b.y);
                    mma_half(sum[nt], w.z, v.z, w.w, v.w, b.z, b.w);
                }
            }
        }
    }
    if constexpr (S::kScaled)
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            const float2 s = *reinterpret_cast<const float2*>(scales + 8 * nt);
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[nt][e] = __fmaf_rn(e % 2 == 0 ? s.x : s.y, sum[nt][e], acc[nt][e]);
        }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <DType Type, int NT>
__global__ void __launch_bounds__(kDraftThreads, 1) draft_kernel(const __grid_constant__ DraftArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = DraftStage<Type>;
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[kWorkers * kMostStages];
    __shared__ alignas(16) float scales[kMostChunks * kMostX];
    __shared__ float squares[kMostX][kMostChunks];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int block = blockIdx.x, number = ((block + 1) * a.slices - 1) / a.ctas;
    const DraftSlice slice(a, number);
    const int worker = kWorkers * (block - slice.cta) + warp;
    char* const x = reinterpret_cast<char*>(dynamic);
    const int stride = draft_stride(slice.chunks);
    char* const ring = x + a.n * draft_stride(kMostChunks) + warp * a.stages * S::kBytes;
    const uint32_t full = shared_address(barriers + (warp < kWorkers ? warp : 0) * kMostStages);
    DraftUnits now(slice, worker), next(slice, worker);
    if (warp >= kWorkers) now.left = next.left = 0;
    if (warp < kWorkers) {
        if (lane == 0) {
            for (int i = 0; i < a.stages; ++i)
                asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(full + 8 * i) : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncwarp();
#pragma unroll 1
        for (int i = 0; i < a.stages && next.left > 0; ++i, next.next())
            ask_for_unit<Type>(a, next, slice.chunk, shared_address(ring) + i * S::kBytes, full + 8 * i);
    }
    pdl_trigger();
    pdl_wait();
    stage_draft_rows<S::kScaled>(a, slice, number, block == slice.cta, x, scales, squares);
    const char* rows[NT];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) rows[nt] = x + min(8 * nt + g, a.n - 1) * stride + 16 * t;
    float acc[NT][4] = {};
    int slot = 0;
    uint32_t parity = 0;
#pragma unroll 1
    while (now.left > 0) {
        const char* chunk[NT];
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) chunk[nt] = rows[nt] + 2 * kChunk * now.chunk;
        wait_cluster(full + 8 * slot, parity);
        multiply_unit<Type, NT>(ring + slot * S::kBytes, chunk, scales + kMostX * now.chunk + 2 * t, acc);
        __syncwarp();  // the slot has been read
        if (next.left > 0) {
            ask_for_unit<Type>(a, next, slice.chunk, shared_address(ring) + slot * S::kBytes, full + 8 * slot);
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
__global__ void __launch_bounds__(kFinishThreads) draft_finish_kernel(const __grid_constant__ DraftArgs a) {
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
                const int p = 8 * nt + 2 * t + e % 2;
                if (p < a.n) v[e] = __fmul_rn(v[e], factors[p]);
            }
    };
    float v[4];
    add_up(strip, parts[0][warp], v);
    if (a.gate_up != 0) {
        float up[4];
        add_up(strip + strips, parts[1][warp], up);
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = swiglu_value(v[e], up[e]);
    }
    int i = 0;
    while (i + 1 < a.matrices && strip >= a.m[i + 1].first) ++i;
    const DraftMatrix& m = a.m[i];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const int p = 8 * nt + 2 * t + e % 2, row = kStrip * (strip - m.first) + g + e / 2 * 8;
        if (p >= a.n || row >= m.rows) continue;
        const int64_t at = static_cast<int64_t>(p) * m.rows + row;
        m.y[at] = v[e];
        if (a.residual != nullptr) a.residual[at] = __fadd_rn(a.residual[at], v[e]);
    }
}

#endif  // __CUDACC__

// ---- The host's side.

/// Cuts columns so that the slice with the most units for each CTA has few of them.
int32_t cut_columns(int chunks, int ctas) {
    const int least = (chunks + kMostChunks - 1) / kMostChunks;
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

template <DType Type, int NT>
void launch_draft(Context& ctx, DraftArgs& a) {
    using S = DraftStage<Type>;
    constexpr int64_t kStatic = 2 << 10;
    const int64_t x = int64_t{a.n} * draft_stride(kMostChunks);
    const int64_t room = ctx.gpu->info().shared_bytes - kStatic - x;
    a.stages = static_cast<int32_t>(std::min<int64_t>(kMostStages, room / (kWorkers * S::kBytes)));
    RT_ASSERT(a.stages >= 2);
    const int64_t shared = x + int64_t{a.stages} * kWorkers * S::kBytes;
    const ArenaScope scope(*ctx.arena);
    a.sums = static_cast<float4*>(
        ctx.arena->allocate(int64_t{a.slices} * a.parts * a.strips * (32 * NT) * int64_t{sizeof(float4)}));
    a.squares = static_cast<float*>(ctx.arena->allocate(int64_t{a.slices} * kMostX * int64_t{sizeof(float)}));
    const auto kernel = draft_kernel<Type, NT>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(a.ctas)), kDraftThreads, static_cast<size_t>(shared), a);
    const int pieces = (a.gate_up != 0 ? a.strips / 2 : a.strips) * NT, each = kFinishThreads / 32;
    launch(*ctx.gpu, draft_finish_kernel<NT>, dim3(static_cast<unsigned>((pieces + each - 1) / each)), kFinishThreads,
           0, a);
}

template <DType Type>
void launch_draft_rows(Context& ctx, DraftArgs& a) {
    if (a.n <= 16) launch_draft<Type, 2>(ctx, a);
    else launch_draft<Type, 3>(ctx, a);
}

/// All rows, 24 at a time.
bool multiply_draft(Context& ctx, DraftArgs a, DType type, const ActSource& x, int64_t cols, int64_t n) {
    const uint32_t most_units = (uint32_t{1} << 31) / static_cast<uint32_t>(kWorkers * ctx.gpu->info().sm_count);
    a.cols = static_cast<int32_t>(cols);
    a.ctas = ctx.gpu->info().sm_count;
    if (static_cast<int64_t>(a.strips) * kMostChunks > most_units) return false;
    a.slices = cut_columns(a.cols / kChunk, a.ctas);
    if (a.slices * kMostChunks < a.cols / kChunk) return false;
    a.parts = 1;
    for (int s = 0; s < a.slices; ++s) {
        const DraftSlice slice(a, s);
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
        if (type == DType::bf16) launch_draft_rows<DType::bf16>(ctx, part);
        else if (type == DType::f16) launch_draft_rows<DType::f16>(ctx, part);
        else launch_draft_rows<DType::planes_int8>(ctx, part);
    }
    return true;
}

bool add_matrix(const Gpu& gpu, DraftArgs& a, const Weight& w, float* y, DType type) {
    if (!draft_weight(gpu, w) || w.dtype != type || a.matrices == kMostMatrices) return false;
    a.m[a.matrices++] = {static_cast<const char*>(w.data), static_cast<const char*>(w.scales), y,
                         static_cast<int32_t>(w.rows), a.strips};
    a.strips += static_cast<int32_t>((w.rows + kStrip - 1) / kStrip);
    return true;
}

bool draft_source(const ActSource& x) {
    const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    return (x.kind == ActKind::plain || x.kind == ActKind::norm) && aligned(x.rows) && x.stride % 16 == 0 &&
           aligned(x.norm);
}

}  // namespace

bool draft_weight(const Gpu& gpu, const Weight& w) {
    const bool plain =
        (w.dtype == DType::bf16 || w.dtype == DType::f16) && w.scales == nullptr && w.row_bytes == 2 * w.cols;
    const bool int8 =
        w.dtype == DType::planes_int8 && w.scale_dtype == DType::f16 && w.scale_cols == 32 && w.scale_rows == 1;
    return gpu.info().major == 9 && gpu.info().shared_bytes >= (220 << 10) && (plain || int8) && w.scale == 1.0f &&
           w.cols % kChunk == 0 && w.cols <= kChunk * kMostChunks * kMostSlices && w.rows > 0 &&
           reinterpret_cast<uintptr_t>(w.data) % 16 == 0 && reinterpret_cast<uintptr_t>(w.scales) % 16 == 0;
}

bool draft_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual) {
    if (!draft_source(x)) return false;
    DraftArgs a = {};
    for (size_t i = 0; i < weights.size(); ++i)
        if (!add_matrix(*ctx.gpu, a, *weights[i], y[i].row(0), weights[0]->dtype)) return false;
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    return a.matrices > 0 && multiply_draft(ctx, a, weights[0]->dtype, x, cols, n);
}

bool draft_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate, const Weight& up,
                   float* out) {
    DraftArgs a = {};
    if (!draft_source(x) || gate.rows != up.rows || !add_matrix(*ctx.gpu, a, gate, out, gate.dtype) ||
        !add_matrix(*ctx.gpu, a, up, nullptr, gate.dtype))
        return false;
    a.gate_up = 1;
    return multiply_draft(ctx, a, gate.dtype, x, cols, n);
}

}  // namespace riptide::ops::cuda::decode
