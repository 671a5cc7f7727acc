// How much attention a window's rows pay to each key.
//
// Bytes: keys of 2 * Hkv * d, read twice: 537 MB for 131,072 keys of 8 heads of 128, 0.12 ms at 4.5 TB/s. FLOPs: 64
// rows of 16 heads, twice: 69 GFLOP, 0.2 ms at the 300 TFLOP/s that mma.sync gives beside other work. Design: a warp
// has 32 keys of a KV head in registers, as fragments, and passes over its queries (rows times heads of a group) by 16.
// Columns are dealt out four neighbours a lane in both operands, so that fragments are 8-byte loads of whole sectors.
// Kernels: queries to f16; softmax sums of 256 keys each; their merging; weights; the sum over KV heads. (A first
// version, with keys outside and f32 queries converted at each use, took 2.8 ms for 131,072 keys and 64 rows, and 1.8
// ms for 32,768. Now 0.8 and 0.2. H200, 2026-11-22.)
#include <cuda_fp16.h>

#include "base/error.h"
#include "ops/cuda/backend_scoring.h"
#include "ops/cuda/device/mma.cuh"
#include "ops/scoring/window_mass.h"
#include "tensor/launch.cuh"

namespace riptide::ops {

namespace {

constexpr int kWarps = 8;
constexpr int kKeys = 32;               // of a warp
constexpr int kPiece = kWarps * kKeys;  // of a block

struct MassArgs {
    const float* q;      // [rows, heads, d]
    __half* queries;     // [kv_heads][padded][columns]: row t, head h of a group is t * group + h
    const __half* keys;  // [n, kv_heads, columns]
    float2* pieces;      // [pieces][kv_heads * padded]: largest score in units of log2, sum of 2^(score - largest)
    float2* softmax;     // [kv_heads * padded]: largest, 1 / sum
    float* parts;        // [kv_heads][n]: mass of each KV head's queries
    float* mass;
    float scale;  // includes log2 e
    int count;    // queries of a KV head
    int padded;   // to whole sixteens
    int group, heads, kv_heads, d, columns;
    int begin, end, n;  // the window, and how many keys there are
};

__device__ __forceinline__ uint32_t pack_half(float a, float b) {
    const auto saturate = [](float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; };
    const __half2 h = __floats2half2_rn(saturate(a), saturate(b));
    return *reinterpret_cast<const uint32_t*>(&h);
}

/// A block for each padded query of each KV head: zeros behind d and behind the last query.
__global__ void __launch_bounds__(128) window_mass_pack_kernel(const __grid_constant__ MassArgs a) {
    pdl_trigger();
    pdl_wait();
    const int i = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
    const float* const q = a.q + (int64_t{i / a.group} * a.heads + kv_head * a.group + i % a.group) * a.d;
    auto* const to = reinterpret_cast<uint32_t*>(a.queries + (int64_t{kv_head} * a.padded + i) * a.columns);
    for (int e = 2 * static_cast<int>(threadIdx.x); e < a.columns; e += 256) {
        const bool here = i < a.count;
        to[e / 2] = pack_half(here && e < a.d ? q[e] : 0.0f, here && e + 1 < a.d ? q[e + 1] : 0.0f);
    }
}

__device__ __forceinline__ float dot_half(uint32_t a, uint32_t b) {
    const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&a));
    const float2 y = __half22float2(*reinterpret_cast<const __half2*>(&b));
    return __fmaf_rn(x.y, y.y, __fmul_rn(x.x, y.x));
}

/// 32 keys of a warp: as fragments in registers if there are 16 kSteps columns, else where they lie (kSteps 0).
template <int kSteps>
struct Keys {
    const MassArgs& a;
    int kv_head, first;
    uint2 part[kSteps > 0 ? kSteps : 1][4];

    __device__ __forceinline__ Keys(const MassArgs& args, int kv, int key) : a(args), kv_head(kv), first(key) {
        const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
#pragma unroll
            for (int c = 0; c < 4; ++c) part[step][c] = load(8 * c + lane / 4, 16 * step + lane % 4 * 4);
    }
    __device__ __forceinline__ uint2 load(int j, int e) const {
        const __half* row = a.keys + (int64_t{min(first + j, a.n - 1)} * a.kv_heads + kv_head) * a.columns;
        return *reinterpret_cast<const uint2*>(row + e);
    }
};

/// Scores of queries i + l / 4 (s[.][0], s[.][1]) and that + 8 (s[.][2], s[.][3]) with keys 8 c + 2 (l % 4) of the
/// warp's (even entries) and the one after; -inf where a query does not see a key, or one of them is not there.
template <bool kTensor, int kSteps>
__device__ __forceinline__ void tile_scores(float (&s)[4][4], const MassArgs& a, const Keys<kSteps>& keys, int i) {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    const __half* const q = a.queries + (int64_t{keys.kv_head} * a.padded + i + g) * a.columns;
    const auto query = [&](int row, int e) { return *reinterpret_cast<const uint2*>(q + row * a.columns + e); };
#pragma unroll
    for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[c][e] = 0.0f;
    if constexpr (kTensor && kSteps > 0) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const uint2 low = query(0, 16 * step + 4 * t), high = query(8, 16 * step + 4 * t);
#pragma unroll
            for (int c = 0; c < 4; ++c)
                mma<false>(s[c], low.x, high.x, low.y, high.y, keys.part[step][c].x, keys.part[step][c].y);
        }
    } else if constexpr (kTensor) {
        for (int e = 4 * t; e < a.columns; e += 16) {
            const uint2 low = query(0, e), high = query(8, e);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const uint2 b = keys.load(8 * c + g, e);
                mma<false>(s[c], low.x, high.x, low.y, high.y, b.x, b.y);
            }
        }
    } else {
        for (int e = 0; e < a.columns; e += 4) {
            const uint2 low = query(0, e), high = query(8, e);
#pragma unroll
            for (int c = 0; c < 4; ++c)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const uint2 b = keys.load(8 * c + 2 * t + j, e);
                    s[c][j] += dot_half(low.x, b.x) + dot_half(low.y, b.y);
                    s[c][2 + j] += dot_half(high.x, b.x) + dot_half(high.y, b.y);
                }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int index = i + g + 8 * h, last = index < a.count ? a.begin + index / a.group : -1;
        const int behind = index < a.count ? a.end : a.n;
#pragma unroll
        for (int c = 0; c < 4; ++c)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int j = keys.first + 8 * c + 2 * t + e;
                float& x = s[c][2 * h + e];
                x = j < a.n && (j <= last || j >= behind) ? __fmul_rn(x, a.scale) : -INFINITY;
            }
    }
}

/// (largest, sum) of two sets of keys.
__device__ __forceinline__ float2 merge(float2 a, float2 b) {
    const float largest = fmaxf(a.x, b.x), base = largest == -INFINITY ? 0.0f : largest;
    return {largest, __fadd_rn(__fmul_rn(a.y, fast_exp2(__fsub_rn(a.x, base))),
                               __fmul_rn(b.y, fast_exp2(__fsub_rn(b.x, base))))};
}

/// Sums of a block's 256 keys for all queries of a KV head. Grid: (pieces, KV heads).
template <bool kTensor, int kSteps>
__global__ void __launch_bounds__(kWarps * 32) window_mass_sums_kernel(const __grid_constant__ MassArgs a) {
    pdl_trigger();
    pdl_wait();
    __shared__ float2 shared[2][kWarps][16];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int piece = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
    const Keys<kSteps> keys(a, kv_head, piece * kPiece + warp * kKeys);
    for (int i = 0; i < a.padded; i += 16) {
        float s[4][4];
        tile_scores<kTensor, kSteps>(s, a, keys, i);
        auto& states = shared[i / 16 % 2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float largest = -INFINITY, sum = 0.0f;
#pragma unroll
            for (int c = 0; c < 4; ++c) largest = fmaxf(largest, fmaxf(s[c][2 * h], s[c][2 * h + 1]));
#pragma unroll
            for (int mask = 1; mask < 4; mask *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
            const float base = largest == -INFINITY ? 0.0f : largest;
#pragma unroll
            for (int c = 0; c < 4; ++c)
#pragma unroll
                for (int e = 0; e < 2; ++e) sum = __fadd_rn(sum, fast_exp2(__fsub_rn(s[c][2 * h + e], base)));
#pragma unroll
            for (int mask = 1; mask < 4; mask *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, mask));
            if (lane % 4 == 0) states[warp][lane / 4 + 8 * h] = {largest, sum};
        }
        __syncthreads();  // the other half of `shared` is read by nobody then
        if (threadIdx.x < 16) {
            float2 state = states[0][threadIdx.x];
            for (int w = 1; w < kWarps; ++w) state = merge(state, states[w][threadIdx.x]);
            a.pieces[(int64_t{piece} * a.kv_heads + kv_head) * a.padded + i + static_cast<int>(threadIdx.x)] = state;
        }
    }
}

/// A warp for each query: lane l merges pieces l, l + 32, ..., then lanes pair up. Queries that are only padding: 0.
__global__ void __launch_bounds__(kWarps * 32) window_mass_merge_kernel(const __grid_constant__ MassArgs a) {
    pdl_trigger();
    pdl_wait();
    const int lane = static_cast<int>(threadIdx.x % 32), all = a.kv_heads * a.padded;
    const int query = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x / 32);
    if (query >= all) return;
    float2 state = {-INFINITY, 0.0f};
    for (int piece = lane; piece * kPiece < a.n; piece += 32)
        state = merge(state, a.pieces[int64_t{piece} * all + query]);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        state = merge(state, {__shfl_xor_sync(~0u, state.x, mask), __shfl_xor_sync(~0u, state.y, mask)});
    if (lane == 0)
        a.softmax[query] =
            query % a.padded < a.count ? make_float2(state.x, __fdiv_rn(1.0f, state.y)) : make_float2(0.0f, 0.0f);
}

/// What a block's 256 keys get from all queries of a KV head. Grid: (pieces, KV heads).
template <bool kTensor, int kSteps>
__global__ void __launch_bounds__(kWarps * 32) window_mass_parts_kernel(const __grid_constant__ MassArgs a) {
    pdl_trigger();
    pdl_wait();
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int first = static_cast<int>(blockIdx.x) * kPiece + warp * kKeys, kv_head = static_cast<int>(blockIdx.y);
    if (first >= a.n) return;
    const Keys<kSteps> keys(a, kv_head, first);
    float mass[4][2] = {};
    for (int i = 0; i < a.padded; i += 16) {
        float s[4][4];
        tile_scores<kTensor, kSteps>(s, a, keys, i);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float2 row = a.softmax[kv_head * a.padded + i + lane / 4 + 8 * h];
#pragma unroll
            for (int c = 0; c < 4; ++c)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    mass[c][e] = __fmaf_rn(fast_exp2(__fsub_rn(s[c][2 * h + e], row.x)), row.y, mass[c][e]);
        }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float x = mass[c][e];
#pragma unroll
            for (int mask = 4; mask < 32; mask *= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, mask));
            const int at = first + 8 * c + 2 * (lane % 4) + e;
            if (lane / 4 == 0 && at < a.n) a.parts[int64_t{kv_head} * a.n + at] = x;
        }
}

__global__ void __launch_bounds__(256) window_mass_add_kernel(const __grid_constant__ MassArgs a) {
    pdl_trigger();
    pdl_wait();
    const int j = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (j >= a.n) return;
    float sum = 0.0f;
    for (int h = 0; h < a.kv_heads; ++h) sum = __fadd_rn(sum, a.parts[int64_t{h} * a.n + j]);
    a.mass[j] = __fadd_rn(a.mass[j], sum);
}

struct StoreArgs {
    const float* k;  // [rows, d]
    __half2* keys;   // [rows, columns / 2]
    int64_t pairs;
    int d, columns;
};
__global__ void __launch_bounds__(256) window_mass_store_kernel(const __grid_constant__ StoreArgs a) {
    pdl_trigger();
    pdl_wait();
    const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
    if (i >= a.pairs) return;
    const int64_t row = i / (a.columns / 2);
    const int e = static_cast<int>(i % (a.columns / 2)) * 2;
    const uint32_t pair = pack_half(e < a.d ? a.k[row * a.d + e] : 0.0f, e + 1 < a.d ? a.k[row * a.d + e + 1] : 0.0f);
    *reinterpret_cast<uint32_t*>(a.keys + i) = pair;
}

unsigned blocks(int64_t items, int64_t each) { return static_cast<unsigned>((items + each - 1) / each); }

template <bool kTensor, int kSteps>
void run(const Gpu& gpu, const MassArgs& a) {
    const dim3 threads(kWarps * 32);
    const auto kv_heads = static_cast<unsigned>(a.kv_heads);
    const dim3 pieces(blocks(a.n, kPiece), kv_heads);
    launch(gpu, window_mass_pack_kernel, dim3(static_cast<unsigned>(a.padded), kv_heads), dim3(128), 0, a);
    launch(gpu, window_mass_sums_kernel<kTensor, kSteps>, pieces, threads, 0, a);
    launch(gpu, window_mass_merge_kernel, dim3(blocks(int64_t{a.kv_heads} * a.padded, kWarps)), threads, 0, a);
    launch(gpu, window_mass_parts_kernel<kTensor, kSteps>, pieces, threads, 0, a);
    launch(gpu, window_mass_add_kernel, dim3(blocks(a.n, 256)), dim3(256), 0, a);
}

}  // namespace

namespace cuda {

void store_score_keys(Context& ctx, const Tensor& k, int64_t first, Tensor& keys) {
    const int64_t columns = keys.shape[2], pairs = k.rows() * k.shape[1] * columns / 2;
    if (pairs == 0) return;
    const StoreArgs args{k.row(0), reinterpret_cast<__half2*>(keys.row<__half>(first)), pairs,
                         static_cast<int>(k.shape[2]), static_cast<int>(columns)};
    launch(*ctx.gpu, window_mass_store_kernel, dim3(blocks(pairs, 256)), dim3(256), 0, args);
}

void add_window_mass(Context& ctx, const Tensor& q, const Tensor& keys, int64_t begin, int64_t n, float softmax_scale,
                     Tensor& mass) {
    const ArenaScope scope(*ctx.arena);
    const int64_t kv_heads = keys.shape[1], group = q.shape[1] / kv_heads, columns = keys.shape[2];
    const int64_t padded = (q.rows() * group + 15) / 16 * 16, pieces = (n + kPiece - 1) / kPiece;
    const auto memory = [&](int64_t bytes) { return ctx.arena->allocate(bytes); };
    const MassArgs args = {
        .q = q.row(0),
        .queries = static_cast<__half*>(memory(kv_heads * padded * columns * 2)),
        .keys = keys.row<__half>(0),
        .pieces = static_cast<float2*>(memory(pieces * kv_heads * padded * int64_t{sizeof(float2)})),
        .softmax = static_cast<float2*>(memory(kv_heads * padded * int64_t{sizeof(float2)})),
        .parts = static_cast<float*>(memory(kv_heads * n * 4)),
        .mass = mass.row(0),
        .scale = static_cast<float>(softmax_scale * 1.4426950408889634),
        .count = static_cast<int>(q.rows() * group),
        .padded = static_cast<int>(padded),
        .group = static_cast<int>(group),
        .heads = static_cast<int>(q.shape[1]),
        .kv_heads = static_cast<int>(kv_heads),
        .d = static_cast<int>(q.shape[2]),
        .columns = static_cast<int>(columns),
        .begin = static_cast<int>(begin),
        .end = static_cast<int>(begin + q.rows()),
        .n = static_cast<int>(n),
    };
    if (ctx.gpu->info().major < 8) return run<false, 0>(*ctx.gpu, args);
    if (columns == 128) return run<true, 8>(*ctx.gpu, args);
    if (columns == 64) return run<true, 4>(*ctx.gpu, args);
    run<true, 0>(*ctx.gpu, args);
}

}  // namespace cuda

}  // namespace riptide::ops
