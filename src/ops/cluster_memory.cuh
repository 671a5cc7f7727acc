// Thread block clusters (sm_90): their barrier, and stores into the shared memory of another CTA of the cluster.
#pragma once

#include <cstdint>

namespace riptide::ops {

#ifdef __CUDACC__

// Other chips: no clusters, and less shared memory than such kernels want.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define RT_CLUSTER_KERNEL
#endif

#ifdef RT_CLUSTER_KERNEL
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/// CTAs of the cluster.
__device__ __forceinline__ uint32_t cluster_size() {
    uint32_t size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}
/// Where `here`, in this CTA's shared memory, lies in that of CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t in_cta(const void* here, int rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there)
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(here))), "r"(rank));
    return there;
}
__device__ __forceinline__ void store_there(uint32_t at, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}
__device__ __forceinline__ void store_there(uint32_t at, float v) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
__device__ __forceinline__ void store_there(uint32_t at, float2 v) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1,%2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
}
#endif

#endif  // __CUDACC__

}  // namespace riptide::ops
