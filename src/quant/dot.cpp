#include "quant/dot.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "quant/codec.h"
#include "quant/dot/span.h"
#include "quant/int8_block.h"

namespace riptide {

namespace {

int64_t kernel_scratch_bytes(int64_t cols) { return 24 * Int8Row::padded(cols); }

void expand_to_int8(const Weight& w, int64_t row, DType to, std::byte* out) {
    const auto* from = static_cast<const std::byte*>(w.row(row));
    const int64_t size = dtype_info(to).block_bytes;
    Int8Block block;
    for (int64_t b = 0; b < w.cols / kSuperBlock; ++b, out += size) {
        make_int8_block(w.dtype, from + b * dtype_info(w.dtype).block_bytes, block);
        if (to == DType::int8_32)
            for (int g = 0; g < 8; ++g) block.scales[g] = block.scales[2 * g];
        std::memcpy(out, &block, static_cast<size_t>(size));
    }
}

/// The baseline knows no grids: a row of them becomes one of int8, in scratch memory behind the kernel's.
void dot_any_baseline(const DotTask& task) {
    const Weight& w = *task.w;
    if (int8_group(w.dtype) == 0) return dot_baseline(task);
    auto* const memory = static_cast<std::byte*>(task.scratch) + kernel_scratch_bytes(w.cols);
    Weight row = w;
    row.dtype = int8_group(w.dtype) == 16 ? DType::int8_16 : DType::int8_32;
    row.data = memory;
    DotTask one = task;
    one.w = &row;
    one.row_begin = 0;
    one.row_end = 1;
    for (int64_t o = task.row_begin; o < task.row_end; ++o, ++one.y) {
        expand_to_int8(w, o, row.dtype, memory);
        dot_baseline(one);
    }
}

constexpr DotKernels kBaseline = {Isa::baseline, "baseline", quantize_baseline, dot_any_baseline};
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
            return int8_group(type) > 0;
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
            return true;
        default:
            return uses_int8_activations(type);
    }
}

// Float rows: four rows expanded to f32. Block rows: a panel of sixteen rows, for each 32 columns 512 bytes of codes
// and up to four vectors of sixteen scales. Behind that, a row that the baseline expands first.
int64_t dot_scratch_bytes(const Weight& w) {
    return kernel_scratch_bytes(w.cols) + row_bytes(DType::int8_16, Int8Row::padded(w.cols));
}

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
