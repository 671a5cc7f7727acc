// Attention of a drafter's block on tensor cores: heads of 128 with K and V in f16 on Hopper. For block_attention.cu,
// which has all else.
//
// Bytes: K and V of a KV head once for all its query heads and up to 16 rows and heads together: 16.8 MB a layer of
// Laguna XS.2's drafter at 4,096 tokens, 3.6 us at 4.65 TB/s; 4 FLOPs for each of 16 rows, 16.8 MB / 2: twice that for
// the two halves of f32 (below), about 1 us. Design: a cluster of eight CTAs has one KV head and 16 (row, query head)
// pairs; chunk c of 16 keys belongs to CTA c mod 8 and its warp c / 8 mod 8, which keeps a state of its own; the states
// of a CTA are added in order of warps, then those of the cluster in order of CTAs. Fragments are loaded from global
// memory in 16-byte pieces: columns of Q K^T may be summed in any order, and columns of V may come out in any. Queries
// and probabilities are the sum of two f16 values each, so that products have f32's precision (2^-22); K and V are f16
// as they are. Measured (H200, 2026-11-22, 8 rows, op by op, 4 us of it the profile's): 13 us at 128 tokens, 21 at
// 4,096. What limits it: latency, one chunk after the other in a warp. Tried: chunks of 64 keys 17 and 25 us.
#include "ops/attention_heads.cuh"
#include "ops/block_attention_tensor.h"
#include "ops/cluster_memory.cuh"

namespace riptide::ops {

namespace {

constexpr int kDim = 128, kPairs = 16, kWarps = 8, kCtas = 8, kKeys = 16;
constexpr int kThreads = 32 * kWarps;

struct Shared {
    float x[kWarps][kPairs][kDim];
    float2 ml[kWarps][kPairs];  // largest score in units of log2, and the sum
    float cta_x[kPairs][kDim];
    float2 cta_ml[kPairs];
};

#ifdef RT_CLUSTER_KERNEL

__device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two values as f16, and what is left of them.
__device__ __forceinline__ void split(float a, float b, uint32_t& high, uint32_t& low) {
    const __half2 h = __floats2half2_rn(a, b);
    const float2 f = __half22float2(h);
    const __half2 l = __floats2half2_rn(a - f.x, b - f.y);
    high = *reinterpret_cast<const uint32_t*>(&h);
    low = *reinterpret_cast<const uint32_t*>(&l);
}

/// A warp's queries: rows lane / 4 and lane / 4 + 8 of the pairs. Lane t of four has elements 32 s + 8 t .. + 7, step 2
/// s
/// + h of the product elements 8 t + 4 h .. + 3 of them. Scaled by a power of two, so that halves lose nothing.
struct Queries {
    uint32_t high[8][4], low[8][4];
    float unscale[2];

    __device__ __forceinline__ Queries(const float* const (&rows)[2], int t) {
        float v[2][32];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float largest = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float4 q = rows[r] != nullptr
                                     ? *reinterpret_cast<const float4*>(rows[r] + i / 2 * 32 + 8 * t + i % 2 * 4)
                                     : make_float4(0, 0, 0, 0);
                v[r][4 * i] = q.x, v[r][4 * i + 1] = q.y, v[r][4 * i + 2] = q.z, v[r][4 * i + 3] = q.w;
                largest = fmaxf(largest, fmaxf(fmaxf(fabsf(q.x), fabsf(q.y)), fmaxf(fabsf(q.z), fabsf(q.w))));
            }
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            // To [2^10, 2^11); as far as both powers are numbers.
            const int power = min(max(137 - static_cast<int>(__float_as_uint(largest) >> 23), -120), 120);
            const float scale = __uint_as_float(static_cast<uint32_t>(127 + power) << 23);
            unscale[r] = __uint_as_float(static_cast<uint32_t>(127 - power) << 23);
#pragma unroll
            for (int i = 0; i < 32; ++i) v[r][i] *= scale;
        }
#pragma unroll
        for (int s = 0; s < 8; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                split(v[i % 2][4 * s + i / 2 * 2], v[i % 2][4 * s + i / 2 * 2 + 1], high[s][i], low[s][i]);
    }
};

/// What a warp knows of its keys; rows and columns as mma's results: element e of tile j is row lane / 4 + 8 (e / 2)
/// and element 16 (2 t + e % 2) + j of V.
struct State {
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};
    float x[16][4] = {};
};

/// The 16 keys of a chunk; slot: of key lane % 16. low, end: the keys that rows see.
__device__ __forceinline__ void add_chunk(const BlockTensorArgs& a, int kv_head, int chunk, int32_t slot,
                                          const int (&low)[2], int end, const Queries& q, State& state) {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    const unsigned char* const k_head = a.k_cache + kv_head * kDim * 2;
    const unsigned char* const v_head = a.v_cache + kv_head * kDim * 2;
    uint4 k[2][4], v[4][2];  // v: keys 2 t, + 1, + 8, + 9; columns 16 g ..
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const auto* row = reinterpret_cast<const uint4*>(k_head + __shfl_sync(~0u, slot, 8 * j + g) * a.k_slot_bytes);
#pragma unroll
        for (int s = 0; s < 4; ++s) k[j][s] = row[4 * s + t];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const auto* row =
            reinterpret_cast<const uint4*>(v_head + __shfl_sync(~0u, slot, 2 * t + i % 2 + i / 2 * 8) * a.v_slot_bytes);
        v[i][0] = row[2 * g];
        v[i][1] = row[2 * g + 1];
    }
    float score[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        float small[4] = {}, large[4] = {};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            mma_f16(small, q.low[2 * s], k[j][s].x, k[j][s].y);
            mma_f16(large, q.high[2 * s], k[j][s].x, k[j][s].y);
            mma_f16(small, q.low[2 * s + 1], k[j][s].z, k[j][s].w);
            mma_f16(large, q.high[2 * s + 1], k[j][s].z, k[j][s].w);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int key = kKeys * chunk + 8 * j + 2 * t + e % 2;
            const bool seen = key < end && key >= low[e / 2];
            score[j][e] = seen ? (small[e] + large[e]) * q.unscale[e / 2] * a.scale : -INFINITY;
        }
    }
    float keep[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float most = fmaxf(fmaxf(score[0][2 * r], score[0][2 * r + 1]), fmaxf(score[1][2 * r], score[1][2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(state.m[r], fmaxf(most, __shfl_xor_sync(~0u, most, 2)));
        keep[r] = most == -INFINITY ? 1.0f : exp2f(state.m[r] - most);
        state.m[r] = most;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; ++e) {
                score[j][e] = score[j][e] == -INFINITY ? 0.0f : exp2f(score[j][e] - most);
                sum += score[j][e];
            }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        state.l[r] = fmaf(state.l[r], keep[r], sum);
    }
    uint32_t high[4], low_part[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) split(score[i / 2][i % 2 * 2], score[i / 2][i % 2 * 2 + 1], high[i], low_part[i]);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
        const auto word = [&](int i) {
            const uint4& p = v[i][j / 8];
            return j / 2 % 4 == 0 ? p.x : j / 2 % 4 == 1 ? p.y : j / 2 % 4 == 2 ? p.z : p.w;
        };
        const uint32_t half = j % 2 == 0 ? 0x5410u : 0x7632u;
        const uint32_t b0 = __byte_perm(word(0), word(1), half), b1 = __byte_perm(word(2), word(3), half);
#pragma unroll
        for (int e = 0; e < 4; ++e) state.x[j][e] *= keep[e / 2];
        mma_f16(state.x[j], low_part, b0, b1);
        mma_f16(state.x[j], high, b0, b1);
    }
}

__device__ __forceinline__ void put(const State& state, float (*x)[kDim], float2* ml) {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (t == 0) ml[g + 8 * r] = {state.m[r], state.l[r]};
#pragma unroll
        for (int e = 0; e < 2; ++e)
#pragma unroll
            for (int j = 0; j < 16; j += 4) {
                const int k = 2 * r + e;
                *reinterpret_cast<float4*>(&x[g + 8 * r][16 * (2 * t + e) + j]) =
                    make_float4(state.x[j][k], state.x[j + 1][k], state.x[j + 2][k], state.x[j + 3][k]);
            }
    }
}

__device__ __forceinline__ float weight_of(float m, float most) { return m == -INFINITY ? 0.0f : exp2f(m - most); }

__device__ __forceinline__ float2 load_there2(uint32_t at) {
    float2 v;
    asm volatile("ld.shared::cluster.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ float load_there(uint32_t at) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}

#endif

/// Cluster: blockIdx.x / 8 = (sequence * tiles + tile) * kv_heads + KV head.
__global__ void __launch_bounds__(kThreads, 1) block_tensor_kernel(const __grid_constant__ BlockTensorArgs a) {
#ifdef RT_CLUSTER_KERNEL
    extern __shared__ uint4 dynamic[];
    Shared& s = *reinterpret_cast<Shared*>(dynamic);
    pdl_trigger();
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int rank = static_cast<int>(blockIdx.x) % kCtas, job = static_cast<int>(blockIdx.x) / kCtas;
    const int kv_head = job % a.kv_heads, tile = job / a.kv_heads % a.tiles, sequence = job / a.kv_heads / a.tiles;
    const int group = a.heads / a.kv_heads;
    pdl_wait();
    const int row0 = a.places.row_begin[sequence], rows = a.places.row_begin[sequence + 1] - row0;
    const int committed = a.places.committed[sequence], end = committed + rows;
    const auto begin_of = [&](int r) {  // the first key that row r of the sequence sees
        return a.places.window > 0 ? max(0, committed + r - a.places.window + 1) : 0;
    };
    // Pair p is row p / group of the sequence and query head p % group of the KV head's.
    const auto query = [&](int p) {
        return p / group < rows
                   ? (static_cast<int64_t>(row0 + p / group) * a.heads + kv_head * group + p % group) * kDim
                   : int64_t{-1};
    };
    const int pair0 = kPairs * tile;
    if (pair0 < rows * group) {  // the same in the whole cluster
        State state;
        const int begin = begin_of(pair0 / group), chunks = (end + kKeys - 1) / kKeys;
        int chunk = begin / kKeys + rank + kCtas * warp;
        if (chunk < chunks) {
            const int pairs[2] = {pair0 + lane / 4, pair0 + lane / 4 + 8};
            const int64_t at[2] = {query(pairs[0]), query(pairs[1])};
            const float* const from[2] = {at[0] < 0 ? nullptr : a.q + at[0], at[1] < 0 ? nullptr : a.q + at[1]};
            const int low[2] = {begin_of(pairs[0] / group), begin_of(pairs[1] / group)};
            const Queries q(from, lane % 4);
            const int32_t ring = a.places.ring_begin(sequence);
            // Before `begin` nobody sees a key, and there may be none.
            const auto slot_of = [&](int c) {
                return a.places.slot(sequence, ring, min(max(kKeys * c + lane % kKeys, begin), end - 1));
            };
            int32_t slot = slot_of(chunk);
#pragma unroll 1
            for (int next = chunk; chunk < chunks; chunk = next) {
                next = chunk + kCtas * kWarps;
                const int32_t ahead = next < chunks ? slot_of(next) : 0;
                add_chunk(a, kv_head, chunk, slot, low, end, q, state);
                slot = ahead;
            }
        }
        put(state, s.x[warp], s.ml[warp]);
        __syncthreads();
        // A thread has eight elements of a pair.
        const int pair = static_cast<int>(threadIdx.x) / 16, column = static_cast<int>(threadIdx.x) % 16 * 8;
        float most = -INFINITY, sum = 0.0f, x[8] = {};
#pragma unroll
        for (int w = 0; w < kWarps; ++w) most = fmaxf(most, s.ml[w][pair].x);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            const float by = weight_of(s.ml[w][pair].x, most);
            sum = fmaf(s.ml[w][pair].y, by, sum);
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = fmaf(s.x[w][pair][column + i], by, x[i]);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) s.cta_x[pair][column + i] = x[i];
        if (column == 0) s.cta_ml[pair] = {most, sum};
    }
    cluster_arrive();
    cluster_wait();
    // Two pairs for each CTA, one element for each thread.
    const int pair = 2 * rank + static_cast<int>(threadIdx.x) / kDim, column = static_cast<int>(threadIdx.x) % kDim;
    const int64_t to = query(pair0 + pair);
    if (to >= 0) {
        float2 ml[kCtas];
        float part[kCtas], most = -INFINITY, sum = 0.0f, x = 0.0f;
#pragma unroll
        for (int c = 0; c < kCtas; ++c) {
            ml[c] = load_there2(in_cta(&s.cta_ml[pair], c));
            part[c] = load_there(in_cta(&s.cta_x[pair][column], c));
            most = fmaxf(most, ml[c].x);
        }
#pragma unroll
        for (int c = 0; c < kCtas; ++c) {
            const float by = weight_of(ml[c].x, most);
            sum = fmaf(ml[c].y, by, sum);
            x = fmaf(part[c], by, x);
        }
        a.out[to + column] = __fdiv_rn(x, sum);
    }
    cluster_arrive();  // nobody leaves while others read its memory
    cluster_wait();
#endif
}

}  // namespace

namespace cuda {

bool block_attention_tensor(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale,
                            Tensor& out) {
    const int64_t heads = q.shape[1], kv_heads = view.num_kv_heads, group = heads / kv_heads;
    if (!ctx.gpu->hopper() || !ctx.gpu->programmatic() || ctx.gpu->options().portable || view.head_dim != kDim ||
        view.k_dtype != DType::f16 || view.v_dtype != DType::f16)
        return false;
    const BlockTensorArgs args = {
        .places = key_places(view, batch),
        .q = q.row(0),
        .k_cache = static_cast<const unsigned char*>(view.k),
        .v_cache = static_cast<const unsigned char*>(view.v),
        .out = out.row(0),
        .k_slot_bytes = view.k_slot_bytes,
        .v_slot_bytes = view.v_slot_bytes,
        .heads = static_cast<int>(heads),
        .kv_heads = static_cast<int>(kv_heads),
        .tiles = static_cast<int>((q.rows() * group + kPairs - 1) / kPairs),  // no sequence has more rows
        .scale = static_cast<float>(softmax_scale * 1.4426950408889634),
    };
    allow_shared(reinterpret_cast<const void*>(block_tensor_kernel), sizeof(Shared));
    const int64_t clusters = batch.sequences() * args.tiles * kv_heads;
    launch_clusters(*ctx.gpu, block_tensor_kernel, dim3(static_cast<unsigned>(kCtas * clusters)), dim3(kThreads),
                    sizeof(Shared), kCtas, args);
    return true;
}

}  // namespace cuda

}  // namespace riptide::ops
