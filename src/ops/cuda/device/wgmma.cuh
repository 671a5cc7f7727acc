// Hopper's asynchronous pieces as prefill attention uses them: wgmma with A from registers, bulk copies, barriers.
// Only for code that runs on compute capability 9.0 (compiled as sm_90a).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace riptide::ops::cuda::prefill {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives, and makes the phase last until `bytes` have been copied in.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Waits for the end of the phase with this parity.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "again_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra done_%=;\n"
        "bra again_%=;\n"
        "done_%=:\n}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
/// Global to shared memory, 16-byte aligned.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/// Before the first wgmma that reads registers written by other instructions.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until at most kPending of the committed groups are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of registers that a wgmma writes or reads across this point.
template <class T, int kCount>
__device__ __forceinline__ void pin(T (&registers)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        if constexpr (std::is_same_v<T, float>) asm volatile("" : "+f"(registers[i])::"memory");
        else asm volatile("" : "+r"(registers[i])::"memory");
    }
}

/// Descriptor of a matrix in panels of 64 columns with 128-byte rows, pieces permuted by row % 8. Rows lie in groups of
/// 8, 1024 bytes apart; panels `panel_bytes` apart (read only when the 64 columns run along N).
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t panel_bytes) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroup = uint64_t{1024 / 16} << 32;
    return kSwizzle128 | kGroup | uint64_t{panel_bytes / 16} << 16 | address / 16;
}

#define RT_WGMMA_N128(TYPES, TRANSPOSED)                                                                              \
    asm volatile(                                                                                                     \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                                                  \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPES                                                          \
        " {"                                                                                                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                      \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                            \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                            \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"                              \
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, " TRANSPOSED ";\n}\n"                                                 \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),      \
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),     \
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),     \
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),     \
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),     \
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),     \
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])                   \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define RT_WGMMA_N64(TYPES, TRANSPOSED)                                                                               \
    asm volatile(                                                                                                     \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                                  \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPES                                                           \
        " {"                                                                                                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                      \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                              \
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, " TRANSPOSED ";\n}\n"                                                 \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),      \
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),     \
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                   \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define RT_WGMMA_N32(TYPES, TRANSPOSED)                                                                               \
    asm volatile(                                                                                                     \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"                                                                  \
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPES                                                           \
        " {"                                                                                                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"                                        \
        "}, {%16, %17, %18, %19}, %20, p, 1, 1, " TRANSPOSED ";\n}\n"                                                 \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define RT_WGMMA_N16(TYPES, TRANSPOSED)                                                                  \
    asm volatile(                                                                                        \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"                                                     \
        "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPES                                              \
        " {"                                                                                             \
        "%0, %1, %2, %3, %4, %5, %6, %7"                                                                 \
        "}, {%8, %9, %10, %11}, %12, p, 1, 1, " TRANSPOSED ";\n}\n"                                      \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

/// d [64, kN] = a [64, 16] b [16, kN] (+ d if add). kTransposed: the rows of b in memory run along N, not along K.
template <class T, int kN, bool kTransposed>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], const uint32_t* a, uint64_t b, int add) {
    static_assert(kN == 64 || kN == 128 ||
                  ((kN == 16 || kN == 32) && !kTransposed && std::is_same_v<T, __nv_bfloat16>));
    constexpr bool kHalf = std::is_same_v<T, __half>;
    if constexpr (kN == 128) {
        if constexpr (kHalf && kTransposed) RT_WGMMA_N128("f16.f16", "1");
        else if constexpr (kHalf) RT_WGMMA_N128("f16.f16", "0");
        else if constexpr (kTransposed) RT_WGMMA_N128("bf16.bf16", "1");
        else RT_WGMMA_N128("bf16.bf16", "0");
    } else if constexpr (kN == 32) {
        RT_WGMMA_N32("bf16.bf16", "0");
    } else if constexpr (kN == 16) {
        RT_WGMMA_N16("bf16.bf16", "0");
    } else {
        if constexpr (kHalf && kTransposed) RT_WGMMA_N64("f16.f16", "1");
        else if constexpr (kHalf) RT_WGMMA_N64("f16.f16", "0");
        else if constexpr (kTransposed) RT_WGMMA_N64("bf16.bf16", "1");
        else RT_WGMMA_N64("bf16.bf16", "0");
    }
}

#undef RT_WGMMA_N128
#undef RT_WGMMA_N64
#undef RT_WGMMA_N32
#undef RT_WGMMA_N16

#endif

}  // namespace riptide::ops::cuda::prefill
