// Zeroed host memory that costs nothing until it is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace riptide {

/// A private anonymous mapping: page-aligned, reads as zeros, resident only where written (from 4 MiB on in
/// pages of 2 MiB, if the system has them). Move-only.
class HostMemory {
  public:
    HostMemory() = default;
    /// Throws Error (system) that names `what` when the kernel refuses the address space. bytes == 0 gives data() ==
    /// nullptr.
    HostMemory(int64_t bytes, const char* what);
    ~HostMemory();
    HostMemory(HostMemory&& other) noexcept;
    HostMemory& operator=(HostMemory&& other) noexcept;

    /// Gives the mapping away, and takes one back.
    std::byte* release() { return std::exchange(data_, nullptr); }
    static HostMemory adopt(std::byte* data, int64_t bytes);

    std::byte* data() const { return data_; }
    int64_t bytes() const { return bytes_; }

  private:
    std::byte* data_ = nullptr;
    int64_t bytes_ = 0;
};

}  // namespace riptide
