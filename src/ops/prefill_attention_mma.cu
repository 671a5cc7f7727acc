// Prefill attention with mma.m16n8k16 and cp.async: compute capability 8.0 and later.
//
// Work as in prefill_attention_wgmma.cu. The H200 gives 638 TFLOP/s to this instruction (measured), so 319 if
// exponentials and products took turns; this kernel is there for chips without wgmma, and for correctness: simple
// first.
//
// A block takes 128 rows of one head, 16 to each of eight warps, over keys in steps of 64: two stages of K and V in 64
// KiB of shared memory, filled by cp.async from the images of the scratch, read by ldmatrix. Queries, scores and output
// stay in registers. Blocks are numbered longest first.
#include "base/error.h"
#include "ops/prefill_attention_step.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr size_t shared_bytes(int d) { return 2 * 2 * kStep * static_cast<size_t>(d) * 2; }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

/// o += p v over kStep keys.
template <class T, int kDim>
__device__ __forceinline__ void values(float (&o)[kDim / 2], const uint32_t (&p)[kStep / 4], uint32_t v, int lane) {
#pragma unroll
    for (int step = 0; step < kStep / 16; ++step)
#pragma unroll
        for (int pair = 0; pair < kDim / 16; ++pair) {  // 16 columns
            // Matrices: keys 0-7 columns 0-7, keys 8-15 columns 0-7, keys 0-7 columns 8-15, keys 8-15 columns 8-15.
            uint32_t b[4];
            load_matrices<true>(b, v + stage_offset(step * 16 + lane % 16, pair * 2 + lane / 16));
            mma<T>(o + 8 * pair, p + 4 * step, b[0], b[1]);
            mma<T>(o + 8 * pair + 4, p + 4 * step, b[2], b[3]);
        }
}

template <class T, int kDim, bool kSparse>
__device__ __forceinline__ void attend(const AttendArgs& args, const QueryTile& tile, uint32_t memory) {
    constexpr uint32_t kBytes = static_cast<uint32_t>(kStep * kDim * 2);
    const int lane = static_cast<int>(threadIdx.x % 32), warp_row = static_cast<int>(threadIdx.x / 32) * 16;
    const int window = args.plan.window, warp_position = tile.position + warp_row;
    const float scale = __fmul_rn(args.scale, 1.44269504f);
    const KeyTiles<kSparse> tiles(args, tile);
    const auto copy = [&](int i) {  // step i: 64 keys
        constexpr int64_t kImage = int64_t{kTile} * kDim * 2;
        const char* image = static_cast<const char*>(args.scratch) + (tile.scratch_tile + tiles[i / 2]) * 2 * kImage;
        const uint32_t stage = memory + static_cast<uint32_t>(i % 2) * 2 * kBytes;
        copy_keys<kDim>(stage, image, i % 2 * kStep);
        copy_keys<kDim>(stage + kBytes, image + kImage, i % 2 * kStep);
        copies_commit();
    };

    uint32_t q[kDim / 4], p[kStep / 4];
    float s[kStep / 2], o[kDim / 2] = {}, factor[2];
    Softmax softmax;
    const int steps = tiles.count * 2;
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
        const int key = (tile.first_tile + tiles[i / 2]) * kTile + i % 2 * kStep;
        scores<T, kDim>(s, q, k, lane);
        if (needs_mask(key, kStep, warp_position, 16, window))
            mask_scores<kStep>(s, key + lane % 4 * 2, warp_position + lane / 4, window);
        softmax.step<kStep>(s, scale, factor);
        rescale<kDim>(o, factor);
        weights_operand<T, kStep>(s, p);
        values<T, kDim>(o, p, v, lane);
        __syncthreads();
    }
    store_rows<kDim>(args, o, softmax, tile.row + warp_row, tile.rows - warp_row, tile.head);
}

#endif

template <class T, int kDim, bool kSparse>
__global__ void __launch_bounds__(kStepThreads, 1) mma_kernel(const AttendArgs args) {
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
    constexpr size_t kShared = shared_bytes(kDim);
    RT_CUDA(cudaFuncSetAttribute(mma_kernel<T, kDim, kSparse>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kShared)));
    const auto items = static_cast<unsigned>(args.plan.query_tiles * args.heads);
    launch(gpu, mma_kernel<T, kDim, kSparse>, dim3(items), dim3(kStepThreads), kShared, args);
}

}  // namespace

void attend_mma(const Gpu& gpu, const AttendArgs& args, Storage storage) {
    with_tiles(storage, static_cast<int>(args.head_dim), [&](auto zero, auto dim) {
        if (args.lists != nullptr) start<decltype(zero), decltype(dim)::value, true>(gpu, args);
        else start<decltype(zero), decltype(dim)::value, false>(gpu, args);
    });
}

}  // namespace riptide::ops::cuda::prefill
