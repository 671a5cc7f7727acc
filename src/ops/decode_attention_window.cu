// Decode attention over a short window, one row for each sequence, on Hopper: 30 of the 40 layers of Laguna XS.2.
//
// Bytes: 512 keys of 8 KV heads, f16: 2 MB = 0.5 us at 4.65 TB/s; FP8 half of it. Latency is all. Design, beside that
// of decode_attention_tensor.cu, whose arithmetic and bits these are:
//   - A cluster of CTAs has a KV head of a row, each CTA one chunk of 128 keys, each of its 8 warps 16 of them. Partial
//     results meet in the shared memory of the cluster; CTA r merges and finishes query heads r, r + size, ...
//   - K and V of the window are loaded before pdl_wait(): all but the row's own were complete before the step began
//     (embed_kernel lets later kernels start only then), and so are positions and slots.
// What limits it: projections from L2, norm and rotation, scores, softmax, two exchanges: one after the other.
#include "ops/decode_attention_row.cuh"

namespace riptide::ops {

namespace {

constexpr int kMostCluster = 8;

__device__ __forceinline__ int32_t load_early(const int32_t* p) {
    return static_cast<int32_t>(EarlyLoad::one(p));
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/// Where `here`, in this CTA's shared memory, lies in that of CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t in_cta(const void* here, int rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there)
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(here))), "r"(rank));
    return there;
}
__device__ __forceinline__ void store_there(uint32_t at, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}
__device__ __forceinline__ void store_there(uint32_t at, float2 v) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1,%2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
}
#else
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() {}
__device__ __forceinline__ uint32_t in_cta(const void*, int) { return 0; }
__device__ __forceinline__ void store_there(uint32_t, float4) {}
__device__ __forceinline__ void store_there(uint32_t, float2) {}
#endif

/// Partial results of this CTA's query heads: [head / cluster size][chunk].
struct Meeting {
    float x[kHeads][kD];
    float2 ml[kHeads];
};

/// The row's state of head `warp` over one chunk, in every warp below `group`: attend_chunk with all loads done.
template <DType TK, DType TV>
__device__ __forceinline__ SoftmaxState<4> attend_loaded(const DecodeAttentionArgs& a, Shared& s, const Item& item,
                                                         KeyUnits<TK>& k, ValueUnits<TV>& v,
                                                         const HeadNorms& norms) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int group = a.heads / a.kv_heads, steps = item.steps();
    prepare_heads<TK, TV>(a, s, item, norms, true);
    __syncthreads();
    make_q_fragments<TK>(a, s);
    __syncthreads();
    if (warp < steps) {
        if (item.own && (warp + 1) * kStepKeys >= item.chunk.keys) take_own_row(k, v, s, warp, item.chunk.keys);
        WarpState w;
        float p[4];
        scores(k, s, p);
        soften(p, item.chunk.keys - warp * kStepKeys, w);
        add_values(v, p, w.x);
        store_state<TV>(w, s, group);
    }
    __syncthreads();
    SoftmaxState<4> state = {};
    if (warp < group)
        for (int i = 0; i < steps; ++i) {
            const float4 x = *reinterpret_cast<const float4*>(&s.x[i][warp][4 * lane]);
            const SoftmaxState<4> next = {s.ml[i][warp].x, s.ml[i][warp].y, {x.x, x.y, x.z, x.w}};
            if (i == 0) state = next;
            else merge(state, next);
        }
    return state;
}

template <DType TK, DType TV>
__global__ void __launch_bounds__(kThreads, 2)
    window_attention_kernel(const __grid_constant__ DecodeAttentionArgs a, int cluster) {
    pdl_trigger();
    __shared__ Shared s;
    __shared__ alignas(16) Meeting meeting;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int rank = static_cast<int>(blockIdx.x) % cluster, pair = static_cast<int>(blockIdx.x) / cluster;
    const int group = a.heads / a.kv_heads;
    cluster_arrive();
    HeadNorms norms;
    load_norms(a, norms);
    Item item = {};
    item.row = item.sequence = pair / a.kv_heads;
    item.head = pair % a.kv_heads;
    item.position = load_early(a.places.positions + item.row);
    item.ring = load_early(a.places.state_slot + item.sequence) * a.places.ring_rows;
    const int chunks = chunk_count(visible_keys(item.position, a.places.window));
    const bool attends = rank < chunks;
    KeyUnits<TK> k;
    ValueUnits<TV> v;
    if (attends) {
        item.chunk = key_chunk(item.position, a.places.window, rank);
        item.own = item.chunk.last;
        if (warp < item.steps()) {
            const int key = min(warp * kStepKeys + lane % kStepKeys, item.chunk.keys - 1);
            const int32_t slot = item.ring + static_cast<int32_t>(static_cast<uint32_t>(item.chunk.first + key) %
                                                                  static_cast<uint32_t>(a.places.ring_rows));
            load_keys<EarlyLoad>(k, a.k_cache + item.head * kv_row_bytes(TK, kD), a.k_slot_bytes, slot);
            load_values<EarlyLoad>(v, a.v_cache + item.head * kv_row_bytes(TV, kD), a.v_slot_bytes, slot);
        }
    }
    make_turns(a, s, item.position);
    __syncthreads();
    pdl_wait();
    const int local = warp * cluster + rank;  // the query head that this warp will finish
    const float4 gate = load_gate(a, item, local);
    SoftmaxState<4> state = {};
    if (attends) state = attend_loaded(a, s, item, k, v, norms);
    cluster_wait();  // all CTAs have started
    if (attends && warp < group) {
        const int slot = warp / cluster * cluster + rank;
        store_there(in_cta(&meeting.x[slot][4 * lane], warp % cluster),
                    make_float4(state.x[0], state.x[1], state.x[2], state.x[3]));
        if (lane == 0) store_there(in_cta(&meeting.ml[slot], warp % cluster), make_float2(state.m, state.l));
    }
    cluster_arrive();
    cluster_wait();
    if (local >= group) return;
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const int slot = warp * cluster + chunk;
        const float4 x = *reinterpret_cast<const float4*>(&meeting.x[slot][4 * lane]);
        const SoftmaxState<4> next = {meeting.ml[slot].x, meeting.ml[slot].y, {x.x, x.y, x.z, x.w}};
        if (chunk == 0) state = next;
        else merge(state, next);
    }
    finish<TV>(a, s, item, local, state, gate);
}

template <DType TK, DType TV>
void launch_types(Context& ctx, const DecodeAttentionArgs& a) {
    int cluster = 1;
    while (cluster < a.most_chunks) cluster *= 2;
    launch_clusters(*ctx.gpu, window_attention_kernel<TK, TV>,
                    dim3(static_cast<unsigned>(a.rows * a.kv_heads * cluster)), dim3(kThreads), 0, cluster, a, cluster);
}

using Launcher = void (*)(Context&, const DecodeAttentionArgs&);

/// The compiled pairs of K and V types.
Launcher find_launcher(DType k, DType v) {
    if (k == v) switch (k) {
            case DType::f16:
                return launch_types<DType::f16, DType::f16>;
            case DType::f8_e4m3:
                return launch_types<DType::f8_e4m3, DType::f8_e4m3>;
            case DType::q8_0:
                return launch_types<DType::q8_0, DType::q8_0>;
            case DType::q4_0:
                return launch_types<DType::q4_0, DType::q4_0>;
            case DType::tq3_0:
                return launch_types<DType::tq3_0, DType::tq3_0>;
            default:
                return nullptr;
        }
    if (k == DType::q8_0 && v == DType::q4_0) return launch_types<DType::q8_0, DType::q4_0>;
    return nullptr;
}

}  // namespace

bool has_window_attention(const Gpu& gpu, const DecodeAttentionArgs& a) {
    // Chunks of one step a warp; few rows, else there are CTAs enough without cutting rows.
    return gpu.programmatic() && a.fused && a.places.window > 0 && a.most_chunks <= kMostCluster &&
           chunk_keys(a.places.window) == kStepKeys * kAttentionWarps &&
           a.rows * a.kv_heads < 2 * gpu.info().sm_count && find_launcher(a.k_dtype, a.v_dtype) != nullptr;
}

void launch_window_attention(Context& ctx, DecodeAttentionArgs& a) { find_launcher(a.k_dtype, a.v_dtype)(ctx, a); }

}  // namespace riptide::ops
