// What the rows of a step are made of before they meet the state, and what becomes of the output behind it: each by one
// warp. Whoever calls these functions gets the same bits.
#pragma once

#include "ops/gated_delta.cuh"

namespace riptide::ops {

/// One sequence and value head.
struct DeltaPlace {
    int sequence, h, key, slot, committed, first, n, column;  // column: the first that is wanted
};

/// parents: of the sequence's rows, counted from its first; null: a chain.
__device__ __forceinline__ DeltaTaps delta_taps(const DeltaArgs& a, const DeltaPlace& at, const int32_t* parents,
                                                int node) {
    const DeltaSizes& z = a.sizes;
    const float* conv = a.conv + at.slot * z.conv_floats;
    int position = parents != nullptr ? a.positions[at.first + node] : at.committed + node;
    DeltaTaps taps;
#pragma unroll
    for (int i = 0; i < kDeltaTaps; ++i, --position) {
        taps.at[i] = nullptr;
        if (i >= z.width || position < 0) continue;
        if (position >= at.committed) {
            taps.at[i] = a.qkv.row(at.first + node);
            node = parents != nullptr ? parents[node] : node - 1;
        } else {
            taps.at[i] = conv + int64_t{position % z.width} * z.channels;
        }
    }
    return taps;
}

/// What a block keeps of an input of the convolution: for the stash, or as the sequence's only row in the slot.
__device__ __forceinline__ void delta_keep_input(const DeltaArgs& a, const DeltaPlace& at, int row, int channel,
                                                 float u) {
    const DeltaSizes& z = a.sizes;
    if (a.kept.inputs) {
        a.kept.at[row * a.kept.stride + channel] = u;
    } else if (a.one_row) {
        float* conv = a.conv + at.slot * z.conv_floats + channel;
        if (at.committed == 0)
            for (int i = 0; i < z.width; ++i) conv[int64_t{i} * z.channels] = 0.0f;
        conv[int64_t{at.committed % z.width} * z.channels] = u;  // no tap of this row: that is the column of W rows ago
    }
}

/// q or k of one row, by a warp: convolved, normalised, times scale.
__device__ __forceinline__ void delta_prepare_key(const DeltaArgs& a, const DeltaPlace& at, const DeltaTaps& taps,
                                                  int row, bool query, float* to, int padded) {
    const DeltaSizes& z = a.sizes;
    const int lane = static_cast<int>(threadIdx.x % 32), d = z.key_dim;
    const int channel = (query ? 0 : z.keys()) + at.key * d;
    const bool writes = at.column == 0 && z.writes_keys(at.h);
    for (int i = lane; i < padded; i += 32) to[i] = 0.0f;
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < d; i += 32) to[i] = delta_convolve(taps, a.conv_weights, z.width, channel + i);
    if (writes)
        for (int i = lane; i < d; i += 32) delta_keep_input(a, at, row, channel + i, taps.at[0][channel + i]);
    __syncwarp();
    float factor = delta_unit_factor(to, d);
    if (query) factor = __fmul_rn(factor, __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(d))));
    float* kept = a.kept.at + row * a.kept.stride + a.kept.heads_at + at.key * d;
    for (int i = lane; i < d; i += 32) {
        const float x = __fmul_rn(to[i], factor);
        to[i] = x;
        if (!query && writes && a.kept.at != nullptr) kept[i] = x;
    }
}

__device__ __forceinline__ void delta_prepare_values(const DeltaArgs& a, const DeltaPlace& at, const DeltaTaps& taps,
                                                     int row, float* to, int columns) {
    const DeltaSizes& z = a.sizes;
    const int lane = static_cast<int>(threadIdx.x % 32), first = 2 * z.keys() + at.h * z.value_dim + at.column;
    float* kept = a.kept.at + row * a.kept.stride + a.kept.heads_at - z.keys() + first;
#pragma unroll 4
    for (int i = lane; i < columns; i += 32) {
        const bool there = at.column + i < z.value_dim;
        const float x = there ? delta_convolve(taps, a.conv_weights, z.width, first + i) : 0.0f;
        to[i] = x;
        if (!there) continue;
        delta_keep_input(a, at, row, first + i, taps.at[0][first + i]);
        if (a.kept.at != nullptr) kept[i] = x;
    }
}

__device__ __forceinline__ void delta_prepare_gates(const DeltaArgs& a, const DeltaPlace& at, int row, float* to) {
    if (threadIdx.x % 32 != 0) return;
    const float g = __fmul_rn(softplus(__fadd_rn(a.a.row(row)[at.h], a.dt_bias[at.h])), a.decay[at.h]);
    const float decay = expf(g), beta = sigmoid(a.b.row(row)[at.h]);
    to[0] = decay;
    to[1] = beta;
    if (a.kept.at == nullptr || at.column != 0) return;
    float* kept = a.kept.at + (row + 1) * a.kept.stride - 2 * a.sizes.value_heads + at.h;
    kept[0] = decay;
    kept[a.sizes.value_heads] = beta;
}

/// k . q, by a warp, in every lane.
__device__ __forceinline__ float delta_dot(const float* k, const float* q, int d) {
    float sum = 0.0f;
    for (int i = static_cast<int>(threadIdx.x % 32); i < d; i += 32) sum = __fmaf_rn(k[i], q[i], sum);
    return warp_sum(sum);
}

/// y = RMSNorm(o) * silu(z) of one head of one row, by a warp; o may be where y goes.
__device__ __forceinline__ void delta_finish_head(const DeltaArgs& a, int row, int h, const float* o) {
    const int lane = static_cast<int>(threadIdx.x % 32), d = a.sizes.value_dim;
    const float scale = warp_rms_scale([o, lane](int j) { return o[lane + 32 * j]; }, d, a.eps);
    const float* z = a.z.row(row) + h * d;
    float* y = a.out + (int64_t{row} * a.sizes.value_heads + h) * d;
    for (int i = lane; i < d; i += 32) {
        const float gate = __fdiv_rn(z[i], __fadd_rn(1.0f, expf(-z[i])));
        const float value = __fmul_rn(rms_value(o[i], scale, a.norm[i]), gate);
        y[i] = value;
        // With int8 rows d is a multiple of 32: all lanes are here.
        if (a.out8 != nullptr) {
            const int64_t cols = int64_t{a.sizes.value_heads} * d;
            put_act_group(a.out8 + row * ActRow::bytes(cols), cols, (h * d + i) / 32, value);
        }
    }
}

}  // namespace riptide::ops
