// Stored K/V -> the scratch of prefill attention: pages and rings become tiles of absolute indices, every type becomes
// f16, bf16 or f32, rotated rows are rotated back.
//
// Bytes: what is stored, read once, and 2 * kv_heads * d * 2 written for each key: 537 MB at 128K keys, 8 heads of 128,
// so 0.23 ms with f16 storage at 4.6 TB/s, for each layer and chunk. The products that follow take 500 times as long.
// For 512 keys (2 MB) what counts is latency: a block takes K and V of 32 keys of one head, a thread sixteen values of
// each, and both its loads are under way before it waits for one. (A block for 128 keys, decoding value by value, took
// 59 us for 512 keys, H200, 2026-11-21: one load after the other on 32 multiprocessors.) Values of 16 bits of the
// scratch's own type, f8, q8_0 and q4_0 in heads of 128 go that way; other types a row to a warp, four in flight.
// Blocks go round, so that tiles nobody has cost a look only.
#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "ops/cuda/attention/prefill.cuh"
#include "quant/kv_decode.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kWarps = 8;
constexpr int kBatch = 4;                 // rows that a warp has in flight
constexpr int kKeys = 32;                 // of a block at a time
constexpr int kParts = kTile / kKeys;     // of a tile
static_assert(kKeys == kWarps * kBatch);  // decode_image: one batch for each warp

struct GatherArgs {
    Plan plan;
    KvView view;
    int64_t k_row_bytes, v_row_bytes;
    void* scratch;
};

/// Tile `index` of the plan: keys [begin, end) of it exist, the others become zero. sequence: -1 behind the last tile.
struct Tile {
    int sequence = -1;
    int origin = 0;  // absolute index of the tile's first key
    int begin = 0, end = 0;

    __device__ __forceinline__ Tile(const Plan& plan, int index) {
        const Place place = find_tile(plan, index, true);
        if (place.rows == 0) return;
        sequence = place.sequence;
        origin = (first_key_tile(place.committed, plan.window) + place.tile) * kTile;
        begin = max(0, first_key(place.committed, plan.window) - origin);
        end = min(kTile, place.committed + place.rows - origin);
    }
    __device__ __forceinline__ bool has(int key) const { return key >= begin && key < end; }
};

/// The stored row of this block's head: KvView::k_row or v_row of KvView::slot, in 32-bit divisions.
__device__ __forceinline__ const unsigned char* stored_row(const GatherArgs& args, const Tile& tile, int key,
                                                           bool values) {
    const KvView& view = args.view;
    const Batch& batch = args.plan.batch;
    const int index = tile.origin + key;
    int64_t slot;
    if (view.window > 0) {
        slot = int64_t{batch.state_slot[static_cast<size_t>(tile.sequence)]} * view.ring_rows + index % view.ring_rows;
    } else {
        const int64_t entry = int64_t{tile.sequence} * batch.max_pages + index / view.page_rows;
        slot = int64_t{batch.page_table[static_cast<size_t>(entry)]} * view.page_rows + index % view.page_rows;
    }
    const auto* const base = static_cast<const unsigned char*>(values ? view.v : view.k);
    return base + slot * (values ? view.v_slot_bytes : view.k_slot_bytes) +
           blockIdx.y * (values ? args.v_row_bytes : args.k_row_bytes);
}

template <class T>
__device__ __forceinline__ T narrow(float x) {
    if constexpr (std::is_same_v<T, __half>) {
        x = x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;  // NaN stays
        return __float2half_rn(x);
    } else {
        return __float2bfloat16_rn(x);
    }
}

/// Sixteen values of a stored row as 16-bit values of the scratch, in two pieces of eight.
struct Sixteen {
    uint32_t h[8];
};

/// An overflow to infinity becomes the largest f16, as narrow() has it.
__device__ __forceinline__ uint32_t saturate(uint32_t pair) {
    if ((pair & 0x7FFFu) == 0x7C00u) --pair;
    if ((pair & 0x7FFF0000u) == 0x7C000000u) pair -= 0x10000u;
    return pair;
}

/// Where unit u of a row begins in the image, in columns: its first eight values, and its last.
template <DType kType>
__device__ __forceinline__ int unit_column(int u, int half) {
    constexpr bool k16 = kType == DType::f16 || kType == DType::bf16;
    return k16 ? 16 * u + 8 * half : kv_unit_element(kType, u, 8 * half);
}

/// Unit u of one row of kDim values: thread-sized pieces of work, loads and stores apart so that K and V overlap.
template <DType kType, int kDim>
struct Unit {
    static constexpr bool k16 = kType == DType::f16 || kType == DType::bf16;
    KvUnit<kType> raw;

    __device__ __forceinline__ void load(const unsigned char* row, int u) {
        if constexpr (k16) {  // sixteen neighbouring columns
            const auto* const from = reinterpret_cast<const uint4*>(row) + 2 * u;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint4 eight = from[i];
                raw.w[4 * i] = eight.x, raw.w[4 * i + 1] = eight.y, raw.w[4 * i + 2] = eight.z;
                raw.w[4 * i + 3] = eight.w;
            }
        } else {
            kv_load_unit<kType>(raw, row, u);
        }
    }
    /// The image gets zeros if the key does not exist. Neighbouring lanes have neighbouring units: they swap halves so
    /// that every store writes whole 32-byte sectors (q4_0: its halves lie that way already). By whole warps.
    template <class T>
    __device__ __forceinline__ void store(T* image, int key, int u, bool exists) const {
        Sixteen x = {};
        if (exists) {
            kv_unit_decode<kType>(raw, u, x.h);
            if constexpr (!k16) {
#pragma unroll
                for (int i = 0; i < 8; ++i) x.h[i] = saturate(x.h[i]);
            }
        }
        uint4 first = make_uint4(x.h[0], x.h[1], x.h[2], x.h[3]), second = make_uint4(x.h[4], x.h[5], x.h[6], x.h[7]);
        int at_first = unit_column<kType>(u, 0), at_second = unit_column<kType>(u, 1);
        if constexpr (kType != DType::q4_0) {
            const bool odd = u % 2 != 0;
            const uint4 give = odd ? first : second;
            const uint4 got = make_uint4(__shfl_xor_sync(~0u, give.x, 1), __shfl_xor_sync(~0u, give.y, 1),
                                         __shfl_xor_sync(~0u, give.z, 1), __shfl_xor_sync(~0u, give.w, 1));
            // The even unit's sixteen columns first, by both lanes; then the odd one's.
            if (odd) first = got, at_first -= 8;
            else second = got, at_second += 8;
        }
        *reinterpret_cast<uint4*>(image + image_offset(key, at_first)) = first;
        *reinterpret_cast<uint4*>(image + image_offset(key, at_second)) = second;
    }
};

/// Keys [from, from + 32) of one image, K or V, of any other type.
template <class T, int kDim>
__device__ __forceinline__ void decode_image(const GatherArgs& args, const Tile& tile, int from, bool values,
                                             T* image) {
    constexpr int kRegisters = kDim / 32;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int first = from + static_cast<int>(threadIdx.x / 32) * kBatch;
    const DType type = values ? args.view.v_dtype : args.view.k_dtype;
    float x[kBatch][kRegisters];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
        const bool exists = tile.has(first + i);
        const unsigned char* const row = exists ? stored_row(args, tile, first + i, values) : nullptr;
#pragma unroll
        for (int k = 0; k < kRegisters; ++k) x[i][k] = exists ? kv_value(type, row, kDim, 32 * k + lane) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
        if (type == DType::tq3_0) kv_rotate_lanes(x[i], kDim, true);
#pragma unroll
        for (int k = 0; k < kRegisters; ++k) image[image_offset(first + i, 32 * k + lane)] = narrow<T>(x[i][k]);
    }
}

/// Body(tile, first key, image of K; that of V is one further) for each 32 keys that this block has.
template <class T, int kDim, class Body>
__device__ __forceinline__ void for_parts(const GatherArgs& args, const Body& body) {
    const int parts = args.plan.key_tiles * kParts;
    for (int i = static_cast<int>(blockIdx.x); i < parts; i += static_cast<int>(gridDim.x)) {
        const Tile tile(args.plan, i / kParts);
        if (tile.sequence < 0) return;
        body(tile, i % kParts * kKeys,
             static_cast<T*>(args.scratch) +
                 (int64_t{blockIdx.y} * args.plan.key_tiles + i / kParts) * 2 * kTile * kDim);
    }
}

/// Types without a kernel of their own, and mixtures.
template <class T, int kDim>
__global__ void __launch_bounds__(kWarps * 32) prefill_gather_any_kernel(const GatherArgs args) {
    pdl_trigger();
    pdl_wait();
    for_parts<T, kDim>(args, [&](const Tile& tile, int from, T* image) {
        decode_image<T, kDim>(args, tile, from, false, image);
        decode_image<T, kDim>(args, tile, from, true, image + kTile * kDim);
    });
}

/// K and V of one type. kDim / 16 threads for a key.
template <class T, DType kType, int kDim>
__global__ void __launch_bounds__(kKeys* kDim / 16) prefill_gather_kernel(const GatherArgs args) {
    pdl_trigger();
    pdl_wait();
    const int key_here = static_cast<int>(threadIdx.x) / (kDim / 16), u = static_cast<int>(threadIdx.x) % (kDim / 16);
    for_parts<T, kDim>(args, [&](const Tile& tile, int from, T* image) {
        const int key = from + key_here;
        const bool exists = tile.has(key);
        Unit<kType, kDim> k, v;
        if (exists) {
            k.load(stored_row(args, tile, key, false), u);
            v.load(stored_row(args, tile, key, true), u);
        }
        k.store(image, key, u, exists);
        v.store(image + kTile * kDim, key, u, exists);
    });
}

/// f32 [key][d], any head_dim up to kMostDim; a multiple of 32 for tq3_0.
__global__ void __launch_bounds__(kWarps * 32) prefill_gather_plain_kernel(const GatherArgs args) {
    pdl_trigger();
    pdl_wait();
    constexpr int kRegisters = kMostDim / 32;
    const Tile tile(args.plan, static_cast<int>(blockIdx.x));
    if (tile.sequence < 0) return;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int d = static_cast<int>(args.view.head_dim);
    float* const images = static_cast<float*>(args.scratch) +
                          (int64_t{blockIdx.y} * args.plan.key_tiles + static_cast<int>(blockIdx.x)) * 2 * kTile * d;
    for (int i = warp; i < 2 * kTile; i += kWarps) {
        const bool values = i >= kTile, exists = tile.has(i % kTile);
        const DType type = values ? args.view.v_dtype : args.view.k_dtype;
        const unsigned char* const row = exists ? stored_row(args, tile, i % kTile, values) : nullptr;
        float x[kRegisters];
#pragma unroll
        for (int k = 0; k < kRegisters; ++k) {
            const int e = 32 * k + lane;
            x[k] = exists && e < d ? kv_value(type, row, d, e) : 0.0f;
        }
        if (type == DType::tq3_0) kv_rotate_lanes(x, d, true);
#pragma unroll
        for (int k = 0; k < kRegisters; ++k)
            if (32 * k + lane < d) images[int64_t{i} * d + 32 * k + lane] = x[k];
    }
}

}  // namespace

void gather(const Gpu& gpu, const Plan& plan, const KvView& view, Storage storage, void* scratch) {
    const GatherArgs args{plan, view, view.k_slot_bytes / view.num_kv_heads, view.v_slot_bytes / view.num_kv_heads,
                          scratch};
    const auto heads = static_cast<unsigned>(view.num_kv_heads);
    if (storage == Storage::f32) {
        const dim3 grid(static_cast<unsigned>(plan.key_tiles), heads);
        return launch(gpu, prefill_gather_plain_kernel, grid, dim3(kWarps * 32), 0, args);
    }
    RT_ASSERT(has_tiles(view.head_dim) || has_wide_tiles(view.head_dim));
    const int64_t all = int64_t{plan.key_tiles} * kParts, resident = 8 * int64_t{gpu.info().sm_count};
    const dim3 grid(static_cast<unsigned>(std::min(all, (resident + heads - 1) / heads)), heads);
    const auto start = [&](auto kernel, int threads) { launch(gpu, kernel, grid, dim3(threads), 0, args); };
    const DType type = view.k_dtype == view.v_dtype ? view.k_dtype : DType::tq3_0;  // a mixture: as the general types
    const bool half = storage == Storage::f16;
    if (has_wide_tiles(view.head_dim))
        return half ? start(prefill_gather_any_kernel<__half, 256>, kWarps * 32)
                    : start(prefill_gather_any_kernel<__nv_bfloat16, 256>, kWarps * 32);
    if (view.head_dim == 64) {
        if (half && type == DType::f16) return start(prefill_gather_kernel<__half, DType::f16, 64>, kKeys * 4);
        if (!half) return start(prefill_gather_kernel<__nv_bfloat16, DType::bf16, 64>, kKeys * 4);
        return start(prefill_gather_any_kernel<__half, 64>, kWarps * 32);
    }
    constexpr int kThreads = kKeys * 8;
    if (!half) return start(prefill_gather_kernel<__nv_bfloat16, DType::bf16, 128>, kThreads);
    switch (type) {
        case DType::f16:
            return start(prefill_gather_kernel<__half, DType::f16, 128>, kThreads);
        case DType::f8_e4m3:
            return start(prefill_gather_kernel<__half, DType::f8_e4m3, 128>, kThreads);
        case DType::q8_0:
            return start(prefill_gather_kernel<__half, DType::q8_0, 128>, kThreads);
        case DType::q4_0:
            return start(prefill_gather_kernel<__half, DType::q4_0, 128>, kThreads);
        default:
            return start(prefill_gather_any_kernel<__half, 128>, kWarps * 32);
    }
}

}  // namespace riptide::ops::cuda::prefill
