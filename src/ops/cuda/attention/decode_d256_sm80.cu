// Decode attention for heads of 256 without a window (Qwen3.5), up to eight query heads for each KV head: sm_80 and
// later. One row or 256, chains, trees, any sequences: one order of sums (decode_d256_sm80.cuh).
// One row on Hopper that is not far behind the first keys has decode_d256_row1_sm90.cu, with the same bits.
//
// Bytes: 2 x 256 x (bits of K/V) / 8 for each key and KV head, once for up to 16 rows of a sequence; Q8_0, 4 KV heads:
// 2.2 KB a token, 32K tokens are 71 MB a layer = 15 us at 4.65 TB/s. FLOPs: 16 x 256 for each key, KV head and eight
// (row, query head) pairs (all products twice, for both parts of 32-bit numbers).
//
// Design. Three kernels: prepare (a warp for each head: queries to the two 16-bit parts that mma takes; K and V
// appended), attend, merge (also gate and int8). A CTA of attend has a chunk of 512 keys of one KV head and up to 8, 32
// or 96 pairs; 64 keys at a time are copied to shared memory as they are stored, one tile ahead. Scores: a warp has 16
// keys and half of each head, or every second group of eight pairs; weights: a warp has one pair of each group; values:
// a warp has 32 of the 256 elements and all keys. So a value is decoded once for all rows, and sums stay in registers.
// Chunks whose keys were all committed before the step serve rows together and are asked for above
// pdl_wait(); chunks with rows of the step are done row by row, since rows of a tree see different keys.
//
// Reached on an H200, 2026-11-22 (bench_gpu_decode_attention --heads-of 256, Q8_0, all three kernels): one row over 32K
// keys 37 us, 42 %; 16 rows 204 us; 128 keys 11 us. What limits it is not known: a tile takes 2 us with an SM to itself
// and 4 with a second CTA beside it. Tried: scores and sums apart, three barriers a tile: the same for one row, 269 us
// for 16.
#include <algorithm>

#include "ops/cuda/attention/decode_d256_sm80.cuh"

namespace riptide::ops {

namespace {

constexpr int64_t kPartialBytes = int64_t{128} << 20;  // of the rows that are done at a time, unless one needs more

// ---- prepare -------------------------------------------------------------------------------------------------------

struct PrepareArgs {
    DecodeAttentionArgs a;
    KvAppendArgs append;
    int parts;  // of a row: query heads, then K and V of each KV head, if they are appended
    uint4* queries;
};

constexpr int kPrepareWarps = 4;

/// A query head, by a warp: prepared, scaled, as the B operand of the scores.
__device__ __forceinline__ void prepare_query(const PrepareArgs& args, int row, int head,
                                              const float (&weight)[kWideRegs], const RopeTurns<kWideRegs>& turns,
                                              float* buffer) {
    const DecodeAttentionArgs& a = args.a;
    float x[kWideRegs];
    load_head(x, a.q + row * a.q_stride + int64_t{head} * a.q_head_stride, kWide);
    norm_head(x, weight, a.q_norm, kWide);
    rope_head(x, a.rope, turns, kWide, buffer);
    uint4* const to = args.queries + (int64_t{row} * a.heads + head) * (kQuerySteps * 4);
    query_fragments(a.k_dtype, a.scale, x, buffer, [to](int step, int t, uint4 f) { to[4 * step + t] = f; });
}

__device__ __forceinline__ int early(const int32_t* p) { return static_cast<int>(EarlyLoad::one(p)); }

/// Norms, rotations and places before the wait: only projections are of this step.
__global__ void __launch_bounds__(32 * kPrepareWarps)
    decode_d256_prepare_kernel(const __grid_constant__ PrepareArgs args) {
    __shared__ float buffers[kPrepareWarps][kWide];
    pdl_trigger();
    const int warp = static_cast<int>(threadIdx.x / 32), item = static_cast<int>(blockIdx.x) * kPrepareWarps + warp;
    const int row = item / args.parts, part = item % args.parts, head = part - args.a.heads;
    if (row >= args.a.rows) return pdl_wait();
    const bool query = head < 0, values = !query && head % 2 != 0;
    const int64_t slot = query ? 0 : append_slot<EarlyLoad>(args.append, row);
    float weight[kWideRegs];
    load_norm(weight, values ? HeadNorm{} : query ? args.a.q_norm : args.append.norm, kWide);
    const RopeTurns<kWideRegs> turns(args.a.rope,
                                     args.a.rope.half == 0 ? 0 : find_rotary_position<EarlyLoad>(args.a.places, row));
    pdl_wait();
    if (query) prepare_query(args, row, part, weight, turns, buffers[warp]);
    else append_head(args.append, row, slot, head / 2, values, weight, turns, buffers[warp]);
}

// ---- attend --------------------------------------------------------------------------------------------------------

/// A sequence's rows of this launch, and its work: first chunks that rows share, then each row's own.
struct WideSequence {
    int first, rows, committed, blocks, own_chunks;

    __device__ __forceinline__ WideSequence(const WideArgs& args, int sequence) {
        const int begin = early(args.a.places.row_begin + sequence),
                  end = early(args.a.places.row_begin + sequence + 1);
        committed = early(args.a.places.committed + sequence);
        first = max(begin, args.row0);
        rows = max(0, min(end, args.row0 + args.rows) - first);
        blocks = (rows + args.shared_rows - 1) / args.shared_rows;
        // No row lies further behind the committed ones than its number.
        own_chunks = (committed + first - begin + rows - 1) / kWideChunk - whole_chunks() + 1;
    }
    __device__ __forceinline__ int whole_chunks() const { return committed / kWideChunk; }
    __device__ __forceinline__ int units() const { return blocks * whole_chunks() + rows * own_chunks; }
};

template <class Shared>
__device__ __forceinline__ void count_units(const WideArgs& args, Shared& s) {
    const int lane = static_cast<int>(threadIdx.x);
    if (lane < 32)
        for (int base = 0, before = 0; base < args.sequences; base += 32) {
            const int sequence = base + lane;
            int sum = sequence < args.sequences ? WideSequence(args, sequence).units() : 0;
#pragma unroll
            for (int by = 1; by < 32; by *= 2) {
                const int other = __shfl_up_sync(kAllLanes, sum, by);
                if (lane >= by) sum += other;
            }
            if (lane == 0) s.first_unit[base] = before;
            if (sequence < args.sequences) s.first_unit[sequence + 1] = before + sum;
            before += __shfl_sync(kAllLanes, sum, 31);
        }
    __syncthreads();
}

template <class Shared>
__device__ __forceinline__ WideWork find_work(const WideArgs& args, const Shared& s, int item) {
    WideWork w;
    const int unit = item / args.a.kv_heads;
    w.head = item % args.a.kv_heads;
    w.sequence = 0;
    for (int end = args.sequences; end - w.sequence > 1;) {  // the last with no more units in front of it
        const int middle = (w.sequence + end) / 2;
        if (s.first_unit[middle] <= unit) w.sequence = middle;
        else end = middle;
    }
    const WideSequence of(args, w.sequence);
    const int shared_units = of.blocks * of.whole_chunks();
    int local = unit - s.first_unit[w.sequence];
    w.committed = of.committed;
    w.shared = local < shared_units;
    if (w.shared) {  // rows that read the same chunk lie side by side
        const int block = local % of.blocks * args.shared_rows;
        w.chunk = local / of.blocks;
        w.first = of.first + block;
        w.rows = min(args.shared_rows, of.rows - block);
        w.keys = kWideChunk;
    } else {
        local -= shared_units;
        w.chunk = of.whole_chunks() + local % of.own_chunks;
        w.first = of.first + local / of.own_chunks;
        w.rows = 1;
        w.keys = min(kWideChunk, early(args.a.places.positions + w.first) + 1 - w.chunk * kWideChunk);
    }
    return w;
}

/// The slots of the chunk's keys; ends with a barrier.
template <class Shared>
__device__ __forceinline__ void find_slots(const WideArgs& args, Shared& s, const WideWork& w) {
    const KeyPlaces& places = args.a.places;
    const bool tree = places.parent != nullptr && !w.shared;
    if (tree) {
        if (threadIdx.x == 0) {  // find_path, above pdl_wait()
            const int begin = early(places.row_begin + w.sequence);
            for (int i = early(places.positions + w.first) - w.committed, r = w.first; i >= 0 && r >= begin;
                 --i, r = early(places.parent + r))
                s.path[i] = w.committed + r - begin;
        }
        __syncthreads();
    }
    for (int i = static_cast<int>(threadIdx.x); i < w.keys; i += kWideThreads) {
        int32_t index = w.chunk * kWideChunk + i;
        if (tree && index >= w.committed) index = s.path[index - w.committed];
        s.slots[i] = find_slot<EarlyLoad>(places, w.sequence, 0, index);
    }
    __syncthreads();
}

template <int kGroups>
__device__ __forceinline__ void load_queries(const WideArgs& args, WideGroups<kGroups>& s, const WideWork& w,
                                             int groups) {
    const DecodeAttentionArgs& a = args.a;
    const int group = a.heads / a.kv_heads, pairs = w.rows * group;
    auto* const to = &s.queries[0][0][0];
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < groups * kQuerySteps * 32; i += kWideThreads) {
        const int pair = i / (kQuerySteps * 32) * 8 + i % 32 / 4, step = i / 32 % kQuerySteps;
        uint4 x = {};
        if (pair < pairs) {
            const int64_t head = int64_t{w.first + pair / group} * a.heads + w.head * group + pair % group;
            x = args.queries[(head * kQuerySteps + step) * 4 + i % 4];
        }
        to[i] = x;
    }
}

template <DType TK, DType TV, int kGroups>
__global__ void __launch_bounds__(kWideThreads, kGroups == 1 ? 2 : 1)
    decode_d256_kernel(const __grid_constant__ WideArgs args) {
    extern __shared__ uint4 wide_memory[];
    auto& s = *reinterpret_cast<WideShared<TK, TV>*>(wide_memory);
    auto& of = *reinterpret_cast<WideGroups<kGroups>*>(wide_memory + sizeof(s) / 16);
    auto& one = *reinterpret_cast<WideGroups<1>*>(&of);
    pdl_trigger();
    count_units(args, s);
    const int items = s.first_unit[args.sequences] * args.a.kv_heads;
    const int group = args.a.heads / args.a.kv_heads;
    bool waited = false;
    for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
        const WideWork w = find_work(args, s, item);
        if (w.keys <= 0) continue;
        find_slots(args, s, w);
        // What was committed before the step may be asked for before what this step has stored is there.
        if (!waited && w.chunk * kWideChunk + min(w.keys, 2 * kTile) > w.committed) {
            pdl_wait();
            waited = true;
        }
        stage_tile(args.a, s, w, 0);
        stage_tile(args.a, s, w, 1);
        if (!waited) {
            pdl_wait();
            waited = true;
        }
        if (kGroups == 1 || !w.shared) {
            load_queries(args, one, w, 1);
            attend_wide(args, s, one, w, 1);
        } else {
            const int groups = (w.rows * group + 7) / 8;
            load_queries(args, of, w, (groups + kGroupBlock - 1) / kGroupBlock * kGroupBlock);
            attend_wide(args, s, of, w, groups);
        }
    }
    if (!waited) pdl_wait();
}

// ---- merge ---------------------------------------------------------------------------------------------------------

constexpr int kMergeLanes = 8, kMergeThreads = kMergeLanes * kWide / 4;

struct MergeShared {
    float4 x[kMergeLanes][kWide / 4];
    float l[kMergeLanes];
    float most[kMergeThreads / 32];
    float rotated[kWide];
};

/// A head of a row, by a CTA. m: the largest; lane j of eight adds the chunks j, j + 8, ... in ascending order, then
/// the lanes are added in ascending order. o = x / l, out of the stored domain, times the gate; as floats and as int8.
__global__ void __launch_bounds__(kMergeThreads) decode_d256_merge_kernel(const __grid_constant__ WideArgs args) {
    __shared__ MergeShared s;
    pdl_trigger();
    const DecodeAttentionArgs& a = args.a;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int row = args.row0 + static_cast<int>(blockIdx.x) / a.heads, head = static_cast<int>(blockIdx.x) % a.heads;
    const int chunks = early(a.places.positions + row) / kWideChunk + 1;
    pdl_wait();
    const int mine = thread / (kWide / 4), four = thread % (kWide / 4);
    const float2* ml = args.ml + args.chunk_at(row, head, 0);
    const float4* sums = reinterpret_cast<const float4*>(args.sums + args.chunk_at(row, head, 0) * kWide) + four;
    constexpr int kAhead = 8;  // chunks of a lane that are fetched before the largest m is known
    float4 v[kAhead];
    float2 of[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
        const int chunk = min(mine + i * kMergeLanes, chunks - 1);
        v[i] = sums[int64_t{chunk} * (kWide / 4)];
        of[i] = ml[chunk];
    }
    float gate = 0.0f;
    if (a.gate != nullptr && warp < kWideRegs)
        gate = a.gate[row * a.gate_stride + int64_t{head} * a.gate_head_stride +
                      (a.gate_width == 1 ? 0 : 32 * warp + lane)];
    float most = -INFINITY;
    for (int i = thread; i < chunks; i += kMergeThreads) most = fmaxf(most, ml[i].x);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, mask));
    if (lane == 0) s.most[warp] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kMergeThreads / 32; ++i) most = fmaxf(most, s.most[i]);
    float4 x = {};
    float l = 0.0f;
    const auto add = [&](float4 v, float2 of) {
        const float factor = fast_exp2(__fsub_rn(of.x, most));
        l = __fmaf_rn(of.y, factor, l);
        x.x = __fmaf_rn(v.x, factor, x.x);
        x.y = __fmaf_rn(v.y, factor, x.y);
        x.z = __fmaf_rn(v.z, factor, x.z);
        x.w = __fmaf_rn(v.w, factor, x.w);
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
        if (mine + i * kMergeLanes < chunks) add(v[i], of[i]);
#pragma unroll 8
    for (int chunk = mine + kAhead * kMergeLanes; chunk < chunks; chunk += kMergeLanes)
        add(sums[int64_t{chunk} * (kWide / 4)], ml[chunk]);
    s.x[mine][four] = x;
    if (four == 0) s.l[mine] = l;
    __syncthreads();
    if (warp >= kWideRegs) return;
    const int used = min(kMergeLanes, chunks);
    const auto value = [&](int e) {
        float sum = reinterpret_cast<const float*>(s.x[0])[e], weights = s.l[0];
        for (int i = 1; i < used; ++i) {
            sum = __fadd_rn(sum, reinterpret_cast<const float*>(s.x[i])[e]);
            weights = __fadd_rn(weights, s.l[i]);
        }
        return __fdiv_rn(sum, weights);
    };
    const int e = 32 * warp + lane;
    float o;
    if (a.v_dtype == DType::tq3_0) {  // four neighbours are rotated together
        float all[kWideRegs];
#pragma unroll
        for (int k = 0; k < kWideRegs; ++k) all[k] = value(32 * k + lane);
        kv_rotate_lanes(all, kWide, true);
        o = all[0];
#pragma unroll
        for (int k = 1; k < kWideRegs; ++k)
            if (warp == k) o = all[k];
    } else {
        o = value(e);
    }
    if (a.gate != nullptr) o = __fmul_rn(o, a.gate_sigmoid ? sigmoid(gate) : softplus(gate));
    const int64_t cols = int64_t{a.heads} * kWide;
    a.out[row * cols + head * kWide + e] = o;
    if (a.out8 != nullptr) put_act_group(a.out8 + row * ActRow::bytes(cols), cols, head * kWideRegs + warp, o);
}

// ---- launching -----------------------------------------------------------------------------------------------------

template <DType TK, DType TV, int kGroups>
constexpr size_t kSharedBytes = cuda::attn::wide_shared_bytes(TK, TV, kGroups);

template <DType TK, DType TV, int kGroups>
void launch_groups(Context& ctx, WideArgs& args) {
    static_assert(kSharedBytes<TK, TV, kGroups> == sizeof(WideShared<TK, TV>) + sizeof(WideGroups<kGroups>));
    static_assert(sizeof(WideShared<TK, TV>) % 16 == 0 && sizeof(WideGroups<kGroups>) >= sizeof(WideGroups<1>));
    constexpr size_t shared = kSharedBytes<TK, TV, kGroups>;
    const GpuInfo& gpu = ctx.gpu->info();
    const int kv_heads = args.a.kv_heads;
    args.shared_rows = 8 * kGroups / (args.a.heads / kv_heads);
    RT_CUDA(cudaFuncSetAttribute(decode_d256_kernel<TK, TV, kGroups>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared)));
    const int each = kGroups == 1 && 2 * (static_cast<int64_t>(shared) + 1024) <= gpu.shared_bytes + 1024 ? 2 : 1;
    const int64_t most = std::max<int64_t>(int64_t{gpu.sm_count} * each / kv_heads, 1) * kv_heads;
    const int64_t items = int64_t{args.rows} * (args.most_chunks + 1) * kv_heads;
    launch(*ctx.gpu, decode_d256_kernel<TK, TV, kGroups>, dim3(static_cast<unsigned>(std::min(most, items))),
           dim3(kWideThreads), shared, args);
}

/// K/V types whose rows are shared by 16: the default on a GPU, and FP8.
template <DType TK, DType TV>
constexpr bool kManyRows = TK == TV && (TK == DType::q8_0 || TK == DType::f8_e4m3);

/// pairs: of query heads and rows of a sequence.
template <DType TK, DType TV>
void launch_types(Context& ctx, WideArgs& args, int64_t pairs) {
    const auto fits = [&](size_t shared) { return static_cast<int64_t>(shared) <= ctx.gpu->info().shared_bytes; };
    if constexpr (kManyRows<TK, TV>)
        if (pairs > 32 && fits(kSharedBytes<TK, TV, 12>)) return launch_groups<TK, TV, 12>(ctx, args);
    if (pairs > 8 && fits(kSharedBytes<TK, TV, 4>)) return launch_groups<TK, TV, 4>(ctx, args);
    launch_groups<TK, TV, 1>(ctx, args);
}

void launch_prepare(Context& ctx, const DecodeAttentionArgs& a, const KvAppendArgs* append, uint4* queries) {
    PrepareArgs args{
        .a = a, .append = append != nullptr ? *append : KvAppendArgs{}, .parts = a.heads, .queries = queries};
    if (append != nullptr) args.parts += 2 * a.kv_heads;
    const int blocks = (a.rows * args.parts + kPrepareWarps - 1) / kPrepareWarps;
    launch(*ctx.gpu, decode_d256_prepare_kernel, dim3(static_cast<unsigned>(blocks)), dim3(32 * kPrepareWarps), 0,
           args);
}

}  // namespace

void launch_d256(Context& ctx, const DecodeAttentionArgs& a, int64_t sequences, const KvAppendArgs* append) {
    const ArenaScope scope(*ctx.arena);
    WideArgs args{.a = a};
    auto* const queries = static_cast<uint4*>(ctx.arena->allocate(int64_t{a.rows} * a.heads * kQuerySteps * 4 * 16));
    args.queries = queries;
    launch_prepare(ctx, a, append, queries);
    args.sequences = static_cast<int>(sequences);
    args.most_chunks = static_cast<int>(std::max<int64_t>(1, (a.most_keys + kWideChunk - 1) / kWideChunk));
    const int64_t chunks = int64_t{a.heads} * args.most_chunks, row_bytes = chunks * (kWide * 4 + 8);
    const int together = static_cast<int>(std::clamp<int64_t>(kPartialBytes / row_bytes, 1, a.rows));
    args.sums = static_cast<float*>(ctx.arena->allocate(together * chunks * kWide * 4));
    args.ml = static_cast<float2*>(ctx.arena->allocate(together * chunks * 8));
    const int64_t rows = (std::min<int64_t>(a.rows, together) + sequences - 1) / sequences;
    for (args.row0 = 0; args.row0 < a.rows; args.row0 += together) {
        args.rows = std::min(together, a.rows - args.row0);
        with_kv_types(a.k_dtype, a.v_dtype,
                      [&](auto k, auto v) { launch_types<k, v>(ctx, args, rows * (a.heads / a.kv_heads)); });
        launch(*ctx.gpu, decode_d256_merge_kernel, dim3(static_cast<unsigned>(args.rows * a.heads)),
               dim3(kMergeThreads), 0, args);
    }
}

}  // namespace riptide::ops
