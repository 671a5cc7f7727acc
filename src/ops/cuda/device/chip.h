// What choosing a kernel depends on of a GPU. Without CUDA: plans for any chip can be made on any machine.
#pragma once

#include <cstdint>

#include "tensor/gpu.h"

namespace riptide::ops::cuda {

struct Chip {
    int major = 0, minor = 0;  // compute capability
    int sms = 0;
    int64_t shared_bytes = 0;  // the most that one CTA may have
    bool portable = false;     // GpuOptions::portable

    /// As Gpu::programmatic() and Gpu::hopper().
    bool programmatic() const { return major >= 9 && !portable; }
    bool hopper() const { return major == 9 && !portable; }
};

inline Chip chip_of(const Gpu& gpu) {
    const GpuInfo& info = gpu.info();
    return {info.major, info.minor, info.sm_count, info.shared_bytes, gpu.options().portable};
}

}  // namespace riptide::ops::cuda
