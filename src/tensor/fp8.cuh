// Floats to e4m3 on the device: nearest even, what is too large to 448, NaN to NaN.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

namespace riptide {

__device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d) {
    const auto low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3),
               high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
}

}  // namespace riptide
