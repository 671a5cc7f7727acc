// What the dot product kernels of all instruction sets share: constants of the block formats. No functions with code
// here: a file compiled for AVX-512 must not emit an inline function that the linker could choose for a CPU without it.
#pragma once

#include <cstdint>

#include "quant/blocks.h"
#include "quant/dot.h"

// Kernels keep vectors in registers only if nothing is called and small loops disappear, at -O2 too.
#define RT_INLINE __attribute__((always_inline)) inline
#if defined(__clang__)
#define RT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RT_UNROLL _Pragma("GCC unroll 16")
#endif

namespace riptide {

/// How 256 consecutive values of a weight row are decoded: eight groups of 32 (see quant/dot.h).
struct SpanTraits {
    int64_t bytes32;  // bytes of 32 values; 256-value blocks are eight times that
    int halves;       // 2: s and m belong to half groups
    bool mins;        // there is an m
    int zero;         // z
};

template <DType T>
inline constexpr SpanTraits kSpan = {};
template <>
inline constexpr SpanTraits kSpan<DType::q4_0> = {18, 1, false, 8};
template <>
inline constexpr SpanTraits kSpan<DType::q4_1> = {20, 1, true, 0};
template <>
inline constexpr SpanTraits kSpan<DType::q5_0> = {22, 1, false, 16};
template <>
inline constexpr SpanTraits kSpan<DType::q5_1> = {24, 1, true, 0};
template <>
inline constexpr SpanTraits kSpan<DType::q8_0> = {34, 1, false, 128};
template <>
inline constexpr SpanTraits kSpan<DType::iq4_nl> = {18, 1, false, 128};
template <>
inline constexpr SpanTraits kSpan<DType::mxfp4> = {17, 1, false, 16};
template <>
inline constexpr SpanTraits kSpan<DType::nvfp4> = {18, 2, false, 16};
// Superblocks of 256 values: span_bytes() has their bytes.
template <>
inline constexpr SpanTraits kSpan<DType::q2_k> = {0, 2, true, 0};
template <>
inline constexpr SpanTraits kSpan<DType::q3_k> = {0, 2, false, 4};
template <>
inline constexpr SpanTraits kSpan<DType::q4_k> = {0, 1, true, 0};
template <>
inline constexpr SpanTraits kSpan<DType::q5_k> = {0, 1, true, 0};
template <>
inline constexpr SpanTraits kSpan<DType::q6_k> = {0, 2, false, 32};
template <>
inline constexpr SpanTraits kSpan<DType::iq4_xs> = {0, 1, false, 128};
template <>
inline constexpr SpanTraits kSpan<DType::int8_16> = {0, 2, false, 128};
template <>
inline constexpr SpanTraits kSpan<DType::int8_32> = {0, 1, false, 128};
template <>
inline constexpr SpanTraits kSpan<DType::iq1_s> = {0, 1, false, 128};
template <>
inline constexpr SpanTraits kSpan<DType::iq1_m> = {0, 2, false, 128};
template <>
inline constexpr SpanTraits kSpan<DType::iq2_xxs> = {0, 1, false, 128};
template <>
inline constexpr SpanTraits kSpan<DType::iq2_xs> = {0, 2, false, 128};
template <>
inline constexpr SpanTraits kSpan<DType::iq2_s> = {0, 2, false, 128};
template <>
inline constexpr SpanTraits kSpan<DType::iq3_xxs> = {0, 1, false, 128};
template <>
inline constexpr SpanTraits kSpan<DType::iq3_s> = {0, 1, false, 128};
template <>
inline constexpr SpanTraits kSpan<DType::tq1_0> = {0, 1, false, 1};
template <>
inline constexpr SpanTraits kSpan<DType::tq2_0> = {0, 1, false, 1};

template <DType T>
constexpr int64_t span_bytes() {
    switch (T) {
        case DType::int8_16:
            return 320;
        case DType::int8_32:
            return 288;
        case DType::q2_k:
            return 84;
        case DType::q3_k:
            return 110;
        case DType::q4_k:
            return 144;
        case DType::q5_k:
            return 176;
        case DType::q6_k:
            return 210;
        case DType::iq4_xs:
            return 136;
        case DType::iq1_s:
            return 50;
        case DType::iq1_m:
            return 56;
        case DType::iq2_xxs:
            return 66;
        case DType::iq2_xs:
            return 74;
        case DType::iq2_s:
            return 82;
        case DType::iq3_xxs:
            return 98;
        case DType::iq3_s:
            return 110;
        case DType::tq1_0:
            return 54;
        case DType::tq2_0:
            return 66;
        default:
            return 8 * kSpan<T>.bytes32;
    }
}

// clang-format off
/// Applies X to the name of every block type whose codes lie in its blocks.
#define RT_SPAN_TYPES(X) \
    X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q8_0) X(iq4_nl) X(mxfp4) X(nvfp4) X(q2_k) X(q3_k) X(q4_k) X(q5_k) X(q6_k) X(iq4_xs)
/// Those of grids and of three values, whose codes are made in eights. The baseline makes them int8_16 or int8_32 first.
#define RT_GRID_TYPES(X) X(iq1_s) X(iq1_m) X(iq2_xxs) X(iq2_xs) X(iq2_s) X(iq3_xxs) X(iq3_s) X(tq1_0) X(tq2_0)
// clang-format on

template <DType T>
inline constexpr bool kGrid = false;
#define X(T)    \
    template <> \
    inline constexpr bool kGrid<DType::T> = true;
RT_GRID_TYPES(X)
#undef X

// The kernel entry points of each file.
void quantize_baseline(const float* x, int64_t begin, int64_t end, int64_t cols, void* out);
void quantize_avx2(const float* x, int64_t begin, int64_t end, int64_t cols, void* out);
void quantize_avx512(const float* x, int64_t begin, int64_t end, int64_t cols, void* out);
void dot_baseline(const DotTask& task);
void dot_avx2(const DotTask& task);
void dot_avx512(const DotTask& task);
void dot_q4k_avx512(const DotTask& task);     // one activation row, whole blocks
void dot_eights_avx512(const DotTask& task);  // one or two activation rows, types of RT_GRID_TYPES
void dot_float_avx2(const DotTask& task);
void dot_float_avx512(const DotTask& task);

/// dequantize_row, with zeros from cols to `padded`.
void expand_float_row(const Weight& w, int64_t row, int64_t padded, float* out);

}  // namespace riptide
