// Decode attention for heads of 256, one row for each sequence: plain decoding. Bits: decode_attention_wide.cuh.
//
// Bytes and FLOPs: decode_attention_wide.cu. At a few hundred keys all of it is latency: 200 keys of Q8_0 are 109 KB
// for each KV head.
//
// Design. One kernel does what decode_attention_wide.cu does in three: a CTA has a chunk of 512 keys of one KV head,
// its eight warps prepare the queries and append K and V by themselves, and where the chunk is the row's only one they
// gate it and write it out. Several tiles of 64 keys (a part) are scored between two barriers, weighed between two and
// added between two, so that a chunk takes a third of the barriers of a pipeline of single tiles; only the running
// maximum and the sums go tile by tile. A part's K follows when the one before it is scored, its V when that is added.
// All keys but the row's own were there before the step and are asked for above pdl_wait(); its own key is encoded in
// shared memory.
#include <algorithm>

#include "ops/decode_attention_wide.cuh"

namespace riptide::ops {

namespace {

struct WideRowArgs {
    WideArgs wide;
    KvAppendArgs append;
    bool appends = false;  // else K and V of the row are in the cache
};

/// Tiles of a part: what two CTAs of an SM hold, or one beside the kernel in front.
template <DType TK, DType TV>
constexpr int kPartTiles = 2;

template <DType TK, DType TV, int kTiles>
struct WideRowShared {
    alignas(16) unsigned char k[kTiles * kTile][kStagedRow<TK>];
    alignas(16) unsigned char v[kTiles * kTile][kStagedRow<TV>];
    alignas(16) unsigned char own_k[kStagedRow<TK>];
    alignas(16) unsigned char own_v[kStagedRow<TV>];
    uint4 queries[1][kQuerySteps][32];
    WideTile<1> tile[kTiles];  // before: a head for each warp
    int32_t slots[kWideChunk];
    int32_t first_unit[kMostDecodeRows + 1];  // of each row; a unit is a chunk of all KV heads
};

/// A chunk of one row and KV head.
struct WideRowWork {
    int row, head, chunk, chunks;
    int keys;  // of the chunk
    int own;   // the row's own key in the chunk, its last; -1: it lies in another
};

__device__ __forceinline__ int chunks_of(const WideArgs& args, int row) {
    return early(args.a.places.positions + row) / kWideChunk + 1;
}

template <class Shared>
__device__ __forceinline__ void count_row_units(const WideArgs& args, Shared& s) {
    const int lane = static_cast<int>(threadIdx.x);
    if (lane < 32)
        for (int base = 0, before = 0; base < args.rows; base += 32) {
            const int row = base + lane;
            int sum = row < args.rows ? chunks_of(args, args.row0 + row) : 0;
#pragma unroll
            for (int by = 1; by < 32; by *= 2) {
                const int other = __shfl_up_sync(kAllLanes, sum, by);
                if (lane >= by) sum += other;
            }
            if (lane == 0) s.first_unit[base] = before;
            if (row < args.rows) s.first_unit[row + 1] = before + sum;
            before += __shfl_sync(kAllLanes, sum, 31);
        }
    __syncthreads();
}

template <class Shared>
__device__ __forceinline__ WideRowWork find_row_work(const WideArgs& args, const Shared& s, int item) {
    WideRowWork w;
    const int unit = item / args.a.kv_heads;
    w.head = item % args.a.kv_heads;
    int r = 0;
    for (int end = args.rows; end - r > 1;) {
        const int middle = (r + end) / 2;
        if (s.first_unit[middle] <= unit) r = middle;
        else end = middle;
    }
    w.row = args.row0 + r;
    w.chunk = unit - s.first_unit[r];
    w.chunks = s.first_unit[r + 1] - s.first_unit[r];
    const int position = early(args.a.places.positions + w.row);
    w.keys = min(kWideChunk, position + 1 - w.chunk * kWideChunk);
    w.own = w.chunk == w.chunks - 1 ? w.keys - 1 : -1;
    return w;
}

/// Rows [first, first + count) of the chunk on their way, but for the row's own.
template <DType T>
__device__ __forceinline__ void stage_part(unsigned char (*to)[kStagedRow<T>], const unsigned char* head,
                                           int64_t slot_bytes, const int32_t* slots, int count) {
    constexpr int kPieces = kRowPieces<T>;
    int key = static_cast<int>(threadIdx.x) / kPieces, piece = static_cast<int>(threadIdx.x) % kPieces;
#pragma unroll 4
    while (key < count) {
        stage16(to[key] + 16 * piece, slot_row(head, slot_bytes, slots[key]) + 16 * piece);
        key += kWideThreads / kPieces;
        piece += kWideThreads % kPieces;
        if (piece >= kPieces) piece -= kPieces, ++key;
    }
}
/// K or V of keys [first, end) of the chunk to L2.
template <DType T>
__device__ __forceinline__ void prefetch_rows(const unsigned char* head, int64_t slot_bytes, const int32_t* slots,
                                              int first, int end) {
    constexpr int kBytes = static_cast<int>(kv_row_bytes(T, kWide)), kLine = 128, kLines = (kBytes + kLine - 1) / kLine;
    for (int i = first * kLines + static_cast<int>(threadIdx.x); i < end * kLines; i += kWideThreads)
        asm volatile(
            "prefetch.global.L2 [%0];" ::"l"(slot_row(head, slot_bytes, slots[i / kLines]) + i % kLines * kLine));
}

/// The row's own key to its place, and behind it as far as a step of keys reaches: weights of zero need finite values.
template <DType T>
__device__ __forceinline__ void place_own(unsigned char (*to)[kStagedRow<T>], const unsigned char* own, int key) {
    constexpr int kPieces = kRowPieces<T>;
    const int count = ((key + kStepKeys) / kStepKeys * kStepKeys - key) * kPieces;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kWideThreads)
        *reinterpret_cast<uint4*>(to[key + i / kPieces] + 16 * (i % kPieces)) =
            *reinterpret_cast<const uint4*>(own + 16 * (i % kPieces));
}

/// K or V of the row, by a warp: encoded in shared memory and stored; or fetched, where it is in the cache already.
template <DType T>
__device__ __forceinline__ void make_own(const WideRowArgs& args, const WideRowWork& w, bool values, int64_t slot,
                                         const float (&weight)[kWideRegs], const RopeTurns<kWideRegs>& turns,
                                         float* buffer, unsigned char* own) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const DecodeAttentionArgs& a = args.wide.a;
    unsigned char* const row = (values ? a.v_cache : a.k_cache) + w.head * kv_row_bytes(T, kWide) +
                               slot * (values ? a.v_slot_bytes : a.k_slot_bytes);
    if (args.appends) encode_head(args.append, w.row, w.head, values, T, weight, turns, buffer, own);
    __syncwarp();
    for (int i = lane; i < kRowPieces<T>; i += 32) {
        auto *in_memory = reinterpret_cast<uint4*>(row + 16 * i), *in_shared = reinterpret_cast<uint4*>(own + 16 * i);
        if (args.appends) *in_memory = *in_shared;
        else *in_shared = load_weights(in_memory);
    }
}

/// A row's only chunk: divided, gated, written out, a head by a warp. Sums in `heads` [8][kWide].
__device__ __forceinline__ void finish_row(const DecodeAttentionArgs& a, const WideRowWork& w, int head, float m,
                                           float sum, const float* x, const float (&gate)[kWideRegs]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float factor = fast_exp2(__fsub_rn(m, fmaxf(-INFINITY, m))), l = __fmaf_rn(sum, factor, 0.0f);
    float o[kWideRegs];
#pragma unroll
    for (int k = 0; k < kWideRegs; ++k) o[k] = __fdiv_rn(__fmaf_rn(x[32 * k + lane], factor, 0.0f), l);
    if (a.v_dtype == DType::tq3_0) kv_rotate_lanes(o, kWide, true);
    const int64_t cols = int64_t{a.heads} * kWide;
#pragma unroll
    for (int k = 0; k < kWideRegs; ++k) {
        if (a.gate != nullptr) o[k] = __fmul_rn(o[k], a.gate_sigmoid ? sigmoid(gate[k]) : softplus(gate[k]));
        a.out[w.row * cols + head * kWide + 32 * k + lane] = o[k];
        if (a.out8 != nullptr) put_act_group(a.out8 + w.row * ActRow::bytes(cols), cols, head * kWideRegs + k, o[k]);
    }
}

template <DType TK, DType TV, int kTiles>
__device__ __forceinline__ void attend_row(const WideRowArgs& args, WideRowShared<TK, TV, kTiles>& s,
                                           const WideRowWork& w, const float (&gate)[kWideRegs]) {
    constexpr int kPartKeys = kTiles * kTile;
    const DecodeAttentionArgs& a = args.wide.a;
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int there = w.own < 0 ? w.keys : w.own;  // keys that were there before the step
    float m[1] = {-INFINITY}, l[1] = {}, x[1][2][4] = {};
#pragma unroll 1
    for (int first = 0; first < w.keys; first += kPartKeys) {
        const int keys = min(kPartKeys, w.keys - first), next = first + kPartKeys;
        if (w.own >= first && w.own < next) {
            place_own<TK>(s.k, s.own_k, w.own - first);
            place_own<TV>(s.v, s.own_v, w.own - first);
        }
        stage_wait<1>();
        __syncthreads();
        for (int i = warp; i < 2 * ((keys + kStepKeys - 1) / kStepKeys); i += kWideThreads / 32) {
            const int half = i % 2, key = i / 2 * kStepKeys;
            uint32_t k[8][4];
            float c[1][4];
            key_fragments<TK>(s.k + key, half, k);
            half_scores<TK>(k, s.queries, 8 * half, c);
            put_scores(s.tile[key / kTile].scores[half], key % kTile, c[0]);
        }
        __syncthreads();
        stage_part<TK>(s.k, a.k_cache + w.head * kv_row_bytes(TK, kWide), a.k_slot_bytes, s.slots + next,
                       min(kPartKeys, there - next));
        stage_commit();
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
            if (i * kTile < keys) weigh_group<TV == DType::bf16>(s.tile[i], 0, keys - i * kTile, m[0], l[0]);
        stage_wait<1>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            const int left = keys - i * kTile, steps = min(kTileSteps, (left + kStepKeys - 1) / kStepKeys);
            if (left <= 0) break;
            uint32_t v[kTileSteps][2][4];
#pragma unroll
            for (int step = 0; step < kTileSteps; ++step)
                if (step < steps) value_fragments<TV>(s.v + i * kTile + step * kStepKeys, v[step]);
            add_tile<TV == DType::bf16>(s.tile[i], v, steps, 1, x);
        }
        __syncthreads();
        stage_part<TV>(s.v, a.v_cache + w.head * kv_row_bytes(TV, kWide), a.v_slot_bytes, s.slots + next,
                       min(kPartKeys, there - next));
        stage_commit();
    }
    const int group = a.heads / a.kv_heads;
    if (w.chunks > 1) {
        WideWork chunk = {};
        chunk.first = w.row, chunk.rows = 1, chunk.head = w.head, chunk.chunk = w.chunk;
        store_chunk<TV>(args.wide, chunk, m, l, x);
    } else {
        float* const heads = reinterpret_cast<float*>(&s.k[0][0]);
        put_sums<TV>(x[0], group, [heads](int pair) { return heads + pair * kWide; });
        const float sum = warp_sum(l[0]);
        __syncthreads();
        if (warp < group) finish_row(a, w, w.head * group + warp, m[0], sum, heads + warp * kWide, gate);
    }
    __syncthreads();  // before the next item takes the place of slots and queries
}

template <DType TK, DType TV, int kTiles>
__global__ void __launch_bounds__(kWideThreads, 2) wide_row_kernel(const __grid_constant__ WideRowArgs args) {
    extern __shared__ uint4 wide_memory[];
    auto& s = *reinterpret_cast<WideRowShared<TK, TV, kTiles>*>(wide_memory);
    pdl_trigger();
    const DecodeAttentionArgs& a = args.wide.a;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int group = a.heads / a.kv_heads;
    auto* const buffer = reinterpret_cast<float*>(s.tile) + warp * kWide;
    for (int i = static_cast<int>(threadIdx.x); i < kQuerySteps * 32; i += kWideThreads)  // heads that are not there
        if (i % 32 / 4 >= group) (&s.queries[0][0][0])[i] = make_uint4(0, 0, 0, 0);
    count_row_units(args.wide, s);
    const int items = s.first_unit[args.wide.rows] * a.kv_heads;
    int prepared = -1;
    bool waited = false;
    for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
        const WideRowWork w = find_row_work(args.wide, s, item);
        for (int i = static_cast<int>(threadIdx.x); i < w.keys; i += kWideThreads)
            s.slots[i] = find_slot<EarlyLoad>(a.places, w.row, 0, w.chunk * kWideChunk + i);
        __syncthreads();
        constexpr int kPartKeys = kTiles * kTile;
        const int all = w.own < 0 ? w.keys : w.own, there = min(kPartKeys, all);
        const unsigned char *const k = a.k_cache + w.head * kv_row_bytes(TK, kWide), *const v = a.v_cache +
                                                                                                w.head * kv_row_bytes(
                                                                                                             TV, kWide);
        stage_part<TK>(s.k, k, a.k_slot_bytes, s.slots, there);
        stage_commit();
        stage_part<TV>(s.v, v, a.v_slot_bytes, s.slots, there);
        stage_commit();
        prefetch_rows<TK>(k, a.k_slot_bytes, s.slots, kPartKeys, all);
        prefetch_rows<TV>(v, a.v_slot_bytes, s.slots, kPartKeys, all);
        // A warp has a query head, K or V; with more than six heads two warps have two.
        const bool fresh = prepared != w.row * a.kv_heads + w.head;
        const int parts = w.own >= 0 ? group + 2 : group;
        const RopeTurns<kWideRegs> turns(a.rope,
                                         a.rope.half == 0 ? 0 : find_rotary_position<EarlyLoad>(a.places, w.row));
        float weight[kWideRegs], gate[kWideRegs] = {};
        const auto norm_of = [&](int part) {
            load_norm(weight, part < group ? a.q_norm : part == group ? args.append.norm : HeadNorm{}, kWide);
        };
        norm_of(warp);
        if (!waited) {
            pdl_wait();
            waited = true;
        }
        if (a.gate != nullptr && w.chunks == 1 && warp < group)
#pragma unroll
            for (int k = 0; k < kWideRegs; ++k)
                gate[k] = a.gate[w.row * a.gate_stride + int64_t{w.head * group + warp} * a.gate_head_stride +
                                 (a.gate_width == 1 ? 0 : 32 * k + lane)];
        for (int part = warp; part < parts; part += kWideThreads / 32) {
            if (part != warp) norm_of(part);
            if (part < group) {
                if (fresh)
                    prepare_query(a, w.row, w.head * group + part, weight, turns, buffer,
                                  [&s, part](int i, uint4 f) { s.queries[0][i / 4][4 * part + i % 4] = f; });
            } else if (part == group) {
                make_own<TK>(args, w, false, s.slots[w.own], weight, turns, buffer, s.own_k);
            } else {
                make_own<TV>(args, w, true, s.slots[w.own], weight, turns, buffer, s.own_v);
            }
            __syncwarp();
        }
        prepared = w.row * a.kv_heads + w.head;
        __syncthreads();
        attend_row<TK, TV, kTiles>(args, s, w, gate);
    }
    if (!waited) pdl_wait();
}

template <DType TK, DType TV>
constexpr size_t kRowSharedBytes = sizeof(WideRowShared<TK, TV, kPartTiles<TK, TV>>);

}  // namespace

bool takes_wide_rows(const Gpu& gpu, const DecodeAttentionArgs& a, int64_t sequences) {
    bool fits = false;
    with_kv_types(a.k_dtype, a.v_dtype, [&](auto k, auto v) {
        fits = static_cast<int64_t>(kRowSharedBytes<k, v>) <= gpu.info().shared_bytes;
    });
    return fits && a.rows == sequences && a.rows <= kMostDecodeRows;
}

void launch_wide_rows(Context& ctx, const WideArgs& wide, const KvAppendArgs* append) {
    WideRowArgs args{
        .wide = wide, .append = append != nullptr ? *append : KvAppendArgs{}, .appends = append != nullptr};
    args.wide.a.places.parent = nullptr;  // a single row has no ancestors in its step
    const GpuInfo& gpu = ctx.gpu->info();
    const int kv_heads = wide.a.kv_heads;
    const int64_t most = std::max<int64_t>(int64_t{gpu.sm_count} * 2 / kv_heads, 1) * kv_heads;
    const int64_t items = int64_t{wide.rows} * wide.most_chunks * kv_heads;
    with_kv_types(wide.a.k_dtype, wide.a.v_dtype, [&](auto k, auto v) {
        constexpr size_t shared = kRowSharedBytes<k, v>;
        auto* const kernel = wide_row_kernel<k, v, kPartTiles<k, v>>;
        RT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
        launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(std::min(most, items))), dim3(kWideThreads), shared, args);
    });
}

}  // namespace riptide::ops
