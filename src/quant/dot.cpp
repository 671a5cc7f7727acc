#include "quant/dot.h"

#include "base/error.h"
#include "quant/codec.h"
#include "quant/dot/span.h"

namespace riptide {

namespace {

constexpr DotKernels kBaseline = {Isa::baseline, "baseline", quantize_baseline, dot_baseline};
#if defined(__x86_64__)
constexpr DotKernels kAvx2 = {Isa::avx2, "avx2", quantize_avx2, dot_avx2};
constexpr DotKernels kAvx512 = {Isa::avx512, "avx512", quantize_avx512, dot_avx512};
#endif

}  // namespace

Int8Row int8_row(const void* row, int64_t cols) {
    const int64_t padded = Int8Row::padded(cols);
    const auto* a = static_cast<const int8_t*>(row);
    const auto* d = reinterpret_cast<const float*>(a + padded);
    return {a, d, d + padded / 32, d + padded / 16};
}

bool uses_int8_activations(DType type) {
    switch (type) {
#define X(T) case DType::T:
        RT_SPAN_TYPES(X)
#undef X
        return true;
        default:
            return false;
    }
}

bool has_dot(DType type) {
    switch (type) {
        case DType::f32:
        case DType::f16:
        case DType::bf16:
        case DType::f8_e4m3:
        case DType::i4_pack:
        case DType::i8_pack:
        case DType::f4_pack:
        case DType::tq1_0:
        case DType::tq2_0:
        case DType::iq1_s:
        case DType::iq1_m:
        case DType::iq2_xxs:
        case DType::iq2_xs:
        case DType::iq2_s:
        case DType::iq3_xxs:
        case DType::iq3_s:
            return true;
        default:
            return uses_int8_activations(type);
    }
}

// Float rows: four rows expanded to f32. Block rows: a panel of sixteen rows, for each 32 columns 512 bytes of codes
// and up to four vectors of sixteen scales.
int64_t dot_scratch_bytes(const Weight& w) { return 24 * Int8Row::padded(w.cols); }

void expand_float_row(const Weight& w, int64_t row, int64_t padded, float* out) {
    dequantize_row(w, row, out);
    for (int64_t c = w.cols; c < padded; ++c) out[c] = 0.0f;
}

bool isa_available(Isa isa) {
    if (isa == Isa::baseline) return true;
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") &&
                      __builtin_cpu_supports("fma");  // and with them F16C, which clang 14 cannot ask for
    if (isa == Isa::avx2) return avx2;
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

const DotKernels& dot_kernels(Isa isa) {
    RT_ASSERT(isa_available(isa));
#if defined(__x86_64__)
    if (isa == Isa::avx512) return kAvx512;
    if (isa == Isa::avx2) return kAvx2;
#endif
    return kBaseline;
}

const DotKernels& dot_kernels() {
    static const DotKernels& best = isa_available(Isa::avx512) ? dot_kernels(Isa::avx512)
                                    : isa_available(Isa::avx2) ? dot_kernels(Isa::avx2)
                                                               : dot_kernels(Isa::baseline);
    return best;
}

}  // namespace riptide
