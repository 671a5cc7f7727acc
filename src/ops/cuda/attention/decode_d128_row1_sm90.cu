// Decode attention of one row without a window on Hopper, K and V of up to eight bits: the full layers of a model.
//
// Bytes and floors as in decode_d128_sm80.cu, whose arithmetic and bits these are; that kernel takes all other
// rows. Here every CTA has one chunk of one KV head at most, so there is no loop over items and half the code. CTAs of
// two neighbouring chunks are a cluster: up to 256 keys they exchange their results in its shared memory, instead of
// two fences and a counter in device memory.
//
// Measured (FP8, H200, 2026-11-23, bench_gpu_decode_attention): 27.6 us for 32,768 keys (52 % of 4.65 TB/s), 80.9 for
// 131,072 (71 %). What limits: 64 KB of K/V on their way for each SM are 0.62 us a step and scheduler, whoever holds
// them; warps wait for loads in 42 % of their cycles, issue slots are 23 % busy. Tried: clusters of four: with 32
// chunks some do not fit beside the others and run behind them (39.8 and 119.3 us), though up to 512 keys they take
// 1.8 us less; the same bytes in rings in shared memory, one CTA of two chunks an SM: 27.7 and 81.2 us; scores of
// a step beside the values of the one before: 28.0; chunks of any number of steps: 29.9 to 28.9 us at 32,800 keys,
// 10.6 to 11.8 at 4,144.
#include "ops/cuda/attention/decode_d128_reduce.cuh"

namespace riptide::ops {

namespace {

constexpr int kCluster = cuda::attn::kRow1Cluster;

template <DType TK, DType TV>
__global__ void __launch_bounds__(kThreads, 2) decode_d128_row1_kernel(const __grid_constant__ DecodeAttentionArgs a) {
#ifdef RT_CLUSTER_KERNEL
    __shared__ Shared s;
    __shared__ union {
        Meeting meeting;
        int32_t last;
    } meet;
    const int warp = static_cast<int>(threadIdx.x / 32), rank = static_cast<int>(blockIdx.x) % kCluster;
    const int cluster = static_cast<int>(blockIdx.x) / kCluster, chunk = cluster / a.kv_heads * kCluster + rank;
    HeadNorms norms;
    load_norms(a, norms);
    Item item = find_row<EarlyLoad>(a, 0, cluster % a.kv_heads);
    const int chunks = chunk_count(visible_keys(item.position, 0));
    const bool meets = chunks <= kCluster && chunk < kCluster, mine = chunk < chunks;
    if (meets) start_meeting(a, meet.meeting, kCluster, rank, chunks);
    StepLoads<TK, TV> loads;
    if (mine) {
        item.chunk = key_chunk(item.position, 0, chunk);
        item.own = item.chunk.last;
        start_chunk<EarlyLoad>(a, s, item, loads);
        make_turns(a, s, item.rotation);
    }
    pdl_trigger();  // now: the next kernel's weights queue up behind these keys
    const int local = meets ? warp * kCluster + rank : warp;  // the query head that this warp will finish
    const float* gates = find_gate(a, item, local);
    asm volatile("" : "+l"(gates));
    const OneChunk heads(a, item);
    __syncthreads();
    pdl_wait();
    if (!mine && !meets) return;
    const float4 projected = load_gate(a, gates, local);
    SoftmaxState<4> state = {};
    if (mine) state = attend_chunk<false>(a, s, item, norms, true, loads, heads);
    if (meets) send_state(a, meet.meeting, kCluster, rank, chunks, state);
    else if (!exchange(a, meet.last, item.head, chunk, chunks, state)) return;
    float4 gate = {};
    if (local < a.heads / a.kv_heads) gate = gate_factors(a, projected);
    if (meets) state = receive_states(meet.meeting, kCluster, chunks);
    finish<TV>(a, s, item, local, state, gate);
#endif
}

template <DType TK, DType TV>
void launch_types(Context& ctx, DecodeAttentionArgs& a) {
    if constexpr (cuda::attn::two_ctas(TK, TV)) {
        const int64_t grid = int64_t{a.kv_heads} * ((a.most_chunks + kCluster - 1) / kCluster * kCluster);
        ArenaScope scope(*ctx.arena);
        a.partial = ctx.alloc(DType::f32, {a.kv_heads * a.most_chunks, kPartialFloats}).row(0);
        launch_clusters(*ctx.gpu, decode_d128_row1_kernel<TK, TV>, dim3(static_cast<unsigned>(grid)), dim3(kThreads), 0,
                        kCluster, a);
    } else {
        RT_ASSERT(false);
    }
}

}  // namespace

void launch_row1_d128(Context& ctx, DecodeAttentionArgs& a) {
    with_kv_types(a.k_dtype, a.v_dtype, [&](auto k, auto v) { launch_types<k, v>(ctx, a); });
}

}  // namespace riptide::ops
