// Decode attention over a short window, up to eight rows, one for each sequence, on Hopper: 30 of the 40 layers of
// Laguna XS.2.
//
// Bytes: 512 keys of 8 KV heads, f16: 2 MB = 0.5 us at 4.65 TB/s; FP8 half of it. Latency is all. Design, beside that
// of decode_d128_sm80.cu, whose arithmetic and bits these are:
//   - A cluster of CTAs has a KV head of a row, each CTA one chunk of 128 keys, each of its 8 warps 16 of them. Partial
//     results meet in the shared memory of the cluster; CTA r merges and finishes query heads r, r + size, ...
//   - K and V of the window are loaded before pdl_wait(): all but the row's own were complete before the step began
//     (embed_kernel lets later kernels start only then), and so were positions and slots.
// What limits it: projections from L2, norm and rotation, scores, softmax, two exchanges: one after the other. Tried:
// clusters of 16 for full layers; the chip runs only seven at once, one CTA an SM, and they were slower.
#include "ops/cuda/attention/decode_d128_reduce.cuh"

namespace riptide::ops {

namespace {

template <DType TK, DType TV>
__global__ void __launch_bounds__(kThreads, 2)
    decode_d128_window_kernel(const __grid_constant__ DecodeAttentionArgs a, int cluster) {
#ifdef RT_CLUSTER_KERNEL
    __shared__ Shared s;
    __shared__ alignas(16) Meeting meeting;
    const int rank = static_cast<int>(blockIdx.x) % cluster, pair = static_cast<int>(blockIdx.x) / cluster;
    HeadNorms norms;
    load_norms(a, norms);
    Item item = find_row<EarlyLoad>(a, pair / a.kv_heads, pair % a.kv_heads);
    const int chunks = chunk_count(visible_keys(item.position, a.places.window));
    start_meeting(a, meeting, cluster, rank, chunks);
    StepLoads<TK, TV> loads;
    if (rank < chunks) {
        item.chunk = key_chunk(item.position, a.places.window, rank);
        item.own = item.chunk.last;
        start_chunk<EarlyLoad>(a, s, item, loads);
    }
    pdl_trigger();  // now: the next kernel's weights queue up behind these keys
    make_turns(a, s, item.rotation);
    const int local = static_cast<int>(threadIdx.x / 32) * cluster + rank;  // the query head that this warp will finish
    const float* gates = find_gate(a, item, local);
    asm volatile("" : "+l"(gates));
    const OneChunk heads(a, item);
    __syncthreads();
    pdl_wait();
    const float4 projected = load_gate(a, gates, local);
    SoftmaxState<4> state = {};
    if (rank < chunks) state = attend_chunk<true>(a, s, item, norms, true, loads, heads);
    send_state(a, meeting, cluster, rank, chunks, state);
    float4 gate = {};
    if (local < a.heads / a.kv_heads) gate = gate_factors(a, projected);
    state = receive_states(meeting, cluster, chunks);
    finish<TV>(a, s, item, local, state, gate);
#endif
}

template <DType TK, DType TV>
void launch_types(Context& ctx, const DecodeAttentionArgs& a) {
    int cluster = 2;  // st.async needs one
    while (cluster < a.most_chunks) cluster *= 2;
    launch_clusters(*ctx.gpu, decode_d128_window_kernel<TK, TV>,
                    dim3(static_cast<unsigned>(a.rows * a.kv_heads * cluster)), dim3(kThreads), 0, cluster, a, cluster);
}

}  // namespace

void launch_window_d128(Context& ctx, const DecodeAttentionArgs& a) {
    with_kv_types(a.k_dtype, a.v_dtype, [&](auto k, auto v) { launch_types<k, v>(ctx, a); });
}

}  // namespace riptide::ops
