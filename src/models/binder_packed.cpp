// Weights that compressed-tensors keeps as codes and scales. Layouts: see Binder.
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "io/tensor_table.h"
#include "models/binder.h"
#include "tensor/half.h"

namespace riptide {

namespace {

constexpr int64_t kFloat8Block = 128;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool is_scale_type(DType type) {
    return type == DType::f32 || type == DType::bf16 || type == DType::f16 || type == DType::f8_e4m3;
}

int64_t count(const TensorInfo& tensor) {
    int64_t n = 1;
    for (const int64_t extent : tensor.shape) n *= extent;
    return n;
}

}  // namespace

float Binder::scalar(const TensorInfo& tensor) const {
    RT_CHECK(is_scale_type(tensor.dtype) && count(tensor) == 1, "{} is {} {}, expected one floating-point value",
             where(tensor), dtype_name(tensor.dtype), shape_text(tensor.shape));
    Weight one;
    one.rows = one.cols = 1;
    one.scales = tensor.bytes.data();
    one.scale_dtype = tensor.dtype;
    const float value = one.plane_scale(0, 0);
    RT_CHECK(std::isfinite(value) && value > 0, "{} is {}, expected a positive number", where(tensor), value);
    return value;
}

/// One scale per row, or per group of columns of a row.
void Binder::set_scale_plane(Weight& w, const TensorInfo& scale) {
    RT_CHECK(is_scale_type(scale.dtype), "{} is {}, expected f32, bf16, f16 or f8_e4m3", where(scale),
             dtype_name(scale.dtype));
    const bool column = scale.shape.size() == 1 && scale.shape[0] == w.rows;
    const int64_t groups = column ? 1 : scale.shape.size() == 2 ? scale.shape[1] : 0;
    RT_CHECK((column || (scale.shape.size() == 2 && scale.shape[0] == w.rows)) && groups > 0 && w.cols % groups == 0,
             "{} has shape {}, expected [{}, a divisor of {}]", where(scale), shape_text(scale.shape), w.rows, w.cols);
    w.scales = scale.bytes.data();
    w.scale_dtype = scale.dtype;
    w.scale_rows = 1;
    w.scale_cols = w.cols / groups;
}

Weight Binder::float8_matrix(const std::string& stem, Weight w) {
    const TensorInfo& scale = companion(stem + ".weight_scale", stem + ".weight");
    if (count(scale) == 1 && scale.shape.size() < 2) {
        w.scale = scalar(scale);
        return w;
    }
    const std::vector<int64_t> blocks = {ceil_div(w.rows, kFloat8Block), ceil_div(w.cols, kFloat8Block)};
    if (scale.shape != blocks) {
        set_scale_plane(w, scale);
        return w;
    }
    RT_CHECK(is_scale_type(scale.dtype), "{} is {}, expected f32, bf16 or f16", where(scale), dtype_name(scale.dtype));
    w.scales = scale.bytes.data();
    w.scale_dtype = scale.dtype;
    w.scale_rows = w.scale_cols = kFloat8Block;
    return w;
}

/// Scales [experts, blocks of rows, blocks of columns] beside a stack.
void Binder::float8_stack(const TensorInfo& tensor, std::vector<Weight>& experts) {
    const TensorInfo& scale = companion(tensor.name.substr(prefix_.size()) + "_scale", tensor.name);
    const int64_t rows = ceil_div(experts[0].rows, kFloat8Block), cols = ceil_div(experts[0].cols, kFloat8Block);
    const std::vector<int64_t> blocks = {std::ssize(experts), rows, cols};
    RT_CHECK(scale.shape == blocks && is_scale_type(scale.dtype), "{} is {} {}, expected f32, bf16 or f16 {}",
             where(scale), dtype_name(scale.dtype), shape_text(scale.shape), shape_text(blocks));
    const int64_t bytes = row_bytes(scale.dtype, rows * cols);
    for (size_t e = 0; e < experts.size(); ++e) {
        experts[e].scales = scale.bytes.data() + static_cast<int64_t>(e) * bytes;
        experts[e].scale_dtype = scale.dtype;
        experts[e].scale_rows = experts[e].scale_cols = kFloat8Block;
    }
}

Weight Binder::packed_matrix(const std::string& stem, const TensorInfo& packed, int64_t rows, int64_t cols) {
    const bool two = packed.shape.size() == 2 && packed.shape[0] == rows;
    const int64_t width = two ? packed.shape[1] : 0;
    Weight w;
    if (two && packed.dtype == DType::u8 && width * 2 == cols) w.dtype = DType::f4_pack;
    else if (two && packed.dtype == DType::i32 && width * 8 == cols) w.dtype = DType::i4_pack;
    else if (two && packed.dtype == DType::i32 && width * 4 == cols) w.dtype = DType::i8_pack;
    else
        fail("{} is {} {}, expected i32 [{}, {} or {}] or u8 [{}, {}]", where(packed), dtype_name(packed.dtype),
             shape_text(packed.shape), rows, cols / 8, cols / 4, rows, cols / 2);
    use(packed, checked_mul(rows, cols, "matrix"));
    w.data = packed.bytes.data();
    w.rows = rows;
    w.cols = cols;
    w.row_bytes = row_bytes(w.dtype, cols);
    const TensorInfo& scale = companion(stem + ".weight_scale", packed.name);
    set_scale_plane(w, scale);
    if (w.dtype == DType::f4_pack) {
        RT_CHECK(scale.dtype == DType::f8_e4m3 && w.scale_cols == 16, "{} is {} {}, expected f8_e4m3 [{}, {}]",
                 where(scale), dtype_name(scale.dtype), shape_text(scale.shape), rows, cols / 16);
        w.scale = 1.0f / scalar(companion(stem + ".weight_global_scale", packed.name));
    }
    return w;
}

}  // namespace riptide
