// Zeroed host memory that costs nothing until it is touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace riptide {

/// A private anonymous mapping: page-aligned, reads as zeros, resident only where written. Move-only.
class HostMemory {
  public:
    HostMemory() = default;
    /// Throws Error (system) when the kernel refuses the address space. bytes == 0 gives data() == nullptr.
    explicit HostMemory(int64_t bytes);
    ~HostMemory();
    HostMemory(HostMemory&& other) noexcept;
    HostMemory& operator=(HostMemory&& other) noexcept;

    std::byte* data() const { return data_; }
    int64_t bytes() const { return bytes_; }

  private:
    std::byte* data_ = nullptr;
    int64_t bytes_ = 0;
};

}  // namespace riptide
