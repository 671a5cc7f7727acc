// Decode attention of many rows, sm_80 and later, heads of 128: rows that see at most 4,096 keys, so window layers
// always. Longer rows stay with decode_d128_sm80.cu, whose arithmetic and bits these are.
//
// Bytes: 2 x 128 x (bits of K/V) / 8 for each key and KV head, once for each row. FP8, 8 KV heads, 64 rows of 1,024
// keys: 134 MB = 29 us at 4.65 TB/s; over a window of 512 67 MB = 14 us.
//
// Design. A CTA has a KV head of a row, and each of its warps a whole chunk of 128 keys, so that warps meet once for
// 1,024 keys and not once for 128, and queries are prepared once. First the scores of the chunk's 8 steps, with the
// weights parked in shared memory; then all maxima are known, and the 8 sums of values are added as they are made. K
// and V come straight from device memory, two steps ahead (16-bit types: one), V's first while the last scores are
// made. One row for each sequence (`fused`): the first keys are asked for before pdl_wait(), as they were complete
// before the step began. What limits many rows (128 rows of 2,048 FP8 keys, H200, 2026-11-22, the profiler's counters
// of a variant with rings in shared memory): 606 instructions for 16 keys in 43 % of the cycles, four warps a scheduler
// that wait for device memory (2.2 of 9 stall cycles), shared memory (1.7) and each other's results (1.7). Tried:
// docs/results/gpu.md.
#include "ops/cuda/attention/decode_d128_row.cuh"

namespace riptide::ops {

namespace {

constexpr int kShortSteps = kShortChunk / kStepKeys, kLeastWarps = 4;

template <int kWarps>
struct RowsShared : HeadShared {
    alignas(16) float x[kWarps][kHeads][kHeadFloats];  // a warp's chunk: first its weights, then its sums
    float2 ml[kWarps][kHeads];
    float gate[kHeads];  // if it has one for each head
    /// [step][lane]: as mma takes them.
    __device__ __forceinline__ uint4* weights(int warp) { return reinterpret_cast<uint4*>(&x[warp][0][0]); }
};
static_assert(kShortSteps * 32 * sizeof(uint4) <= kHeads * kHeadFloats * sizeof(float));

/// K or V, never both, of a warp's next steps, on their way, and the slots of its chunk: key 32 i + lane.
template <DType TK, DType TV>
struct ChunkLoads {
    static constexpr int kAhead = cuda::attn::two_ctas(TK, TV) ? 2 : 1;
    static constexpr int kWords = KvUnit<TK>::kWords > KvUnit<TV>::kWords ? KvUnit<TK>::kWords : KvUnit<TV>::kWords;
    uint32_t w[kAhead][4][kWords];
    int32_t slot[kShortChunk / 32];

    __device__ __forceinline__ int32_t slots_of(int step) const {
        const int32_t a = slot[0], b = slot[1], c = slot[2], d = slot[3];  // loads in a choice would need an address
        const int32_t low = step < 2 ? a : b, high = step < 6 ? c : d;
        return step < 4 ? low : high;
    }
    template <DType T>
    __device__ __forceinline__ void put(int which, int i, const KvUnit<T>& unit) {
#pragma unroll
        for (int j = 0; j < KvUnit<T>::kWords; ++j) w[which][i][j] = unit.w[j];
    }
    __device__ __forceinline__ void put(int which, const KeyUnits<TK>& k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) put(which, i, k.unit[i / 2][i % 2]);
    }
    __device__ __forceinline__ void put(int which, const ValueUnits<TV>& v) {
#pragma unroll
        for (int i = 0; i < 4; ++i) put(which, i, v.unit[i]);
    }
    template <DType T>
    __device__ __forceinline__ void get(int which, int i, KvUnit<T>& unit) const {
#pragma unroll
        for (int j = 0; j < KvUnit<T>::kWords; ++j) unit.w[j] = w[which][i][j];
    }
    __device__ __forceinline__ void ask_keys(int which, const unsigned char* head, int64_t slot_bytes, int step) {
        KeyUnits<TK> k;
        load_keys<EarlyLoad>(k, head, slot_bytes, slots_of(step), step % 2 * kStepKeys);
        put(which, k);
    }
    __device__ __forceinline__ void ask_values(int which, const unsigned char* head, int64_t slot_bytes, int step) {
        ValueUnits<TV> v;
        load_values<EarlyLoad>(v, head, slot_bytes, slots_of(step), step % 2 * kStepKeys);
        put(which, v);
    }
    // In place: a choice between what was loaded and the own row would keep both in registers.
    __device__ __forceinline__ void take_own_key(int which, const HeadShared& s, int own) {
        KeyUnits<TK> k = keys(which);
        ops::take_own_key(k, s, own);
        put(which, k);
    }
    __device__ __forceinline__ void take_own_value(int which, const HeadShared& s, int own) {
        ValueUnits<TV> v = values(which);
        ops::take_own_value(v, s, own);
        put(which, v);
    }
    __device__ __forceinline__ KeyUnits<TK> keys(int which) const {
        KeyUnits<TK> k;
#pragma unroll
        for (int i = 0; i < 4; ++i) get(which, i, k.unit[i / 2][i % 2]);
        return k;
    }
    __device__ __forceinline__ ValueUnits<TV> values(int which) const {
        ValueUnits<TV> v;
#pragma unroll
        for (int i = 0; i < 4; ++i) get(which, i, v.unit[i]);
        return v;
    }
};

template <DType TK, DType TV>
__device__ __forceinline__ void start_chunk(const DecodeAttentionArgs& a, const HeadShared& s, Item& item, int chunk,
                                            ChunkLoads<TK, TV>& next) {
    item.chunk = key_chunk(item.position, a.places.window, chunk);
#pragma unroll
    for (int i = 0; i < kShortChunk / 32; ++i)
        next.slot[i] = key_slot<EarlyLoad>(a, s, item, 32 * i + static_cast<int>(threadIdx.x % 32));
    const unsigned char* head = a.k_cache + item.head * kv_row_bytes(TK, kD);
    const int steps = item.steps();
#pragma unroll
    for (int i = 0; i < next.kAhead; ++i)
        if (i < steps) next.ask_keys(i, head, a.k_slot_bytes, i);
}

/// m and l of this lane's steps (t and t + 4) and head (lane / 4).
struct StepSums {
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
};

/// A step's scores to weights: sums in the lane they belong to, weights to shared memory.
template <DType TV>
__device__ __forceinline__ void weigh_step(float (&p)[4], int step, int left, StepSums& sums, uint4* weights) {
    const int lane = static_cast<int>(threadIdx.x % 32), t = lane % 4;
    if (left < kStepKeys)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (value_key(t, j) >= left) p[j] = -INFINITY;
    float m = fmaxf(fmaxf(p[0], p[1]), fmaxf(p[2], p[3]));
    m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, 1));
    m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, 2));
#pragma unroll
    for (int j = 0; j < 4; ++j) p[j] = fast_exp2(__fsub_rn(p[j], m));
    float l = __fadd_rn(__fadd_rn(p[0], p[1]), __fadd_rn(p[2], p[3]));
    l = __fadd_rn(l, __shfl_xor_sync(kAllLanes, l, 1));
    l = __fadd_rn(l, __shfl_xor_sync(kAllLanes, l, 2));
    if (t == step % 4) {
        if (step < 4) sums.m[0] = m, sums.l[0] = l;
        else sums.m[1] = m, sums.l[1] = l;
    }
    uint4 w;
    split_pair<TV == DType::bf16>(p[0], p[1], w.x, w.y);
    split_pair<TV == DType::bf16>(p[2], p[3], w.z, w.w);
    weights[32 * step + lane] = w;
}

/// x += (P V) factor, f0 for head 2 t and f1 for head 2 t + 1; P as weigh_step leaves it, x as in add_values.
template <DType TV>
__device__ __forceinline__ void add_step(const ValueUnits<TV>& v, uint4 p, float f0, float f1, float (&x)[8][4]) {
    const int u = static_cast<int>(threadIdx.x % 32) / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        uint32_t first[4], second[4];
        kv_pair_decode(v.unit[0], v.unit[1], u, i, first);
        kv_pair_decode(v.unit[2], v.unit[3], u, i, second);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint32_t *a = first + 2 * j, *b = second + 2 * j;
            float c[4] = {};
            mma<TV == DType::bf16>(c, a[0], a[1], b[0], b[1], p.x, p.z);
            mma<TV == DType::bf16>(c, a[0], a[1], b[0], b[1], p.y, p.w);
            float(&sum)[4] = x[2 * i + j];
            sum[0] = __fmaf_rn(c[0], f0, sum[0]);
            sum[1] = __fmaf_rn(c[1], f1, sum[1]);
            sum[2] = __fmaf_rn(c[2], f0, sum[2]);
            sum[3] = __fmaf_rn(c[3], f1, sum[3]);
        }
    }
}

/// A started chunk, by one warp; what attend_chunk gives, to s.x and s.ml.
template <DType TK, DType TV, int kWarps>
__device__ __forceinline__ void attend_short(const DecodeAttentionArgs& a, RowsShared<kWarps>& s, const Item& item,
                                             ChunkLoads<TK, TV>& next) {
    constexpr int kAhead = ChunkLoads<TK, TV>::kAhead;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32), t = lane % 4;
    const int steps = item.steps(), own_step = item.own ? steps - 1 : -1;
    const int own = item.chunk.keys - 1 - (steps - 1) * kStepKeys;
    const unsigned char* k_head = a.k_cache + item.head * kv_row_bytes(TK, kD);
    const unsigned char* v_head = a.v_cache + item.head * kv_row_bytes(TV, kD);
    uint4* weights = s.weights(warp);
    StepSums sums;
    // `which`: step % kAhead.
    const auto score = [&](int which, int step) {
        if (step >= steps) return;
        if (step == own_step) next.take_own_key(which, s, own);
        float p[4];
        scores(next.keys(which), s, p);
        if (step + kAhead < steps) next.ask_keys(which, k_head, a.k_slot_bytes, step + kAhead);
        else next.ask_values(which, v_head, a.v_slot_bytes, which);
        weigh_step<TV>(p, step, item.chunk.keys - step * kStepKeys, sums, weights);
    };
#pragma unroll 1
    for (int step = 0; step < steps; step += kAhead) {
        score(0, step);
        if constexpr (kAhead == 2) score(1, step + 1);
    }
    float m = fmaxf(sums.m[0], sums.m[1]);
    m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, 1));
    m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, 2));
    const float factors[2] = {fast_exp2(__fsub_rn(sums.m[0], m)), fast_exp2(__fsub_rn(sums.m[1], m))};
    float x[8][4] = {}, l = 0.0f;
    const auto add = [&](int which, int step) {
        if (step >= steps) return;
        if (step == own_step) next.take_own_value(which, s, own);
        const float factor = step < 4 ? factors[0] : factors[1], sum = step < 4 ? sums.l[0] : sums.l[1];
        const int from = step % 4;
        l = __fmaf_rn(__shfl_sync(kAllLanes, sum, lane - t + from), __shfl_sync(kAllLanes, factor, lane - t + from), l);
        add_step(next.values(which), weights[32 * step + lane], __shfl_sync(kAllLanes, factor, 8 * t + from),
                 __shfl_sync(kAllLanes, factor, 8 * t + 4 + from), x);
        if (step + kAhead < steps) next.ask_values(which, v_head, a.v_slot_bytes, step + kAhead);
    };
#pragma unroll 1
    for (int step = 0; step < steps; step += kAhead) {
        add(0, step);
        if constexpr (kAhead == 2) add(1, step + 1);
    }
    __syncwarp();  // all weights have been read
    if (t == 0) s.ml[warp][lane / 4] = {m, l};
    store_sums<TV>(x, s.x[warp], a.heads / a.kv_heads);
}

/// Adds a round's chunks to the state of query head `local`, elements 4 lane .. 4 lane + 3.
template <int kWarps>
__device__ __forceinline__ void merge_round(const RowsShared<kWarps>& s, int local, int base, int chunks,
                                            SoftmaxState<4>& state) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int chunk = 0; chunk < min(kWarps, chunks - base); ++chunk) {
        const float4 x = *reinterpret_cast<const float4*>(&s.x[chunk][local][4 * lane]);
        const SoftmaxState<4> next = {s.ml[chunk][local].x, s.ml[chunk][local].y, {x.x, x.y, x.z, x.w}};
        if (base + chunk == 0) state = next;
        else merge(state, next);
    }
}

/// kWarps == kLeastWarps: rows have no more chunks than that.
template <DType TK, DType TV, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 16 / kWarps)
    decode_d128_rows_kernel(const __grid_constant__ DecodeAttentionArgs a) {
    __shared__ RowsShared<kWarps> s;
    constexpr int kOwnHeads = kHeads / kWarps;  // that a warp finishes
    const int warp = static_cast<int>(threadIdx.x / 32), group = a.heads / a.kv_heads;
    HeadNorms norms;
    load_norms(a, norms);
    if (!a.fused) pdl_wait();  // K, V and perhaps a tree are of this step
    Item item =
        find_row<EarlyLoad>(a, static_cast<int>(blockIdx.x) / a.kv_heads, static_cast<int>(blockIdx.x) % a.kv_heads);
    const int count = visible_keys(item.position, a.places.window), chunks = chunk_count(count);
    const bool mine = chunk_keys(count) == kShortChunk;
    if (mine && a.places.parent != nullptr) {
        item.tree = true;
        if (threadIdx.x == 0) find_path(a.places, item.sequence, item.row, a.places.parent, s.path);
        __syncthreads();
    }
    ChunkLoads<TK, TV> loads;
    if (mine && warp < chunks) start_chunk(a, s, item, warp, loads);
    pdl_trigger();  // now: the next kernel's weights queue up behind these keys
    if (mine) make_turns(a, s, item.rotation);
    if (a.fused) pdl_wait();
    if (!mine) return;
    __syncthreads();
    item.own = a.fused;
    const bool one_gate = a.gate != nullptr && a.gate_width == 1 && static_cast<int>(threadIdx.x) < group;
    float gate = 0.0f;
    if (one_gate) gate = a.gate[item.row * a.gate_stride + item.head * group + static_cast<int>(threadIdx.x)];
    const float* from[kHeadTasks<kWarps>];
    find_heads<kWarps>(a, item, true, from);
    prepare_heads<TK, TV, kWarps>(a, s, item, norms, true, from);
    if (one_gate) s.gate[threadIdx.x] = gate;
    SoftmaxState<4> state[kOwnHeads] = {};
    for (int base = 0; base < chunks; base += kWarps) {
        const bool more = kWarps > kLeastWarps && base + kWarps < chunks;
        __syncthreads();  // fragments are there; the sums of the round before are merged
        if (base + warp < chunks) {
            item.own = a.fused && item.chunk.last;
            attend_short<TK, TV, kWarps>(a, s, item, loads);
            if (more && base + warp + kWarps < chunks) start_chunk(a, s, item, base + warp + kWarps, loads);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kOwnHeads; ++i)
            if (warp + i * kWarps < group) merge_round<kWarps>(s, warp + i * kWarps, base, chunks, state[i]);
        if (!more) break;
    }
#pragma unroll
    for (int i = 0; i < kOwnHeads; ++i) {
        const int local = warp + i * kWarps;
        if (local >= group) break;
        const float4 projected = a.gate_width == 1 ? float4{s.gate[local]} : load_gate(a, item, local);
        finish<TV>(a, s, item, local, state[i], gate_factors(a, projected));
    }
}

template <DType TK, DType TV>
void launch_types(Context& ctx, const DecodeAttentionArgs& a) {
    const dim3 grid(static_cast<unsigned>(a.rows * a.kv_heads));
    if (a.most_chunks <= kLeastWarps)
        launch(*ctx.gpu, decode_d128_rows_kernel<TK, TV, kLeastWarps>, grid, dim3(32 * kLeastWarps), 0, a);
    else launch(*ctx.gpu, decode_d128_rows_kernel<TK, TV, 8>, grid, dim3(32 * 8), 0, a);
}

}  // namespace

void launch_rows_d128(Context& ctx, const DecodeAttentionArgs& a) {
    with_kv_types(a.k_dtype, a.v_dtype, [&](auto k, auto v) { launch_types<k, v>(ctx, a); });
}

}  // namespace riptide::ops
