#include <cstring>
#include <utility>

#include "tensor/gpu.h"
#include "tensor/host_memory.h"

namespace riptide {

void copy_bytes(Gpu* gpu, void* to, const void* from, int64_t bytes) {
    if (gpu == nullptr) std::memcpy(to, from, static_cast<size_t>(bytes));
    else gpu->copy(to, from, bytes);
}

DeviceMemory::DeviceMemory(Gpu* gpu, int64_t bytes, const char* what) : gpu_(gpu), bytes_(bytes) {
    if (bytes == 0) return;
    if (gpu == nullptr) {
        data_ = HostMemory(bytes, what).release();
    } else {
        data_ = static_cast<std::byte*>(gpu->allocate(bytes, what));
        gpu->fill(data_, 0, bytes);
    }
}

DeviceMemory::~DeviceMemory() {
    if (data_ == nullptr) return;
    if (gpu_ == nullptr) HostMemory::adopt(data_, bytes_);
    else gpu_->free(data_, bytes_);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : gpu_(other.gpu_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

}  // namespace riptide
