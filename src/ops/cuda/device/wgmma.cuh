// Hopper's asynchronous pieces as prefill's attention and experts use them: wgmma with A from registers, bulk copies,
// barriers. Only for code that runs on compute capability 9.0 (compiled as sm_90a).
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

// The accumulators of an instruction, by sixteens: in its text, and as its operands.
#define RT_TEXT0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define RT_TEXT1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define RT_TEXT2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define RT_TEXT3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define RT_TEXT2_HALF "%32, %33, %34, %35, %36, %37, %38, %39"
#define RT_TEXT3_HALF "%48, %49, %50, %51, %52, %53, %54, %55"
#define RT_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RT_SIXTEEN(i) RT_FOUR(i), RT_FOUR(i + 4), RT_FOUR(i + 8), RT_FOUR(i + 12)

// Operands behind the kN / 2 accumulators: A's four registers, B's descriptor, whether to add.
#define RT_WGMMA(TYPES, TRANSPOSED, N, TEXT, A0, A1, A2, A3, B, ADD, ...)                                          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD                                                         \
                 ", 0;\n"                                                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPES " {" TEXT "}, {%" #A0 ", %" #A1 ", %" #A2 \
                 ", %" #A3 "}, %" #B ", p, 1, 1, " TRANSPOSED ";\n}\n"                                             \
                 : __VA_ARGS__                                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define RT_WGMMA_ALL(...)                                                          \
    do {                                                                           \
        if constexpr (kHalf && kTransposed) RT_WGMMA("f16.f16", "1", __VA_ARGS__); \
        else if constexpr (kHalf) RT_WGMMA("f16.f16", "0", __VA_ARGS__);           \
        else if constexpr (kTransposed) RT_WGMMA("bf16.bf16", "1", __VA_ARGS__);   \
        else RT_WGMMA("bf16.bf16", "0", __VA_ARGS__);                              \
    } while (0)

/// d [64, kN] = a [64, 16] b [16, kN] (+ d if add). kTransposed: the rows of b in memory run along N, not along K.
template <class T, int kN, bool kTransposed>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], const uint32_t* a, uint64_t b, int add) {
    constexpr bool kHalf = std::is_same_v<T, __half>;
    static_assert(kN == 64 || kN == 128 ||
                  ((kN == 16 || kN == 32 || kN == 80 || kN == 96 || kN == 112) && !kTransposed));
    if constexpr (kN == 16) {
        RT_WGMMA_ALL(16, "%0, %1, %2, %3, %4, %5, %6, %7", 8, 9, 10, 11, 12, 13, RT_FOUR(0), RT_FOUR(4));
    } else if constexpr (kN == 32) {
        RT_WGMMA_ALL(32, RT_TEXT0, 16, 17, 18, 19, 20, 21, RT_SIXTEEN(0));
    } else if constexpr (kN == 64) {
        RT_WGMMA_ALL(64, RT_TEXT0 ", " RT_TEXT1, 32, 33, 34, 35, 36, 37, RT_SIXTEEN(0), RT_SIXTEEN(16));
    } else if constexpr (kN == 96) {
        RT_WGMMA_ALL(96, RT_TEXT0 ", " RT_TEXT1 ", " RT_TEXT2, 48, 49, 50, 51, 52, 53, RT_SIXTEEN(0), RT_SIXTEEN(16),
                     RT_SIXTEEN(32));
    } else if constexpr (kN == 80) {
        RT_WGMMA_ALL(80, RT_TEXT0 ", " RT_TEXT1 ", " RT_TEXT2_HALF, 40, 41, 42, 43, 44, 45, RT_SIXTEEN(0),
                     RT_SIXTEEN(16), RT_FOUR(32), RT_FOUR(36));
    } else if constexpr (kN == 112) {
        RT_WGMMA_ALL(112, RT_TEXT0 ", " RT_TEXT1 ", " RT_TEXT2 ", " RT_TEXT3_HALF, 56, 57, 58, 59, 60, 61,
                     RT_SIXTEEN(0), RT_SIXTEEN(16), RT_SIXTEEN(32), RT_FOUR(48), RT_FOUR(52));
    } else {
        RT_WGMMA_ALL(128, RT_TEXT0 ", " RT_TEXT1 ", " RT_TEXT2 ", " RT_TEXT3, 64, 65, 66, 67, 68, 69, RT_SIXTEEN(0),
                     RT_SIXTEEN(16), RT_SIXTEEN(32), RT_SIXTEEN(48));
    }
}

#undef RT_TEXT0
#undef RT_TEXT1
#undef RT_TEXT2
#undef RT_TEXT3
#undef RT_TEXT2_HALF
#undef RT_TEXT3_HALF
#undef RT_FOUR
#undef RT_SIXTEEN
#undef RT_WGMMA
#undef RT_WGMMA_ALL

#endif

}  // namespace riptide::ops::cuda::prefill
