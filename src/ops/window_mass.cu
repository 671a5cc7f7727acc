// How much attention a window's rows pay to each key.
//
// Bytes: keys of 2 * Hkv * d, read twice: 537 MB for 131,072 keys of 8 heads of 128, 0.12 ms at 4.5 TB/s. FLOPs: 8 rows
// of 16 heads, twice: 17 GFLOP, nothing for tensor cores; 512 rows: 1.1 TFLOP, 2 ms at 600 TFLOP/s. Design: a warp
// takes 32 keys at a time and 16 queries (rows times heads of a group), fragments straight from memory: every pair of
// lanes quarters reads whole sectors because the columns of both operands are dealt out four neighbours a lane. Three
// kernels: softmax sums of 256 keys each, their merging, weights. Not measured yet.
#include <cuda_fp16.h>

#include "base/error.h"
#include "ops/attention_instructions.cuh"
#include "ops/cuda_scorer.h"
#include "ops/window_mass.h"
#include "tensor/launch.cuh"

namespace riptide::ops {

namespace {

constexpr int kWarps = 8;
constexpr int kKeys = 32;    // of a warp at a time
constexpr int kPiece = 256;  // keys whose sums a warp makes

struct MassArgs {
    const float* q;      // [rows, heads, d]
    const __half* keys;  // [n, kv_heads, columns]
    float2* pieces;      // [pieces][kv_heads * queries]: largest score in units of log2, sum of 2^(score - largest)
    float2* softmax;     // [kv_heads * queries]: largest, 1 / sum
    float* mass;
    float scale;  // includes log2 e
    int queries;  // of a KV head: rows times group
    int group, heads, kv_heads, d, columns;
    int begin, end, n;  // the window, and how many keys there are
};

__device__ __forceinline__ uint32_t pack_half(float a, float b) {
    const auto saturate = [](float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; };
    const __half2 h = __floats2half2_rn(saturate(a), saturate(b));
    return *reinterpret_cast<const uint32_t*>(&h);
}

/// Columns e .. e + 3 of a query as two pairs; zeros behind d and if there is no query.
__device__ __forceinline__ uint2 query_part(const MassArgs& a, int kv_head, int i, int e) {
    float x[4] = {};
    if (i < a.queries) {
        const float* q = a.q + (int64_t{i / a.group} * a.heads + kv_head * a.group + i % a.group) * a.d;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (e + j < a.d) x[j] = q[e + j];
    }
    return {pack_half(x[0], x[1]), pack_half(x[2], x[3])};
}

__device__ __forceinline__ float dot_half(uint32_t a, uint32_t b) {
    const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&a));
    const float2 y = __half22float2(*reinterpret_cast<const __half2*>(&b));
    return __fmaf_rn(x.y, y.y, __fmul_rn(x.x, y.x));
}

/// Scores of queries i + l / 4 (s[.][0], s[.][1]) and that + 8 (s[.][2], s[.][3]) with keys
/// key + 8 c + 2 (l % 4) (even entries) and the one after; -inf where a query does not see a key, or one of them is
/// not there.
template <bool kTensor>
__device__ __forceinline__ void tile_scores(float (&s)[4][4], const MassArgs& a, int kv_head, int i, int key) {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    const auto key_row = [&](int j) { return a.keys + (int64_t{min(j, a.n - 1)} * a.kv_heads + kv_head) * a.columns; };
#pragma unroll
    for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[c][e] = 0.0f;
    if constexpr (kTensor) {
        for (int e = 4 * t; e < a.columns; e += 16) {
            const uint2 low = query_part(a, kv_head, i + g, e), high = query_part(a, kv_head, i + g + 8, e);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const uint2 b = *reinterpret_cast<const uint2*>(key_row(key + 8 * c + g) + e);
                mma<false>(s[c], low.x, high.x, low.y, high.y, b.x, b.y);
            }
        }
    } else {
        for (int e = 0; e < a.columns; e += 4) {
            const uint2 low = query_part(a, kv_head, i + g, e), high = query_part(a, kv_head, i + g + 8, e);
#pragma unroll
            for (int c = 0; c < 4; ++c)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const uint2 b = *reinterpret_cast<const uint2*>(key_row(key + 8 * c + 2 * t + j) + e);
                    s[c][j] += dot_half(low.x, b.x) + dot_half(low.y, b.y);
                    s[c][2 + j] += dot_half(high.x, b.x) + dot_half(high.y, b.y);
                }
        }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int query = i + g + e / 2 * 8, j = key + 8 * c + 2 * t + e % 2;
            const bool sees = query < a.queries && j < a.n && (j <= a.begin + query / a.group || j >= a.end);
            s[c][e] = sees ? __fmul_rn(s[c][e], a.scale) : -INFINITY;
        }
}

/// (largest, sum) of two sets of keys.
__device__ __forceinline__ float2 merge(float2 a, float2 b) {
    const float largest = fmaxf(a.x, b.x), base = largest == -INFINITY ? 0.0f : largest;
    return {largest, __fadd_rn(__fmul_rn(a.y, fast_exp2(__fsub_rn(a.x, base))),
                               __fmul_rn(b.y, fast_exp2(__fsub_rn(b.x, base))))};
}

/// A warp takes 256 keys of one KV head and all its queries. Grid: (pieces / 8, KV heads).
template <bool kTensor>
__global__ void __launch_bounds__(kWarps * 32) sums_kernel(const __grid_constant__ MassArgs a) {
    pdl_trigger();
    pdl_wait();
    const int lane = static_cast<int>(threadIdx.x % 32), kv_head = static_cast<int>(blockIdx.y);
    const int piece = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x / 32);
    if (piece * kPiece >= a.n) return;
    for (int i = 0; i < a.queries; i += 16) {
        float2 state[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
        for (int key = piece * kPiece; key < min(a.n, (piece + 1) * kPiece); key += kKeys) {
            float s[4][4];
            tile_scores<kTensor>(s, a, kv_head, i, key);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float largest = -INFINITY, sum = 0.0f;
#pragma unroll
                for (int c = 0; c < 4; ++c) largest = fmaxf(largest, fmaxf(s[c][2 * h], s[c][2 * h + 1]));
                const float base = largest == -INFINITY ? 0.0f : largest;
#pragma unroll
                for (int c = 0; c < 4; ++c)
#pragma unroll
                    for (int j = 0; j < 2; ++j) sum = __fadd_rn(sum, fast_exp2(__fsub_rn(s[c][2 * h + j], base)));
                state[h] = merge(state[h], {largest, sum});
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int mask = 1; mask < 4; mask *= 2)
                state[h] =
                    merge(state[h], {__shfl_xor_sync(~0u, state[h].x, mask), __shfl_xor_sync(~0u, state[h].y, mask)});
            const int query = i + lane / 4 + 8 * h;
            if (lane % 4 == 0 && query < a.queries)
                a.pieces[(int64_t{piece} * a.kv_heads + kv_head) * a.queries + query] = state[h];
        }
    }
}

/// A warp for each query: lane l merges pieces l, l + 32, ..., then lanes pair up.
__global__ void __launch_bounds__(kWarps * 32) merge_kernel(const __grid_constant__ MassArgs a) {
    pdl_trigger();
    pdl_wait();
    const int lane = static_cast<int>(threadIdx.x % 32), all = a.kv_heads * a.queries;
    const int query = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x / 32);
    if (query >= all) return;
    float2 state = {-INFINITY, 0.0f};
    for (int piece = lane; piece * kPiece < a.n; piece += 32)
        state = merge(state, a.pieces[int64_t{piece} * all + query]);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        state = merge(state, {__shfl_xor_sync(~0u, state.x, mask), __shfl_xor_sync(~0u, state.y, mask)});
    if (lane == 0) a.softmax[query] = {state.x, __fdiv_rn(1.0f, state.y)};
}

/// A warp adds up what 32 keys get from all queries.
template <bool kTensor>
__global__ void __launch_bounds__(kWarps * 32) mass_kernel(const __grid_constant__ MassArgs a) {
    pdl_trigger();
    pdl_wait();
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int key = (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x / 32)) * kKeys;
    if (key >= a.n) return;
    float mass[4][2] = {};
    for (int kv_head = 0; kv_head < a.kv_heads; ++kv_head)
        for (int i = 0; i < a.queries; i += 16) {
            float s[4][4];
            tile_scores<kTensor>(s, a, kv_head, i, key);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int query = i + lane / 4 + 8 * h;
                const float2 row = query < a.queries ? a.softmax[kv_head * a.queries + query] : make_float2(0.0f, 0.0f);
#pragma unroll
                for (int c = 0; c < 4; ++c)
#pragma unroll
                    for (int j = 0; j < 2; ++j)
                        mass[c][j] = __fmaf_rn(fast_exp2(__fsub_rn(s[c][2 * h + j], row.x)), row.y, mass[c][j]);
            }
        }
#pragma unroll
    for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            float x = mass[c][j];
#pragma unroll
            for (int mask = 4; mask < 32; mask *= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, mask));
            const int at = key + 8 * c + 2 * (lane % 4) + j;
            if (lane / 4 == 0 && at < a.n) a.mass[at] = __fadd_rn(a.mass[at], x);
        }
}

struct StoreArgs {
    const float* k;  // [rows, d]
    __half2* keys;   // [rows, columns / 2]
    int64_t pairs;
    int d, columns;
};
__global__ void __launch_bounds__(256) store_kernel(const __grid_constant__ StoreArgs a) {
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

template <bool kTensor>
void run(const Gpu& gpu, const MassArgs& args) {
    const dim3 threads(kWarps * 32);
    const auto kv_heads = static_cast<unsigned>(args.kv_heads);
    launch(gpu, sums_kernel<kTensor>, dim3(blocks(args.n, kWarps * kPiece), kv_heads), threads, 0, args);
    launch(gpu, merge_kernel, dim3(blocks(int64_t{args.kv_heads} * args.queries, kWarps)), threads, 0, args);
    launch(gpu, mass_kernel<kTensor>, dim3(blocks(args.n, kWarps * kKeys)), threads, 0, args);
}

}  // namespace

namespace cuda {

void store_score_keys(Context& ctx, const Tensor& k, int64_t first, Tensor& keys) {
    const int64_t columns = keys.shape[2], pairs = k.rows() * k.shape[1] * columns / 2;
    if (pairs == 0) return;
    const StoreArgs args{k.row(0), reinterpret_cast<__half2*>(keys.row<__half>(first)), pairs,
                         static_cast<int>(k.shape[2]), static_cast<int>(columns)};
    launch(*ctx.gpu, store_kernel, dim3(blocks(pairs, 256)), dim3(256), 0, args);
}

void add_window_mass(Context& ctx, const Tensor& q, const Tensor& keys, int64_t begin, int64_t n, float softmax_scale,
                     Tensor& mass) {
    const ArenaScope scope(*ctx.arena);
    const int64_t kv_heads = keys.shape[1], group = q.shape[1] / kv_heads, all = q.rows() * q.shape[1];
    const int64_t pieces = (n + kPiece - 1) / kPiece;
    const MassArgs args = {
        .q = q.row(0),
        .keys = keys.row<__half>(0),
        .pieces = static_cast<float2*>(ctx.arena->allocate(pieces * all * int64_t{sizeof(float2)})),
        .softmax = static_cast<float2*>(ctx.arena->allocate(all * int64_t{sizeof(float2)})),
        .mass = mass.row(0),
        .scale = static_cast<float>(softmax_scale * 1.4426950408889634),
        .queries = static_cast<int>(q.rows() * group),
        .group = static_cast<int>(group),
        .heads = static_cast<int>(q.shape[1]),
        .kv_heads = static_cast<int>(kv_heads),
        .d = static_cast<int>(q.shape[2]),
        .columns = static_cast<int>(keys.shape[2]),
        .begin = static_cast<int>(begin),
        .end = static_cast<int>(begin + q.rows()),
        .n = static_cast<int>(n),
    };
    if (ctx.gpu->info().major >= 8) run<true>(*ctx.gpu, args);
    else run<false>(*ctx.gpu, args);
}

}  // namespace cuda

}  // namespace riptide::ops
