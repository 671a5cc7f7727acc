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
__device__ __forceinline__ void store_there(uint32_t at, float2 v) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1,%2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
}

// Stores that arrive at a barrier of the CTA that they go to: no fence, and no barrier of the whole cluster.

/// `barrier`, by one thread: its first phase ends when this has arrived and `bytes` have been stored. The cluster
/// synchronises before anything is stored there, the CTA before it waits.
__device__ __forceinline__ void init_arrivals(uint64_t* barrier, int bytes) {
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
/// Until that phase has ended.
__device__ __forceinline__ void wait_for_arrivals(const uint64_t* barrier) {
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
    uint32_t done = 0;
    while (done == 0)
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(at)
            : "memory");
}
__device__ __forceinline__ void store_there(uint32_t at, float4 v, uint32_t barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(at),
        "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
        : "memory");
}
__device__ __forceinline__ void store_there(uint32_t at, float2 v, uint32_t barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];" ::"r"(at),
                 "f"(v.x), "f"(v.y), "r"(barrier)
                 : "memory");
}
#endif

#endif  // __CUDACC__

}  // namespace riptide::ops
