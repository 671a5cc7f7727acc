// The two machine instructions that decode attention names: 2^x and a small matrix product.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace riptide::ops {

/// 2^x within 2 ulp; denormals are zero.
__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// c += A B over the 32 lanes of a warp: mma.m16n8k16 on f16 or bf16 with f32 sums. Lane 4 g + t has of A [16, 16] the
/// pairs of columns (2 t, 2 t + 1) of rows g (a0) and g + 8 (a1) and (2 t + 8, 2 t + 9) of rows g (a2) and g + 8 (a3);
/// of B [16, 8] rows (2 t, 2 t + 1) (b0) and (2 t + 8, 2 t + 9) (b1) of column g; of c [16, 8] columns 2 t, 2 t + 1 of
/// rows g (c[0], c[1]) and g + 8 (c[2], c[3]). Does nothing below sm_80.
template <bool kBf16>
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    if constexpr (kBf16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

}  // namespace riptide::ops
