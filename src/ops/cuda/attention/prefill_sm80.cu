// Prefill attention with mma.m16n8k16 and cp.async: compute capability 8.0 and later.
//
// Work as in prefill_sm90.cu. The H200 gives 638 TFLOP/s to this instruction (measured), so 319 if
// exponentials and products took turns; this kernel is there for chips without wgmma, for heads of 256, and
// for correctness: simple first.
//
// A block takes 128 rows of one head, 16 to each of eight warps, over keys in steps of 64 (heads of 256: 32): two
// stages of K and V in 64 KiB of shared memory, filled by cp.async from the images of the scratch, read by ldmatrix.
// Queries, scores and output stay in registers. Blocks are numbered longest first.
#include "base/error.h"
#include "ops/cuda/attention/prefill_sm80.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

template <int kDim>
constexpr size_t kShared = size_t{2} * 2 * kStepOf<kDim>* kDim * 2;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

/// o += p v over kStepOf keys.
template <class T, int kDim>
__device__ __forceinline__ void values(float (&o)[kDim / 2], const uint32_t (&p)[kStepOf<kDim> / 4], uint32_t v,
                                       int lane) {
#pragma unroll
    for (int step = 0; step < kStepOf<kDim> / 16; ++step)
#pragma unroll
        for (int pair = 0; pair < kDim / 16; ++pair) {  // 16 columns
            // Matrices: keys 0-7 columns 0-7, keys 8-15 columns 0-7, keys 0-7 columns 8-15, keys 8-15 columns 8-15.
            uint32_t b[4];
            load_matrices<true>(b, v + stage_offset<kStepOf<kDim>>(step * 16 + lane % 16, pair * 2 + lane / 16));
            mma<T>(o + 8 * pair, p + 4 * step, b[0], b[1]);
            mma<T>(o + 8 * pair + 4, p + 4 * step, b[2], b[3]);
        }
}

template <class T, int kDim, bool kSparse>
__device__ __forceinline__ void attend(const AttendArgs& args, const QueryTile& tile, uint32_t memory) {
    constexpr int kKeys = kStepOf<kDim>, kParts = kTile / kKeys;
    constexpr uint32_t kBytes = static_cast<uint32_t>(kKeys * kDim * 2);
    const int lane = static_cast<int>(threadIdx.x % 32), warp_row = static_cast<int>(threadIdx.x / 32) * 16;
    const int window = args.plan.window, warp_position = tile.position + warp_row;
    const float scale = __fmul_rn(args.scale, 1.44269504f);
    const KeyTiles<kSparse> tiles(args, tile);
    const auto copy = [&](int i) {  // step i: kKeys keys
        constexpr int64_t kImage = int64_t{kTile} * kDim * 2;
        const char* image =
            static_cast<const char*>(args.scratch) + (tile.scratch_tile + tiles[i / kParts]) * 2 * kImage;
        const uint32_t stage = memory + static_cast<uint32_t>(i % 2) * 2 * kBytes;
        copy_keys<kDim>(stage, image, i % kParts * kKeys);
        copy_keys<kDim>(stage + kBytes, image + kImage, i % kParts * kKeys);
        copies_commit();
    };

    uint32_t q[kDim / 4], p[kKeys / 4];
    float s[kKeys / 2], o[kDim / 2] = {}, factor[2];
    Softmax softmax;
    const int steps = tiles.count * kParts;
    copy(0);
    load_queries<kDim>(q, args, tile.head, tile.row + warp_row + lane / 4);
    for (int i = 0; i < steps; ++i) {
        if (i + 1 < steps) {
            copy(i + 1);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        const uint32_t k = memory + static_cast<uint32_t>(i % 2) * 2 * kBytes, v = k + kBytes;
        const int key = (tile.first_tile + tiles[i / kParts]) * kTile + i % kParts * kKeys;
        scores<T, kDim>(s, q, k, lane);
        if (needs_mask(key, kKeys, warp_position, 16, window))
            mask_scores<kKeys>(s, key + lane % 4 * 2, warp_position + lane / 4, window);
        softmax.step<kKeys>(s, scale, factor);
        rescale<kDim>(o, factor);
        weights_operand<T, kKeys>(s, p);
        values<T, kDim>(o, p, v, lane);
        __syncthreads();
    }
    store_rows<kDim>(args, o, softmax, tile.row + warp_row, tile.rows - warp_row, tile.head);
}

#endif

template <class T, int kDim, bool kSparse>
__global__ void __launch_bounds__(kStepThreads, 1) prefill_sm80_kernel(const AttendArgs args) {
    pdl_trigger();
    pdl_wait();
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    extern __shared__ uint4 memory[];
    const QueryTile tile(args, static_cast<int>(blockIdx.x), args.plan.query_tiles);
    if (tile.rows == 0) return;
    attend<T, kDim, kSparse>(args, tile, static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
#endif
}

template <class T, int kDim, bool kSparse>
void start(const Gpu& gpu, const AttendArgs& args) {
    RT_CUDA(cudaFuncSetAttribute(prefill_sm80_kernel<T, kDim, kSparse>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kShared<kDim>)));
    const auto items = static_cast<unsigned>(args.plan.query_tiles * args.heads);
    launch(gpu, prefill_sm80_kernel<T, kDim, kSparse>, dim3(items), dim3(kStepThreads), kShared<kDim>, args);
}

}  // namespace

void attend_mma(const Gpu& gpu, const AttendArgs& args, Storage storage) {
    with_tiles<true>(storage, static_cast<int>(args.head_dim), [&](auto zero, auto dim) {
        using T = decltype(zero);
        constexpr int kDim = decltype(dim)::value;
        if constexpr (kDim <= 128)
            if (args.lists != nullptr) return start<T, kDim, true>(gpu, args);
        start<T, kDim, false>(gpu, args);
    });
}

}  // namespace riptide::ops::cuda::prefill
