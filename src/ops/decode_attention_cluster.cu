// Decode attention in clusters, one row for each sequence, on Hopper and later: plain decoding of one or few sequences.
//
// Bytes: a window of 512 keys of 8 KV heads, f16: 2 MB = 0.5 us at 4.65 TB/s, FP8 half of it; latency is all there. Long
// contexts as in decode_attention_tensor.cu, whose arithmetic and bits these are. Design beyond that:
//   - A cluster of CTAs has a KV head of a row; CTA r takes chunks r, r + size, ... Their states meet in the shared
//     memory of the cluster: CTA r merges and finishes query heads r, r + size, ...
//   - The first K and V are loaded before pdl_wait(): all but the row's own were complete before the step began
//     (embed_kernel lets later kernels start only then), and so were positions, pages and slots.
// Windows: a cluster of 4, one step of 16 keys a warp. Else clusters of 16, 128 CTAs for 8 KV heads, if the chip can run
// them all at once. What limits it: projections from L2, norm and rotation, scores, softmax, two exchanges, one after
// the other; at 32K tokens and more the memory.
#include "ops/decode_attention_row.cuh"

namespace riptide::ops {

namespace {

/// Clusters of that size that the chip can run at once.
int most_clusters(const void* kernel, int size, size_t shared) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(size));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = shared;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(size), 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
    int count = 0;
    if (cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return count;
}

constexpr int kWindowCluster = 8, kPagedCluster = 16;  // the most CTAs

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

/// What a chunk leaves of a query head, in the shared memory of the CTA that finishes the head: [head / size][chunk].
struct alignas(16) Partial {
    float x[kD];
    float2 ml, unused;
};

template <DType TK, DType TV, bool OneStep>
constexpr int kCtasPerSm = !OneStep && kv_row_bytes(TK, kD) + kv_row_bytes(TV, kD) > 3 * kD ? 1 : 2;

template <DType TK, DType TV, bool OneStep>
__global__ void __launch_bounds__(kThreads, (kCtasPerSm<TK, TV, OneStep>))
    cluster_attention_kernel(const __grid_constant__ DecodeAttentionArgs a, int cluster) {
    pdl_trigger();
    extern __shared__ uint4 dynamic[];
    __shared__ Shared s;
    auto* meeting = reinterpret_cast<Partial*>(dynamic);
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
    if (a.places.window > 0) item.ring = load_early(a.places.state_slot + item.sequence) * a.places.ring_rows;
    const int chunks = chunk_count(visible_keys(item.position, a.places.window));
    const auto enter = [&](int chunk) {
        item.chunk = key_chunk(item.position, a.places.window, chunk);
        item.own = item.chunk.last;
    };
    StepLoads<TK, TV> loads;
    if (rank < chunks) {
        enter(rank);
        start_chunk<EarlyLoad>(a, s, item, loads);
    }
    make_turns(a, s, item.position);
    __syncthreads();
    pdl_wait();
    const int local = warp * cluster + rank;  // the query head that this warp will finish
    const float4 gate = load_gate(a, item, local);
    for (int chunk = rank; chunk < chunks; chunk += cluster) {
        if (chunk != rank) {
            __syncthreads();  // the states of the last chunk have been read
            enter(chunk);
            start_chunk<PlainLoad>(a, s, item, loads);
        }
        const SoftmaxState<4> state = attend_chunk<OneStep>(a, s, item, norms, chunk == rank, loads);
        if (chunk == rank) cluster_wait();  // all CTAs of the cluster have started
        if (warp < group) {
            Partial& to = meeting[warp / cluster * a.most_chunks + chunk];
            store_there(in_cta(&to.x[4 * lane], warp % cluster),
                        make_float4(state.x[0], state.x[1], state.x[2], state.x[3]));
            if (lane == 0) store_there(in_cta(&to.ml, warp % cluster), make_float2(state.m, state.l));
        }
    }
    if (rank >= chunks) cluster_wait();
    cluster_arrive();
    cluster_wait();
    if (local >= group) return;
    SoftmaxState<4> state = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const Partial& from = meeting[warp * a.most_chunks + chunk];
        const float4 x = *reinterpret_cast<const float4*>(&from.x[4 * lane]);
        const SoftmaxState<4> next = {from.ml.x, from.ml.y, {x.x, x.y, x.z, x.w}};
        if (chunk == 0) state = next;
        else merge(state, next);
    }
    finish<TV>(a, s, item, local, state, gate);
}

template <DType TK, DType TV, bool OneStep>
bool launch_steps(Context& ctx, const DecodeAttentionArgs& a, int cluster) {
    const auto kernel = cluster_attention_kernel<TK, TV, OneStep>;
    const auto* symbol = reinterpret_cast<const void*>(kernel);
    const auto shared = static_cast<size_t>((kHeads + cluster - 1) / cluster * a.most_chunks) * sizeof(Partial);
    if (shared > size_t{1} << 12)
        RT_CUDA(cudaFuncSetAttribute(symbol, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
    if (cluster > 8) {
        RT_CUDA(cudaFuncSetAttribute(symbol, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
        static const int at_once = most_clusters(symbol, cluster, shared);  // one for each instance of the template
        if (at_once < a.rows * a.kv_heads) return false;
    }
    launch_clusters(*ctx.gpu, kernel, dim3(static_cast<unsigned>(a.rows * a.kv_heads * cluster)), dim3(kThreads), shared,
                    cluster, a, cluster);
    return true;
}

template <DType TK, DType TV>
bool launch_types(Context& ctx, const DecodeAttentionArgs& a) {
    if (a.places.window == 0) return launch_steps<TK, TV, false>(ctx, a, kPagedCluster);
    int cluster = 1;
    while (cluster < a.most_chunks) cluster *= 2;
    return launch_steps<TK, TV, true>(ctx, a, cluster);
}

using Launcher = bool (*)(Context&, const DecodeAttentionArgs&);

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

bool launch_cluster_attention(Context& ctx, const DecodeAttentionArgs& a) {
    // Few rows, else there are CTAs enough without cutting rows.
    if (!ctx.gpu->programmatic() || !a.fused || a.rows * a.kv_heads >= 2 * ctx.gpu->info().sm_count) return false;
    if (a.places.window > 0 && (a.most_chunks > kWindowCluster || chunk_keys(a.places.window) != kStepKeys * kAttentionWarps))
        return false;
    const Launcher launcher = find_launcher(a.k_dtype, a.v_dtype);
    return launcher != nullptr && launcher(ctx, a);
}

}  // namespace riptide::ops
