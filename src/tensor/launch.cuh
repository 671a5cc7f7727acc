// Launching kernels, and the device side of programmatic dependent launch.
#pragma once

#include <utility>

#include "tensor/cuda_check.cuh"
#include "tensor/gpu.h"

namespace riptide {

/// Launches on the device's stream. On Hopper and later the kernel may start while the one before it still runs: every
/// thread of EVERY kernel launched this way must call pdl_wait() before it reads or writes anything that an earlier
/// kernel wrote or read (weights excepted), also threads that then have nothing to do. cluster: CTAs that run together
/// (Hopper and later); the grid is a multiple of it.
template <class... Params, class... Args>
void launch_clusters(const Gpu& gpu, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, int cluster,
                     Args&&... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = gpu.stream();
    // Kernels run side by side on an SM only if they want the same split of its memory into L1 and shared memory.
    cudaLaunchAttribute attributes[3] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attributes[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    attributes[2].id = cudaLaunchAttributeClusterDimension;
    attributes[2].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    config.attrs = attributes;
    config.numAttrs = !gpu.programmatic() ? 0 : cluster == 1 ? 2 : 3;
    if (gpu.on_launch) gpu.on_launch(kernel_name(reinterpret_cast<const void*>(kernel)));
    const cudaError_t error = cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...);
    if (error != cudaSuccess) fail_launch(error, gpu, grid, block, shared_bytes);
}

template <class... Params, class... Args>
void launch(const Gpu& gpu, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, Args&&... args) {
    launch_clusters(gpu, kernel, grid, block, shared_bytes, 1, std::forward<Args>(args)...);
}

#ifdef __CUDACC__

/// Lets the next kernel of the stream start, when every CTA has called it. Call it first thing, unless loads that this
/// kernel waits for should go ahead of those of the next one: what this kernel writes is only promised to be visible
/// behind the next kernel's pdl_wait(). Behind pdl_wait(), it also promises the next kernel that everything before this
/// kernel is complete.
__device__ __forceinline__ void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until all earlier kernels of the stream have ended and their writes are visible.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// 16 bytes of weights, past L1. A plain load, not .nc: ptxas may move .nc loads across pdl_wait(), these it leaves in
/// place (seen in the machine code of CUDA 13.0). Also right for activations, ids and K/V behind the wait.
__device__ __forceinline__ uint4 load_weights(const void* p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

#endif

}  // namespace riptide
