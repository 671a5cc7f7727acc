// Tensors by name: what both checkpoint formats keep.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"

namespace riptide {

/// Tensors in the order of the file, found by name in O(log n). Immutable.
class TensorTable {
  public:
    TensorTable() = default;
    /// Throws Error naming the file and the tensor if two have one name.
    explicit TensorTable(std::vector<TensorInfo> tensors);

    std::span<const TensorInfo> all() const { return tensors_; }
    const TensorInfo* find(std::string_view name) const;

  private:
    std::vector<TensorInfo> tensors_;
    std::vector<uint32_t> by_name_;
};

/// Bytes of a tensor of that type and row-major shape (no dimensions: one value). Throws Error on overflow or on a row
/// that is not whole blocks; its message begins with `what` and the shape.
int64_t stored_bytes(const std::string& what, DType dtype, std::span<const int64_t> shape);

/// "[2, 3]"
std::string shape_text(std::span<const int64_t> shape);

}  // namespace riptide
