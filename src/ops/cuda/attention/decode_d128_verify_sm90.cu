// Decode attention of the few rows of a check, on Hopper: up to eight rows, several of one sequence, chains or trees;
// and, on full layers, of two to eight sequences with a row each.
//
// Bytes: those of decode_d128_sm80.cu once for each row; 4 rows over a window of 512 in FP8 4 MB = 0.9 us
// at 4.65 TB/s. Latency is all, and before this kernel it was that of two launches, the second of which could not begin
// before the first had ended. Design: decode_d128_window_sm90.cu, whose arithmetic and bits these are, with two things
// more.
//   - A row sees others of its step. Each CTA makes the K and V of those that its chunk holds from their projections:
//     the row itself and its ancestors, at most eight, two heads a warp. Nobody waits for who stores them; that is done
//     by the CTA with the row's own key. What lies in their slots meanwhile is loaded and thrown away.
//   - Full layers too: a cluster of 8 shares up to 32 chunks, CTA r has chunks r, r + 8, ...
// Keys older than the step, positions, slots and the tree are read before pdl_wait(): they were complete before the
// step began (embed_kernel lets later kernels start only then).
#include "ops/cuda/attention/decode_d128_reduce.cuh"
#include "ops/cuda/attention/decode_d128_row.cuh"
#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops {

namespace {

constexpr int kMostStepRows = cuda::attn::kFewRows;

struct StepShared : Shared {
    // Of the keys of this step that the row sees, from the oldest.
    alignas(16) unsigned char step_k[kMostStepRows][kRowBytes];
    alignas(16) unsigned char step_v[kMostStepRows][kRowBytes];
    float2 turns[kMostStepRows][kD / 2];
    int32_t path_row[kMostStepRows];
    int32_t count;     // of them
    int32_t own_slot;  // where the row's own K and V go
#ifdef RT_CLUSTER_KERNEL
    Inbox inbox;  // states of the query heads that this CTA finishes
#endif
};

/// What the chunks leave of a query head that this CTA finishes; [head / cluster size][chunk] of them.
struct ChunkState {
    float x[kD];
    float2 ml, unused;
};

#ifdef RT_CLUSTER_KERNEL
/// The row, what it sees of its step, and the rotations of those positions. By the whole CTA, which synchronises.
__device__ __forceinline__ Item find_item(const DecodeAttentionArgs& a, StepShared& s, int row, int head) {
    const auto read = [](const int32_t* p) { return static_cast<int32_t>(EarlyLoad::one(p)); };
    const KeyPlaces& p = a.places;
    Item item = {};
    item.row = row;
    item.head = head;
    item.position = read(p.positions + row);
    item.sequence = read(p.row_sequence + row);
    item.committed = read(p.committed + item.sequence);
    if (p.window > 0) item.ring = read(p.state_slot + item.sequence) * p.ring_rows;
    const int lane = static_cast<int>(threadIdx.x % 32), count = item.position - item.committed + 1;
    if (threadIdx.x < 32) {
        const int parent = p.parent != nullptr && lane < a.rows ? read(p.parent + lane) : lane - 1;
        int at = row;
        for (int i = count - 1; i >= 0; --i) {
            if (lane == i) s.path_row[i] = at;
            at = __shfl_sync(kAllLanes, parent, at & 31);
        }
        if (lane == 0) {
            s.count = count;
            s.own_slot = find_slot<EarlyLoad>(p, item.sequence, item.ring,
                                              item.committed + row - read(p.row_begin + item.sequence));
        }
    }
    const int half = a.rope.half;
    if (p.gaps != nullptr) __syncthreads();  // the path is there
    for (int i = static_cast<int>(threadIdx.x); i < count * half; i += kThreads) {
        const int gap = p.gaps != nullptr ? read(p.gaps + s.path_row[i / half]) : 0;
        s.turns[i / half][i % half] =
            rope_turn(item.committed + i / half + gap, a.rope.inv_freq[i % half], a.rope.magnitude);
    }
    return item;
}

/// Attention's hooks for the keys of the step.
struct StepRows {
    static constexpr bool kEveryStep = true;

    /// Query heads and the K and V of the chunk's keys of the step, a warp each: as prepare_heads().
    template <DType TK, DType TV>
    __device__ __forceinline__ static void prepare(const DecodeAttentionArgs& a, StepShared& s, const Item& item,
                                                   const HeadNorms& norms, bool queries) {
        const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
        const int group = a.heads / a.kv_heads, first = max(0, item.chunk.first - item.committed);
        const int end = item.chunk.first + item.chunk.keys - item.committed;
        const int tasks = group + 2 * max(0, end - first), first_task = warp + (queries ? 0 : group);
        if (queries) clear_q_fragments(s, group);
        constexpr int kTasks = (kHeads + 2 * kMostStepRows) / kAttentionWarps;  // of a warp, at most
        float heads[kTasks][kRegs] = {};
#pragma unroll
        for (int i = 0; i < kTasks; ++i) {
            const int task = first_task + i * kAttentionWarps, which = first + (task - group) / 2;
            if (task >= tasks) break;
            const float* const from = task < group ? a.q + item.row * a.q_stride + (item.head * group + task) * kD
                                      : (task - group) % 2 == 0 ? a.k + s.path_row[which] * a.k_stride + item.head * kD
                                                                : a.v + s.path_row[which] * a.v_stride + item.head * kD;
            load_head(heads[i], from, kD);
        }
#pragma unroll
        for (int i = 0; i < kTasks; ++i) {
            const int task = first_task + i * kAttentionWarps;
            if (task >= tasks) break;
            const bool query = task < group, values = !query && (task - group) % 2 != 0;
            const int which = query ? s.count - 1 : first + (task - group) / 2;
            float(&x)[kRegs] = heads[i];
            if (!values) {
                if (query) norm_head(x, norms.q, a.q_norm, kD);
                else norm_head(x, norms.k, a.k_norm, kD);
                rotate(a, s.turns[which], x);
            }
            if ((values ? TV : TK) == DType::tq3_0) kv_rotate_lanes(x, kD, false);
            if (query) {
#pragma unroll
                for (int k = 0; k < kRegs; ++k) s.q[task][32 * k + lane] = __fmul_rn(x[k], a.scale);
                make_q_fragments<TK>(s, task);
                continue;
            }
            unsigned char* const own = values ? s.step_v[which] : s.step_k[which];
            if (values) kv_encode_lanes(TV, x, kD, own);
            else kv_encode_lanes(TK, x, kD, own);
            if (which != s.count - 1) continue;
            __syncwarp();
            const int64_t bytes = kv_row_bytes(values ? TV : TK, kD);
            unsigned char* const to =
                values ? a.v_cache + s.own_slot * a.v_slot_bytes : a.k_cache + s.own_slot * a.k_slot_bytes;
            if (8 * lane < bytes)
                reinterpret_cast<uint2*>(to + item.head * bytes)[lane] = reinterpret_cast<const uint2*>(own)[lane];
        }
    }
    static __device__ __forceinline__ void rotate(const DecodeAttentionArgs& a, const float2* turns,
                                                  float (&x)[kRegs]) {
        const int lane = static_cast<int>(threadIdx.x % 32);
        const auto turn = [&](float& u, float& v, float2 by) {
            const float2 turned = rope_rotate(u, v, by);
            u = turned.x, v = turned.y;
        };
        if (a.rope.half == 64) {
            turn(x[0], x[2], turns[lane]);
            turn(x[1], x[3], turns[32 + lane]);
        } else if (a.rope.half == 32) {
            turn(x[0], x[1], turns[lane]);
        }
    }

    template <DType TK, DType TV>
    __device__ __forceinline__ static void take(const StepShared& s, const Item& item, int step,
                                                StepLoads<TK, TV>& next) {
        const int lane = static_cast<int>(threadIdx.x % 32);
        const int first = item.chunk.first + step * kStepKeys - item.committed;  // of this step's keys
        if (first + kStepKeys <= 0) return;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int which = first + lane / 4 + 8 * j;
            if (which >= 0) kv_load_units(next.k.unit[j], s.step_k[min(which, s.count - 1)], lane % 4);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int which = first + value_key(lane % 4, j);
            if (which >= 0) kv_load_unit(next.v.unit[j], s.step_v[min(which, s.count - 1)], lane / 4);
        }
    }
};

#endif

template <DType TK, DType TV>
constexpr int kStepCtas = cuda::attn::two_ctas(TK, TV) ? 2 : 1;

template <DType TK, DType TV>
__global__ void __launch_bounds__(kThreads, (kStepCtas<TK, TV>))
    decode_d128_verify_kernel(const __grid_constant__ DecodeAttentionArgs a, int cluster) {
#ifdef RT_CLUSTER_KERNEL
    extern __shared__ uint4 dynamic[];
    auto& s = *reinterpret_cast<StepShared*>(dynamic);
    auto* const states = reinterpret_cast<ChunkState*>(&s + 1);
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int rank = static_cast<int>(blockIdx.x) % cluster, pair = static_cast<int>(blockIdx.x) / cluster;
    const int group = a.heads / a.kv_heads;
    HeadNorms norms;
    load_norms(a, norms);
    Item item = find_item(a, s, pair / a.kv_heads, pair % a.kv_heads);
    const int chunks = chunk_count(visible_keys(item.position, a.places.window));
    if (threadIdx.x == 0) s.inbox.open(finished_heads(group, cluster, rank) * chunks * kStateBytes);
    __syncwarp();
    cluster_start();
    StepLoads<TK, TV> loads;
    if (rank < chunks) {
        item.chunk = key_chunk(item.position, a.places.window, rank);
        start_chunk<EarlyLoad>(a, s, item, loads);
    }
    pdl_trigger();  // now: the next kernel's weights queue up behind these keys
    __syncthreads();
    pdl_wait();
    const int local = warp * cluster + rank;  // the query head that this warp will finish
    const float4 projected = load_gate(a, item, local);
    if (rank >= chunks) cluster_wait();
    for (int chunk = rank; chunk < chunks; chunk += cluster) {
        if (chunk != rank) {
            item.chunk = key_chunk(item.position, a.places.window, chunk);
            start_chunk<EarlyLoad>(a, s, item, loads);
            __syncthreads();  // the chunk before has been read
        }
        const SoftmaxState<4> state = attend_chunk<false, StepRows>(a, s, item, norms, chunk == rank, loads);
        if (chunk == rank) cluster_wait();  // all CTAs of the cluster have started
        if (warp >= group) continue;
        ChunkState& there = states[warp / cluster * a.most_chunks + chunk];
        send(&there.x[4 * lane], warp % cluster, s.inbox, make_float4(state.x[0], state.x[1], state.x[2], state.x[3]));
        if (lane == 0) send(&there.ml, warp % cluster, s.inbox, make_float2(state.m, state.l));
    }
    const float4 gate = gate_factors(a, projected);
    s.inbox.wait();
    if (local >= group) return;
    SoftmaxState<4> state = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const ChunkState& here = states[warp * a.most_chunks + chunk];
        const float4 x = *reinterpret_cast<const float4*>(&here.x[4 * lane]);
        const SoftmaxState<4> next = {here.ml.x, here.ml.y, {x.x, x.y, x.z, x.w}};
        if (chunk == 0) state = next;
        else merge(state, next);
    }
    finish<TV>(a, s, item, local, state, gate);
#endif
}

template <DType TK, DType TV>
void launch_types(Context& ctx, const DecodeAttentionArgs& a) {
    int cluster = 2;  // st.async needs one
    while (cluster < a.most_chunks && cluster < kMostCluster) cluster *= 2;
    const size_t shared =
        sizeof(StepShared) + sizeof(ChunkState) * static_cast<size_t>(kHeads / cluster * a.most_chunks);
    allow_shared(reinterpret_cast<const void*>(decode_d128_verify_kernel<TK, TV>), static_cast<int64_t>(shared));
    launch_clusters(*ctx.gpu, decode_d128_verify_kernel<TK, TV>,
                    dim3(static_cast<unsigned>(a.rows * a.kv_heads * cluster)), dim3(kThreads), shared, cluster, a,
                    cluster);
}

}  // namespace

void launch_verify_d128(Context& ctx, const DecodeAttentionArgs& a) {
    with_kv_types(a.k_dtype, a.v_dtype, [&](auto k, auto v) { launch_types<k, v>(ctx, a); });
}

}  // namespace riptide::ops
