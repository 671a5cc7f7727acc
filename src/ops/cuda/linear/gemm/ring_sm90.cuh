// The frame of prefill products that multiply what TMA brings (Hopper): a ring of stages between one thread that feeds
// it and two warpgroups that multiply.
#pragma once

#include "ops/cuda/device/tma_wgmma_gemm.cuh"

namespace riptide::ops::cuda::prefill {

/// Stages of kStageBytes, a multiple of 1024, in dynamic shared memory; behind them a barrier "it is there" and one
/// "all have used it" for each, which takes kArrivals (a lane of each warp that multiplies, unless others use a stage).
template <int kStages, int kStageBytes, int kArrivals = 8>
struct GemmRing {
    static constexpr int kCount = kStages, kStage = kStageBytes;
    static constexpr int kShared = kCount * kStage + 1024 + 128;  // 1024: the base is rounded up; 128: barriers
    static constexpr int kThreads = 3 * 128, kUsers = kArrivals;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A kernel's work behind pdl_trigger(). produce(stages, full, empty): by one thread, which has 40 registers;
/// consume(stages, full, empty, group): by warpgroups 0 and 1, with 232. Waits before both.
template <class Ring, class Produce, class Consume>
__device__ __forceinline__ void run_gemm_ring(const Produce& produce, const Consume& consume) {
    extern __shared__ uint8_t memory[];
    const uint32_t stages = (shared_address(memory) + 1023u) & ~1023u;
    const uint32_t full = stages + Ring::kCount * Ring::kStage, empty = full + 8 * Ring::kCount;
    if (threadIdx.x == 0) {
        for (int s = 0; s < Ring::kCount; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, Ring::kUsers);
        }
        barrier_init_fence();
    }
    __syncthreads();
    pdl_wait();
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            asm volatile("fence.proxy.async.global;" ::: "memory");  // earlier kernels wrote operands with plain stores
            produce(stages, full, empty);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume(stages, full, empty, group - 1);
    }
}

/// Lets `steps` stages pass from the i-th on, by a warp that needs none of them.
template <class Ring>
__device__ __forceinline__ void pass_stages(int steps, uint32_t& i, uint32_t full, uint32_t empty, bool leader) {
    for (int step = 0; step < steps; ++step, ++i) {
        barrier_wait(full + 8 * (i % Ring::kCount), i / Ring::kCount & 1);
        if (leader) barrier_arrive(empty + 8 * (i % Ring::kCount));
    }
}

#endif

/// One block for each multiprocessor, or for each tile if there are fewer.
template <class Ring, class Maps, class Work, class Out>
void launch_gemm_ring(const Gpu& gpu, void (*kernel)(Maps, Work, Out), int64_t tiles, const Maps& maps,
                      const Work& work, const Out& out) {
    RT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring::kShared));
    const auto grid = static_cast<unsigned>(tiles < gpu.info().sm_count ? tiles : gpu.info().sm_count);
    launch(gpu, kernel, grid, Ring::kThreads, Ring::kShared, maps, work, out);
}

}  // namespace riptide::ops::cuda::prefill
