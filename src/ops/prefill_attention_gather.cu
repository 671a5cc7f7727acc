// Stored K/V -> the scratch of prefill attention: pages and rings become tiles of absolute indices, every type becomes
// f16, bf16 or f32, rotated rows are rotated back.
//
// Bytes: what is stored, read once, and 2 * kv_heads * d * 2 written for each key: 537 MB at 128K keys, 8 heads of 128,
// so 0.23 ms with f16 storage at 4.6 TB/s, for each layer and chunk. The products that follow take 500 times as long.
// A block takes 128 keys of one head: 16-bit rows of the scratch's own type as pieces of 16 bytes, other types a row to
// a warp, four in flight.
#include <type_traits>

#include "base/error.h"
#include "ops/prefill_attention.cuh"
#include "quant/kv_decode.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kWarps = 8;
constexpr int kBatch = 4;  // rows that a warp has in flight

struct GatherArgs {
    Plan plan;
    KvView view;
    int64_t k_row_bytes, v_row_bytes;
    void* scratch;
};

/// What a block copies: keys [begin, end) of its tile exist, the others become zero.
struct Tile {
    int sequence = -1;
    int origin = 0;  // absolute index of the tile's first key
    int begin = 0, end = 0;

    __device__ __forceinline__ explicit Tile(const Plan& plan) {
        const Place place = find_tile(plan, static_cast<int>(blockIdx.x), true);
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

/// One image, K or V, whose type is the stored one.
template <class T, int kDim>
__device__ __forceinline__ void copy_image(const GatherArgs& args, const Tile& tile, bool values, T* image) {
    constexpr int kPieces = kDim / 8;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kPieces; i += kWarps * 32) {
        const int key = i / kPieces, piece = i % kPieces;
        uint4 x = {};
        if (tile.has(key)) x = reinterpret_cast<const uint4*>(stored_row(args, tile, key, values))[piece];
        *reinterpret_cast<uint4*>(image + image_offset(key, piece * 8)) = x;
    }
}

/// One image, K or V, of any other type.
template <class T, int kDim>
__device__ __forceinline__ void decode_image(const GatherArgs& args, const Tile& tile, bool values, T* image) {
    constexpr int kRegisters = kDim / 32;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const DType type = values ? args.view.v_dtype : args.view.k_dtype;
    for (int first = warp * kBatch; first < kTile; first += kWarps * kBatch) {
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
}

template <class T, int kDim>
__global__ void __launch_bounds__(kWarps * 32) gather_images(const GatherArgs args) {
    pdl_trigger();
    pdl_wait();
    const Tile tile(args.plan);
    if (tile.sequence < 0) return;
    constexpr int64_t kImage = int64_t{kTile} * kDim;
    constexpr DType kOwn = std::is_same_v<T, __half> ? DType::f16 : DType::bf16;
    T* image = static_cast<T*>(args.scratch) +
               (int64_t{blockIdx.y} * args.plan.key_tiles + static_cast<int>(blockIdx.x)) * 2 * kImage;
    for (int which = 0; which < 2; ++which, image += kImage) {
        if ((which == 0 ? args.view.k_dtype : args.view.v_dtype) == kOwn)
            copy_image<T, kDim>(args, tile, which == 1, image);
        else decode_image<T, kDim>(args, tile, which == 1, image);
    }
}

/// f32 [key][d], any head_dim up to kMostDim; a multiple of 32 for tq3_0.
__global__ void __launch_bounds__(kWarps * 32) gather_plain(const GatherArgs args) {
    pdl_trigger();
    pdl_wait();
    constexpr int kRegisters = kMostDim / 32;
    const Tile tile(args.plan);
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
    const dim3 grid(static_cast<unsigned>(plan.key_tiles), static_cast<unsigned>(view.num_kv_heads));
    const auto start = [&](auto kernel) { launch(gpu, kernel, grid, dim3(kWarps * 32), 0, args); };
    if (storage == Storage::f32) return start(gather_plain);
    RT_ASSERT(view.head_dim == 64 || view.head_dim == 128);
    if (view.head_dim == 128)
        start(storage == Storage::f16 ? gather_images<__half, 128> : gather_images<__nv_bfloat16, 128>);
    else start(storage == Storage::f16 ? gather_images<__half, 64> : gather_images<__nv_bfloat16, 64>);
}

}  // namespace riptide::ops::cuda::prefill
