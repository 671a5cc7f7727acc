// Thread block clusters (sm_90): their barrier, and stores into the shared memory of another CTA of the cluster.
//
// cluster_arrive() shows what was written before; for that it waits for all stores of its thread, also for those to
// device memory, some 0.7 us in the middle of a small kernel. So kernels for one row begin with cluster_start(), which
// shows nothing, and send what others need to their Inbox.
#pragma once

#include <cstdint>

namespace riptide::ops {

#ifdef __CUDACC__

// ---- Of sm_90 and later.

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t r = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
#endif
    return r;
}
/// The same place in the shared memory of CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t in_cta(uint32_t address, uint32_t rank) {
    uint32_t to = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(address), "r"(rank));
#endif
    return to;
}
/// To another CTA of the cluster, whose barrier counts the bytes that came: no fence, no wait here.
__device__ __forceinline__ void send(uint32_t to, float v, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(v),
                 "r"(barrier)
                 : "memory");
#endif
}
__device__ __forceinline__ void send(uint32_t to, float2 v, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];" ::"r"(to),
                 "f"(v.x), "f"(v.y), "r"(barrier)
                 : "memory");
#endif
}
__device__ __forceinline__ void send(uint32_t to, float4 v, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
                 : "memory");
#endif
}
/// The next phase of a barrier that one thread arms ends when `bytes` more have come.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
/// Until the phase of this parity has ended; then what other CTAs sent is there.
__device__ __forceinline__ void wait_cluster(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again_%=;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
#endif
}

// Other chips: no clusters, and less shared memory than such kernels want.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define RT_CLUSTER_KERNEL
#endif

#ifdef RT_CLUSTER_KERNEL
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
/// In its place where nothing was written for others but inboxes opened: the CTA has started.
__device__ __forceinline__ void cluster_start() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
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
    return in_cta(shared_address(here), static_cast<uint32_t>(rank));
}
/// In shared memory: tells when all that other CTAs send has come.
struct Inbox {
    uint64_t barrier;

    /// So many bytes will come (none is fine). By one thread, before cluster_start(); others may send behind
    /// cluster_wait().
    __device__ __forceinline__ void open(int bytes) {
        const uint32_t at = shared_address(&barrier);
        asm volatile("mbarrier.init.shared.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(at) : "memory");
        expect_bytes(at, bytes);
    }
    /// They have. By threads that have waited for the one that opened it.
    __device__ __forceinline__ void wait() const { wait_cluster(shared_address(&barrier), 0); }
};
/// To the place of `here` and the inbox of CTA `rank`. T: float, float2, float4.
template <class T>
__device__ __forceinline__ void send(const void* here, int rank, const Inbox& inbox, T v) {
    send(in_cta(here, rank), v, in_cta(&inbox, rank));
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
