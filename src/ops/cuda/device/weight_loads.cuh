// Loads of the decode kernels. Volatile and behind a memory clobber like load_weights(): the compiler leaves them on
// their side of pdl_wait().
#pragma once

#include <cstdint>

#include "tensor/launch.cuh"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

__device__ __forceinline__ uint32_t load_weight16(const void* p) {
    uint16_t v;
    asm volatile("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint32_t load_weight32(const void* p) {
    uint32_t v;
    asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint2 load_weight64(const void* p) {
    uint2 v;
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
}
/// Written by an earlier kernel, and perhaps read above the own wait (see experts_any_gate_up_kernel): past L1.
__device__ __forceinline__ int32_t load_shared_i32(const int32_t* p) {
    int32_t v;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ float load_shared_f32(const float* p) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}

/// Sixteen bytes to shared memory, without registers where the chip can.
__device__ __forceinline__ void copy_async16(void* shared, const void* p) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
        "l"(p)
        : "memory");
#else
    *static_cast<uint4*>(shared) = load_weights(p);
#endif
}
/// What this thread copied is there, for itself.
__device__ __forceinline__ void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
