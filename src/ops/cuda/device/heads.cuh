// What the kernels of decode attention and kv_append share: heads in registers, prepared and stored.
//
// A warp holds a head in registers: lane l has elements l, l + 32, ... Every rounding is spelled out (row_math.cuh), so
// that a kernel that fuses these steps gets the same bits as the ops one by one.
#pragma once

#include <vector>

#include "ops/cuda/device/int8_group.cuh"
#include "ops/cuda/device/key_chunks.h"
#include "ops/cuda/device/mma.cuh"
#include "ops/cuda/device/row_math.cuh"
#include "ops/gated_attention.h"
#include "ops/kv/kv_view.h"
#include "quant/kv_decode.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops {

inline constexpr int kMostHeadDim = 256;

/// Throws Error for heads that no kernel takes.
inline void check_head_dim(int64_t head_dim) {
    if (head_dim > kMostHeadDim)
        fail(ErrorKind::unavailable, "attention on a GPU takes heads of up to {} values, not {}", kMostHeadDim,
             head_dim);
}

/// Rope as a kernel parameter. half == 0: no rotation.
struct RopeParams {
    float inv_freq[kMostHeadDim / 2] = {};
    float magnitude = 1;
    int half = 0;
};
inline RopeParams rope_params(const Rope* rope) {
    RopeParams p;
    if (rope == nullptr) return p;
    RT_ASSERT(rope->rotary_dim <= kMostHeadDim && rope->rotary_dim == 2 * static_cast<int64_t>(rope->inv_freq.size()));
    for (size_t i = 0; i < rope->inv_freq.size(); ++i) p.inv_freq[i] = rope->inv_freq[i];
    p.magnitude = rope->magnitude;
    p.half = static_cast<int>(rope->rotary_dim / 2);
    return p;
}

/// RMSNorm over a head. weight null: none.
struct HeadNorm {
    const float* weight = nullptr;
    float eps = 0;
};
inline HeadNorm head_norm(const Norm& norm, int64_t head_dim) {
    if (norm.weight.empty()) return {};
    RT_ASSERT(static_cast<int64_t>(norm.weight.size()) == head_dim);
    return {norm.weight.data(), norm.eps};
}

inline KeyPlaces key_places(const KvView& view, const Batch& batch) {
    return {batch.positions.data(),
            batch.row_sequence.data(),
            batch.parent.empty() ? nullptr : batch.parent.data(),
            batch.row_begin.data(),
            batch.committed.data(),
            batch.page_table.data(),
            batch.state_slot.data(),
            batch.max_pages,
            view.page_rows,
            view.window,
            view.ring_rows,
            batch.gaps.empty() ? nullptr : batch.gaps.data()};
}

#ifdef __CUDACC__

/// KvView::slot.
template <class Load>
__device__ __forceinline__ int32_t find_slot(const KeyPlaces& p, int sequence, int32_t ring, int32_t index) {
    const auto i = static_cast<uint32_t>(index);
    if (p.window > 0) return ring + static_cast<int32_t>(i % static_cast<uint32_t>(p.ring_rows));
    const uint32_t page = i / static_cast<uint32_t>(p.page_rows), place = i - page * static_cast<uint32_t>(p.page_rows);
    const auto first = static_cast<int32_t>(Load::one(p.page_table + int64_t{sequence} * p.max_pages + page));
    return first * p.page_rows + static_cast<int32_t>(place);
}

template <int R>
__device__ __forceinline__ void load_head(float (&x)[R], const float* from, int d) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int k = 0; k < R; ++k) x[k] = 32 * k + lane < d ? from[32 * k + lane] : 0.0f;
}

/// A norm's weights for the elements of this lane; zeros without a norm. Weights: may stand above pdl_wait().
template <int R>
__device__ __forceinline__ void load_norm(float (&weight)[R], const HeadNorm& norm, int d) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int k = 0; k < R; ++k)
        weight[k] = norm.weight != nullptr && 32 * k + lane < d
                        ? __uint_as_float(EarlyLoad::one(norm.weight + 32 * k + lane))
                        : 0.0f;
}

/// As warp_rms_scale and rms_value; weight: load_norm.
template <int R>
__device__ __forceinline__ void norm_head(float (&x)[R], const float (&weight)[R], const HeadNorm& norm, int d) {
    if (norm.weight == nullptr) return;
    const int lane = static_cast<int>(threadIdx.x % 32);
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < R; ++k)
        if (32 * k + lane < d) squares = __fmaf_rn(x[k], x[k], squares);
    const float scale = rms_scale(warp_sum(squares), d, norm.eps);
#pragma unroll
    for (int k = 0; k < R; ++k) x[k] = rms_value(x[k], scale, weight[k]);
}
template <int R>
__device__ __forceinline__ void norm_head(float (&x)[R], const HeadNorm& norm, int d) {
    float weight[R];
    load_norm(weight, norm, d);
    norm_head(x, weight, norm, d);
}

/// The rotations of a position: this lane's of pairs lane, lane + 32, ...
template <int R>
struct RopeTurns {
    float2 turn[R / 2];
    /// From where they have been made: [pair].
    __device__ __forceinline__ explicit RopeTurns(const float2* turns) {
#pragma unroll
        for (int i = 0; i < R / 2; ++i) turn[i] = turns[threadIdx.x % 32 + 32 * i];
    }
    __device__ __forceinline__ RopeTurns(const RopeParams& rope, int position) {
        const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
        for (int i = 0; i < R / 2; ++i)
            if (lane + 32 * i < rope.half) turn[i] = rope_turn(position, rope.inv_freq[lane + 32 * i], rope.magnitude);
    }
    /// From a table of the position's turns.
    __device__ __forceinline__ RopeTurns(const RopeParams& rope, const float2* table) {
        const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
        for (int i = 0; i < R / 2; ++i)
            if (lane + 32 * i < rope.half) turn[i] = table[lane + 32 * i];
    }
};

/// Any rotary width; `buffer`: d floats of shared memory of this warp alone.
template <int R>
__device__ __forceinline__ void rope_head(float (&x)[R], const RopeParams& rope, const RopeTurns<R>& turns, int d,
                                          float* buffer) {
    if (rope.half == 0) return;
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int k = 0; k < R; ++k)
        if (32 * k + lane < d) buffer[32 * k + lane] = x[k];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < R / 2; ++i) {
        const int j = lane + 32 * i;
        if (j >= rope.half) break;
        const float2 turned = rope_rotate(buffer[j], buffer[j + rope.half], turns.turn[i]);
        buffer[j] = turned.x;
        buffer[j + rope.half] = turned.y;
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < R; ++k)
        if (32 * k + lane < d) x[k] = buffer[32 * k + lane];
    __syncwarp();
}
template <int R>
__device__ __forceinline__ void rope_head(float (&x)[R], const RopeParams& rope, int position, int d, float* buffer) {
    rope_head(x, rope, RopeTurns<R>(rope, position), d, buffer);
}

/// A state of online softmax over some keys, scores in units of log2: m = the largest, l = sum of 2^(s - m), and for
/// each of this thread's elements x = sum of 2^(s - m) v.
template <int N>
struct SoftmaxState {
    float m, l;
    float x[N];
};

/// a <- a and b. Not symmetric in its roundings: always the earlier keys first.
template <int N>
__device__ __forceinline__ void merge(SoftmaxState<N>& a, const SoftmaxState<N>& b) {
    const float m = fmaxf(a.m, b.m), fa = fast_exp2(__fsub_rn(a.m, m)), fb = fast_exp2(__fsub_rn(b.m, m));
    a.m = m;
    a.l = __fmaf_rn(b.l, fb, __fmul_rn(a.l, fa));
#pragma unroll
    for (int i = 0; i < N; ++i) a.x[i] = __fmaf_rn(b.x[i], fb, __fmul_rn(a.x[i], fa));
}

#endif

}  // namespace riptide::ops
