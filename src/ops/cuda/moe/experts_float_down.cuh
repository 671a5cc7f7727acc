// The second kernel of sparse layers of float weights: experts_float.cu.
#pragma once

#include "ops/cuda/linear/shared/float.cuh"
#include "ops/cuda/moe/fit.h"
#include "ops/cuda/moe/route_row1.cuh"

namespace riptide::ops::cuda::decode {

namespace {

struct FloatDownArgs {
    FloatMatrix m[2];                  // of the experts, of the shared expert; alike but for scale and places
    const int32_t* experts = nullptr;  // [n, top_k]
    const float* weights = nullptr;    // [n, top_k]
    int32_t top_k = 0, slots = 0, ff = 0;
    bool posted = false;           // ids are asked for until they are there; residual is older than gate and up
    ActLayout layout;              // of slots * ff columns
    const float* act = nullptr;    // [n, slots, ff]
    float* y = nullptr;            // [n, rows]
    float* residual = nullptr;     // [n, rows] or null: += y
    const float* extra = nullptr;  // [n, rows] or null: added to y
};

/// Rows of `Parts` steps of 32 pieces, each an accumulator of the canonical order. 4 * Parts warps have four outputs at
/// a time: warp (q, part) that step of slots 2 q and 2 q + 1 for all four, whose columns of x it reads once, and of
/// slot 8 for the q-th of them. Those are nine pieces a lane.
template <class Set, int Parts>
__global__ void __launch_bounds__(kFloatThreads, 2) experts_float_down_kernel(const __grid_constant__ FloatDownArgs a) {
    constexpr int kOutputs = kFloatWarps / Parts;
    extern __shared__ uint4 dynamic[];
    __shared__ float olds[kFloatWarps], weights[32];  // not in registers: there are none to spare
    const int t = threadIdx.x, lane = t % 32, warp = t / 32, part = warp % Parts, q = warp / Parts % 4,
              group = warp / (4 * Parts);
    const int step = gridDim.x * kOutputs, c = part * 32 + lane;
    char* staged = reinterpret_cast<char*>(dynamic);
    auto* terms = reinterpret_cast<float*>(staged + a.layout.float_bytes);  // [outputs of the CTA][slot][part]
    const int64_t row = blockIdx.y;
    int mine = 0;
    if (lane < a.top_k) {
        const int32_t* const id = a.experts + row * a.top_k + lane;
        mine = a.posted ? await_id(id) : load_shared_i32(id);
    }
    __syncwarp();
    uint32_t raw[3][4][4], entries[3] = {0, 0, 0};  // slots 2 q and 2 q + 1 of four outputs; slot 8 of one
    // Outputs o .. o + 3 for slot number i of this warp; as far as there are.
    const auto load = [&](int i, int o) {
        const int slot = i < 2 ? 2 * q + i : kFloatSlots - 1;
        const int expert = __shfl_sync(~0u, mine, min(slot, 31));
        if (slot >= a.slots) return;
        const FloatMatrix& m = a.m[slot < a.top_k ? 0 : 1];
        const char* from = m.data + 16 * c;
        if (slot < a.top_k) from += expert * m.stride;
#pragma unroll
        for (int g = 0; g < 4; ++g) {
            const int at = o + (i < 2 ? g : q);
            if ((i < 2 || g == 0) && at < a.m[0].rows)
                put_words(raw[i][g], 0, load_weights(from + static_cast<int64_t>(at) * m.row_bytes));
        }
        if constexpr (Set::kF8) {
            if (m.scales == nullptr) return;
            const int at = o + (i < 2 ? lane / 8 : q);
            if (at < a.m[0].rows)
                entries[i] = float_scale(m, slot < a.top_k ? expert * m.scale_stride : 0, at, part * 32 + lane % 8 * 4);
        }
    };
    int o = blockIdx.x * kOutputs + 4 * group;
#pragma unroll
    for (int i = 0; i < 3; ++i)
        if (o < a.m[0].rows) load(i, o);
    pdl_trigger();  // now: the next kernel's weights queue up behind these
    // Of the first outputs that this CTA ends: what they are added to, which is older than gate and up in such a chain.
    const auto load_old = [&] {
        const int first = blockIdx.x * kOutputs + t;
        if (a.residual != nullptr && t < kOutputs && first < a.m[0].rows)
            olds[t] = load_shared_f32(a.residual + row * a.m[0].rows + first);
    };
    if (a.posted) load_old();
    pdl_wait();
    if (!a.posted) load_old();
    if (t >= kFloatThreads - 32 && lane < a.top_k) weights[lane] = load_shared_f32(a.weights + row * a.top_k + lane);
    stage_plain(a.act + row * a.layout.cols, {a.layout.cols, 0, 0, a.layout.float_bytes}, t, kFloatThreads, staged);
    __syncthreads();
#pragma unroll 1
    for (int k = 0; o < a.m[0].rows; ++k, o += step) {
        const bool more = o + step < a.m[0].rows;
        float* const to = terms + (k * kOutputs + 4 * group) * kFloatSlots * Parts + part;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const int slot = i < 2 ? 2 * q + i : kFloatSlots - 1;
            if (slot < a.slots) {
                const FloatMatrix& m = a.m[slot < a.top_k ? 0 : 1];
                const StagedRows x{staged, 0, 1};
                if (i < 2) {
                    float acc[4][1] = {};
                    dot_float_rows<Set>(m, true, c, slot * (a.ff / 4), raw[i], entries[i], 0, x, acc);
                    float v[4] = {acc[0][0], acc[1][0], acc[2][0], acc[3][0]};
                    const float sum = reduce_lanes<4>(v, lane);
                    if (lane % 8 == 0) to[(lane / 8 * kFloatSlots + slot) * Parts] = sum;
                } else {
                    float acc[1][1] = {};
                    dot_float_rows<Set>(m, true, c, slot * (a.ff / 4), *reinterpret_cast<uint32_t(*)[1][4]>(&raw[i]),
                                        entries[i], 0, x, acc);
                    float v[1] = {acc[0][0]};
                    const float sum = reduce_lanes<1>(v, lane);
                    if (lane == 0) to[(q * kFloatSlots + slot) * Parts] = sum;
                }
            }
            if (more) load(i, o + step);
        }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = warp;; i += kFloatWarps) {
        o = (i / kOutputs * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * kOutputs + i % kOutputs;
        if (o >= a.m[0].rows) return;
        float term = 0.0f;
        if (lane < a.slots) {
            const float* p = terms + (i * kFloatSlots + lane) * Parts;
            const float sum = __fadd_rn(p[0], Parts == 2 ? p[Parts - 1] : 0.0f);  // the other two are zeros
            term = __fmul_rn(__fadd_rn(sum, 0.0f), a.m[lane < a.top_k ? 0 : 1].scale);
            if (lane < a.top_k) term = __fmul_rn(weights[lane], term);
        }
        float y = __shfl_sync(~0u, term, 0);
        for (int slot = 1; slot < a.slots; ++slot) y = __fadd_rn(y, __shfl_sync(~0u, term, slot));
        if (lane != 0) continue;
        const int64_t at = row * a.m[0].rows + o;
        if (a.extra != nullptr) y = __fadd_rn(y, load_shared_f32(a.extra + at));
        a.y[at] = y;
        if (a.residual != nullptr)
            a.residual[at] = __fadd_rn(i < kOutputs ? olds[i] : load_shared_f32(a.residual + at), y);
    }
}

}  // namespace

}  // namespace riptide::ops::cuda::decode
