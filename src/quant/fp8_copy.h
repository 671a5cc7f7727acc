// A second copy of a placed matrix for FP8 prefill: e4m3 values in the order and with the scales that the product reads
// (ops/cuda/linear/gemm/fp8_sm90.h). Host interface, without CUDA headers.
//
//   W[r, c] = e4m3 value * scale[r / 64, c / 128]
//
// Rows are padded to 64 with zeros, and lie as one thread of a tensor-core kernel holds neighbouring results (fp8_row).
// Scales are powers of two, so that a value is rounded once, to e4m3 (nearest even: off by up to 2^-4 of itself, or by
// 2^-10 of the scale below 2^-6 of it), and the largest of its block comes to lie in (224, 448]. A matrix that is e4m3
// itself, with scales whose blocks hold whole blocks of these, keeps its codes and its scales.
#pragma once

#include <cstdint>

#include "tensor/gpu.h"
#include "tensor/host_device.h"
#include "tensor/tensor.h"

namespace riptide {

constexpr int kFp8Rows = 64, kFp8Cols = 128;  // of a scale

/// The power of two by which values of up to `amax` in magnitude are divided. NaN for what is not finite: the results
/// are NaN then. Not below 2^-68, so that a product of two is a float.
RT_HD float fp8_scale(float amax) {
    if (!(amax <= 3.0e38f)) return amax - amax;  // NaN
    int exponent = -60;
    float high = 0x1p-60f * 1.75f;
    if (amax > high) {
#if defined(__CUDA_ARCH__)
        const uint32_t bits = __float_as_uint(amax);
#else
        uint32_t bits;
        __builtin_memcpy(&bits, &amax, sizeof bits);
#endif
        exponent = static_cast<int>(bits >> 23) - 127 + ((bits & 0x7FFFFFu) > 0x600000u ? 1 : 0);
    }
    const uint32_t scale = static_cast<uint32_t>(exponent - 8 + 127) << 23;
#if defined(__CUDA_ARCH__)
    return __uint_as_float(scale);
#else
    float value;
    __builtin_memcpy(&value, &scale, sizeof value);
    return value;
#endif
}

/// Where row r of the matrix lies among the rows of its copy: a lane t of a quad holds sums 2 t and 2 t + 1 of each
/// eight, for eight eights in a row; with this order they are four times four neighbouring ones.
RT_HD int fp8_row(int r) { return (r & ~15) | (r >> 1 & 1) << 3 | (r >> 2 & 3) << 1 | (r & 1); }

RT_HD int64_t fp8_rows(int64_t rows) { return (rows + kFp8Rows - 1) / kFp8Rows * kFp8Rows; }
RT_HD int64_t fp8_scales(int64_t rows, int64_t cols) { return fp8_rows(rows) / kFp8Rows * (cols / kFp8Cols); }

/// Whether a copy may be made: columns in 128s.
inline bool has_fp8_form(const Weight& w) { return w.cols % kFp8Cols == 0; }

/// Writes the copies of `count` placed matrices of one type and shape, each `stride` bytes behind the one before, one
/// behind the other. REQUIRES has_fp8_form().
void write_fp8(Gpu& gpu, const Weight& first, int64_t count, int64_t stride, void* values, float* scales);

}  // namespace riptide
