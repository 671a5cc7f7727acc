// Quantising what a kernel has computed to int8 rows (quant/act_rows.h), beside storing it.
#pragma once

#include <cuda_runtime.h>

#include "quant/act_rows.h"

namespace riptide::ops {

#ifdef __CUDACC__

/// What quantising 32 values to an ActRow needs to know of them.
struct ActGroup {
    float inverse, d;
    __device__ __forceinline__ explicit ActGroup(uint32_t largest) {              // bits of the largest magnitude
        const bool finite = largest < 0x7F800000u, zero = largest < 0x0D800000u;  // 2^-100
        const float amax = __uint_as_float(largest);
        inverse = finite && !zero ? __fdiv_rn(127.0f, amax) : 0.0f;
        d = !finite ? __uint_as_float(0x7FC00000u) : zero ? 0.0f : __fdiv_rn(amax, 127.0f);
    }
    __device__ __forceinline__ int code(float v) const {
        return inverse == 0.0f ? 0 : __float2int_rn(__fmul_rn(v, inverse));
    }
};

/// Group g of an ActRow of `cols` values at `row`, by a warp: lane i has the i-th of its 32 values.
__device__ __forceinline__ void put_act_group(unsigned char* row, int64_t cols, int64_t g, float v) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint32_t largest = __float_as_uint(v) & 0x7FFFFFFFu;
#if __CUDA_ARCH__ >= 800
    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
#else
    for (int mask = 16; mask > 0; mask /= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, mask));
#endif
    const ActGroup act(largest);
    const int code = act.code(v);
    int sum = code;
#if __CUDA_ARCH__ >= 800
    sum = __reduce_add_sync(0xFFFFFFFFu, sum);
#else
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, mask);
#endif
    const ActRow to{reinterpret_cast<const int8_t*>(row), cols};
    const_cast<int8_t*>(to.half(g, lane / 16))[lane % 16] = static_cast<int8_t>(code);
    if (lane == 0)
        *reinterpret_cast<float2*>(const_cast<float*>(to.scale_and_sum(g))) = {act.d, static_cast<float>(sum)};
}

#endif

}  // namespace riptide::ops
