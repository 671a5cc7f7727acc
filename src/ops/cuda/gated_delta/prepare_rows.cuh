// What the rows of a step are made of before they meet the state, and what becomes of the output behind it: each by one
// warp. Whoever calls these functions gets the same bits.
#pragma once

#include "ops/cuda/gated_delta/gated_delta.cuh"

namespace riptide::ops {

__device__ __forceinline__ int delta_early(const int32_t* p) { return static_cast<int>(EarlyLoad::one(p)); }

/// One sequence and value head. What a step's batch says was complete before the step: also above pdl_wait().
struct DeltaPlace {
    int sequence, h, key, slot, committed, first, n;

    __device__ __forceinline__ void find(const DeltaArgs& a, int of_sequence, int of_head) {
        sequence = of_sequence;
        h = of_head;
        key = a.sizes.key_head(h);
        slot = delta_early(a.state_slot + sequence);
        committed = delta_early(a.committed + sequence);
        first = delta_early(a.row_begin + sequence);
        n = delta_early(a.row_begin + sequence + 1) - first;
    }
};

/// Where the inputs of a row's convolution lie: also above pdl_wait(), nothing is read from there.
__device__ __forceinline__ DeltaTaps delta_taps(const DeltaArgs& a, const DeltaPlace& at, int row) {
    const DeltaSizes& z = a.sizes;
    const float* conv = a.conv + at.slot * z.conv_floats;
    int position = a.parent != nullptr ? delta_early(a.positions + row) : at.committed + row - at.first;
    DeltaTaps taps;
#pragma unroll
    for (int i = 0; i < kDeltaTaps; ++i, --position) {
        taps.at[i] = nullptr;
        if (i >= z.width || position < 0) continue;
        if (position >= at.committed) {
            taps.at[i] = a.qkv.row(row);
            row = a.parent != nullptr ? delta_early(a.parent + row) : row - 1;
        } else {
            taps.at[i] = conv + int64_t{position % z.width} * z.channels;
        }
    }
    return taps;
}

/// An input of the convolution to the slot, where it is that of the sequence's next token. No tap of this row or the
/// next is overwritten: that is the column of W rows ago.
__device__ __forceinline__ void delta_put_input(const DeltaArgs& a, const DeltaPlace& at, int channel, float u) {
    const DeltaSizes& z = a.sizes;
    float* conv = a.conv + at.slot * z.conv_floats + channel;
    if (at.committed == 0)
        for (int i = 0; i < z.width; ++i) conv[int64_t{i} * z.channels] = 0.0f;
    conv[int64_t{at.committed % z.width} * z.channels] = u;
}

/// What a block keeps of an input of the convolution: for the stash, or as the sequence's only row in the slot.
__device__ __forceinline__ void delta_keep_input(const DeltaArgs& a, const DeltaPlace& at, int row, int channel,
                                                 float u) {
    if (a.kept.inputs) a.kept.at[row * a.kept.stride + channel] = u;
    else if (a.one_row) delta_put_input(a, at, channel, u);
}

/// A head of q or k that the lanes hold, element lane + 32 c in x[c]: squares, in the order of the elements.
template <int N>
__device__ __forceinline__ float delta_squares(const float (&x)[N], int d, float sum) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int c = 0; c < N; ++c)
        if (lane + 32 * c < d) sum = __fmaf_rn(x[c], x[c], sum);
    return sum;
}
/// 1 / sqrt(|x|^2 + 1e-6), from a lane's share of the squares; for queries also / sqrt(d).
__device__ __forceinline__ float delta_factor(float squares) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(warp_sum(squares), 1e-6f)));
}
__device__ __forceinline__ float delta_factor(float squares, int d, bool query) {
    const float factor = delta_factor(squares);
    return query ? __fmul_rn(factor, __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(d)))) : factor;
}

/// e^g and beta of one value head of one row, by one lane.
__device__ __forceinline__ float2 delta_gates(float a, float b, float dt_bias, float decay) {
    return {expf(__fmul_rn(softplus(__fadd_rn(a, dt_bias)), decay)), sigmoid(b)};
}
__device__ __forceinline__ float2 delta_gates(const DeltaArgs& a, int row, int h, float dt_bias, float decay) {
    return delta_gates(a.a.row(row)[h], a.b.row(row)[h], dt_bias, decay);
}
__device__ __forceinline__ void delta_keep_gates(const DeltaArgs& a, int row, int h, float2 gates) {
    if (a.kept.at == nullptr) return;
    float* kept = a.kept.at + (row + 1) * a.kept.stride - 2 * a.sizes.value_heads + h;
    kept[0] = gates.x;
    kept[a.sizes.value_heads] = gates.y;
}

/// k . q, by a warp, in every lane.
__device__ __forceinline__ float delta_dot(const float* k, const float* q, int d) {
    float sum = 0.0f;
    for (int i = static_cast<int>(threadIdx.x % 32); i < d; i += 32) sum = __fmaf_rn(k[i], q[i], sum);
    return warp_sum(sum);
}

/// y = RMSNorm(o) * silu(z) at one element of a head; gate: delta_gate(z).
__device__ __forceinline__ float delta_gate(float z) { return __fdiv_rn(z, __fadd_rn(1.0f, expf(-z))); }
__device__ __forceinline__ float delta_output(float o, float scale, float norm, float gate) {
    return __fmul_rn(rms_value(o, scale, norm), gate);
}

}  // namespace riptide::ops
