// How the chunks of a row of decode attention become one: through the shared memory of a cluster of CTAs, or through
// device memory.
#pragma once

#include "ops/cuda/attention/decode_d128_row.cuh"
#include "ops/cuda/device/cluster.cuh"

namespace riptide::ops {

namespace {

using cuda::attn::kMostCluster;

#ifdef RT_CLUSTER_KERNEL

/// What the chunks leave of the query heads that this CTA finishes: [head / cluster size][chunk].
struct Meeting {
    float x[kHeads][kD];
    float2 ml[kHeads];
    Inbox inbox;
};

/// What comes of a query head and a chunk.
constexpr int kStateBytes = kD * 4 + 8;
/// Query heads of `group` that CTA `rank` finishes.
__device__ __forceinline__ int finished_heads(int group, int cluster, int rank) {
    return max(0, (group - rank + cluster - 1) / cluster);
}
/// The CTA is there, and states of so many chunks may come. By all threads; a barrier of the CTA comes before
/// receive_states().
__device__ __forceinline__ void start_meeting(const DecodeAttentionArgs& a, Meeting& meeting, int cluster, int rank,
                                              int chunks) {
    if (threadIdx.x == 0)
        meeting.inbox.open(finished_heads(a.heads / a.kv_heads, cluster, rank) * chunks * kStateBytes);
    __syncwarp();
    cluster_start();
}

/// By all CTAs of a cluster behind start_meeting(): CTA r has the state of chunk r of `chunks`, which attend_chunk()
/// gave. Behind this comes receive_states().
__device__ __forceinline__ void send_state(const DecodeAttentionArgs& a, Meeting& meeting, int cluster, int rank,
                                           int chunks, const SoftmaxState<4>& state) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    cluster_wait();  // all CTAs of the cluster have started
    if (rank < chunks && warp < a.heads / a.kv_heads) {
        const int slot = warp / cluster * cluster + rank;
        send(&meeting.x[slot][4 * lane], warp % cluster, meeting.inbox,
             make_float4(state.x[0], state.x[1], state.x[2], state.x[3]));
        if (lane == 0) send(&meeting.ml[slot], warp % cluster, meeting.inbox, make_float2(state.m, state.l));
    }
}
/// All chunks' states of query head warp * cluster + rank, merged, if there is such a head.
__device__ __forceinline__ SoftmaxState<4> receive_states(const Meeting& meeting, int cluster, int chunks) {
    const int lane = static_cast<int>(threadIdx.x % 32), first = static_cast<int>(threadIdx.x / 32) * cluster;
    meeting.inbox.wait();
    SoftmaxState<4> state = {};
    if (first >= kHeads) return state;
    // merge(), chunk after chunk, but for the factors, which do not wait for one another.
    float2 ml[kMostCluster], by[kMostCluster];
#pragma unroll
    for (int i = 0; i < kMostCluster; ++i) ml[i] = i < chunks ? meeting.ml[first + i] : make_float2(-INFINITY, 0.0f);
    float m = ml[0].x;
#pragma unroll
    for (int i = 1; i < kMostCluster; ++i) {
        if (i >= chunks) break;
        const float most = fmaxf(m, ml[i].x);
        by[i] = {fast_exp2(__fsub_rn(m, most)), fast_exp2(__fsub_rn(ml[i].x, most))};
        m = most;
    }
#pragma unroll
    for (int i = 0; i < kMostCluster; ++i) {
        if (i >= chunks) break;
        const float4 x = *reinterpret_cast<const float4*>(&meeting.x[first + i][4 * lane]);
        if (i == 0) {
            state = {m, ml[0].y, {x.x, x.y, x.z, x.w}};
            continue;
        }
        state.l = __fmaf_rn(ml[i].y, by[i].y, __fmul_rn(state.l, by[i].x));
        state.x[0] = __fmaf_rn(x.x, by[i].y, __fmul_rn(state.x[0], by[i].x));
        state.x[1] = __fmaf_rn(x.y, by[i].y, __fmul_rn(state.x[1], by[i].x));
        state.x[2] = __fmaf_rn(x.z, by[i].y, __fmul_rn(state.x[2], by[i].x));
        state.x[3] = __fmaf_rn(x.w, by[i].y, __fmul_rn(state.x[3], by[i].x));
    }
    return state;
}

#endif

/// Of query head `warp`: the states of all chunks, merged in ascending order. all: those of a row and KV head.
__device__ __forceinline__ SoftmaxState<4> merge_partials(const DecodeAttentionArgs& a, const float* all, int chunks) {
    static_assert(kMostChunks <= 32);
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    // Sixteen chunks' sums at once: each time is a round trip to L2. Lane i has m and l of chunk i and works out what
    // merge() multiplies by: none of that waits for the chunks in front.
    constexpr int kAtOnce = 16;
    const auto load = [&](int i) {
        const float* from = all + int64_t{min(i, chunks - 1)} * kPartialFloats;
        return __ldcg(reinterpret_cast<const float4*>(from + warp * kD + 4 * lane));
    };
    const float2 ml = __ldcg(
        reinterpret_cast<const float2*>(all + int64_t{min(lane, chunks - 1)} * kPartialFloats + kHeads * kD) + warp);
    float4 x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) x[i] = load(i);
    float m = ml.x;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const float before = __shfl_up_sync(kAllLanes, m, by);
        if (lane >= by) m = fmaxf(before, m);
    }
    const float before = __shfl_up_sync(kAllLanes, m, 1);
    const float old_by = fast_exp2(__fsub_rn(before, m)), new_by = fast_exp2(__fsub_rn(ml.x, m));
    SoftmaxState<4> state = {};
    for (int first = 0; first < chunks; first += kAtOnce) {
        if (first > 0)
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) x[i] = load(first + i);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const float fa = __shfl_sync(kAllLanes, old_by, first + i), fb = __shfl_sync(kAllLanes, new_by, first + i);
            const float l = __shfl_sync(kAllLanes, ml.y, first + i);
            if (first + i == 0) {
                state = {0, l, {x[i].x, x[i].y, x[i].z, x[i].w}};
            } else if (first + i < chunks) {
                state.l = __fmaf_rn(l, fb, __fmul_rn(state.l, fa));
                state.x[0] = __fmaf_rn(x[i].x, fb, __fmul_rn(state.x[0], fa));
                state.x[1] = __fmaf_rn(x[i].y, fb, __fmul_rn(state.x[1], fa));
                state.x[2] = __fmaf_rn(x[i].z, fb, __fmul_rn(state.x[2], fa));
                state.x[3] = __fmaf_rn(x[i].w, fb, __fmul_rn(state.x[3], fa));
            }
        }
    }
    state.m = __shfl_sync(kAllLanes, m, chunks - 1);
    return state;
}

/// Through device memory: stores a chunk's state; true in all threads of the CTA that comes last, with all chunks
/// merged in `state`. pair: of a row and KV head. last: shared memory.
__device__ __forceinline__ bool exchange(const DecodeAttentionArgs& a, int32_t& last, int pair, int chunk, int chunks,
                                         SoftmaxState<4>& state) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    float* all = a.partial + int64_t{pair} * a.most_chunks * kPartialFloats;
    if (warp < a.heads / a.kv_heads) {
        float* mine = all + int64_t{chunk} * kPartialFloats;
        *reinterpret_cast<float4*>(mine + warp * kD + 4 * lane) = {state.x[0], state.x[1], state.x[2], state.x[3]};
        if (lane == 0) *reinterpret_cast<float2*>(mine + kHeads * kD + 2 * warp) = {state.m, state.l};
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();  // behind the barrier it covers the stores of the whole CTA
        last = atomicAdd(&a.counters[pair], 1) == chunks - 1;
        if (last) a.counters[pair] = 0;
        __threadfence();
    }
    __syncthreads();
    if (last == 0) return false;
    if (warp >= a.heads / a.kv_heads) return true;
    state = merge_partials(a, all, chunks);
    return true;
}

}  // namespace

}  // namespace riptide::ops
