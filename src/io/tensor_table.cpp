#include "io/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "io/content.h"

namespace riptide {

TensorTable::TensorTable(std::vector<TensorInfo> tensors) : tensors_(std::move(tensors)), by_name_(tensors_.size()) {
    std::iota(by_name_.begin(), by_name_.end(), 0u);
    std::sort(by_name_.begin(), by_name_.end(),
              [&](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
    for (size_t i = 1; i < by_name_.size(); ++i) {
        const TensorInfo& a = tensors_[by_name_[i - 1]];
        const TensorInfo& b = tensors_[by_name_[i]];
        if (a.name != b.name) continue;
        if (a.file == b.file) fail("{}: tensor {} is there twice", a.file, printable(a.name));
        fail("{}: tensor {} is also in {}", a.file, printable(a.name), b.file);
    }
}

const TensorInfo* TensorTable::find(std::string_view name) const {
    const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                     [&](uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
    return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

int64_t stored_bytes(const std::string& what, DType dtype, std::span<const int64_t> shape) {
    try {
        int64_t bytes = row_bytes(dtype, shape.empty() ? 1 : shape.back());
        for (size_t i = 0; i + 1 < shape.size(); ++i) bytes = checked_mul(bytes, shape[i], "tensor");
        return bytes;
    } catch (const Error& error) {
        fail("{} {}: {}", what, shape_text(shape), error.what());
    }
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace riptide
