#include "models/binder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "io/content.h"
#include "io/foreign_format.h"
#include "io/tensor_table.h"
#include "models/similar_names.h"
#include "quant/dot.h"
#include "quant/planes.h"
#include "tensor/half.h"

namespace riptide {

namespace {

/// Ends of names that may stay unused: what they hold does not change the result of a forward pass in f32, or is known
/// otherwise.
constexpr std::array<std::string_view, 8> kIgnored = {
    "rotary_emb.inv_freq",  // computed from the config
    ".k_scale",
    ".v_scale",  // for an FP8 K/V cache, where they are read (models/kv_scales.h)
    ".k_proj.output_scale",
    ".v_proj.output_scale",
    ".input_global_scale",
    ".input_scale",   // for quantised activations (ModelOpt, and GGUF files made from its models)
    ".weight_shape",  // the header's shapes say it
};

std::vector<int64_t> without_ones(std::vector<int64_t> shape) {
    std::erase(shape, 1);
    return shape;
}

bool ignorable(std::string_view name) {
    return std::any_of(kIgnored.begin(), kIgnored.end(), [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace

Binder::Binder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    refuse_foreign_format(checkpoint);
    constexpr std::string_view kWrapped = "language_model.";
    if (checkpoint.format() == Checkpoint::Format::safetensors)
        for (const TensorInfo& tensor : checkpoint.tensors())
            if (tensor.name.starts_with(kWrapped)) prefix_ = kWrapped;
}

const std::vector<std::string>& Binder::candidates(const TensorNames& names) const {
    return checkpoint_.format() == Checkpoint::Format::gguf ? names.gguf : names.hf;
}

const TensorInfo* Binder::find_name(const std::string& name) const { return checkpoint_.find(prefix_ + name); }

/// The tensor under the first name that exists, its packed form included.
const TensorInfo* Binder::find(const TensorNames& names) const {
    for (const std::string& name : candidates(names)) {
        if (const TensorInfo* tensor = find_name(name)) return tensor;
        if (const TensorInfo* tensor = name.ends_with(kWeight) ? find_name(name + "_packed") : nullptr) return tensor;
    }
    return nullptr;
}

void Binder::fail_missing(std::span<const std::string> names) const {
    RT_ASSERT(!names.empty());
    std::vector<std::string> known;
    for (const TensorInfo& tensor : checkpoint_.tensors()) known.push_back(tensor.name);
    std::string message = fmt::format("{}: missing tensor {}{}", checkpoint_.path(), prefix_, names[0]);
    if (names.size() > 1) message += fmt::format(" (looked also for {})", fmt::join(names.subspan(1), ", "));
    std::vector<std::string> similar = similar_names(names[0], known, 3);
    for (std::string& name : similar) name = printable(name);
    if (!similar.empty()) message += fmt::format("; similar names in the file: {}", fmt::join(similar, ", "));
    throw Error(message);
}

std::string Binder::where(const TensorInfo& tensor) const {
    return fmt::format("{}: tensor {}", tensor.file, printable(tensor.name));
}

const TensorInfo& Binder::use(const TensorInfo& tensor, int64_t parameters) {
    if (used_.insert(tensor.name).second) {
        parameters_ = checked_add(parameters_, parameters, "parameters");
        weight_bytes_ = checked_add(weight_bytes_, static_cast<int64_t>(tensor.bytes.size()), "weights");
    }
    return tensor;
}

/// The tensor that belongs to the tensor `of`: scales of packed weights.
const TensorInfo& Binder::companion(const std::string& name, std::string_view of) {
    const TensorInfo* tensor = find_name(name);
    RT_CHECK(tensor, "{}: tensor {} needs {}{}, which is missing", checkpoint_.path(), printable(of), prefix_, name);
    return use(*tensor, 0);
}

int64_t Binder::rows_of(const TensorNames& names) const {
    const TensorInfo* tensor = find(names);
    if (tensor == nullptr) fail_missing(candidates(names));
    RT_CHECK(!tensor->shape.empty(), "{} has shape [], expected a matrix", where(*tensor));
    return tensor->shape[0];
}

Weight Binder::matrix(const TensorNames& names, int64_t rows, int64_t cols) {
    for (const std::string& name : candidates(names))
        if (find_name(name) || (name.ends_with(kWeight) && find_name(name + "_packed")))
            return named_matrix(name, rows, cols);
    fail_missing(candidates(names));
}

Weight Binder::named_matrix(const std::string& name, int64_t rows, int64_t cols) {
    const std::string stem = name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name;
    if (const TensorInfo* tensor = find_name(name)) {
        if (tensor->dtype == DType::u8 && find_name(stem + ".weight_scale") != nullptr)  // ModelOpt's NVFP4
            return packed_matrix(stem, *tensor, rows, cols);
        Weight w = stored_matrix(*tensor, rows, cols);
        if (const std::vector<float> scale = product_scales(*tensor, 1); !scale.empty()) w.scale = scale[0];
        return w.dtype == DType::f8_e4m3 ? float8_matrix(stem, w) : w;
    }
    const TensorInfo* packed = find_name(stem + ".weight_packed");
    RT_ASSERT(packed != nullptr);
    return packed_matrix(stem, *packed, rows, cols);
}

Weight Binder::stored_matrix(const TensorInfo& tensor, int64_t rows, int64_t cols) {
    const std::vector<int64_t> expected = {rows, cols};
    RT_CHECK(tensor.shape == expected || (rows == 1 && without_ones(tensor.shape) == without_ones(expected)),
             "{} has shape {}, expected {}", where(tensor), shape_text(tensor.shape), shape_text(expected));
    RT_CHECK(has_dot(tensor.dtype), "{} is {}, which no matrix product supports", where(tensor),
             dtype_name(tensor.dtype));
    use(tensor, checked_mul(rows, cols, "matrix"));
    Weight w;
    w.data = tensor.bytes.data();
    w.dtype = tensor.dtype;
    w.rows = rows;
    w.cols = cols;
    w.row_bytes = row_bytes(tensor.dtype, cols);
    return w;
}

DType Binder::dtype_of(const TensorNames& names) const {
    const TensorInfo* tensor = find(names);
    if (tensor == nullptr) fail_missing(candidates(names));
    return tensor->dtype;
}

void Binder::skip(std::string_view prefix) {
    for (const TensorInfo& tensor : checkpoint_.tensors())
        if (tensor.name.starts_with(prefix)) used_.insert(tensor.name);
}

std::vector<float> Binder::values(const TensorNames& names, const std::vector<int64_t>& shape) {
    const TensorInfo* found = find(names);
    if (found == nullptr) fail_missing(candidates(names));
    int64_t size = 1;
    for (const int64_t extent : shape) size = checked_mul(size, extent, "values");
    const TensorInfo& tensor = use(*found, size);
    RT_CHECK(without_ones(tensor.shape) == without_ones(shape), "{} has shape {}, expected {}", where(tensor),
             shape_text(tensor.shape), shape_text(shape));
    RT_CHECK(tensor.dtype == DType::f32 || tensor.dtype == DType::f16 || tensor.dtype == DType::bf16,
             "{} is {}, expected f32, f16 or bf16", where(tensor), dtype_name(tensor.dtype));
    std::vector<float> values(static_cast<size_t>(size));
    if (tensor.dtype == DType::f32) {
        std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    } else {
        for (size_t i = 0; i < values.size(); ++i) {
            uint16_t half;
            std::memcpy(&half, tensor.bytes.data() + 2 * i, 2);
            values[i] = tensor.dtype == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
        }
    }
    for (size_t i = 0; i < values.size(); ++i)
        RT_CHECK(std::isfinite(values[i]), "{} has the value {} at {}, expected finite numbers", where(tensor),
                 values[i], i);
    return values;
}

std::vector<int64_t> Binder::integers(const TensorNames& names, int64_t size) {
    const TensorInfo* found = find(names);
    if (found == nullptr) fail_missing(candidates(names));
    const TensorInfo& tensor = use(*found, 0);
    const std::vector<int64_t> expected = {size};
    RT_CHECK(tensor.shape == expected, "{} has shape {}, expected {}", where(tensor), shape_text(tensor.shape),
             shape_text(expected));
    std::vector<int64_t> values(static_cast<size_t>(size));
    const auto read = [&]<class T>(T) {
        for (size_t i = 0; i < values.size(); ++i) {
            T value;
            std::memcpy(&value, tensor.bytes.data() + i * sizeof(T), sizeof(T));
            values[i] = static_cast<int64_t>(value);
        }
    };
    switch (tensor.dtype) {
        case DType::i32:
            read(int32_t{});
            break;
        case DType::i64:
            read(int64_t{});
            break;
        case DType::u8:
        case DType::boolean:
            read(uint8_t{});
            break;
        default:
            fail("{} is {}, expected i32, i64, bool or u8", where(tensor), dtype_name(tensor.dtype));
    }
    return values;
}

std::vector<Weight> Binder::experts(const ExpertNames& names, int64_t experts, int64_t rows, int64_t cols) {
    if (checkpoint_.format() == Checkpoint::Format::gguf) {
        const TensorInfo* tensor = find_name(names.gguf);
        const TensorInfo* both = names.gguf_both.empty() ? nullptr : find_name(names.gguf_both);
        if (tensor == nullptr && both != nullptr) return stack(*both, experts, rows, cols, names.hf_half);
        if (tensor == nullptr) fail_missing(std::span(&names.gguf, 1));
        return stack(*tensor, experts, rows, cols, -1);
    }
    const TensorInfo* stacked = names.hf_stack.empty() ? nullptr : find_name(names.hf_stack);
    if (stacked != nullptr) return stack(*stacked, experts, rows, cols, names.hf_half);
    std::vector<Weight> weights;
    weights.reserve(static_cast<size_t>(experts));
    for (int64_t e = 0; e < experts; ++e) {
        const std::vector<std::string> each = {fmt::format(fmt::runtime(names.hf_each), e)};
        if (e == 0 && !has({{}, each})) fail_missing(std::vector<std::string>{each[0], names.hf_stack});
        weights.push_back(matrix({{}, each}, rows, cols));
    }
    return weights;
}

/// Slices of [experts, rows, cols], or with half 0 or 1 the upper or lower halves of [experts, 2 rows, cols].
std::vector<Weight> Binder::stack(const TensorInfo& tensor, int64_t experts, int64_t rows, int64_t cols, int half) {
    const int64_t stored_rows = half < 0 ? rows : 2 * rows;
    const std::vector<int64_t> expected = {experts, stored_rows, cols};
    RT_CHECK(tensor.shape == expected, "{} has shape {}, expected {}", where(tensor), shape_text(tensor.shape),
             shape_text(expected));
    RT_CHECK(has_dot(tensor.dtype), "{} is {}, which a stack of experts cannot be", where(tensor),
             dtype_name(tensor.dtype));
    use(tensor, checked_mul(experts, checked_mul(stored_rows, cols, "experts"), "experts"));
    std::vector<Weight> weights(static_cast<size_t>(experts));
    const int64_t bytes = row_bytes(tensor.dtype, cols);
    const std::vector<float> scales = product_scales(tensor, experts);
    for (int64_t e = 0; e < experts; ++e) {
        Weight& w = weights[static_cast<size_t>(e)];
        w.data = tensor.bytes.data() + (e * stored_rows + (half == 1 ? rows : 0)) * bytes;
        w.dtype = tensor.dtype;
        w.rows = rows;
        w.cols = cols;
        w.row_bytes = bytes;
        if (!scales.empty()) w.scale = scales[static_cast<size_t>(e)];
    }
    if (tensor.dtype == DType::f8_e4m3) float8_stack(tensor, weights, half);
    return weights;
}

std::vector<std::string> Binder::ignored() const {
    std::vector<std::string> names;
    for (const TensorInfo& tensor : checkpoint_.tensors())
        if (!used_.contains(tensor.name) && ignorable(tensor.name)) names.push_back(tensor.name);
    return names;
}

void Binder::finish() const {
    constexpr size_t kShown = 5;
    std::vector<std::string> unused;
    size_t count = 0;
    for (const TensorInfo& tensor : checkpoint_.tensors()) {
        if (used_.contains(tensor.name) || ignorable(tensor.name)) continue;
        if (count++ < kShown) unused.push_back(fmt::format("{} {}", printable(tensor.name), shape_text(tensor.shape)));
    }
    RT_CHECK(count == 0, "{}: {} {} that this model does not use: {}{}", checkpoint_.path(), count,
             count == 1 ? "tensor" : "tensors", fmt::join(unused, ", "),
             count > kShown ? fmt::format(" and {} more", count - kShown) : "");
}

int64_t bytes_read(const Weight& w) { return placed_bytes(w); }

}  // namespace riptide
