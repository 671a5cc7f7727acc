// Attention of a drafter's block on tensor cores: heads of 128 with K and V in f16 on Hopper; with the norms and
// rotations of its heads and the storage of its K and V in front, if asked. For draft_block.cu, which has all else.
//
// Bytes: K and V of a KV head once for all its query heads and up to 16 rows and heads together: 16.8 MB a layer of
// Laguna XS.2's drafter at 4,096 tokens, 3.6 us at 4.65 TB/s; 4 FLOPs for each of 16 rows, 16.8 MB / 2: twice that for
// the two halves of f32 (below), about 1 us. Design: a cluster of CTAs has one KV head and 16 (row, query head) pairs.
// Keys come in chunks of 16, those of the context first, then the block's own; chunk i belongs to CTA i mod kCtas and
// its warp i / kCtas mod kWarps, which keeps a state of its own. Each warp copies a chunk of the context to a
// place of its own in shared memory (no barriers), kUnits / 2 chunks ahead, the first ones above pdl_wait(): the
// context was there before the step began. The block's own K and V are made by the CTA that has their chunk. States of
// a CTA are added in order of warps, pushed to the CTA that finishes a pair, and added in order of CTAs there. The
// arithmetic: draft_block_sm90.cuh. Measured (H200, 2026-11-23, 8 rows, behind an addition): 8.4 us at 136
// tokens, 17.9 at 4,104, 68.9 at 32,776. What limits it: many dependent steps of few instructions. Tried: 16 warps with
// a head each 13.1, 22.7, 71.6 us; turns in registers and a loop each for context and block 9.1, 18.6, 69.3.
#include "ops/cuda/attention/draft_block_sm90.cuh"
#include "ops/cuda/attention/draft_block_sm90.h"
#include "ops/cuda/attention/plan.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/device/cluster.cuh"
#include "ops/cuda/linear/shared/weight_ring.cuh"

namespace riptide::ops {

namespace {

constexpr int kDim = kBlockDim, kPairs = kBlockPairs, kKeys = kBlockKeys;
constexpr int kOwnStride = 2 * kDim + 16;  // bytes: no bank conflicts

struct BlockTensorArgs {
    KeyPlaces places;
    RopeParams rope;
    HeadNorm q_norm, k_norm;
    const float* q;     // [n, heads, 128]
    const float* k;     // [n, kv_heads, 128], as projected
    const float* v;     // the same
    const float* gate;  // [n, heads] or null
    unsigned char* k_cache;
    unsigned char* v_cache;
    float* out;           // [n, heads * 128]
    unsigned char* out8;  // ActRows, or null
    int64_t k_slot_bytes;
    int64_t v_slot_bytes;
    int heads, kv_heads;
    int tiles;    // of 16 pairs, of a sequence with all rows
    float scale;  // of scores in units of log2
};

using Pieces = uint4[8][32];  // K or V of a chunk: eight pieces of each lane

template <int kCtas, int kWarps, int kUnits>
struct Shared {
    union {
        Pieces ring[kWarps][kUnits];
        float x[kWarps][kUnits * sizeof(Pieces) / (kPairs * kDim * sizeof(float))][kPairs][kDim];
    };
    BlockQueries q;
    unsigned char own[2][kKeys][kOwnStride];
    float part[kCtas][kPairs / kCtas][kDim];
    float2 part_ml[kCtas][kPairs / kCtas];  // largest score in units of log2, and the sum
    float2 ml[kWarps][kPairs];
    float2 turns[2][kKeys][kDim / 2];  // of the rows of the pairs, of the block's keys
    float buffer[kWarps][kDim];
    float unscale[kPairs];
};

#ifdef RT_CLUSTER_KERNEL

constexpr int kRegs = kDim / 32;

__device__ __forceinline__ float weight_of(float m, float most) { return m == -INFINITY ? 0.0f : exp2f(m - most); }

__device__ __forceinline__ int early(const int32_t* p) { return static_cast<int>(EarlyLoad::one(p)); }

/// The sequence, tile of pairs and KV head of a cluster. All of it was there before the step began.
struct Job {
    int sequence, tile, kv_head, group;
    int row0, rows, committed, ring;

    __device__ __forceinline__ Job(const BlockTensorArgs& a, int number)
        : sequence(number / a.kv_heads / a.tiles),
          tile(number / a.kv_heads % a.tiles),
          kv_head(number % a.kv_heads),
          group(a.heads / a.kv_heads) {
        row0 = early(a.places.row_begin + sequence);
        rows = early(a.places.row_begin + sequence + 1) - row0;
        committed = early(a.places.committed + sequence);
        ring = a.places.window > 0 ? early(a.places.state_slot + sequence) * a.places.ring_rows : 0;
    }
    /// Pair p of the tile: its row of the sequence, and where its query lies among all.
    __device__ __forceinline__ int row(int p) const { return (kPairs * tile + p) / group; }
    __device__ __forceinline__ int64_t query(const BlockTensorArgs& a, int p) const {
        return ((int64_t{row0} + row(p)) * a.heads + kv_head * group + (kPairs * tile + p) % group) * kDim;
    }
    /// The first key that a row of the sequence sees.
    __device__ __forceinline__ int begin_of(const BlockTensorArgs& a, int r) const {
        return a.places.window > 0 ? max(0, committed + r - a.places.window + 1) : 0;
    }
};

/// The turns of rows base .. base + 15 of the sequence, as far as there are.
__device__ __forceinline__ void fill_turns(const BlockTensorArgs& a, const Job& job, int base,
                                           float2 (&turns)[kKeys][kDim / 2]) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kDim / 2; i += static_cast<int>(blockDim.x)) {
        const int row = i / (kDim / 2), f = i % (kDim / 2);
        if (base + row < job.rows && f < a.rope.half)
            turns[row][f] =
                rope_turn(early(a.places.positions + job.row0 + base + row), a.rope.inv_freq[f], a.rope.magnitude);
    }
}

/// Row `row` of the block, a warp's, as key j of a chunk in shared memory; and to the cache, if it is made here (key,
/// value: as projected). A row that is not there: zeros.
template <bool kPrepare>
__device__ __forceinline__ void put_own(const BlockTensorArgs& a, const Job& job, int row, int32_t slot,
                                        float (&key)[kRegs], const float (&value)[kRegs],
                                        const float (&k_weight)[kRegs], const float2* turns, unsigned char* own_k,
                                        unsigned char* own_v, float* buffer) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint4* const here = reinterpret_cast<uint4*>((lane < 16 ? own_k : own_v) + lane % 16 * 16);
    if (row >= job.rows) {
        *here = make_uint4(0, 0, 0, 0);
        return;
    }
    unsigned char* const k_row = a.k_cache + slot * a.k_slot_bytes + job.kv_head * kDim * 2;
    unsigned char* const v_row = a.v_cache + slot * a.v_slot_bytes + job.kv_head * kDim * 2;
    if constexpr (kPrepare) {
        norm_head(key, k_weight, a.k_norm, kDim);
        rope_head(key, a.rope, RopeTurns<kRegs>(a.rope, turns), kDim, buffer);
        kv_encode_lanes(DType::f16, key, kDim, own_k);
        kv_encode_lanes(DType::f16, value, kDim, own_v);
        if (job.tile != 0) return;
        kv_encode_lanes(DType::f16, key, kDim, k_row);
        kv_encode_lanes(DType::f16, value, kDim, v_row);
    } else {
        *here = *reinterpret_cast<const uint4*>((lane < 16 ? k_row : v_row) + lane % 16 * 16);
    }
}

/// States of the warps of this CTA, in their order, to the CTAs that finish the pairs.
template <int kCtas, int kWarps, int kUnits>
__device__ __forceinline__ void push(Shared<kCtas, kWarps, kUnits>& s, int rank) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int pair = static_cast<int>(threadIdx.x / 32); pair < kPairs; pair += kWarps) {
        float most = -INFINITY, sum = 0.0f;
        float4 x = {};
#pragma unroll
        for (int w = 0; w < kWarps; ++w) most = fmaxf(most, s.ml[w][pair].x);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            const float by = weight_of(s.ml[w][pair].x, most);
            const float4 v = *reinterpret_cast<const float4*>(&s.x[w][0][pair][4 * lane]);
            sum = fmaf(s.ml[w][pair].y, by, sum);
            x.x = fmaf(v.x, by, x.x), x.y = fmaf(v.y, by, x.y);
            x.z = fmaf(v.z, by, x.z), x.w = fmaf(v.w, by, x.w);
        }
        constexpr int kEach = kPairs / kCtas;
        store_there(in_cta(&s.part[rank][pair % kEach][4 * lane], pair / kEach), x);
        if (lane == 0) store_there(in_cta(&s.part_ml[rank][pair % kEach], pair / kEach), float2{most, sum});
    }
}

#endif

/// Cluster: blockIdx.x / kCtas = (sequence * tiles + tile) * kv_heads + KV head.
template <int kCtas, int kWarps, int kUnits, bool kPrepare>
__global__ void __launch_bounds__(32 * kWarps, 1) draft_block_sm90_kernel(const __grid_constant__ BlockTensorArgs a) {
    static_assert(kPairs % kWarps == 0 && kPairs == kKeys && kPairs % kCtas == 0 && kUnits % 2 == 0);
#ifdef RT_CLUSTER_KERNEL
    extern __shared__ uint4 dynamic[];
    Shared<kCtas, kWarps, kUnits>& s = *reinterpret_cast<Shared<kCtas, kWarps, kUnits>*>(dynamic);
    pdl_trigger();
    cluster_arrive();
    constexpr int kAhead = kUnits / 2, kStep = kCtas * kWarps, kEach = kPairs / kCtas, kHeads = kPairs / kWarps;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32), g = lane / 4,
              t = lane % 4;
    const int rank = static_cast<int>(blockIdx.x) % kCtas;
    const Job job(a, static_cast<int>(blockIdx.x) / kCtas);
    const bool busy = job.row(0) < job.rows;  // the same in the whole cluster
    const int begin = job.begin_of(a, job.row(0)), first = begin / kKeys;
    const int context = busy && begin < job.committed ? (job.committed + kKeys - 1) / kKeys - first : 0;
    const unsigned char* const k_head = a.k_cache + job.kv_head * kDim * 2;
    const unsigned char* const v_head = a.v_cache + job.kv_head * kDim * 2;
    // The slot of key lane % 16 of chunk i. Before `begin` nobody sees a key, and there may be none.
    const auto slot_of = [&](int i) {
        const int key = kKeys * (first + i) + lane % kKeys;
        return i < context
                   ? find_slot<EarlyLoad>(a.places, job.sequence, job.ring, min(max(key, begin), job.committed - 1))
                   : 0;
    };
    const auto ask_keys = [&](int i, int32_t slot, Pieces& to) {
        if (i < context) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const unsigned char* const row = k_head + __shfl_sync(~0u, slot, 8 * j + g) * a.k_slot_bytes;
#pragma unroll
                for (int c = 0; c < 4; ++c) cuda::decode::copy_async16(&to[4 * j + c][lane], row + 16 * (4 * c + t));
            }
        }
        cuda::decode::commit_copies();
    };
    // Two lanes bring both halves of each of 32 bytes, one for the other.
    const auto ask_values = [&](int i, int32_t slot, Pieces& to) {
        if (i < context) {
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int whose = (t & 2) + r, half = t % 2;
                    const unsigned char* const row =
                        v_head + __shfl_sync(~0u, slot, 2 * whose + j % 2 + j / 2 * 8) * a.v_slot_bytes;
                    cuda::decode::copy_async16(&to[2 * j + half][4 * g + whose], row + 32 * g + 16 * half);
                }
        }
        cuda::decode::commit_copies();
    };
    int chunk = rank + kCtas * warp;
    int32_t slots[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) slots[u] = slot_of(chunk + kStep * u);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
        ask_keys(chunk + kStep * u, slots[u], s.ring[warp][2 * u]);
        ask_values(chunk + kStep * u, slots[u], s.ring[warp][2 * u + 1]);
    }
    int32_t next = slot_of(chunk + kStep * kAhead);

    // Chunk context + o has keys 16 o .. of the block; the first that is this CTA's:
    int own = (rank + kCtas - context % kCtas) % kCtas;
    const int own_chunks = busy ? (job.rows + kKeys - 1) / kKeys : 0;
    int32_t slot[kHeads];  // of this warp's rows of the chunk
    const auto find_own = [&] {
#pragma unroll
        for (int i = 0; i < kHeads; ++i) {
            const int row = kKeys * own + warp + kWarps * i;
            slot[i] = row < job.rows ? find_slot<EarlyLoad>(a.places, job.sequence, job.ring, job.committed + row) : 0;
        }
    };
    find_own();
    float q_weight[kRegs], k_weight[kRegs];
    load_norm(q_weight, a.q_norm, kDim);
    load_norm(k_weight, a.k_norm, kDim);
    const bool small = job.rows <= kKeys;  // all rows in the first table
    const int turned = small ? 0 : job.row(0);
    if constexpr (kPrepare) {
        fill_turns(a, job, turned, s.turns[0]);
        if (!small && own < own_chunks) fill_turns(a, job, kKeys * own, s.turns[1]);
        __syncthreads();
    }
    pdl_wait();

    const int last = kEach * rank + static_cast<int>(threadIdx.x) / kDim;  // the pair that this thread finishes
    const bool finishes = static_cast<int>(threadIdx.x) < kEach * kDim && job.row(last) < job.rows;
    float gate = 0.0f;
    if (finishes && a.gate != nullptr) gate = a.gate[job.query(a, last) / kDim];
    BlockState state;
    BlockRows rows;
    int u = 0;  // where in the ring
#pragma unroll 1
    for (bool again = false;; again = true) {  // once, but for blocks of more than 16 kCtas rows
        float x[kHeads][kRegs] = {}, key[kHeads][kRegs], value[kHeads][kRegs];
#pragma unroll
        for (int i = 0; i < kHeads; ++i) {
            const int p = warp + kWarps * i, row = kKeys * own + p;
            if (!again && job.row(p) < job.rows) load_head(x[i], a.q + job.query(a, p), kDim);
            if (kPrepare && row < job.rows) {
                const int64_t at = ((int64_t{job.row0} + row) * a.kv_heads + job.kv_head) * kDim;
                load_head(key[i], a.k + at, kDim);
                load_head(value[i], a.v + at, kDim);
            }
        }
#pragma unroll
        for (int i = 0; i < kHeads; ++i) {
            const int p = warp + kWarps * i;
            if (!again) {
                if (kPrepare && job.row(p) < job.rows) {
                    norm_head(x[i], q_weight, a.q_norm, kDim);
                    rope_head(x[i], a.rope, RopeTurns<kRegs>(a.rope, s.turns[0][job.row(p) - turned]), kDim,
                              s.buffer[warp]);
                }
                put_block_query(s.q, s.unscale, p, x[i]);
            }
            if (own < own_chunks)
                put_own<kPrepare>(a, job, kKeys * own + p, slot[i], key[i], value[i], k_weight,
                                  s.turns[small ? 0 : 1][p], s.own[0][p], s.own[1][p], s.buffer[warp]);
        }
        __syncthreads();
        if (!again) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                rows.low[r] = job.begin_of(a, job.row(g + 8 * r));
                rows.factor[r] = s.unscale[g + 8 * r] * a.scale;
            }
        }
        // One loop for the keys of the context, which lie in the ring, and for those of the block: instructions that
        // run but once are what this kernel waits for most.
#pragma unroll 1
        for (; chunk < context || (own < own_chunks && chunk == context + own); chunk += kStep) {
            const bool before = chunk < context;
            Pieces& keys = s.ring[warp][2 * u];
            Pieces& values = s.ring[warp][2 * u + 1];
            constexpr int kPiece = sizeof(keys[0]);
            const char* const k_at = before ? reinterpret_cast<const char*>(&keys[0][lane])
                                            : reinterpret_cast<const char*>(&s.own[0][g][16 * t]);
            const char* const v_at = before ? reinterpret_cast<const char*>(&values[0][lane])
                                            : reinterpret_cast<const char*>(&s.own[1][2 * t][32 * g]);
            const int key_step = before ? 4 * kPiece : 8 * kOwnStride, column_step = before ? kPiece : 64;
            const int next_step = before ? 2 * kPiece : kOwnStride, half_step = before ? kPiece : 16;
            const int value_step = before ? 4 * kPiece : 8 * kOwnStride;
            rows.end = before ? job.committed : job.committed + job.rows;
            const int32_t ahead = next;
            next = slot_of(chunk + kStep * (kAhead + 1));
            float p[2][4], keep[2];
            asm volatile("cp.async.wait_group %0;" ::"n"(kUnits - 1) : "memory");
            score_keys(
                s.q,
                [&](int j, int c) { return *reinterpret_cast<const uint4*>(k_at + j * key_step + c * column_step); },
                before ? kKeys * (first + chunk) : job.committed + kKeys * own, rows, state, p, keep);
            ask_keys(chunk + kStep * kAhead, ahead, keys);
            asm volatile("cp.async.wait_group %0;" ::"n"(kUnits - 1) : "memory");
            __syncwarp();
            add_values(
                [&](int i, int h) {
                    return *reinterpret_cast<const uint4*>(v_at + i % 2 * next_step + i / 2 * value_step +
                                                           h * half_step);
                },
                p, keep, state);
            __syncwarp();
            ask_values(chunk + kStep * kAhead, ahead, values);
            u = u + 1 == kAhead ? 0 : u + 1;
        }
        own += kCtas;
        if (own >= own_chunks) break;
        __syncthreads();
        find_own();
        if constexpr (kPrepare) {
            fill_turns(a, job, kKeys * own, s.turns[1]);
            __syncthreads();
        }
    }
    __syncwarp();  // nothing is on its way to the warp's ring any more, and all lanes have read it
    put_state(state, s.x[warp][0], s.ml[warp]);
    __syncthreads();
    cluster_wait();  // all CTAs are there
    push(s, rank);
    cluster_arrive();
    cluster_wait();
    if (!finishes) return;
    const int mine = last % kEach, column = static_cast<int>(threadIdx.x) % kDim;
    float most = -INFINITY, sum = 0.0f, o = 0.0f;
#pragma unroll
    for (int c = 0; c < kCtas; ++c) most = fmaxf(most, s.part_ml[c][mine].x);
#pragma unroll
    for (int c = 0; c < kCtas; ++c) {
        const float by = weight_of(s.part_ml[c][mine].x, most);
        sum = fmaf(s.part_ml[c][mine].y, by, sum);
        o = fmaf(s.part[c][mine][column], by, o);
    }
    o = __fdiv_rn(o, sum);
    if (a.gate != nullptr) o = __fmul_rn(o, softplus(gate));
    const int64_t at = job.query(a, last) + column, cols = int64_t{a.heads} * kDim;
    a.out[at] = o;
    if (a.out8 != nullptr) put_act_group(a.out8 + at / cols * ActRow::bytes(cols), cols, at % cols / 32, o);
#endif
}

/// CTAs of a cluster, warps of a CTA, and halves of chunks that a warp has on their way.
constexpr int kClusterCtas = 8, kCtaWarps = 8, kAheadUnits = 4;

Tensor launch_block(Context& ctx, BlockTensorArgs& a, const KvView& view, const Batch& batch, int64_t heads,
                    float softmax_scale, bool prepare) {
    const int64_t n = batch.rows(), group = heads / view.num_kv_heads;
    Tensor out = ctx.alloc(DType::f32, {n, heads * kDim});
    if (n == 0) return out;
    a.places = key_places(view, batch);
    a.places.gaps = nullptr;
    a.k_cache = static_cast<unsigned char*>(view.k);
    a.v_cache = static_cast<unsigned char*>(view.v);
    a.out = out.row(0);
    a.k_slot_bytes = view.k_slot_bytes;
    a.v_slot_bytes = view.v_slot_bytes;
    a.heads = static_cast<int>(heads);
    a.kv_heads = static_cast<int>(view.num_kv_heads);
    a.tiles = static_cast<int>((n * group + kPairs - 1) / kPairs);  // no sequence has more rows
    a.scale = static_cast<float>(softmax_scale * 1.4426950408889634);
    if (prepare) {
        a.out8 = static_cast<unsigned char*>(ctx.arena->allocate(n * ActRow::bytes(heads * kDim)));
        out.int8 = a.out8;
    }
    const auto launch = [&]<int kCtas, int kWarps, int kUnits>() {
        constexpr size_t kShared = sizeof(Shared<kCtas, kWarps, kUnits>);
        const auto kernel = prepare ? draft_block_sm90_kernel<kCtas, kWarps, kUnits, true>
                                    : draft_block_sm90_kernel<kCtas, kWarps, kUnits, false>;
        allow_shared(reinterpret_cast<const void*>(kernel), kShared);
        const int64_t clusters = batch.sequences() * a.tiles * a.kv_heads;
        launch_clusters(*ctx.gpu, kernel, dim3(static_cast<unsigned>(kCtas * clusters)), dim3(32 * kWarps), kShared,
                        kCtas, a);
    };
    launch.operator()<kClusterCtas, kCtaWarps, kAheadUnits>();
    return out;
}

}  // namespace

namespace cuda {

bool has_block_tensor(const Context& ctx, const KvView& view, int64_t heads) {
    return attn::choose_block({.heads = heads,
                               .kv_heads = view.num_kv_heads,
                               .head_dim = view.head_dim,
                               .k = view.k_dtype,
                               .v = view.v_dtype,
                               .chip = chip_of(*ctx.gpu)}) == attn::Kernel::draft_block_sm90;
}

Tensor block_attention_tensor(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch,
                              float softmax_scale) {
    BlockTensorArgs a = {};
    a.q = q.row(0);
    return launch_block(ctx, a, view, batch, q.shape[1], softmax_scale, false);
}

Tensor gated_block_attention_tensor(Context& ctx, const BlockHeads& in, const Rope& rope, const Batch& batch,
                                    float softmax_scale, const Tensor& gate) {
    BlockTensorArgs a = {};
    a.rope = rope_params(&rope);
    a.q_norm = head_norm(in.q_norm, kDim), a.k_norm = head_norm(in.k_norm, kDim);
    a.q = in.q.row(0), a.k = in.k.row(0), a.v = in.v.row(0);
    a.gate = gate.data == nullptr ? nullptr : gate.row(0);
    return launch_block(ctx, a, in.kv, batch, in.q.shape[1], softmax_scale, true);
}

}  // namespace cuda

}  // namespace riptide::ops
