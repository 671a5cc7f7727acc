// Decode attention on tensor cores (sm_80 and later), heads of 128, up to eight query heads for each KV head: one row,
// and of several those that decode_d128_rows_sm80.cu leaves.
//
// Bytes: 2 x 128 x (bits of K/V) / 8 for each key and KV head, once for each row; FLOPs are 4 x 128 for each key and
// query head. FP8, 8 KV heads: 2 KiB a token; 128K tokens are 268 MB = 60 us at 4.5 TB/s; a window of 512 is 1 MB,
// where latency is all: two dependent loads, the chunk, one exchange between CTAs.
//
// Design. A CTA of 8 warps takes a chunk of keys of one KV head (key_chunks.h). A warp takes 16 keys at a time,
// straight from device memory into the registers that mma wants, without shared memory: scores = Q K^T with Q as A
// (rows 0..7: eight heads as f16, rows 8..15: what their rounding left, so that scores are as good as in f32), then O^T
// = V^T P^T with P again in two parts. K and V of the next 16 keys are loaded as soon as the registers are free: 64 KB
// in flight for each SM. Partials meet in shared memory, then through device memory in the last CTA to arrive. With one
// row for each sequence (`fused`) the CTA with a row's own key prepares and stores K and V itself.
#include "ops/cuda/attention/decode_d128_reduce.cuh"

#include <algorithm>
#include <climits>

namespace riptide::ops {

namespace {

struct ItemShared : Shared {
    int32_t first_chunk[kMostDecodeRows + 1];  // chunks in front of a row
    int32_t rank[kMostDecodeRows];             // rows with chunks in front of it
    int32_t long_rows;
    int32_t last;
};

/// Chunks of a row here: none of one that decode_d128_rows_kernel takes.
__device__ __forceinline__ int chunks_here(const DecodeAttentionArgs& a, int position) {
    const int count = visible_keys(position, a.places.window);
    return a.apart && chunk_keys(count) == kShortChunk ? 0 : chunk_count(count);
}

/// Chunks, and rows that have some, in front of each row and in all.
__device__ __forceinline__ void count_chunks(const DecodeAttentionArgs& a, ItemShared& s) {
    const int lane = static_cast<int>(threadIdx.x);
    if (lane < 32)
        for (int base = 0, before = 0, rows = 0; base < a.rows; base += 32) {
            int sum = base + lane < a.rows ? chunks_here(a, a.places.positions[base + lane]) : 0;
            const uint32_t some = __ballot_sync(kAllLanes, sum > 0);
            if (base + lane < a.rows) s.rank[base + lane] = rows + __popc(some & ((1u << lane) - 1));
            rows += __popc(some);
            if (lane == 0) s.long_rows = rows;
#pragma unroll
            for (int by = 1; by < 32; by *= 2) {
                const int other = __shfl_up_sync(kAllLanes, sum, by);
                if (lane >= by) sum += other;
            }
            if (lane == 0) s.first_chunk[base] = before;
            if (base + lane < a.rows) s.first_chunk[base + lane + 1] = before + sum;
            before += __shfl_sync(kAllLanes, sum, 31);
        }
    __syncthreads();
}

/// The row whose chunk is `unit`, counted over all rows: the last with no more chunks in front of it.
__device__ __forceinline__ int row_of_chunk(const DecodeAttentionArgs& a, const ItemShared& s, int unit) {
    int row = 0;
    for (int end = a.rows; end - row > 1;) {
        const int middle = (row + end) / 2;
        if (s.first_chunk[middle] <= unit) row = middle;
        else end = middle;
    }
    return row;
}

/// Chunk `chunk` of the item's row; a tree row's path through the step, if the chunk needs it.
__device__ __forceinline__ void enter_chunk(const DecodeAttentionArgs& a, Shared& s, Item& item, int chunk) {
    item.chunk = key_chunk(item.position, a.places.window, chunk);
    item.own = a.fused && item.chunk.last;
    item.tree = a.places.parent != nullptr && item.chunk.first + item.chunk.keys > item.committed;
    if (item.tree) {
        if (threadIdx.x == 0) find_path(a.places, item.sequence, item.row, a.places.parent, s.path);
        __syncthreads();
    }
}

template <DType TK, DType TV>
constexpr int kCtasPerSm = cuda::attn::two_ctas(TK, TV) ? 2 : 1;

template <DType TK, DType TV>
__global__ void __launch_bounds__(kThreads, (kCtasPerSm<TK, TV>))
    decode_d128_kernel(const __grid_constant__ DecodeAttentionArgs a) {
    __shared__ ItemShared s;
    HeadNorms norms;
    load_norms(a, norms);
    StepLoads<TK, TV> loads;
    Item item = {};
    bool started = false;
    if (a.fused && a.rows == 1) {  // all but the row's own key was complete before the step began
        item = find_row<EarlyLoad>(a, 0, static_cast<int>(blockIdx.x) % a.kv_heads);
        const int chunk = static_cast<int>(blockIdx.x) / a.kv_heads;
        started = chunk < chunk_count(visible_keys(item.position, a.places.window));
        if (started) {
            item.chunk = key_chunk(item.position, a.places.window, chunk);
            start_chunk<EarlyLoad>(a, s, item, loads);
            make_turns(a, s, item.rotation);
        }
    }
    pdl_trigger();  // now: the next kernel's weights queue up behind these keys
    pdl_wait();
    const bool one = a.rows == 1;
    if (!one) count_chunks(a, s);
    // Split: an item is a chunk of a row and KV head; else, if that makes enough of them, all chunks. Of one row, how
    // many there are is known with the row.
    const bool split = one || s.long_rows * a.kv_heads < static_cast<int>(gridDim.x);
    const int items = one ? INT_MAX : split ? s.first_chunk[a.rows] * a.kv_heads : a.rows * a.kv_heads;
    int prepared = -1;  // the row and head whose query fragments are in shared memory
    for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x)) {
        const int unit = i / a.kv_heads, row = one ? 0 : split ? row_of_chunk(a, s, unit) : unit;
        if (!started) item = find_row<PlainLoad>(a, row, i % a.kv_heads);
        const int chunks = chunks_here(a, item.position);
        if (chunks == 0) continue;  // not split
        const int first = one ? unit : split ? unit - s.first_chunk[row] : 0;
        if (first >= chunks) break;  // one row, all its chunks taken
        if (!started) make_turns(a, s, item.rotation);
        const int end = split ? first + 1 : chunks, pair = (one ? 0 : s.rank[row]) * a.kv_heads + item.head;
        const bool queries = prepared != row * a.kv_heads + item.head;
        prepared = row * a.kv_heads + item.head;
        const int warp = static_cast<int>(threadIdx.x / 32);
        const float4 gate = load_gate(a, item, warp);
        SoftmaxState<4> state = {};
        for (int chunk = first; chunk < end; ++chunk) {
            enter_chunk(a, s, item, chunk);
            if (!started) start_chunk<PlainLoad>(a, s, item, loads);
            started = false;
            __syncthreads();
            const SoftmaxState<4> next = attend_chunk<false>(a, s, item, norms, queries && chunk == first, loads);
            if (chunk == first) state = next;
            else merge(state, next);
            __syncthreads();
        }
        if (!split || chunks == 1 || exchange(a, s.last, pair, first, chunks, state))
            finish<TV>(a, s, item, warp, state, gate_factors(a, gate));
        __syncthreads();
    }
}

template <DType TK, DType TV>
void launch_types(Context& ctx, DecodeAttentionArgs& a) {
    const int64_t pairs = int64_t{a.rows} * a.kv_heads, ctas = int64_t{ctx.gpu->info().sm_count} * kCtasPerSm<TK, TV>;
    // A CTA keeps its KV head, and so its queries while the row stays the same.
    const int64_t most = std::max<int64_t>(ctas / a.kv_heads, 1) * a.kv_heads;
    const int64_t grid = std::min(most, pairs * a.most_chunks);
    ArenaScope scope(*ctx.arena);
    if (a.most_chunks > 1)
        a.partial = ctx.alloc(DType::f32, {std::min(most, pairs) * a.most_chunks, kPartialFloats}).row(0);
    launch(*ctx.gpu, decode_d128_kernel<TK, TV>, dim3(static_cast<unsigned>(grid)), dim3(kThreads), 0, a);
}

}  // namespace

void launch_split_d128(Context& ctx, DecodeAttentionArgs& a) {
    with_kv_types(a.k_dtype, a.v_dtype, [&](auto k, auto v) { launch_types<k, v>(ctx, a); });
}

}  // namespace riptide::ops
