#include "tensor/host_memory.h"

#include <sys/mman.h>

#include <utility>

#include "base/error.h"

namespace riptide {

namespace {
constexpr int64_t kLarge = int64_t{4} << 20;
}

HostMemory::HostMemory(int64_t bytes, const char* what) : bytes_(bytes) {
    RT_ASSERT(bytes >= 0);
    if (bytes == 0) return;
    void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fail(ErrorKind::system, "the system has no {} bytes of address space for the {}", bytes, what);
    data_ = static_cast<std::byte*>(p);
    // The rows of one KV head lie a page apart: on 4 KiB pages each of them misses the TLB. Advice only.
    if (bytes >= kLarge) madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);
}

HostMemory::~HostMemory() {
    if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

HostMemory HostMemory::adopt(std::byte* data, int64_t bytes) {
    HostMemory memory;
    memory.data_ = data;
    memory.bytes_ = bytes;
    return memory;
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

}  // namespace riptide
