// Weights that compressed-tensors, ModelOpt and the publishers of FP8 models keep as codes and scales, and the scale
// that llama.cpp's converter keeps beside NVFP4. Layouts: see Binder.
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "io/content.h"
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

std::vector<float> Binder::scales(const TensorNames& names, int64_t heads) {
    const TensorInfo* found = find(names);
    if (found == nullptr) fail_missing(candidates(names));
    const TensorInfo& tensor = use(*found, 0);
    const int64_t there = count(tensor);
    RT_CHECK(is_scale_type(tensor.dtype) && (there == 1 || there == heads),
             "{} is {} {}, expected one floating-point value or {} of them", where(tensor), dtype_name(tensor.dtype),
             shape_text(tensor.shape), heads);
    const Weight row{.rows = 1, .cols = there, .scales = tensor.bytes.data(), .scale_dtype = tensor.dtype};
    std::vector<float> values;
    for (int64_t i = 0; i < there; ++i) {
        values.push_back(row.plane_scale(0, i));
        RT_CHECK(values.back() >= 0x1p-64f && values.back() <= 0x1p64f,
                 "{} holds {}, expected positive numbers, from 2^-64 to 2^64", where(tensor), values.back());
    }
    return values;
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

/// The scale `name` of float8 weights, or `name`_inv, as DeepSeek's and Qwen's releases call it: what is inverse there
/// is the quantiser's factor, so both multiply.
const TensorInfo& Binder::float8_scale(const std::string& name, std::string_view of) {
    const std::string inverse = name + "_inv";
    const bool there = find_name(name) != nullptr, inverse_there = find_name(inverse) != nullptr;
    RT_CHECK(there || inverse_there, "{}: tensor {} needs {}{}, which is missing, and so is {}{}", checkpoint_.path(),
             printable(of), prefix_, name, prefix_, inverse);
    RT_CHECK(!there || !inverse_there, "{}: tensor {} has two scales, {}{} and {}{}, expected one of them",
             checkpoint_.path(), printable(of), prefix_, name, prefix_, inverse);
    return companion(there ? name : inverse, of);
}

Weight Binder::float8_matrix(const std::string& stem, Weight w) {
    const TensorInfo& scale = float8_scale(stem + ".weight_scale", stem + ".weight");
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

/// Scales [experts, blocks of rows, blocks of columns] beside a stack; with half 0 or 1 the upper or lower halves of
/// them.
void Binder::float8_stack(const TensorInfo& tensor, std::vector<Weight>& experts, int half) {
    const TensorInfo& scale = float8_scale(tensor.name.substr(prefix_.size()) + "_scale", tensor.name);
    RT_CHECK(half < 0 || experts[0].rows % kFloat8Block == 0,
             "{} has gate and up of {} rows each, expected a multiple of {}: a block of scales may not hold both",
             where(tensor), experts[0].rows, kFloat8Block);
    const int64_t rows = ceil_div(experts[0].rows, kFloat8Block), cols = ceil_div(experts[0].cols, kFloat8Block);
    const int64_t stored_rows = half < 0 ? rows : 2 * rows;
    const std::vector<int64_t> blocks = {std::ssize(experts), stored_rows, cols};
    RT_CHECK(scale.shape == blocks && is_scale_type(scale.dtype), "{} is {} {}, expected f32, bf16 or f16 {}",
             where(scale), dtype_name(scale.dtype), shape_text(scale.shape), shape_text(blocks));
    for (size_t e = 0; e < experts.size(); ++e) {
        const int64_t row = static_cast<int64_t>(e) * stored_rows + (half == 1 ? rows : 0);
        experts[e].scales = scale.bytes.data() + row_bytes(scale.dtype, row * cols);
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
        if (packed.name.ends_with("_packed"))
            w.scale = 1.0f / scalar(companion(stem + ".weight_global_scale", packed.name));
        else w.scale = scalar(companion(stem + ".weight_scale_2", packed.name));
    }
    return w;
}

/// X.scale beside X.weight in a GGUF file: a factor of the whole product, one for each expert of a stack. Empty if
/// there is none. llama.cpp's converter writes it for NVFP4, whose blocks cannot take it in without rounding.
std::vector<float> Binder::product_scales(const TensorInfo& tensor, int64_t count) {
    const std::string_view name = tensor.name;
    const bool weight = checkpoint_.format() == Checkpoint::Format::gguf && name.ends_with(kWeight);
    const TensorInfo* scale =
        weight ? find_name(std::string(name.substr(0, name.size() - kWeight.size())) + ".scale") : nullptr;
    if (scale == nullptr) return {};
    RT_CHECK(tensor.dtype == DType::nvfp4,
             "{} multiplies the product with {}, which is {}: such a factor is supported for nvfp4 alone",
             where(*scale), printable(name), dtype_name(tensor.dtype));
    RT_CHECK(scale->dtype == DType::f32 && scale->shape == std::vector<int64_t>{count},
             "{} is {} {}, expected f32 [{}], factors of the product with {}", where(*scale), dtype_name(scale->dtype),
             shape_text(scale->shape), count, printable(name));
    use(*scale, 0);
    std::vector<float> factors(static_cast<size_t>(count));
    std::memcpy(factors.data(), scale->bytes.data(), scale->bytes.size());
    for (const float factor : factors)
        RT_CHECK(std::isfinite(factor) && factor > 0, "{} holds {}, expected positive numbers", where(*scale), factor);
    return factors;
}

}  // namespace riptide
