// The part of prefill attention that both tensor-core kernels share: masks, online softmax, fragments, output.
//
// Accumulator fragments of mma.m16n8k16 and of wgmma m64nNk16 are alike: lane l of a warp holds, of rows l / 4 and
// l / 4 + 8, columns 8 i + 2 (l % 4) and the one after, as s[4 i], s[4 i + 1] and s[4 i + 2], s[4 i + 3].
#pragma once

#include <cmath>
#include <type_traits>

#include "ops/cuda/attention/prefill.cuh"
#include "ops/cuda/device/row_math.cuh"

namespace riptide::ops::cuda::prefill {

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
    if constexpr (std::is_same_v<T, __half>) {
        const __half2 h = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&h);
    } else {
        const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&h);
    }
}

/// Scores of keys that a row does not see become -inf. first_key: the lane's first column; position: of the lane's
/// first row.
template <int kColumns>
__device__ __forceinline__ void mask_scores(float (&s)[kColumns / 2], int first_key, int position, int window) {
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int key = first_key + 8 * i + e % 2, last = position + e / 2 * 8;
            if (key > last || (window > 0 && key <= last - window)) s[4 * i + e] = -INFINITY;
        }
}

/// The softmax of a lane's two rows so far: m, the largest scaled score, and the lane's share of the sum of 2^(score -
/// m).
struct Softmax {
    float m[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0.0f, 0.0f};

    /// Takes a tile of raw scores, leaves weights in their place, and gives back what earlier sums are to be multiplied
    /// by. `scale` > 0 includes log2 e. A row that sees nothing of the tile gets weights 0 and a factor of exactly 1.
    template <int kColumns>
    __device__ __forceinline__ void step(float (&s)[kColumns / 2], float scale, float (&factor)[2]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float largest = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
            for (int i = 1; i < kColumns / 8; ++i)
                largest = fmaxf(largest, fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
            const float now = fmaxf(m[h], __fmul_rn(largest, scale));
            const float base = now == -INFINITY ? 0.0f : now;  // nothing seen yet: -inf - -inf would be NaN
            factor[h] = exp2_fast(__fsub_rn(m[h], base));
            m[h] = now;
            float part[2] = {0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < kColumns / 8; ++i)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& x = s[4 * i + 2 * h + e];
                    x = exp2_fast(__fmaf_rn(x, scale, -base));
                    part[e] = __fadd_rn(part[e], x);
                }
            sum[h] = __fmaf_rn(sum[h], factor[h], __fadd_rn(part[0], part[1]));
        }
    }

    /// 1 / sum over all lanes of the row.
    __device__ __forceinline__ float inverse(int h) const {
        float total = __fadd_rn(sum[h], __shfl_xor_sync(0xFFFFFFFFu, sum[h], 1));
        total = __fadd_rn(total, __shfl_xor_sync(0xFFFFFFFFu, total, 2));
        return __fdiv_rn(1.0f, total);
    }
};

/// Weights of 16 columns, k-step `step`, as an A operand.
template <class T, int kColumns>
__device__ __forceinline__ void weights_operand(const float (&s)[kColumns / 2], uint32_t (&a)[kColumns / 4]) {
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) a[i] = pack<T>(s[2 * i], s[2 * i + 1]);
}

template <int kDim>
__device__ __forceinline__ void rescale(float (&o)[kDim / 2], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[4 * i + e] = __fmul_rn(o[4 * i + e], factor[e / 2]);
}

/// Writes a warp's 16 rows of one head: o / sum, gated. row: of the step, the warp's first; valid: how many of the 16
/// exist.
template <int kDim>
__device__ __forceinline__ void store_rows(const AttendArgs& args, const float (&o)[kDim / 2], const Softmax& softmax,
                                           int row, int valid, int head) {
    const int lane = static_cast<int>(threadIdx.x % 32), t = lane % 4;
    if (valid <= 0) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float inverse = softmax.inverse(h);
        const int r = lane / 4 + 8 * h;
        const bool there = r < valid;
        const int64_t at = (int64_t{row + r} * args.heads + head) * kDim;
        const float* gates = nullptr;
        float gate = 1.0f;
        if (args.gate.data != nullptr) {
            if (args.gate.elements)
                gates =
                    args.gate.data + int64_t{row + (there ? r : 0)} * args.gate.stride + int64_t{head} * kDim + 2 * t;
            else if (there) gate = softplus(args.gate.data[int64_t{row + r} * args.gate.stride + head]);
        }
        const auto value = [&](int i) {  // of columns 8 i + 2 t and the next
            // + 0: an all-masked tile before or after turns -0 into 0.
            float2 y = {__fmaf_rn(o[4 * i + 2 * h], inverse, 0.0f), __fmaf_rn(o[4 * i + 2 * h + 1], inverse, 0.0f)};
            if (args.gate.data != nullptr) {
                y.x = __fmul_rn(y.x, gates != nullptr ? softplus(gates[8 * i]) : gate);
                y.y = __fmul_rn(y.y, gates != nullptr ? softplus(gates[8 * i + 1]) : gate);
            }
            return y;
        };
        if (args.out_bf16 == nullptr) {
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i) {
                const float2 y = value(i);
                if (there) *reinterpret_cast<float2*>(args.out + at + 8 * i + 2 * t) = y;
            }
            continue;
        }
        // Of sixteen columns lanes of even t take four of the first eight, those of odd t of the second.
        const bool odd = t % 2 != 0;
        uint16_t* const out = args.out_bf16 + at + 2 * t + (odd ? 6 : 0);
#pragma unroll
        for (int i = 0; i < kDim / 8; i += 2) {
            const float2 y = value(i), z = value(i + 1);
            const uint32_t first = pack<__nv_bfloat16>(y.x, y.y), second = pack<__nv_bfloat16>(z.x, z.y);
            const uint32_t other = __shfl_xor_sync(~0u, odd ? first : second, 1);
            if (there)
                *reinterpret_cast<uint2*>(out + 8 * i) = odd ? make_uint2(other, second) : make_uint2(first, other);
        }
    }
}

/// What a query tile of one head is to do. Item i of `tiles` times the heads: the longest first, of the last tile.
struct QueryTile {
    int head = 0;
    int row = 0;                       // of the step
    int rows = 0;                      // 0: nothing to do
    int position = 0;                  // of its first row
    int first_tile = 0, end_tile = 0;  // key tiles, by absolute index
    int64_t scratch_tile = 0;          // of first_tile, with the KV head's tiles before it

    QueryTile() = default;
    __device__ __forceinline__ QueryTile(const AttendArgs& args, int item, int tiles) {
        const Plan& plan = args.plan;
        const Place place = find_tile(plan, tiles - 1 - item / args.heads, false);
        if (place.rows == 0) return;
        head = item % args.heads;  // heads of a group are neighbours: they share K/V in L2
        row = place.row + place.tile * kTile;
        rows = min(kTile, place.rows - place.tile * kTile);
        position = place.committed + place.tile * kTile;
        first_tile = first_key_tile(position, plan.window);
        end_tile = (position + rows - 1) / kTile + 1;
        const int kv_head = head / (args.heads / args.kv_heads);
        scratch_tile = int64_t{kv_head} * plan.key_tiles + place.key_tiles + first_tile -
                       first_key_tile(place.committed, plan.window);
    }
};

/// The key tiles that a query tile reads: number i of count, in the scratch from QueryTile::scratch_tile on.
template <bool kSparse>
struct KeyTiles {
    const int32_t* list = nullptr;
    int count;

    __device__ __forceinline__ KeyTiles(const AttendArgs& args, const QueryTile& tile) {
        if constexpr (kSparse) {
            list = args.lists + (int64_t{tile.row / kTile} * args.heads + tile.head) * args.list_stride;
            count = *list++;
        } else {
            count = tile.end_tile - tile.first_tile;
        }
    }
    __device__ __forceinline__ int operator[](int i) const { return kSparse ? list[i] : i; }
};

/// Whether some of `count` rows, the first at `position`, do not see all of [key, key + keys).
__device__ __forceinline__ bool needs_mask(int key, int keys, int position, int count, int window) {
    return key + keys - 1 > position || (window > 0 && key <= position + count - 1 - window);
}

}  // namespace riptide::ops::cuda::prefill
