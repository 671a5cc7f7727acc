// The decode kernels for one row of Q4_K_M models, trimmed: same arithmetic and bits as dot.cuh.
//
// At one row a kernel is 2 to 4 us long, of which the memory needs half: what counts is that the next kernel's weights
// are already on their way, and a short path from pdl_wait() to the last store. So:
//   - one CTA of 16 warps an SM with at most 64 registers a thread: the next kernel's CTA fits beside it and fetches
//     its weights meanwhile;
//   - all weights of a CTA fetched at once into shared memory, by bulk copies of whole rows, without registers;
//   - a lane owns a sub-block of a row; rows are a whole number of 1,024 columns, so no lane is idle; activations are
//     read from shared memory once for all rows of a warp.
#pragma once

#include "ops/cuda/device/int8_group.cuh"
#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/linear/shared/dot_kquant.cuh"
#include "ops/cuda/linear/shared/shapes.h"
#include "ops/matmul.h"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

/// Planes of one matrix of Q4_K or Q6_K rows (quant/planes.h).
struct Row1Planes {
    const char* data;
    const char* high;
    const char* scales;
    const char* d;  // planes_q6_k: behind the scales
};

__host__ __device__ constexpr ActLayout row1_layout(int cols) { return {cols, cols / 32, staged_bytes(cols), 0}; }

inline Row1Planes planes_of(const Weight& w) {
    const char* scales = static_cast<const char*>(w.scales);
    return {static_cast<const char*>(w.data), static_cast<const char*>(w.high), scales,
            scales + w.rows * (w.cols / 16)};
}

/// The planes beside the nibbles of a few rows, in shared memory. groups: sub-blocks of a row.
template <bool Q6>
struct Row1Aux {
    char* memory;
    int groups, rows;

    /// Bytes for one row: KHeaders; or high bits, scales, d.
    static constexpr __host__ __device__ int row_bytes(int groups) {
        return Q6 ? 10 * groups + groups / 4 : 2 * groups;
    }
    __device__ __forceinline__ char* high() const { return memory; }
    __device__ __forceinline__ char* scales() const { return memory + (Q6 ? 8 * groups * rows : 0); }
    __device__ __forceinline__ char* d() const { return memory + 10 * groups * rows; }
};

// ---- Loads of weights, which a token reads once: they leave the L2 cache first, so that what every layer needs again
// stays there.

__device__ __forceinline__ uint64_t read_once() {
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 800
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}
__device__ __forceinline__ uint4 load_weights_once(const void* p) {
#if __CUDA_ARCH__ >= 800
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "l"(read_once())
                 : "memory");
    return v;
#else
    return load_weights(p);
#endif
}
__device__ __forceinline__ void copy_async16_once(void* shared, const void* p) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
                 "l"(p), "l"(read_once())
                 : "memory");
#else
    copy_async16(shared, p);
#endif
}

/// `bytes` (a multiple of 16) to shared memory by part `part` of `parts` lanes.
__device__ __forceinline__ void row1_fetch(char* shared, const char* from, int bytes, int part, int parts) {
#pragma unroll 1
    for (int i = part; i < bytes / 16; i += parts) copy_async16_once(shared + 16 * i, from + 16 * i);
}

/// Rows [row, row + count) of one matrix to the first rows of `aux`, by one warp.
template <bool Q6>
__device__ __forceinline__ void row1_fetch_rows(const Row1Planes& m, int row, int count, int lane,
                                                const Row1Aux<Q6>& aux) {
    const int64_t first = static_cast<int64_t>(row) * aux.groups;
    const int n = count * aux.groups;
    row1_fetch(aux.scales(), m.scales + 2 * first, 2 * n, lane, 32);
    if constexpr (Q6) {
        row1_fetch(aux.high(), m.high + 8 * first, 8 * n, lane, 32);
        row1_fetch(aux.d(), m.d + first / 4, n / 4, lane, 32);
    }
}

/// k_scales of sub-block `index` of `aux`.
template <bool Q6>
__device__ __forceinline__ float2 row1_scales(const Row1Aux<Q6>& aux, int index, const KShifts& at) {
    if constexpr (Q6)
        return q6_scales(*reinterpret_cast<const uint16_t*>(aux.scales() + 2 * index),
                         *reinterpret_cast<const uint16_t*>(aux.d() + index / 8 * 2));
    else return q4_scales<true>(*reinterpret_cast<const uint4*>(aux.scales() + index / 8 * 16), at);
}

/// acc + the product of sub-block `index` of `aux` with x; by: row1_scales().
template <bool Q6>
__device__ __forceinline__ float row1_dot(const uint4& q, const Row1Aux<Q6>& aux, int index, const KActs& x, float2 by,
                                          float acc) {
    uint2 high = {};
    if constexpr (Q6) high = *reinterpret_cast<const uint2*>(aux.high() + 8 * index);
    return fmaf(k_value<Q6>(q, high, x, by), x.d, acc);
}

/// Nibbles of G rows of S * 32 sub-blocks.
template <int S, int G>
__device__ __forceinline__ void row1_load_rows(const Row1Planes& m, int row, int count, int lane, uint4 (&raw)[G][S]) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
        const char* from = m.data + (static_cast<uint32_t>(row + min(g, count - 1)) * (32u * S) + lane) * 16u;
#pragma unroll
        for (int s = 0; s < S; ++s) raw[g][s] = load_weights_once(from + 512 * s);
    }
}

/// Their products with one staged row. Rows beyond those in `aux` give anything.
template <bool Q6, int S, int G>
__device__ __forceinline__ void row1_dot_rows(const uint4 (&raw)[G][S], const Row1Aux<Q6>& aux, const char* staged,
                                              int lane, float (&acc)[G]) {
    const KShifts at(lane);
#pragma unroll
    for (int g = 0; g < G; ++g) acc[g] = 0.0f;
#pragma unroll
    for (int s = 0; s < S; ++s) {
        const KActs x = k_acts<Q6>(staged, 32 * S, 32 * s + lane);
#pragma unroll
        for (int g = 0; g < G; ++g) {
            const int index = g * 32 * S + 32 * s + lane;
            acc[g] = row1_dot<Q6>(raw[g][s], aux, index, x, row1_scales<Q6>(aux, index, at), acc[g]);
        }
    }
}

/// The scales of a lane's sub-blocks of G rows.
template <bool Q6, int S, int G>
__device__ __forceinline__ void row1_row_scales(const Row1Aux<Q6>& aux, int lane, float2 (&by)[G][S]) {
    const KShifts at(lane);
#pragma unroll
    for (int g = 0; g < G; ++g)
#pragma unroll
        for (int s = 0; s < S; ++s) by[g][s] = row1_scales<Q6>(aux, g * 32 * S + 32 * s + lane, at);
}

/// As row1_dot_rows with the nibbles in shared memory, row behind row.
template <bool Q6, int S, int G>
__device__ __forceinline__ void row1_dot_shared(const char* nibbles, const Row1Aux<Q6>& aux, const float2 (&by)[G][S],
                                                const char* staged, int lane, float (&acc)[G]) {
#pragma unroll
    for (int g = 0; g < G; ++g) acc[g] = 0.0f;
#pragma unroll
    for (int s = 0; s < S; ++s) {
        const KActs x = k_acts<Q6>(staged, 32 * S, 32 * s + lane);
#pragma unroll
        for (int g = 0; g < G; ++g) {
            const int index = g * 32 * S + 32 * s + lane;
            const uint4 q = *reinterpret_cast<const uint4*>(nibbles + 16 * index);
            acc[g] = row1_dot<Q6>(q, aux, index, x, by[g][s], acc[g]);
        }
    }
}

/// emit(g, sum) in one lane for each of G sums over the lanes.
template <int G, int Width = 32, class Emit>
__device__ __forceinline__ void row1_reduce(const float (&acc)[G], int lane, const Emit& emit) {
    constexpr int kValues = pow2_ceil(G), kShift = log2_floor(Width) - log2_floor(kValues);
    float v[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) v[i] = i < G ? acc[i < G ? i : 0] : 0.0f;
    const float sum = reduce_lanes<kValues, Width>(v, lane);
    const int g = (lane % Width) >> kShift;
    if ((lane & ((1 << kShift) - 1)) == 0 && g < G) emit(g, sum);
}

// ---- CTAs of kRow1Threads.

/// Copies to shared memory that one warp waits for, each issued by one lane; `barrier`: eight bytes of shared memory.
struct Row1Fetch {
    uint64_t* barrier;

    /// By one thread, before any copy: `bytes` are to come. The caller synchronises with all that copy or wait.
    __device__ __forceinline__ void init(int bytes) const {
#if __CUDA_ARCH__ >= 900
        const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
#endif
    }
    /// The same by all lanes of a warp that copies and waits alone. `mine`: in one lane.
    __device__ __forceinline__ void begin(bool mine, int bytes) const {
#if __CUDA_ARCH__ >= 900
        if (mine) init(bytes);
        __syncwarp();
#endif
    }
    /// By one lane; addresses and bytes are multiples of 16.
    __device__ __forceinline__ void copy(void* to, const char* from, int bytes) const {
#if __CUDA_ARCH__ >= 900
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
            "%4;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
            "l"(from), "r"(bytes), "r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier))), "l"(read_once())
            : "memory");
#else
        for (int i = 0; i < bytes; i += 16) copy_async16(static_cast<char*>(to) + i, from + i);
#endif
    }
    /// All lanes: everything is there.
    __device__ __forceinline__ void wait() const {
#if __CUDA_ARCH__ >= 900
        const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
        uint32_t done = 0;
        while (done == 0)
            asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
                         : "=r"(done)
                         : "r"(at)
                         : "memory");
#else
        copy_async_wait();
        __syncwarp();
#endif
    }
};

__device__ __forceinline__ float4 load_shared_f32x4(const float* p) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
/// Columns 8 c .. 8 c + 7 of a row of activations.
__device__ __forceinline__ void row1_load8(const float* x, int c, float (&v)[8]) {
    const float4 a = load_shared_f32x4(x + 8 * c), b = load_shared_f32x4(x + 8 * c + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
/// The same of weights.
__device__ __forceinline__ void row1_weights8(const float* w, int c, float (&v)[8]) {
    const uint4 a = load_weights(w + 8 * c), b = load_weights(w + 8 * c + 4);
    const uint32_t bits[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __uint_as_float(bits[i]);
}

constexpr int kRow1Hidden = 8 * kThreads;  // columns of a row that is normalised

/// A row of kRow1Hidden columns, normalised (block_rms_scale) and quantised, by half a CTA: thread u of it has columns
/// 8 u .. 8 u + 7. In two parts, between which the whole CTA synchronises. partial: kWarps floats.
struct Row1NormRow {
    float x[8];

    __device__ __forceinline__ void load(const float* row, int u, float* partial) {
        row1_load8(row, u, x);
        const float sum = warp_sum(add_squares(x, 0.0f));
        if (u % 32 == 0) partial[u / 32] = sum;
    }
    /// norm: the weights of this thread's columns.
    __device__ __forceinline__ void stage(const float (&norm)[8], float eps, int u, const float* partial,
                                          char* staged) {
        const float scale = row_scale(partial, kRow1Hidden, eps);
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] = rms_value(x[k], scale, norm[k]);
        put8(row1_layout(kRow1Hidden), staged, u, x);
    }
};

/// An int8 row (ActRow) to a staged one, by the whole CTA of kRow1Threads; halves: with the sums that Q6_K needs.
template <int Groups>
__device__ __forceinline__ void row1_stage_int8(const char* from, bool halves, char* staged) {
    constexpr int kPieces = 40 * Groups / 16, kRounds = (kPieces + kRow1Threads - 1) / kRow1Threads;
    uint4 v[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int at = i * kRow1Threads + threadIdx.x;
        if (at < kPieces) v[i] = reinterpret_cast<const uint4*>(from)[at];
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int at = i * kRow1Threads + threadIdx.x;
        if (at >= kPieces) break;
        reinterpret_cast<uint4*>(staged)[at] = v[i];
        if (!halves || at >= Groups) continue;  // the first Groups pieces are the first halves
        int sum = __dp4a(static_cast<int>(v[i].x), 0x01010101, 0);
        sum = __dp4a(static_cast<int>(v[i].y), 0x01010101, sum);
        sum = __dp4a(static_cast<int>(v[i].z), 0x01010101, sum);
        sum = __dp4a(static_cast<int>(v[i].w), 0x01010101, sum);
        *reinterpret_cast<float*>(staged + 40 * Groups + 4 * at) = static_cast<float>(sum);
    }
}

/// The first `pieces` of up to Pieces pieces of eight of a row of floats to a staged row, by the whole CTA of
/// kRow1Threads; zeros behind them.
template <int Pieces>
__device__ __forceinline__ void row1_stage_floats(const float* x, const ActLayout& l, char* staged,
                                                  int pieces = Pieces) {
    constexpr int kRounds = (Pieces + kRow1Threads - 1) / kRow1Threads;
    float v[kRounds][8];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int c = i * kRow1Threads + threadIdx.x;
        if (c < pieces) {
            row1_load8(x, c, v[i]);
        } else {
#pragma unroll
            for (int k = 0; k < 8; ++k) v[i][k] = 0.0f;
        }
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int c = i * kRow1Threads + threadIdx.x;
        if (c < (Pieces + 31) / 32 * 32) put8(l, staged, c, v[i]);
    }
}

/// n rows of x, int8 or floats, to staged ones, one behind the other, by the whole CTA of kRow1Threads. halves: see
/// row1_stage_int8().
template <int Cols>
__device__ __forceinline__ void row1_stage_rows(const ActSource& x, int n, bool halves, char* staged) {
#pragma unroll 1
    for (int p = 0; p < n; ++p) {
        const char* const from = x.rows + p * x.stride;
        char* const to = staged + p * staged_bytes(Cols);
        if (x.kind == ActKind::int8) row1_stage_int8<Cols / 32>(from, halves, to);
        else row1_stage_floats<Cols / 8>(reinterpret_cast<const float*>(from), row1_layout(Cols), to);
    }
}

__device__ __forceinline__ uint32_t warp_max(uint32_t v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(~0u, v);
#else
    for (int mask = 16; mask > 0; mask /= 2) v = max(v, __shfl_xor_sync(~0u, v, mask));
    return v;
#endif
}
__device__ __forceinline__ int warp_add(int v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(~0u, v);
#else
    for (int mask = 16; mask > 0; mask /= 2) v += __shfl_xor_sync(~0u, v, mask);
    return v;
#endif
}

/// Group g of a staged row of Groups groups, by a warp: lane i has the i-th of its 32 values. As
/// put8() has it.
template <int Groups>
__device__ __forceinline__ void put_group(char* row, int g, float v) {
    const int lane = threadIdx.x % 32;
    const ActGroup act(warp_max(__float_as_uint(v) & 0x7FFFFFFFu));
    const int code = act.code(v), sum = warp_add(code), first = warp_add(lane < 16 ? code : 0);
    row[(lane / 16 * Groups + g) * 16 + lane % 16] = static_cast<char>(code);
    if (lane == 0) {
        *reinterpret_cast<float2*>(row + 32 * Groups + 8 * g) = make_float2(act.d, static_cast<float>(sum));
        *reinterpret_cast<float*>(row + 40 * Groups + 4 * g) = static_cast<float>(first);
    }
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
