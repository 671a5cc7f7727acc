// Which kernels a weight belongs to.
#include <algorithm>
#include <bit>

#include "ops/cuda/linear/plan.h"
#include "ops/cuda/linear/shared/row_formats.h"
#include "ops/cuda/linear/shared/shapes.h"
#include "quant/blocks.h"
#include "quant/planes.h"

namespace riptide::ops::cuda::linear {

namespace {

bool k_quant(DType t) { return t == DType::planes_q4_k || t == DType::planes_q5_k || t == DType::planes_q6_k; }

/// Whether an index below `all` is shifted to that of its entry, `share` of which are alike.
bool shared_evenly(int64_t share, int64_t all) {
    return share >= all || std::has_single_bit(static_cast<uint32_t>(share));
}

}  // namespace

bool tile_weight(const Chip& chip, const Weight& w) {
    return chip.major >= 8 && !chip.portable && k_quant(w.dtype) && w.scale == 1.0f && w.cols % 2048 == 0 &&
           w.cols > 0 && w.rows > 0;
}

bool wide_weight(const Chip& chip, const Weight& w) {
    return chip.major >= 9 && !chip.portable && k_quant(w.dtype) && w.scale == 1.0f && w.cols > 0 &&
           w.cols % 256 == 0 && w.rows > 0;
}

bool f16_weight(const Chip& chip, const Weight& w) {
    return chip.major == 9 && chip.shared_bytes >= (220 << 10) && wide_weight(chip, w) &&
           w.dtype != DType::planes_q5_k && w.cols % 1024 == 0 && w.cols > 2048 &&
           (w.rows >= 4096 || w.cols % 2048 != 0);
}

bool q8_weight(const Chip& chip, const Weight& w) {
    return chip.major >= 8 && !chip.portable && w.dtype == DType::planes_int8 && w.scale == 1.0f &&
           w.scale_dtype == DType::f16 && w.scale_cols == 32 && w.scale_rows == 1 &&
           w.cols % decode::Q8Shape::kCols == 0 && w.cols > 0 && w.rows > 0;
}

bool draft_weight(const Chip& chip, const Weight& w) {
    constexpr int64_t kMostRows = 1 << 20;
    const int64_t slices = std::min(decode::kMostSlices, chip.sms);  // at most; each has a CTA
    const bool plain =
        (w.dtype == DType::bf16 || w.dtype == DType::f16) && w.scales == nullptr && w.row_bytes == 2 * w.cols;
    const bool int8 = w.dtype == DType::planes_int8 && w.scale_dtype == DType::f16 && w.scale_cols == 32 &&
                      w.scale_rows == 1 && !q8_weight(chip, w);
    return chip.hopper() && chip.shared_bytes >= (220 << 10) && (plain || int8) && w.scale == 1.0f &&
           w.cols % 256 == 0 && w.cols <= decode::kMostColumns * slices && w.rows > 0 && w.rows <= kMostRows &&
           reinterpret_cast<uintptr_t>(w.data) % 16 == 0 && reinterpret_cast<uintptr_t>(w.scales) % 16 == 0;
}

bool float_matrix(DType type, bool scales, int64_t rows, int64_t cols, int64_t scale_rows, int64_t scale_cols) {
    if (type != DType::f32 && type != DType::f16 && type != DType::bf16 && type != DType::f8_e4m3) return false;
    if (!scales) return true;
    return type == DType::f8_e4m3 && shared_evenly(scale_rows, rows) &&
           (scale_cols >= cols || (scale_cols >= 64 && shared_evenly(scale_cols, cols)));
}
bool float_weight(const Weight& w) {
    return float_matrix(w.dtype, w.scales != nullptr, w.rows, w.cols, std::min(w.scale_rows, w.rows), w.scale_cols);
}

bool alike(const Weight& a, const Weight& b) {
    const bool scales = a.scales != nullptr;
    return a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols && a.row_bytes == b.row_bytes &&
           scales == (b.scales != nullptr) &&
           (!scales || (std::min(a.scale_rows, a.rows) == std::min(b.scale_rows, b.rows) &&
                        a.scale_cols == b.scale_cols && a.scale_dtype == b.scale_dtype));
}

}  // namespace riptide::ops::cuda::linear

namespace riptide::ops::cuda::decode {

RowFormat row_format(const Weight& w) {
    if (w.scale != 1.0f || w.cols % 256 != 0 || w.cols == 0 || w.rows == 0 || w.rows * w.cols > int64_t{1} << 31)
        return RowFormat::none;
    const auto scaled = [&](DType type, int64_t cols) {
        return w.scale_dtype == type && w.scale_cols == cols && w.scale_rows == 1;
    };
    switch (w.dtype) {
        case DType::planes_q4_k:
            return RowFormat::q4_k;
        case DType::planes_q5_k:
            return RowFormat::q5_k;
        case DType::planes_q6_k:
            return RowFormat::q6_k;
        case DType::planes_q2_k:
            return RowFormat::q2_k;
        case DType::planes_int8:
            return scaled(DType::f16, 32) ? RowFormat::int8 : RowFormat::none;
        case DType::planes_int4:
            return scaled(DType::f16, 32) ? RowFormat::int4 : RowFormat::none;
        case DType::planes_levels:
            return scaled(DType::f16, 32) ? RowFormat::levels_f16
                   : scaled(DType::f32, 32)
                       ? (w.levels == static_cast<uint8_t>(LevelSet::iq3_s) ? RowFormat::iq3_s : RowFormat::levels_f32)
                   : scaled(DType::f32, 16) ? RowFormat::levels_f32_16
                                            : RowFormat::none;
        default:
            return RowFormat::none;
    }
}

int64_t planes_stride(const std::vector<Weight>& experts) {
    if (experts.size() < 2) return 0;
    const auto between = [](const void* a, const void* b) {
        return static_cast<const char*>(b) - static_cast<const char*>(a);
    };
    const Weight &a = experts[0], &b = experts[1];
    const int64_t stride = between(a.data, b.data);
    const bool same = between(a.scales, b.scales) == stride && (a.high == nullptr || between(a.high, b.high) == stride);
    return same ? stride : 0;
}

}  // namespace riptide::ops::cuda::decode
