// Decode attention for any head size up to 256, any K/V types and any number of query heads for each KV head: small
// models, windows over heads of 256, and chips without the tensor instructions of decode_d128_ and decode_d256_sm80.cu.
//
// Bytes: K and V of the row's keys, read again by each query head of a KV head (from L2). Design: a row's keys are cut
// by rank into chunks of 1,024; a CTA of 16 warps has a chunk of a query head, four keys at a time for each warp, whose
// loads are under way together; the sums of chunks are merged in order by a second kernel. Limited by instructions and
// latency: a warp has one head, and no tensor cores.
#include <algorithm>

#include "ops/cuda/attention/decode.cuh"

namespace riptide::ops {

namespace {

constexpr int kWarps = 16, kRegs = kMostHeadDim / 32, kTogether = 4, kChunkKeys = 1024;
constexpr int64_t kPartialBytes = int64_t{64} << 20;  // of the rows that are done at a time, unless one needs more

struct AnyArgs {
    DecodeAttentionArgs a;
    int row0 = 0;           // of the rows of this launch
    int chunks = 1;         // of a row at most
    float* sums = nullptr;  // [row of the launch][head][chunk][2 + kMostHeadDim]: m, l, x
    __device__ __forceinline__ float* sum(int row, int head, int chunk) const {
        return sums + ((int64_t{row - row0} * a.heads + head) * chunks + chunk) * (2 + kMostHeadDim);
    }
};

struct Shared {
    float x[kWarps][kMostHeadDim];
    float2 ml[kWarps];
    int32_t path[kMostDecodeRows];
};

/// The type of all K and V, or (f32) what the arguments say.
template <DType T>
__device__ __forceinline__ DType type_of(DType said) {
    return T == DType::f32 ? said : T;
}

/// The row's keys as ranks: [first, end) of a chunk.
struct Keys {
    int count, begin, committed, sequence;
    int32_t ring;

    __device__ __forceinline__ Keys(const DecodeAttentionArgs& a, int row) {
        sequence = a.places.row_sequence[row];
        const int position = a.places.positions[row];
        count = visible_keys(position, a.places.window);
        begin = position + 1 - count;
        committed = a.places.committed[sequence];
        ring = a.places.ring_begin(sequence);
    }
    __device__ __forceinline__ int64_t slot(const DecodeAttentionArgs& a, const Shared& s, int rank) const {
        int32_t index = begin + rank;
        if (a.places.parent != nullptr && index >= committed) index = s.path[index - committed];
        return a.places.slot(sequence, ring, index);
    }
};

/// Keys first + warp, first + warp + kWarps, ... by rank, one after the other. l = 0: none.
template <DType T>
__device__ __forceinline__ SoftmaxState<kRegs> attend(const DecodeAttentionArgs& a, const Shared& s, const Keys& keys,
                                                      int first, int end, int head, const float (&q)[kRegs]) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const DType k_type = type_of<T>(a.k_dtype), v_type = type_of<T>(a.v_dtype);
    const int64_t k_row = kv_row_bytes(k_type, a.d), v_row = kv_row_bytes(v_type, a.d);
    SoftmaxState<kRegs> state = {-INFINITY, 0.0f, {}};
#pragma unroll 1
    for (int key = first + warp; key < end; key += kTogether * kWarps) {
        float score[kTogether] = {}, value[kTogether][kRegs];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            const int64_t slot = keys.slot(a, s, min(key + j * kWarps, end - 1));
            const unsigned char* k = a.k_cache + slot * a.k_slot_bytes + head * k_row;
            const unsigned char* v = a.v_cache + slot * a.v_slot_bytes + head * v_row;
#pragma unroll
            for (int i = 0; i < kRegs; ++i) {
                const int e = 32 * i + lane;
                if (e < a.d) score[j] = __fmaf_rn(q[i], kv_value(k_type, k, a.d, e), score[j]);
                value[j][i] = e < a.d ? kv_value(v_type, v, a.d, e) : 0.0f;
            }
        }
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2)  // as warp_sum, side by side
#pragma unroll
            for (int j = 0; j < kTogether; ++j)
                score[j] = __fadd_rn(score[j], __shfl_xor_sync(kAllLanes, score[j], mask));
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            if (key + j * kWarps >= end) break;
            SoftmaxState<kRegs> one = {__fmul_rn(score[j], a.scale), 1.0f, {}};
#pragma unroll
            for (int i = 0; i < kRegs; ++i) one.x[i] = value[j][i];
            if (j == 0 && key == first + warp) state = one;
            else merge(state, one);
        }
    }
    return state;
}

/// o = x / l, out of the stored domain, times the gate; as floats and as int8. By one warp.
__device__ __forceinline__ void finish(const DecodeAttentionArgs& a, int row, int head, SoftmaxState<kRegs>& state) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kRegs; ++i) state.x[i] = __fdiv_rn(state.x[i], state.l);
    if (a.v_dtype == DType::tq3_0) kv_rotate_lanes(state.x, a.d, true);
    const int64_t cols = int64_t{a.heads} * a.d;
    const float* gate = a.gate + row * a.gate_stride + head * a.gate_width;
#pragma unroll
    for (int i = 0; i < kRegs; ++i) {
        const int e = 32 * i + lane;
        if (32 * i >= a.d) break;
        float o = state.x[i];
        if (a.gate != nullptr && e < a.d) o = __fmul_rn(o, softplus(gate[a.gate_width == 1 ? 0 : e]));
        if (e < a.d) a.out[row * cols + head * a.d + e] = o;
        // With int8 rows a.d is a multiple of 32: a register of all lanes is a group.
        if (a.out8 != nullptr) put_act_group(a.out8 + row * ActRow::bytes(cols), cols, head * (a.d / 32) + i, o);
    }
}

/// The state of a chunk, by warp 0; the others leave theirs in shared memory.
__device__ __forceinline__ void merge_warps(Shared& s, SoftmaxState<kRegs>& state) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    __syncthreads();
    for (int i = 0; i < kRegs; ++i) s.x[warp][32 * i + lane] = state.x[i];
    if (lane == 0) s.ml[warp] = {state.m, state.l};
    __syncthreads();
    if (warp != 0) return;
    for (int other = 1; other < kWarps; ++other) {
        SoftmaxState<kRegs> next = {s.ml[other].x, s.ml[other].y, {}};
        if (next.l == 0.0f) break;  // fewer keys than warps
#pragma unroll
        for (int i = 0; i < kRegs; ++i) next.x[i] = s.x[other][32 * i + lane];
        merge(state, next);
    }
}

/// blockIdx.x: row and head; blockIdx.y: the first of its chunks, every gridDim.y-th. A row of one chunk is finished.
template <DType T>
__global__ void __launch_bounds__(32 * kWarps) decode_any_kernel(const __grid_constant__ AnyArgs args) {
    pdl_trigger();
    __shared__ Shared s;
    const DecodeAttentionArgs& a = args.a;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int row = args.row0 + static_cast<int>(blockIdx.x) / a.heads, head = static_cast<int>(blockIdx.x) % a.heads;
    pdl_wait();
    const Keys keys(a, row);
    if (static_cast<int>(blockIdx.y) * kChunkKeys >= keys.count) return;
    if (a.places.parent != nullptr) {
        if (threadIdx.x == 0) find_path(a.places, keys.sequence, row, a.places.parent, s.path);
        __syncthreads();
    }
    float q[kRegs];
    load_head(q, a.q + row * a.q_stride + int64_t{head} * a.d, a.d);
    norm_head(q, a.q_norm, a.d);
    rope_head(q, a.rope, a.places.rotary_position(row), a.d, s.x[warp]);
    if (type_of<T>(a.k_dtype) == DType::tq3_0) kv_rotate_lanes(q, a.d, false);
#pragma unroll 1
    for (int chunk = static_cast<int>(blockIdx.y); chunk * kChunkKeys < keys.count;
         chunk += static_cast<int>(gridDim.y)) {
        const int first = chunk * kChunkKeys, end = min(first + kChunkKeys, keys.count);
        SoftmaxState<kRegs> state = attend<T>(a, s, keys, first, end, head / (a.heads / a.kv_heads), q);
        merge_warps(s, state);
        if (warp != 0) continue;
        if (keys.count <= kChunkKeys) return finish(a, row, head, state);
        float* const to = args.sum(row, head, chunk);
        if (lane == 0) to[0] = state.m, to[1] = state.l;
#pragma unroll
        for (int i = 0; i < kRegs; ++i) to[2 + 32 * i + lane] = state.x[i];
    }
}

/// A warp for each row and head of more than one chunk.
__global__ void __launch_bounds__(32) decode_any_merge_kernel(const __grid_constant__ AnyArgs args) {
    pdl_trigger();
    pdl_wait();
    const DecodeAttentionArgs& a = args.a;
    const int lane = static_cast<int>(threadIdx.x);
    const int row = args.row0 + static_cast<int>(blockIdx.x) / a.heads, head = static_cast<int>(blockIdx.x) % a.heads;
    const int count = Keys(a, row).count;
    if (count <= kChunkKeys) return;
    SoftmaxState<kRegs> state;
#pragma unroll 4
    for (int chunk = 0; chunk * kChunkKeys < count; ++chunk) {
        const float* const from = args.sum(row, head, chunk);
        SoftmaxState<kRegs> next = {from[0], from[1], {}};
#pragma unroll
        for (int i = 0; i < kRegs; ++i) next.x[i] = from[2 + 32 * i + lane];
        if (chunk == 0) state = next;
        else merge(state, next);
    }
    finish(a, row, head, state);
}

using AnyKernel = void (*)(AnyArgs);

AnyKernel kernel_for(const DecodeAttentionArgs& a) {
    if (a.k_dtype != a.v_dtype) return decode_any_kernel<DType::f32>;
    switch (a.k_dtype) {
        case DType::f16:
            return decode_any_kernel<DType::f16>;
        case DType::f8_e4m3:
            return decode_any_kernel<DType::f8_e4m3>;
        case DType::q8_0:
            return decode_any_kernel<DType::q8_0>;
        default:
            return decode_any_kernel<DType::f32>;
    }
}

}  // namespace

void launch_any(Context& ctx, const DecodeAttentionArgs& a) {
    const ArenaScope scope(*ctx.arena);
    AnyArgs args{.a = a};
    args.chunks = static_cast<int>(std::max<int64_t>(1, (a.most_keys + kChunkKeys - 1) / kChunkKeys));
    const int64_t row_bytes = int64_t{a.heads} * args.chunks * (2 + kMostHeadDim) * 4;
    const bool split = args.chunks > 1;
    const int group = split ? static_cast<int>(std::clamp<int64_t>(kPartialBytes / row_bytes, 1, a.rows)) : a.rows;
    if (split) args.sums = static_cast<float*>(ctx.arena->allocate(group * row_bytes));
    for (args.row0 = 0; args.row0 < a.rows; args.row0 += group) {
        const int items = std::min(group, a.rows - args.row0) * a.heads;
        const int wanted = std::max(1, 2 * ctx.gpu->info().sm_count / items);  // CTAs of a row and head
        const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(std::min(args.chunks, wanted)));
        launch(*ctx.gpu, kernel_for(a), grid, dim3(32 * kWarps), 0, args);
        if (split) launch(*ctx.gpu, decode_any_merge_kernel, dim3(static_cast<unsigned>(items)), dim3(32), 0, args);
    }
}

}  // namespace riptide::ops
