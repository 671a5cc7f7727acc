// The parts of a row of decode attention on tensor cores: its query heads and its own K and V from projections to what
// is multiplied and stored, a chunk of its keys, and its result from sums to floats and int8.
#pragma once

#include "ops/cuda/attention/decode_d128_sm80.cuh"

namespace riptide::ops {

namespace {

/// A chunk of a row, as all threads of the CTA see it.
struct Item {
    int row, head, sequence, position;
    int rotation;  // the position that queries and keys are rotated by
    int32_t ring, committed;
    int32_t page;  // of the row's own key, on full layers
    bool own;      // this CTA makes the row's own K and V
    bool tree;
    KeyChunk chunk;

    __device__ __forceinline__ int steps() const { return (chunk.keys + kStepKeys - 1) / kStepKeys; }
};

/// The norms' weights of this lane's elements.
struct HeadNorms {
    float q[kRegs], k[kRegs];
};
__device__ __forceinline__ void load_norms(const DecodeAttentionArgs& a, HeadNorms& norms) {
    load_norm(norms.q, a.q_norm, kD);
    load_norm(norms.k, a.k_norm, kD);
}
/// The rotations of a position, by the first threads of the CTA, which synchronises before it prepares heads.
__device__ __forceinline__ void make_turns(const DecodeAttentionArgs& a, HeadShared& s, int position) {
    if (static_cast<int>(threadIdx.x) < a.rope.half)
        s.turn[threadIdx.x] = rope_turn(position, a.rope.inv_freq[threadIdx.x], a.rope.magnitude);
}

/// Tasks of prepare_heads() that a warp has at most.
template <int kWarps>
constexpr int kHeadTasks = (kHeads + 2 + kWarps - 1) / kWarps;

/// Where the projections of a warp's heads are: query heads, then K and V.
template <int kWarps>
__device__ __forceinline__ void find_heads(const DecodeAttentionArgs& a, const Item& item, bool queries,
                                           const float* (&from)[kHeadTasks<kWarps>]) {
    const int group = a.heads / a.kv_heads, first_task = static_cast<int>(threadIdx.x / 32) + (queries ? 0 : group);
#pragma unroll
    for (int i = 0; i < kHeadTasks<kWarps>; ++i) {
        const int task = first_task + i * kWarps;
        from[i] = task < group    ? a.q + item.row * a.q_stride + (item.head * group + task) * kD
                  : task == group ? a.k + item.row * a.k_stride + item.head * kD
                                  : a.v + item.row * a.v_stride + item.head * kD;
    }
}

/// Query heads, if `queries`, and K and V of the row's own key, if the item has it: from projections to what is
/// multiplied, in shared memory, a warp each. from: find_heads().
template <DType TK, DType TV, int kWarps = kAttentionWarps>
__device__ __forceinline__ void prepare_heads(const DecodeAttentionArgs& a, HeadShared& s, const Item& item,
                                              const HeadNorms& norms, bool queries,
                                              const float* const (&from)[kHeadTasks<kWarps>]) {
    const int lane = static_cast<int>(threadIdx.x % 32), group = a.heads / a.kv_heads;
    const int first_task = static_cast<int>(threadIdx.x / 32) + (queries ? 0 : group),
              tasks = group + (item.own ? 2 : 0);
    constexpr int kTasks = kHeadTasks<kWarps>;
    float heads[kTasks][kRegs] = {};
#pragma unroll
    for (int i = 0; i < kTasks; ++i)
        if (first_task + i * kWarps < tasks) load_head(heads[i], from[i], kD);
    if (queries) clear_q_fragments<kWarps>(s, group);
    float2 turn[2];
    if (a.rope.half != 0) turn[0] = s.turn[lane];
    if (a.rope.half == 64) turn[1] = s.turn[32 + lane];
    const auto rope = [&](float(&x)[kRegs]) {
        const auto rotate = [&](float& u, float& v, float2 by) {
            const float2 turned = rope_rotate(u, v, by);
            u = turned.x, v = turned.y;
        };
        if (a.rope.half == 64) {
            rotate(x[0], x[2], turn[0]);
            rotate(x[1], x[3], turn[1]);
        } else if (a.rope.half == 32) {
            rotate(x[0], x[1], turn[0]);
        }
    };
    // norm_head, all tasks side by side: lane i works out the scale of task i.
    float squares[kTasks] = {}, mine = 0.0f;
#pragma unroll
    for (int i = 0; i < kTasks; ++i)
#pragma unroll
        for (int k = 0; k < kRegs; ++k) squares[i] = __fmaf_rn(heads[i][k], heads[i][k], squares[i]);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
#pragma unroll
        for (int i = 0; i < kTasks; ++i)
            squares[i] = __fadd_rn(squares[i], __shfl_xor_sync(kAllLanes, squares[i], mask));
#pragma unroll
    for (int i = 0; i < kTasks; ++i)
        if (lane == i) mine = squares[i];
    const float eps = first_task + lane * kWarps < group ? a.q_norm.eps : a.k_norm.eps;
    const float scales = rms_scale(mine, kD, eps);
    for (int task = first_task, i = 0; task < tasks; task += kWarps, ++i) {
        float(&x)[kRegs] = heads[0];
        const bool values = task > group;
        if (!values) {
            const float scale = __shfl_sync(kAllLanes, scales, i);
            if ((task < group ? a.q_norm : a.k_norm).weight != nullptr)
#pragma unroll
                for (int k = 0; k < kRegs; ++k) x[k] = rms_value(x[k], scale, task < group ? norms.q[k] : norms.k[k]);
            rope(x);
        }
        if ((values ? TV : TK) == DType::tq3_0) kv_rotate_lanes(x, kD, false);
        if (task < group) {
#pragma unroll
            for (int k = 0; k < kRegs; ++k) s.q[task][32 * k + lane] = __fmul_rn(x[k], a.scale);
            make_q_fragments<TK>(s, task);
        } else {
            unsigned char* own = values ? s.own_v : s.own_k;
            if (TK != TV && values) kv_encode_lanes(TV, x, kD, own);
            else kv_encode_lanes(TK, x, kD, own);
            __syncwarp();
            const auto position = static_cast<uint32_t>(item.position);
            const int64_t slot = a.places.window > 0 ? item.ring + position % static_cast<uint32_t>(a.places.ring_rows)
                                                     : int64_t{item.page} * a.places.page_rows +
                                                           position % static_cast<uint32_t>(a.places.page_rows);
            const int64_t bytes = kv_row_bytes(values ? TV : TK, kD);
            unsigned char* to = values ? a.v_cache + slot * a.v_slot_bytes : a.k_cache + slot * a.k_slot_bytes;
            if (8 * lane < bytes)
                reinterpret_cast<uint2*>(to + item.head * bytes)[lane] = reinterpret_cast<const uint2*>(own)[lane];
        }
#pragma unroll
        for (int i = 1; i < kTasks; ++i)
#pragma unroll
            for (int k = 0; k < kRegs; ++k) heads[i - 1][k] = heads[i][k];
    }
}

template <class Load>
__device__ __forceinline__ Item find_row(const DecodeAttentionArgs& a, int row, int head) {
    const auto read = [](const int32_t* p) { return static_cast<int32_t>(Load::one(p)); };
    Item item = {};
    item.row = row;
    item.head = head;
    item.position = item.rotation = read(a.places.positions + row);
    if (a.places.gaps != nullptr) item.rotation += read(a.places.gaps + row);
    item.sequence = a.fused ? row : read(a.places.row_sequence + row);
    if (a.places.window > 0) item.ring = read(a.places.state_slot + item.sequence) * a.places.ring_rows;
    else if (a.fused)
        item.page = read(a.places.page_table + int64_t{item.sequence} * a.places.max_pages +
                         item.position / a.places.page_rows);
    if (a.places.parent != nullptr) item.committed = read(a.places.committed + item.sequence);
    return item;
}

/// The slot of key `key` of a chunk; behind its end that of its last key.
template <class Load>
__device__ __forceinline__ int32_t key_slot(const DecodeAttentionArgs& a, const HeadShared& s, const Item& item,
                                            int key) {
    int32_t index = item.chunk.first + min(key, item.chunk.keys - 1);
    if (item.tree && index >= item.committed) index = s.path[index - item.committed];
    return find_slot<Load>(a.places, item.sequence, item.ring, index);
}
/// Of key lane % 16 of a step.
template <class Load = PlainLoad>
__device__ __forceinline__ int32_t step_slot(const DecodeAttentionArgs& a, const HeadShared& s, const Item& item,
                                             int step) {
    return key_slot<Load>(a, s, item, step * kStepKeys + static_cast<int>(threadIdx.x % kStepKeys));
}

/// A warp's next keys, on their way.
template <DType TK, DType TV>
struct StepLoads {
    KeyUnits<TK> k;
    ValueUnits<TV> v;
    int32_t slot = 0;  // of the step behind that
};

/// Loads the first keys of a chunk. EarlyLoad: above pdl_wait(), if they were complete before the step began.
template <class Load, DType TK, DType TV>
__device__ __forceinline__ void start_chunk(const DecodeAttentionArgs& a, const HeadShared& s, const Item& item,
                                            StepLoads<TK, TV>& next) {
    const int warp = static_cast<int>(threadIdx.x / 32), steps = item.steps();
    if (warp >= steps) return;
    next.slot = step_slot<Load>(a, s, item, warp);
    load_keys<Load>(next.k, a.k_cache + item.head * kv_row_bytes(TK, kD), a.k_slot_bytes, next.slot);
    load_values<Load>(next.v, a.v_cache + item.head * kv_row_bytes(TV, kD), a.v_slot_bytes, next.slot);
    if (warp + kAttentionWarps < steps) next.slot = step_slot<Load>(a, s, item, warp + kAttentionWarps);
}

/// Keys of the step itself: at most the row's own, which the item's CTA makes and stores (a later step of its chunk
/// finds it in the cache).
struct OwnRow {
    static constexpr bool kEveryStep = false;

    template <DType TK, DType TV>
    __device__ __forceinline__ static void prepare(const DecodeAttentionArgs& a, Shared& s, const Item& item,
                                                   const HeadNorms& norms, bool queries) {
        const float* from[kHeadTasks<kAttentionWarps>];
        find_heads<kAttentionWarps>(a, item, queries, from);
        if (queries || item.own) prepare_heads<TK, TV>(a, s, item, norms, queries, from);
    }
    /// Puts them in the place of what was loaded for step `step` of the chunk.
    template <DType TK, DType TV>
    __device__ __forceinline__ static void take(const Shared& s, const Item& item, int step, StepLoads<TK, TV>& next) {
        if (!item.own || (step + 1) * kStepKeys < item.chunk.keys) return;
        take_own_key(next.k, s, item.chunk.keys - 1 - step * kStepKeys);
        take_own_value(next.v, s, item.chunk.keys - 1 - step * kStepKeys);
    }
};

/// The same for a CTA that has one chunk and prepares its queries: knows above pdl_wait() what it loads behind it.
struct OneChunk : OwnRow {
    const float* from[kHeadTasks<kAttentionWarps>];

    __device__ __forceinline__ OneChunk(const DecodeAttentionArgs& a, const Item& item) {
        find_heads<kAttentionWarps>(a, item, true, from);
#pragma unroll
        for (const float*& p : from) asm volatile("" : "+l"(p));  // here, not where it is used
    }
    template <DType TK, DType TV>
    __device__ __forceinline__ void prepare(const DecodeAttentionArgs& a, Shared& s, const Item& item,
                                            const HeadNorms& norms, bool) const {
        prepare_heads<TK, TV>(a, s, item, norms, true, from);
    }
};

/// The state over a started chunk of head `warp`, elements 4 lane .. 4 lane + 3, in every warp below `group`. queries:
/// also prepares the row's query heads (make_turns has run). OneStep: chunks have at most one step for each warp. Own,
/// Memory: OwnRow and Shared, or what decode_d128_verify_sm90.cu makes of them.
template <bool OneStep, class Own = OwnRow, DType TK, DType TV, class Memory>
__device__ __forceinline__ SoftmaxState<4> attend_chunk(const DecodeAttentionArgs& a, Memory& s, const Item& item,
                                                        const HeadNorms& norms, bool queries, StepLoads<TK, TV>& next,
                                                        const Own& own = {}) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int group = a.heads / a.kv_heads, steps = item.steps();
    const unsigned char* k_head = a.k_cache + item.head * kv_row_bytes(TK, kD);
    const unsigned char* v_head = a.v_cache + item.head * kv_row_bytes(TV, kD);
    own.template prepare<TK, TV>(a, s, item, norms, queries);
    __syncthreads();
    if (warp < steps) {
        if (!Own::kEveryStep) Own::take(s, item, warp, next);
        WarpState w;
        for (int step = warp; step < steps; step += kAttentionWarps) {
            if (Own::kEveryStep) Own::take(s, item, step, next);
            float p[4];
            const bool more = !OneStep && step + kAttentionWarps < steps;
            scores(next.k, s, p);
            if (more) load_keys(next.k, k_head, a.k_slot_bytes, next.slot);
            soften(p, item.chunk.keys - step * kStepKeys, w);
            add_values(next.v, p, w.x);
            if (OneStep) break;
            if (more) load_values(next.v, v_head, a.v_slot_bytes, next.slot);
            if (step + 2 * kAttentionWarps < steps) next.slot = step_slot(a, s, item, step + 2 * kAttentionWarps);
        }
        store_state<TV>(w, s, group);
    }
    __syncthreads();
    // All warps' states at once: the largest m first, then every sum in ascending order.
    SoftmaxState<4> state = {};
    if (warp >= group) return state;
    const int count = min(kAttentionWarps, steps);
    float2 ml[kAttentionWarps];
    float4 x[kAttentionWarps];
#pragma unroll
    for (int i = 0; i < kAttentionWarps; ++i) {
        ml[i] = i < count ? s.ml[i][warp] : make_float2(-INFINITY, 0.0f);
        x[i] = *reinterpret_cast<const float4*>(&s.x[min(i, count - 1)][warp][4 * lane]);
    }
    state.m = ml[0].x;
#pragma unroll
    for (int i = 1; i < kAttentionWarps; ++i) state.m = fmaxf(state.m, ml[i].x);
#pragma unroll
    for (int i = 0; i < kAttentionWarps; ++i) {
        if (i >= count) break;
        const float factor = fast_exp2(__fsub_rn(ml[i].x, state.m));
        state.l = __fmaf_rn(ml[i].y, factor, state.l);
        state.x[0] = __fmaf_rn(x[i].x, factor, state.x[0]);
        state.x[1] = __fmaf_rn(x[i].y, factor, state.x[1]);
        state.x[2] = __fmaf_rn(x[i].z, factor, state.x[2]);
        state.x[3] = __fmaf_rn(x[i].w, factor, state.x[3]);
    }
    return state;
}

/// Where load_gate() loads.
__device__ __forceinline__ const float* find_gate(const DecodeAttentionArgs& a, const Item& item, int local) {
    return a.gate + item.row * a.gate_stride + (item.head * (a.heads / a.kv_heads) + local) * a.gate_width;
}
/// The gates of elements 4 lane .. 4 lane + 3 of the query head `local` of the item's KV head, as projected. Nothing
/// here waits for them: what does, waits for loads behind it too.
__device__ __forceinline__ float4 load_gate(const DecodeAttentionArgs& a, const float* from, int local) {
    const int lane = static_cast<int>(threadIdx.x % 32), group = a.heads / a.kv_heads;
    float4 gate = {};
    if (a.gate == nullptr || local >= group) return gate;
    if (a.gate_width == 1) gate.x = from[0];
    else gate = {from[4 * lane], from[4 * lane + 1], from[4 * lane + 2], from[4 * lane + 3]};
    return gate;
}
__device__ __forceinline__ float4 load_gate(const DecodeAttentionArgs& a, const Item& item, int local) {
    return load_gate(a, find_gate(a, item, local), local);
}
/// What they multiply by: softplus; ones without gates (a product with one is exact).
__device__ __forceinline__ float4 gate_factors(const DecodeAttentionArgs& a, float4 gate) {
    if (a.gate == nullptr) return {1.0f, 1.0f, 1.0f, 1.0f};
    const float first = softplus(gate.x);
    if (a.gate_width == 1) return {first, first, first, first};
    return {first, softplus(gate.y), softplus(gate.z), softplus(gate.w)};
}

/// Query head `local` of the item's KV head, by one warp: o = x / l, out of the stored domain, times the gate; as
/// floats and as int8.
template <DType TV>
__device__ __forceinline__ void finish(const DecodeAttentionArgs& a, HeadShared& s, const Item& item, int local,
                                       const SoftmaxState<4>& state, float4 gate) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int group = a.heads / a.kv_heads, head = item.head * group + local;
    if (local >= group) return;
    float o[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) o[i] = __fdiv_rn(state.x[i], state.l);
    if (TV == DType::tq3_0) {
        float x[kRegs];
        __syncwarp();
        *reinterpret_cast<float4*>(&s.q[warp][4 * lane]) = {o[0], o[1], o[2], o[3]};
        __syncwarp();
#pragma unroll
        for (int k = 0; k < kRegs; ++k) x[k] = s.q[warp][32 * k + lane];
        kv_rotate_lanes(x, kD, true);
#pragma unroll
        for (int k = 0; k < kRegs; ++k) s.q[warp][32 * k + lane] = x[k];
        __syncwarp();
        const float4 back = *reinterpret_cast<const float4*>(&s.q[warp][4 * lane]);
        o[0] = back.x, o[1] = back.y, o[2] = back.z, o[3] = back.w;
    }
    o[0] = __fmul_rn(o[0], gate.x), o[1] = __fmul_rn(o[1], gate.y);
    o[2] = __fmul_rn(o[2], gate.z), o[3] = __fmul_rn(o[3], gate.w);
    const int64_t cols = int64_t{a.heads} * kD;
    *reinterpret_cast<float4*>(a.out + item.row * cols + head * kD + 4 * lane) = {o[0], o[1], o[2], o[3]};
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = max(largest, __float_as_uint(o[i]) & 0x7FFFFFFFu);
#pragma unroll
    for (int mask = 1; mask < 8; mask *= 2) largest = max(largest, __shfl_xor_sync(kAllLanes, largest, mask));
    const ActGroup act(largest);
    uint32_t word = 0;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int code = act.code(o[i]);
        word |= (static_cast<uint32_t>(code) & 255u) << (8 * i);
        sum += code;
    }
#pragma unroll
    for (int mask = 1; mask < 8; mask *= 2) sum += __shfl_xor_sync(kAllLanes, sum, mask);
    const ActRow row{reinterpret_cast<const int8_t*>(a.out8 + item.row * ActRow::bytes(cols)), cols};
    const int64_t g = head * (kD / 32) + lane / 8;
    *reinterpret_cast<uint32_t*>(const_cast<int8_t*>(row.half(g, lane % 8 / 4)) + 4 * (lane % 4)) = word;
    if (lane % 8 == 0)
        *reinterpret_cast<float2*>(const_cast<float*>(row.scale_and_sum(g))) = {act.d, static_cast<float>(sum)};
}

}  // namespace

}  // namespace riptide::ops
