// Decode attention of one row over heads of 256 by clusters of CTAs: arguments, shared memory, and the parts of a chunk
// (decode_d256_row1_sm90.cu).
#pragma once

#include "ops/cuda/attention/decode_d256_sm80.cuh"
#include "ops/cuda/device/cluster.cuh"

namespace riptide::ops {

namespace {

constexpr int kCtas = cuda::attn::kWideCluster, kWarps = kWideThreads / 32, kColumns = kWide / kCtas, kBlocks = kColumns / 32;
constexpr int kOwnKeys = kWideChunk / kCtas, kTiles = kWideChunk / kTile, kMostHeads = cuda::attn::kMostGroup, kHeadPairs = kMostHeads / 2;
constexpr int kUnits = kTiles * kHeadPairs / kWarps;  // of a warp: a tile and a pair of heads
constexpr int kMergeLanes = 8;
static_assert(kOwnKeys == kWarps * kStepKeys);

struct OneArgs {
    WideArgs wide;     // ml: of each CTA of a cluster
    int clusters = 1;  // of a KV head
};

/// A CTA's share of a row of V: its codes, then the scales of all blocks. Conflict-free, as 20 words are.
template <DType T>
constexpr int kValueRow = kColumns + 16;
template <DType T>
constexpr int kScaleBytes = kv_has_scales(T) ? kWideRegs * 2 : 0;

template <DType T>
struct OneShared {
    union {
        struct {
            alignas(16) unsigned char k[kOwnKeys][kStagedRow<T>];  // steps rank, rank + 4, ... of the chunk
            alignas(16) unsigned char v[kWideChunk][kValueRow<T>];
        };
        WideShared<T, T> tiles;  // of a CTA that has a chunk to itself
    };
    union {
        struct {
            uint4 queries[1][kQuerySteps][32];
            union {
                alignas(16) float2 scores[kHeadPairs][kWideChunk + 8];
                alignas(16) unsigned char weights[kTiles][kTileSteps][kWeightStep];
            };
        };
        WideGroups<1> alone;  // likewise; queries lie where they are
    };
    union {
        float buffers[kWarps][kWide];                // while heads are prepared
        float2 weight_sums[kTiles][kHeadPairs][32];  // of each lane
        float4 merged[kMostHeads / 2][kMergeLanes][kColumns / 4];
    };
    union {
        float2 turns[kWide / 2];  // while heads are prepared
        float x[kMostHeads][kColumns + 4];
    };
    float2 most[kTiles][kHeadPairs];  // of a tile's scores
    float2 factors[kTiles][kHeadPairs];
    float2 ml[kMostHeads];
    float lane_weights[kMostHeads][kMergeLanes];
    alignas(16) unsigned char own[2][kStagedRow<T>];  // K and V of the row itself
    int32_t slots[kWideChunk];
    float2 last;  // x: not zero in the CTAs that merge
#ifdef RT_CLUSTER_KERNEL
    Inbox inbox;  // scores
#endif
};

#ifdef RT_CLUSTER_KERNEL

/// Where a CTA is.
struct OnePlace {
    int rank, head, group, position;
    __device__ __forceinline__ int chunks() const { return position / kWideChunk + 1; }
    __device__ __forceinline__ int keys(int chunk) const { return min(kWideChunk, position + 1 - chunk * kWideChunk); }
};

/// The slots of a chunk's keys, those not there yet included.
__device__ __forceinline__ void find_slots(const KeyPlaces& p, int32_t* slots, int chunk) {
    for (int i = static_cast<int>(threadIdx.x); i < kWideChunk; i += kWideThreads) {
        const int index = chunk * kWideChunk + i;
        if (index < p.max_pages * p.page_rows) slots[i] = find_slot<EarlyLoad>(p, 0, 0, index);
    }
}

/// The CTA's share of a chunk's K and V on its way; behind find_slots and a barrier.
template <DType T>
__device__ __forceinline__ void stage_keys(const DecodeAttentionArgs& a, OneShared<T>& s, const OnePlace& at,
                                           int chunk) {
    constexpr int kPieces = kRowPieces<T>;
    const int committed = min(kWideChunk, at.position - chunk * kWideChunk);
    const unsigned char* const head = a.k_cache + at.head * kv_row_bytes(T, kWide);
    int row = static_cast<int>(threadIdx.x) / kPieces, piece = static_cast<int>(threadIdx.x) % kPieces;
#pragma unroll 2
    for (int i = 0; i < (kOwnKeys * kPieces + kWideThreads - 1) / kWideThreads; ++i) {
        const int key = row / kStepKeys * (kStepKeys * kCtas) + at.rank * kStepKeys + row % kStepKeys;
        if (row >= kOwnKeys || row / kStepKeys * (kStepKeys * kCtas) >= committed) break;
        if (key < committed) stage16(s.k[row] + 16 * piece, slot_row(head, a.k_slot_bytes, s.slots[key]) + 16 * piece);
        row += kWideThreads / kPieces;
        piece += kWideThreads % kPieces;
        if (piece >= kPieces) piece -= kPieces, ++row;
    }
}
template <DType T>
__device__ __forceinline__ void stage_values(const DecodeAttentionArgs& a, OneShared<T>& s, const OnePlace& at,
                                             int chunk) {
    constexpr int kPieces = (kColumns + kScaleBytes<T>) / 16, kCodes = kColumns / 16;
    const int committed = min(kWideChunk, at.position - chunk * kWideChunk);
    const unsigned char* const head = a.v_cache + at.head * kv_row_bytes(T, kWide);
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < committed * kPieces; i += kWideThreads) {
        const int key = i / kPieces, piece = i % kPieces;
        const unsigned char* const from = slot_row(head, a.v_slot_bytes, s.slots[key]);
        stage16(s.v[key] + 16 * piece, from + (piece < kCodes ? at.rank * kColumns + 16 * piece : kWide));
    }
}
/// The row's own K or V to its place in the chunk, by a warp behind its __syncwarp(). Keys of V up to the end of the
/// step repeat it: their weights are zero.
template <DType T>
__device__ __forceinline__ void put_own(OneShared<T>& s, const OnePlace& at, bool values) {
    const int lane = static_cast<int>(threadIdx.x % 32), key = at.position % kWideChunk, step = key / kStepKeys;
    const auto* const own = reinterpret_cast<const uint4*>(s.own[values]);
    if (!values) {
        if (step % kCtas == at.rank && lane < kRowPieces<T>)
            reinterpret_cast<uint4*>(s.k[step / kCtas * kStepKeys + key % kStepKeys])[lane] = own[lane];
        return;
    }
    constexpr int kPieces = (kColumns + kScaleBytes<T>) / 16, kCodes = kColumns / 16;
    for (int i = lane; i < (kStepKeys - key % kStepKeys) * kPieces; i += 32) {
        const int piece = i % kPieces;
        reinterpret_cast<uint4*>(s.v[key + i / kPieces])[piece] =
            own[piece < kCodes ? at.rank * kCodes + piece : kWide / 16];
    }
}

/// Queries, and the row's own K and V where it is in a chunk of this CTA (`own`), to its place in it (`put`) and to the
/// cache (`store`). By all warps; weight: what the warp's first head is normalised with.
template <DType T>
__device__ __forceinline__ void prepare_heads(const DecodeAttentionArgs& a, OneShared<T>& s, const OnePlace& at,
                                              bool own, bool put, bool store, int64_t own_slot,
                                              float (&weight)[kWideRegs]) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    float* const buffer = s.buffers[warp];
#pragma unroll 1
    for (int task = warp; task < at.group + 2; task += kWarps) {  // K, V, queries
        if (task < 2 && !own) continue;
        const int head = at.head * at.group + task - 2;
        const float* const from = task == 0   ? a.k + int64_t{at.head} * kWide
                                  : task == 1 ? a.v + int64_t{at.head} * kWide
                                              : a.q + int64_t{head} * a.q_head_stride;
        float x[kWideRegs];
        load_head(x, from, kWide);
        if (task >= kWarps) load_norm(weight, a.q_norm, kWide);
        if (task != 1) {
            norm_head(x, weight, task == 0 ? a.k_norm : a.q_norm, kWide);
            rope_head(x, a.rope, RopeTurns<kWideRegs>(s.turns), kWide, buffer);
        }
        if (task >= 2) {
            query_fragments(T, a.scale, x, buffer,
                            [&](int step, int t, uint4 f) { s.queries[0][step][4 * (task - 2) + t] = f; });
            continue;
        }
        kv_encode_lanes(T, x, kWide, s.own[task]);
        __syncwarp();
        if (put) put_own(s, at, task == 1);
        if (store && lane < kRowPieces<T>) {
            unsigned char* const cache = task == 0 ? a.k_cache : a.v_cache;
            unsigned char* const row =
                cache + own_slot * (task == 0 ? a.k_slot_bytes : a.v_slot_bytes) + at.head * kv_row_bytes(T, kWide);
            reinterpret_cast<uint4*>(row)[lane] = reinterpret_cast<const uint4*>(s.own[task])[lane];
            if (!put) __threadfence();  // copied from there by other threads
        }
    }
}

/// Scores of the warp's step to the shared memory of all CTAs.
template <DType T>
__device__ __forceinline__ void send_scores(OneShared<T>& s, const OnePlace& at, int step) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    float c[1][4];
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        uint32_t k[8][4];
        float of[1][4];
        key_fragments<T>(s.k + warp * kStepKeys, half, k);
        half_scores<T>(k, s.queries, 8 * half, of);
#pragma unroll
        for (int i = 0; i < 4; ++i) c[0][i] = half == 0 ? of[0][i] : __fadd_rn(c[0][i], of[0][i]);
    }
    if (2 * (lane % 4) >= at.group) return;
    float2* const to = &s.scores[lane % 4][step * kStepKeys + lane / 4];
#pragma unroll
    for (int i = 0; i < kCtas; ++i) {
        send(to, i, s.inbox, make_float2(c[0][0], c[0][1]));
        send(to + 8, i, s.inbox, make_float2(c[0][2], c[0][3]));
    }
}
/// Bytes that a CTA gets so from all of the cluster, itself included.
__device__ __forceinline__ int score_bytes(const OnePlace& at, int keys) {
    return (keys + kStepKeys - 1) / kStepKeys * kStepKeys * ((at.group + 1) / 2) * static_cast<int>(sizeof(float2));
}

/// Scores to weights, which take their place; their sums by lanes; factors and the largest. As weigh_group, all tiles
/// at once. Ends with a barrier.
template <DType T>
__device__ __forceinline__ void weigh_chunk(OneShared<T>& s, const OnePlace& at, int keys) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int pairs = (at.group + 1) / 2, units = (keys + kTile - 1) / kTile * pairs, by = (255 + pairs) / pairs;
    float4 v[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
        const int unit = warp + i * kWarps, tile = unit * by >> 8, pair = unit - tile * pairs;
        if (unit >= units) break;
        v[i] = *reinterpret_cast<const float4*>(&s.scores[pair][tile * kTile + 2 * lane]);  // k0 h0, k0 h1, k1 ...
        const int left = keys - tile * kTile;
        if (2 * lane >= left) v[i].x = v[i].y = -INFINITY;
        if (2 * lane + 1 >= left) v[i].z = v[i].w = -INFINITY;
        const float2 most = {warp_largest(fmaxf(v[i].x, v[i].z)), warp_largest(fmaxf(v[i].y, v[i].w))};
        if (lane == 0) s.most[tile][pair] = most;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
        const int unit = warp + i * kWarps, tile = unit * by >> 8, pair = unit - tile * pairs;
        if (unit >= units) break;
        float2 before = {-INFINITY, -INFINITY};
#pragma unroll
        for (int j = 0; j < kTiles - 1; ++j) {
            if (j >= tile) break;
            const float2 of = s.most[j][pair];
            before = {fmaxf(before.x, of.x), fmaxf(before.y, of.y)};
        }
        const float2 own = s.most[tile][pair];
        const float2 most = {fmaxf(before.x, own.x), fmaxf(before.y, own.y)};
        const float2 p0 = {fast_exp2(__fsub_rn(v[i].x, most.x)), fast_exp2(__fsub_rn(v[i].y, most.y))};
        const float2 p1 = {fast_exp2(__fsub_rn(v[i].z, most.x)), fast_exp2(__fsub_rn(v[i].w, most.y))};
        s.weight_sums[tile][pair][lane] = {__fadd_rn(p0.x, p1.x), __fadd_rn(p0.y, p1.y)};
        if (lane == 0)
            s.factors[tile][pair] = {fast_exp2(__fsub_rn(before.x, most.x)), fast_exp2(__fsub_rn(before.y, most.y))};
        if (lane == 0 && (tile + 1) * kTile >= keys) s.ml[2 * pair].x = most.x, s.ml[2 * pair + 1].x = most.y;
        auto* const to =
            reinterpret_cast<uint32_t*>(s.weights[tile][lane / 8]) + 4 * (8 * pair + lane % 4) + lane / 4 % 2;
        uint32_t high, low;
        split_pair<false>(p0.x, p1.x, high, low);
        to[0] = high, to[2] = low;
        split_pair<false>(p0.y, p1.y, high, low);
        to[16] = high, to[18] = low;
    }
    __syncthreads();
}

/// V of 16 keys and the 16 of the warp's 32 elements that are elements 2 half and 2 half + 1 of a lane's four: half of
/// value_fragments.
template <DType T>
__device__ __forceinline__ void half_fragments(const unsigned char (*rows)[kValueRow<T>], int scale, int block,
                                               int half, uint32_t (&f)[4]) {
    const int t = static_cast<int>(threadIdx.x % 4), g = static_cast<int>(threadIdx.x % 32 / 4);
    const uint32_t choose = half == 0 ? 0x5140u : 0x7362u;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const unsigned char *const a = rows[value_key(t, 2 * j)], *const b = rows[value_key(t, 2 * j + 1)];
        const uint32_t z =
            __byte_perm(PlainLoad::one(a + 32 * block + 4 * g), PlainLoad::one(b + 32 * block + 4 * g), choose);
        if constexpr (T == DType::q8_0) {
            const uint32_t d = uint32_t{reinterpret_cast<const uint16_t*>(a + kColumns)[scale]} |
                               uint32_t{reinterpret_cast<const uint16_t*>(b + kColumns)[scale]} << 16;
            f[2 * j] = kv_scaled(__byte_perm(z ^ 0x80808080u, 0x64646464u, 0x4140), 0x64806480u, d);
            f[2 * j + 1] = kv_scaled(__byte_perm(z ^ 0x80808080u, 0x64646464u, 0x4342), 0x64806480u, d);
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const auto pair = static_cast<__nv_fp8x2_storage_t>(z >> (16 * i));
                const __half2_raw v = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
                f[2 * j + i] = static_cast<uint32_t>(v.x) | static_cast<uint32_t>(v.y) << 16;
            }
        }
    }
}

/// The chunk's sums to s.x and s.ml: four warps add values, the others weights. Ends with a barrier.
template <DType T>
__device__ __forceinline__ void add_chunk(OneShared<T>& s, const OnePlace& at, int keys) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int tiles = (keys + kTile - 1) / kTile;
    if (warp < 2 * kBlocks) {
        const int block = warp / 2, half = warp % 2, scale = at.rank * kBlocks + block;
        float x[4] = {};
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            const int steps = min(kTileSteps, (keys - tile * kTile + kStepKeys - 1) / kStepKeys);
            const float2 factor = s.factors[tile][lane % 4];
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] = __fmul_rn(x[i], i % 2 == 0 ? factor.x : factor.y);
            const auto add = [&](int step) {
                uint32_t f[4];
                half_fragments<T>(s.v + tile * kTile + step * kStepKeys, scale, block, half, f);
                const uint4 p = reinterpret_cast<const uint4*>(s.weights[tile][step])[lane];
                mma<false>(x, f[0], f[1], f[2], f[3], p.x, p.y);
                mma<false>(x, f[0], f[1], f[2], f[3], p.z, p.w);
            };
            if (steps == kTileSteps) {
#pragma unroll
                for (int step = 0; step < kTileSteps; ++step) add(step);
            } else {
#pragma unroll 1
                for (int step = 0; step < steps; ++step) add(step);
            }
        }
        const int column = 32 * block + 4 * (lane / 4) + 2 * half, pair = 2 * (lane % 4);
        *reinterpret_cast<float2*>(&s.x[pair][column]) = {x[0], x[2]};
        *reinterpret_cast<float2*>(&s.x[pair + 1][column]) = {x[1], x[3]};
    } else if (const int pair = warp - 2 * kBlocks; 2 * pair < at.group) {
        float2 l = {};
#pragma unroll 4
        for (int tile = 0; tile < tiles; ++tile) {
            const float2 factor = s.factors[tile][pair], sum = s.weight_sums[tile][pair][lane];
            l = {__fadd_rn(__fmul_rn(l.x, factor.x), sum.x), __fadd_rn(__fmul_rn(l.y, factor.y), sum.y)};
        }
        const float2 sums = {warp_sum(l.x), warp_sum(l.y)};
        if (lane == 0) s.ml[2 * pair].y = sums.x, s.ml[2 * pair + 1].y = sums.y;
    }
    __syncthreads();
}

#endif

}  // namespace

}  // namespace riptide::ops
