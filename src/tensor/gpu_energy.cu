#include "tensor/gpu_energy.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <utility>

#include "base/error.h"
#include "tensor/cuda_check.cuh"

namespace riptide {

namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

template <class F>
void find(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));
    RT_CHECK(function != nullptr, ErrorKind::unavailable, "energy: {} of this driver has no {}", kLibrary, name);
}

}  // namespace

GpuEnergy::GpuEnergy(const Gpu& gpu) {
    char bus[32] = {};
    RT_CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, gpu.info().ordinal));
    library_ = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    RT_CHECK(
        library_ != nullptr, ErrorKind::unavailable,
        "energy: {} cannot be loaded: it comes with NVIDIA's driver, and containers need the capability \"utility\"",
        kLibrary);
    try {
        int (*init)() = nullptr;
        int (*by_bus)(const char*, void**) = nullptr;
        find(library_, "nvmlErrorString", text_);
        find(library_, "nvmlInit_v2", init);
        find(library_, "nvmlDeviceGetHandleByPciBusId_v2", by_bus);
        find(library_, "nvmlDeviceGetTotalEnergyConsumption", total_);
        const int began = init();
        RT_CHECK(began == 0, ErrorKind::unavailable, "energy: NVML does not start: {}", text_(began));
        find(library_, "nvmlShutdown", shutdown_);
        const int found = by_bus(bus, &device_);
        RT_CHECK(found == 0, ErrorKind::unavailable, "energy: NVML does not show {} at {}: {}", gpu.info().name, bus,
                 text_(found));
        joules();
    } catch (...) {
        if (shutdown_ != nullptr) shutdown_();
        dlclose(library_);
        throw;
    }
}

GpuEnergy::GpuEnergy(GpuEnergy&& other) noexcept
    : library_(std::exchange(other.library_, nullptr)),
      device_(other.device_),
      total_(other.total_),
      shutdown_(other.shutdown_),
      text_(other.text_) {}

GpuEnergy::~GpuEnergy() {
    if (library_ == nullptr) return;
    shutdown_();
    dlclose(library_);
}

double GpuEnergy::joules() const {
    unsigned long long millijoules = 0;
    const int read = total_(device_, &millijoules);
    RT_CHECK(read == 0, ErrorKind::unavailable, "energy: the driver does not tell how much this device takes: {}",
             text_(read));
    return 1e-3 * static_cast<double>(millijoules);
}

}  // namespace riptide
