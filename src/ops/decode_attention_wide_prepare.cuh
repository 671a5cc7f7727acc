// Decode attention for heads of 256: queries on their way to the tensor cores, K and V on theirs to the cache; as a
// kernel of its own, or (one row a sequence) inside the kernel that attends.
#pragma once

#include "ops/decode_attention_wide.cuh"

namespace riptide::ops {

namespace {

__device__ __forceinline__ int early(const int32_t* p) { return static_cast<int>(EarlyLoad::one(p)); }

/// KeyPlaces::rotary_position, also above pdl_wait().
__device__ __forceinline__ int early_rotation(const KeyPlaces& places, int row) {
    return early(places.positions + row) + (places.gaps != nullptr ? early(places.gaps + row) : 0);
}

struct PrepareArgs {
    DecodeAttentionArgs a;
    KvAppendArgs append;
    int parts;  // of a row: query heads, then K and V of each KV head, if they are appended
    uint4* queries;
};

constexpr int kPrepareWarps = 4;

/// What a head needs but for itself; above pdl_wait().
struct HeadTools {
    float weight[kWideRegs];
    float2 turn;  // of the rotation's pair `lane`, if there are 32

    __device__ __forceinline__ HeadTools(const HeadNorm& norm, const RopeParams& rope, int position) : turn{} {
        const int lane = static_cast<int>(threadIdx.x % 32);
        load_norm(weight, norm, kWide);
        if (rope.half == 32) turn = rope_turn(position, rope.inv_freq[lane], rope.magnitude);
    }
    /// Norm and rotation.
    __device__ __forceinline__ void apply(float (&x)[kWideRegs], const HeadNorm& norm, const RopeParams& rope,
                                          int position, float* buffer) const {
        norm_head(x, weight, norm, kWide);
        if (rope.half != 32) return rope_head(x, rope, position, kWide, buffer);
        const float2 turned = rope_rotate(x[0], x[1], turn);
        x[0] = turned.x;
        x[1] = turned.y;
    }
};

/// A query head, by a warp: prepared, scaled, as the B operand of the scores: put(i, what thread i % 4 of its pair
/// takes in step i / 4).
template <class Put>
__device__ __forceinline__ void prepare_query(const DecodeAttentionArgs& a, int row, int head, int position,
                                              const HeadTools& tools, float* buffer, const Put& put) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float x[kWideRegs];
    load_head(x, a.q + row * a.q_stride + int64_t{head} * a.q_head_stride, kWide);
    tools.apply(x, a.q_norm, a.rope, position, buffer);
    if (a.k_dtype == DType::tq3_0) kv_rotate_lanes(x, kWide, false);
#pragma unroll
    for (int k = 0; k < kWideRegs; ++k) buffer[32 * k + lane] = __fmul_rn(x[k], a.scale);
    __syncwarp();
#pragma unroll
    for (int i = lane; i < kQuerySteps * 4; i += 32) {
        const int step = i / 4;
        const ScoreColumn c = score_column(step % 8, i % 4);
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = buffer[128 * (step / 8) + kv_unit_element(a.k_dtype, c.unit, c.first + j)];
        uint4 f;
        if (a.k_dtype == DType::bf16) {
            split_pair<true>(v[0], v[1], f.x, f.z);
            split_pair<true>(v[2], v[3], f.y, f.w);
        } else {
            split_pair<false>(v[0], v[1], f.x, f.z);
            split_pair<false>(v[2], v[3], f.y, f.w);
        }
        put(i, f);
    }
}

__global__ void __launch_bounds__(32 * kPrepareWarps) wide_prepare_kernel(const __grid_constant__ PrepareArgs args) {
    __shared__ float buffers[kPrepareWarps][kWide];
    pdl_trigger();
    pdl_wait();
    const int warp = static_cast<int>(threadIdx.x / 32), item = static_cast<int>(blockIdx.x) * kPrepareWarps + warp;
    const int row = item / args.parts, part = item % args.parts, head = part - args.a.heads;
    if (row >= args.a.rows) return;
    if (head < 0) {
        const DecodeAttentionArgs& a = args.a;
        const int position = a.rope.half == 0 ? 0 : a.places.rotary_position(row);
        uint4* const to = args.queries + (int64_t{row} * a.heads + part) * (kQuerySteps * 4);
        prepare_query(a, row, part, position, HeadTools(a.q_norm, a.rope, position), buffers[warp],
                      [to](int i, uint4 f) { to[i] = f; });
        return;
    }
    append_head(args.append, row, head / 2, head % 2 != 0, buffers[warp]);
}

/// Queries of one row to shared memory as the scores take them: each of the eight warps does a pair.
__device__ __forceinline__ void prepare_queries(const WideArgs& args, WideGroups<1>& s, const WideWork& w,
                                                const HeadTools& tools, int position) {
    const DecodeAttentionArgs& a = args.a;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int group = a.heads / a.kv_heads;
    const auto put = [&](int i, uint4 f) { s.queries[0][i / 4][4 * warp + i % 4] = f; };
    if (warp < group) {
        prepare_query(a, w.first, w.head * group + warp, position, tools, s.buffers[warp], put);
    } else {
        for (int i = lane; i < 4 * kQuerySteps; i += 32) put(i, {});
    }
    __syncwarp();
}

/// Two warps append K and V of the row, if this chunk ends with its own key.
__device__ __forceinline__ void append_own(const WideArgs& args, WideGroups<1>& s, const WideWork& w) {
    constexpr int kLast = kWideThreads / 32 - 1;
    const int warp = static_cast<int>(threadIdx.x / 32);
    if (warp < kLast - 1 || w.chunk * kWideChunk + w.keys <= w.committed) return;
    append_head(args.append, w.first, w.head, warp == kLast, s.buffers[warp]);
    __threadfence_block();
}

}  // namespace

}  // namespace riptide::ops
