// Prefill attention: what is done to queries, keys and values before the products.
//
// Bytes: n * ((H + 2 Hkv) * d * 4 in, H * d * 2 + what is stored out): 13 to 18 MB for 512 rows of 48 or 64 + 8 + 8
// heads of 128: 3 to 4 us at 4.5 TB/s; 0.1 ms at 16K rows. A block takes a row, so that cos and sin are computed once
// for all heads. Heads of 128 whose rotary half is 0, 32 or 64, as tensor cores take them: a warp has four heads at a
// time in registers (lane l: elements l, l + 32, l + 64, l + 96, so that rope stays within a lane), one square root for
// all four, and writes the cache too. All others: a warp a head at a time through shared memory, K and V to the cache
// by kv_append. (That took 16 to 20 us and then 8 us for 512 rows, H200, 2026-11-21: 230 to 400 instructions a head.)
// No device figures of the quick kernel yet. The bits are those of rms_norm, rope and kv_append.
#include "base/error.h"
#include "ops/cuda/attention/prefill.cuh"
#include "ops/cuda/device/row_math.cuh"
#include "quant/kv_decode.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kWarps = 8;

// ---- heads of 128 --------------------------------------------------------------------------------------------------

constexpr int kDim = 128, kHeads = 4;  // of a warp at a time

/// 1 / rms of each head of this warp, in all lanes: the bits of warp_rms_scale. Sums of two heads share the lanes in
/// the first two steps, so that each lane ends with the sum of one head.
__device__ __forceinline__ void head_scales(const float (&x)[kHeads][4], float eps, float (&scale)[kHeads]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float squares[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
        squares[h] = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) squares[h] = __fmaf_rn(x[h][i], x[h][i], squares[h]);
    }
    const auto share = [&](float a, float b, int mask) {  // lanes with the bit go on with b
        const bool second = (lane & mask) != 0;
        return __fadd_rn(second ? b : a, __shfl_xor_sync(~0u, second ? a : b, mask));
    };
    float sum = share(share(squares[0], squares[1], 16), share(squares[2], squares[3], 16), 8);
#pragma unroll
    for (int mask = 4; mask > 0; mask /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, mask));
    const float mine = rms_scale(sum, kDim, eps);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) scale[h] = __shfl_sync(~0u, mine, h % 2 * 16 + h / 2 * 8);
}

/// Rotates elements j and j + half of each head; turn[i]: of element lane + 32 i.
__device__ __forceinline__ void turn_heads(float (&x)[kHeads][4], const float2 (&turn)[2], int half) {
    const auto rotate = [](float& a, float& b, float2 by) {
        const float2 y = rope_rotate(a, b, by);
        a = y.x;
        b = y.y;
    };
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
        if (half == 64) {
            rotate(x[h][0], x[h][2], turn[0]);
            rotate(x[h][1], x[h][3], turn[1]);
        } else if (half == 32) {
            rotate(x[h][0], x[h][1], turn[0]);
        }
    }
}

template <class T>
__device__ __forceinline__ T query_value(float v) {
    if constexpr (std::is_same_v<T, __half>)
        return __float2half_rn(v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v);
    else return __float2bfloat16_rn(v);
}

__device__ __forceinline__ void store_head(DType type, const float (&x)[4], unsigned char* row) {
    switch (type) {  // each with the type known to the compiler
        case DType::f16:
            return kv_encode_lanes(DType::f16, x, kDim, row);
        case DType::bf16:
            return kv_encode_lanes(DType::bf16, x, kDim, row);
        case DType::f8_e4m3:
            return kv_encode_lanes(DType::f8_e4m3, x, kDim, row);
        case DType::q8_0:
            return kv_encode_lanes(DType::q8_0, x, kDim, row);
        default:
            return kv_encode_lanes(DType::q4_0, x, kDim, row);
    }
}
bool has_store(DType type) {
    return type == DType::f16 || type == DType::bf16 || type == DType::f8_e4m3 || type == DType::q8_0 ||
           type == DType::q4_0;
}

enum class Kind { query, key, value };

/// Up to four neighbouring heads of a kind, one row.
struct Group {
    Kind kind;
    int first, end;  // heads
    const float* from;
};
__device__ __forceinline__ Group group_at(const PrepareArgs& args, int row, int index) {
    const int q_groups = (args.heads + kHeads - 1) / kHeads, kv_groups = (args.kv_heads + kHeads - 1) / kHeads;
    if (index < q_groups) return {Kind::query, index * kHeads, args.heads, args.q + row * args.q_stride};
    index -= q_groups;
    if (index < kv_groups) return {Kind::key, index * kHeads, args.kv_heads, args.k + row * args.k_stride};
    return {Kind::value, (index - kv_groups) * kHeads, args.kv_heads,
            args.stored.values + row * args.stored.values_stride};
}

template <class T>
__global__ void __launch_bounds__(kWarps * 32) prefill_prepare_kernel(const __grid_constant__ PrepareArgs args) {
    pdl_trigger();
    pdl_wait();
    __shared__ float2 turns[64];
    const int row = static_cast<int>(blockIdx.x), half = args.rotary_dim / 2, thread = static_cast<int>(threadIdx.x);
    const int lane = thread % 32, kv_groups = args.k != nullptr ? (args.kv_heads + kHeads - 1) / kHeads : 0;
    const int groups = (args.heads + kHeads - 1) / kHeads + 2 * kv_groups;
    if (thread < half)
        turns[thread] = rope_turn(args.batch.rotary_position(row), args.inv_freq[thread], args.magnitude);
    __syncthreads();
    float2 turn[2] = {};
    if (half > 0) turn[0] = turns[lane];
    if (half > 32) turn[1] = turns[lane + 32];
    // Column 32 i + lane of a row's queries: query_offset() within the block of 32 that odd rows swap.
    const int place = lane % 8 / 2 * 8 + lane / 16 * 4 + lane / 8 % 2 * 2 + lane % 2;
    for (int g = thread / 32; g < groups; g += kWarps) {
        const Group group = group_at(args, row, g);
        float x[kHeads][4] = {};
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
            if (group.first + h < group.end)
#pragma unroll
                for (int i = 0; i < 4; ++i) x[h][i] = group.from[(group.first + h) * kDim + 32 * i + lane];
        const bool is_key = group.kind == Kind::key;
        const float* const weight = is_key ? args.k_weight : args.q_weight;
        if (group.kind != Kind::value) {
            if (weight != nullptr) {
                float scale[kHeads], w[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) w[i] = weight[32 * i + lane];
                head_scales(x, is_key ? args.k_eps : args.q_eps, scale);
#pragma unroll
                for (int h = 0; h < kHeads; ++h)
#pragma unroll
                    for (int i = 0; i < 4; ++i) x[h][i] = rms_value(x[h][i], scale[h], w[i]);
            }
            turn_heads(x, turn, half);
        }
        if (group.kind == Kind::query) {
#pragma unroll
            for (int h = 0; h < kHeads; ++h) {
                if (group.first + h >= group.end) break;
                T* const to = static_cast<T*>(args.to) + (int64_t{group.first + h} * gridDim.x + row) * kDim + place;
#pragma unroll
                for (int i = 0; i < 4; ++i) to[32 * (i ^ (row & 1))] = query_value<T>(x[h][i]);
            }
            continue;
        }
        const StoredRows& stored = args.stored;
        const int sequence = stored.places.row_sequence[row];
        const int index = stored.places.committed[sequence] + row - stored.places.row_begin[sequence];
        const int64_t slot = stored.places.slot(sequence, stored.places.ring_begin(sequence), index);
        const DType type = is_key ? stored.k_dtype : stored.v_dtype;
        auto* const rows = static_cast<unsigned char*>(is_key ? stored.k : stored.v) +
                           slot * (is_key ? stored.k_slot_bytes : stored.v_slot_bytes);
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
            if (group.first + h < group.end)
                store_head(type, x[h], rows + (group.first + h) * kv_row_bytes(type, kDim));
    }
}

// ---- all others ----------------------------------------------------------------------------------------------------

/// Writes one head of queries from `head` (shared memory) where the attention kernel looks for it.
template <class T, class Convert>
__device__ __forceinline__ void store_query(const float* head, T* to, int row, int d, const Convert& convert) {
    // Four neighbouring values of a row's 16-bit queries, the inverse of query_offset.
    for (int i = static_cast<int>(threadIdx.x % 32); i < d / 4; i += 32) {
        const int piece = i / 2 ^ (row % 2 * 4), e = 16 * (piece / 4 * 2 + i % 2) + piece % 4 * 2;
        alignas(8) const T x[4] = {convert(head[e]), convert(head[e + 1]), convert(head[e + 8]), convert(head[e + 9])};
        *reinterpret_cast<uint2*>(to + 4 * i) = *reinterpret_cast<const uint2*>(x);
    }
}

/// Any head_dim, any rotary width; k in place.
__global__ void __launch_bounds__(kWarps * 32) prefill_prepare_any_kernel(const PrepareArgs args) {
    pdl_trigger();
    pdl_wait();
    __shared__ float2 turns[kMostDim / 2];
    __shared__ float values[kWarps][kMostDim];
    const int row = static_cast<int>(blockIdx.x), d = args.head_dim, half = args.rotary_dim / 2;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t n = gridDim.x;
    for (int j = static_cast<int>(threadIdx.x); j < half; j += kWarps * 32)
        turns[j] = rope_turn(args.batch.rotary_position(row), args.inv_freq[j], args.magnitude);
    __syncthreads();
    float* const head = values[threadIdx.x / 32];
    const int heads = args.heads + (args.k != nullptr ? args.kv_heads : 0);
    for (int h = static_cast<int>(threadIdx.x / 32); h < heads; h += kWarps) {
        const bool is_key = h >= args.heads;
        const float* const from = is_key ? args.k + row * args.k_stride + int64_t{h - args.heads} * d
                                         : args.q + row * args.q_stride + int64_t{h} * d;
        const float* const weight = is_key ? args.k_weight : args.q_weight;
        float x[kMostDim / 32];
#pragma unroll
        for (int i = 0; i < kMostDim / 32; ++i) x[i] = lane + 32 * i < d ? from[lane + 32 * i] : 0.0f;
        if (weight != nullptr) {
            float squares = 0.0f;  // as warp_rms_scale
#pragma unroll
            for (int i = 0; i < kMostDim / 32; ++i)
                if (lane + 32 * i < d) squares = __fmaf_rn(x[i], x[i], squares);
            const float scale = rms_scale(warp_sum(squares), d, is_key ? args.k_eps : args.q_eps);
#pragma unroll
            for (int i = 0; i < kMostDim / 32; ++i)
                if (lane + 32 * i < d) x[i] = rms_value(x[i], scale, weight[lane + 32 * i]);
        }
#pragma unroll
        for (int i = 0; i < kMostDim / 32; ++i)
            if (lane + 32 * i < d) head[lane + 32 * i] = x[i];
        __syncwarp();
        for (int j = lane; j < half; j += 32) {
            const float2 y = rope_rotate(head[j], head[j + half], turns[j]);
            head[j] = y.x;
            head[j + half] = y.y;
        }
        __syncwarp();
        const int64_t at = (int64_t{h} * n + row) * d;
        if (is_key || args.storage == Storage::f32) {
            float* const to = is_key ? args.k + row * args.k_stride + int64_t{h - args.heads} * d
                                     : static_cast<float*>(args.to) + (row * int64_t{args.heads} + h) * d;
            for (int e = lane; e < d; e += 32) to[e] = head[e];
        } else if (args.storage == Storage::f16) {
            store_query(head, static_cast<__half*>(args.to) + at, row, d, [](float v) {
                return __float2half_rn(v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v);
            });
        } else {
            store_query(head, static_cast<__nv_bfloat16*>(args.to) + at, row, d,
                        [](float v) { return __float2bfloat16_rn(v); });
        }
        __syncwarp();
    }
}

}  // namespace

bool prepare(const Gpu& gpu, const PrepareArgs& args) {
    const dim3 grid(static_cast<unsigned>(args.batch.rows())), block(kWarps * 32);
    const bool turns = args.rotary_dim == 0 || args.rotary_dim == 64 || args.rotary_dim == 128;
    const bool stores = args.k == nullptr || (has_store(args.stored.k_dtype) && has_store(args.stored.v_dtype));
    if (args.head_dim != kDim || args.storage == Storage::f32 || !turns || !stores) {
        launch(gpu, prefill_prepare_any_kernel, grid, block, 0, args);
        return args.k == nullptr;
    }
    launch(gpu, args.storage == Storage::f16 ? prefill_prepare_kernel<__half> : prefill_prepare_kernel<__nv_bfloat16>,
           grid, block, 0, args);
    return true;
}

}  // namespace riptide::ops::cuda::prefill
