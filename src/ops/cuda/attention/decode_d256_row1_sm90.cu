// Decode attention of one row over heads of 256 without a window on Hopper, K and V of eight bits: Qwen3.5's plain
// decoding. The bits are those of decode_d256_sm80.cu, which takes everything else.
//
// Bytes and floors as there. At a few hundred keys latency is all: 200 keys of Qwen3.5-0.8B are 217 KB, 0.05 us.
//
// Design. A cluster of four CTAs has a chunk of 512 keys of one KV head. Scores are cut by keys: CTA r takes the steps
// of 16 keys r, r + 4, ..., each of its eight warps one. Scores meet in the shared memory of all four. Weights: every
// CTA makes all of them, a warp for each tile of 64 keys and pair of heads. Sums are cut by elements, since those of an
// element add up key after key: CTA r has 64 of the 256 and all keys of the chunk, a warp 16 of them. So all tiles of a
// chunk are done at once, and K and V are read once (V's scales by all four). Every CTA prepares the queries for
// itself; the row's own K and V are encoded by the CTAs that read them. A row of one chunk ends there, its gate and
// int8 twin included; else the last cluster of a KV head to be done merges the chunks. Where there are more chunks than
// clusters (8,192 keys of four KV heads on 132 SMs), each CTA takes chunks for itself, as in decode_d256_sm80.cu.
// What was committed before the step is asked for above pdl_wait(): embed lets later kernels start only then.
//
// Measured on an H200, 2026-11-23 (bench_gpu_decode_attention --heads-of 256, Q8_0; the three kernels in brackets), 24
// and 4 heads: 200 keys 6.3 us (13.3), 512 8.3 (20.9), 4,096 14.3 (21.8), 8,192 28.4 (26.1), 32,768 49 (36.6); 8 and 2
// heads: 200 keys 5.5 us (12.6). Long contexts lose, so rows that are Batch::far go to the three kernels: of 64
// clusters that should fit on the SMs two wait for a second round, most likely because SMs of a GPC that make no four
// stay empty. 200 keys in a step of Qwen3.5-0.8B: 8 us behind the wait, of which heads 2.2, scores 2.2, sums 1.4.
// Tried: keys decoded above the wait 6.7 us at 200 keys (5.6), a step of the 0.8B 682 us (669); values of a tile
// decoded while the one before it is added 679 (673); two warps that go through heads and scores above the wait, so
// that their code is there, 669 (673): less than 2 %.
#include <algorithm>

#include "ops/cuda/attention/decode_d256_row1_sm90.cuh"

namespace riptide::ops {

namespace {

#ifdef RT_CLUSTER_KERNEL

/// A gate of a head's block, as loaded; what the warp finishes as its i-th.
__device__ __forceinline__ float load_gate(const DecodeAttentionArgs& a, const OnePlace& at, int task) {
    if (a.gate == nullptr || task >= at.group * kBlocks) return 0.0f;
    const int head = at.head * at.group + task / kBlocks, lane = static_cast<int>(threadIdx.x % 32);
    return a.gate[int64_t{head} * a.gate_head_stride +
                  (a.gate_width == 1 ? 0 : at.rank * kColumns + task % kBlocks * 32 + lane)];
}

/// o = s.x over the weights in s.ml, times its gate, as floats and as int8. By a warp for each head and 32 elements.
template <DType T>
__device__ __forceinline__ void finish(const DecodeAttentionArgs& a, const OneShared<T>& s, const OnePlace& at,
                                       const float (&gates)[2]) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
        const int task = warp + i * kWarps, pair = task / kBlocks, column = task % kBlocks * 32 + lane;
        if (pair >= at.group) break;
        const float gate = i == 0 ? gates[0] : gates[1];
        float x = s.x[pair][column], l = s.ml[pair].y;
        if (at.chunks() == 1) {  // what decode_d256_merge_kernel makes of a chunk
            const float factor = fast_exp2(__fsub_rn(s.ml[pair].x, s.ml[pair].x));
            x = __fmaf_rn(x, factor, 0.0f);
            l = __fmaf_rn(l, factor, 0.0f);
        }
        float o = __fdiv_rn(x, l);
        if (a.gate != nullptr) o = __fmul_rn(o, a.gate_sigmoid ? sigmoid(gate) : softplus(gate));
        const int64_t cols = int64_t{a.heads} * kWide;
        const int e = (at.head * at.group + pair) * kWide + at.rank * kColumns + column;
        a.out[e] = o;
        if (a.out8 != nullptr) put_act_group(a.out8, cols, e / 32, o);
    }
}

/// The cluster's chunk to device memory; true for the CTA of this rank that comes last of its KV head's.
template <DType T>
__device__ __forceinline__ bool hand_over(const OneArgs& args, OneShared<T>& s, const OnePlace& at, int chunk) {
    const WideArgs& wide = args.wide;
    const int thread = static_cast<int>(threadIdx.x), first = at.head * at.group;
    for (int i = thread; i < at.group * (kColumns / 4); i += kWideThreads) {
        const int pair = i / (kColumns / 4), four = i % (kColumns / 4);
        float* const to = wide.sums + wide.chunk_at(0, first + pair, chunk) * kWide + at.rank * kColumns;
        reinterpret_cast<float4*>(to)[four] = *reinterpret_cast<const float4*>(&s.x[pair][4 * four]);
    }
    if (thread < at.group) wide.ml[wide.chunk_at(at.rank, first + thread, chunk)] = s.ml[thread];
    __syncthreads();
    if (thread == 0) {
        int* const counter = wide.a.counters + at.head * kCtas + at.rank;
        __threadfence();  // behind the barrier it covers the stores of the whole CTA
        const bool last = atomicAdd(counter, 1) == at.chunks() - 1;
        if (last) *counter = 0;
        s.last.x = last ? 1.0f : 0.0f;
        __threadfence();
    }
    __syncthreads();
    return s.last.x != 0;
}

template <DType T>
__device__ __forceinline__ void stage_alone(const DecodeAttentionArgs& a, OneShared<T>& s, const WideWork& w) {
    find_slots(a.places, s.tiles.slots, w.chunk);
    __syncthreads();
    stage_tile(a, s.tiles, w, 0);
    stage_tile(a, s.tiles, w, 1);
}

/// Chunks w.chunk, ... of a CTA that has them to itself, as in decode_d256_kernel; staged: the first two tiles are
/// on their way. True for the CTAs of the cluster that comes last of its KV head's.
template <DType T>
__device__ __forceinline__ bool attend_alone(const OneArgs& args, OneShared<T>& s, const OnePlace& at, WideWork w,
                                             bool staged) {
#pragma unroll 1
    while (w.chunk < at.chunks()) {
        if (!staged) stage_alone(args.wide.a, s, w);
        staged = false;
        attend_wide(args.wide, s.tiles, s.alone, w, 1);
        w.chunk += kCtas * args.clusters;
        w.keys = at.keys(w.chunk);
    }
    if (threadIdx.x == 0) __threadfence();
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    if (at.rank == 0 && threadIdx.x == 0) {
        int* const counter = args.wide.a.counters + at.head * kCtas;
        __threadfence();
        const bool last = atomicAdd(counter, 1) == min(args.clusters, (at.chunks() + kCtas - 1) / kCtas) - 1;
        if (last) *counter = 0;
        __threadfence();
        for (int i = 0; i < kCtas; ++i) store_there(in_cta(&s.last, i), make_float2(last ? 1.0f : 0.0f, 0.0f));
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    return s.last.x != 0;
}

/// As decode_d256_merge_kernel, to s.x and s.ml: m, the largest; lane j of eight adds the chunks j, j + 8, ...; then
/// the lanes in ascending order. plane: of args.ml. Ends with a barrier.
template <DType T>
__device__ __forceinline__ void merge_chunks(const WideArgs& args, OneShared<T>& s, const OnePlace& at, int plane) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int chunks = at.chunks(), first = at.head * at.group, used = min(kMergeLanes, chunks);
    const auto ml_of = [&](int pair) { return args.ml + args.chunk_at(plane, first + pair, 0); };
    if (warp < at.group) {
        const float2* const ml = ml_of(warp);
        float most = -INFINITY;
#pragma unroll 4
        for (int i = lane; i < chunks; i += 32) most = fmaxf(most, __ldcg(ml + i).x);
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, mask));
        float l = 0.0f;
        if (lane < kMergeLanes) {
#pragma unroll 8
            for (int i = lane; i < chunks; i += kMergeLanes) {
                const float2 of = __ldcg(ml + i);
                l = __fmaf_rn(of.y, fast_exp2(__fsub_rn(of.x, most)), l);
            }
            s.lane_weights[warp][lane] = l;
        }
        if (lane == 0) s.ml[warp].x = most;
    }
    __syncthreads();
    // Four heads at a time, a thread two of them, to s.x.
    constexpr int kFours = kColumns / 4, kAtOnce = kWideThreads / (kMergeLanes * kFours), kRound = 2 * kAtOnce;
    const int four = thread % kFours, mine = thread / kFours % kMergeLanes, which = thread / (kFours * kMergeLanes);
#pragma unroll 1
    for (int round = 0; round < at.group; round += kRound) {
        float4 x[2] = {};
        const float2* ml[2];
        const float4* from[2];
        float most[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {  // heads that are not there: the last, once more
            const int pair = min(round + k * kAtOnce + which, at.group - 1);
            ml[k] = ml_of(pair);
            from[k] = reinterpret_cast<const float4*>(args.sums + args.chunk_at(0, first + pair, 0) * kWide +
                                                      at.rank * kColumns + 4 * four);
            most[k] = s.ml[pair].x;
        }
#pragma unroll 4
        for (int i = mine; i < chunks; i += kMergeLanes)
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const float4 v = __ldcg(from[k] + int64_t{i} * (kWide / 4));
                const float factor = fast_exp2(__fsub_rn(__ldcg(ml[k] + i).x, most[k]));
                x[k].x = __fmaf_rn(v.x, factor, x[k].x);
                x[k].y = __fmaf_rn(v.y, factor, x[k].y);
                x[k].z = __fmaf_rn(v.z, factor, x[k].z);
                x[k].w = __fmaf_rn(v.w, factor, x[k].w);
            }
#pragma unroll
        for (int k = 0; k < 2; ++k) s.merged[k * kAtOnce + which][mine][four] = x[k];
        __syncthreads();
        const int pair = thread / kColumns, column = thread % kColumns;
        float sum = reinterpret_cast<const float*>(s.merged[pair][0])[column];
        for (int i = 1; i < used; ++i) sum = __fadd_rn(sum, reinterpret_cast<const float*>(s.merged[pair][i])[column]);
        s.x[round + pair][column] = sum;
        __syncthreads();
    }
    if (thread < at.group) {
        float weights = s.lane_weights[thread][0];
        for (int i = 1; i < used; ++i) weights = __fadd_rn(weights, s.lane_weights[thread][i]);
        s.ml[thread].y = weights;
    }
    __syncthreads();
}

#endif

template <DType T>
__global__ void __launch_bounds__(kWideThreads, 2) decode_d256_row1_kernel(const __grid_constant__ OneArgs args) {
#ifdef RT_CLUSTER_KERNEL
    extern __shared__ uint4 wide_one_memory[];
    auto& s = *reinterpret_cast<OneShared<T>*>(wide_one_memory);
    const DecodeAttentionArgs& a = args.wide.a;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32,
              cluster = static_cast<int>(blockIdx.x) / kCtas;
    OnePlace at{static_cast<int>(blockIdx.x) % kCtas, cluster % a.kv_heads, a.heads / a.kv_heads, 0};
    at.position = static_cast<int>(EarlyLoad::one(a.places.positions));
    int chunk = cluster / a.kv_heads;
    find_slots(a.places, s.slots, chunk);
    const int chunks = at.chunks();
    const bool together = chunks <= args.clusters;
    if ((together ? chunk : chunk * kCtas) >= chunks) return;  // the cluster of chunk 0 is there, and waits
    if (together) {
        if (thread == 0) s.inbox.open(score_bytes(at, at.keys(chunk)));
        __syncwarp();
        cluster_start();
        __syncthreads();
        stage_keys(a, s, at, chunk);
        stage_values(a, s, at, chunk);
        stage_commit();
    } else {
        chunk = chunk * kCtas + at.rank;
    }
    WideWork w{.sequence = 0,
               .first = 0,
               .rows = 1,
               .head = at.head,
               .chunk = chunk,
               .keys = at.keys(chunk),
               .committed = at.position,
               .shared = false};
    const bool staged = !together && chunk < chunks - 1;
    if (staged) stage_alone(a, s, w);
    pdl_trigger();  // now: the next kernel's weights queue up behind these keys
    float weight[kWideRegs];
    load_norm(weight, warp == 0 ? a.k_norm : warp == 1 ? HeadNorm{} : a.q_norm, kWide);
    if (thread < a.rope.half)
        s.turns[thread] =
            rope_turn(find_rotary_position<EarlyLoad>(a.places, 0), a.rope.inv_freq[thread], a.rope.magnitude);
    const bool own = together ? chunk == chunks - 1 : (chunks - 1) % (kCtas * args.clusters) == chunk;
    const int64_t own_slot = own ? find_slot<EarlyLoad>(a.places, 0, 0, at.position) : 0;
    __syncthreads();
    pdl_wait();
    float gates[2] = {};
    if (chunks == 1)
#pragma unroll
        for (int i = 0; i < 2; ++i) gates[i] = load_gate(a, at, warp + i * kWarps);
    prepare_heads(a, s, at, own, together, !together || at.rank == 0, own_slot, weight);
    bool last = chunks == 1;
    if (together) {
        const int keys = at.keys(chunk), step = warp * kCtas + at.rank;
        stage_wait<0>();
        __syncthreads();
        cluster_wait();  // all CTAs have started
        if (step * kStepKeys < keys) send_scores(s, at, step);
        s.inbox.wait();
        weigh_chunk(s, at, keys);
        add_chunk(s, at, keys);
        if (!last) last = hand_over(args, s, at, chunk);
    } else {
        __syncthreads();
        last = attend_alone(args, s, at, w, staged);
    }
    if (!last) return;
    if (chunks > 1) {
#pragma unroll
        for (int i = 0; i < 2; ++i) gates[i] = load_gate(a, at, warp + i * kWarps);
        merge_chunks(args.wide, s, at, together ? at.rank : 0);
    }
    finish(a, s, at, gates);
#endif
}

template <DType T>
void launch_type(Context& ctx, OneArgs& args) {
    static_assert(sizeof(WideShared<T, T>) <= sizeof(OneShared<T>::k) + sizeof(OneShared<T>::v));
    static_assert(2 * (sizeof(OneShared<T>) + 1024) <= 228 << 10, "two CTAs on an SM");
    constexpr auto kernel = decode_d256_row1_kernel<T>;
    allow_shared(reinterpret_cast<const void*>(kernel), sizeof(OneShared<T>));
    const int heads = args.wide.a.kv_heads;
    args.clusters = std::clamp(2 * ctx.gpu->info().sm_count / (kCtas * heads), 1, args.wide.most_chunks);
    launch_clusters(*ctx.gpu, kernel, dim3(static_cast<unsigned>(kCtas * heads * args.clusters)), dim3(kWideThreads),
                    sizeof(OneShared<T>), kCtas, args);
}

}  // namespace

void launch_row1_d256(Context& ctx, const DecodeAttentionArgs& a) {
    const ArenaScope scope(*ctx.arena);
    OneArgs args{.wide = {.a = a}};
    WideArgs& wide = args.wide;
    wide.most_chunks = static_cast<int>(std::max<int64_t>(1, (a.most_keys + kWideChunk - 1) / kWideChunk));
    const int64_t chunks = int64_t{a.heads} * wide.most_chunks;
    wide.sums = static_cast<float*>(ctx.arena->allocate(chunks * kWide * 4));
    wide.ml = static_cast<float2*>(ctx.arena->allocate(chunks * kCtas * 8));
    if (a.k_dtype == DType::q8_0) launch_type<DType::q8_0>(ctx, args);
    else launch_type<DType::f8_e4m3>(ctx, args);
}

}  // namespace riptide::ops
