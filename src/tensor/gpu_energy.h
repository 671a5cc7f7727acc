// How much energy a GPU has taken.
#pragma once

#include <cstdint>

#include "tensor/gpu.h"

namespace riptide {

/// The driver's own count (NVML's nvmlDeviceGetTotalEnergyConsumption) for a whole device, whoever used it. The driver
/// renews the count some ten times a second, so that a second is the least worth measuring. NVML is loaded when asked
/// for; nothing links to it. Move-only; one thread at a time.
class GpuEnergy {
  public:
    /// Throws Error (unavailable), with the reason: no NVML, a driver or chip without such a count, no permission.
    explicit GpuEnergy(const Gpu& gpu);
    ~GpuEnergy();
    GpuEnergy(GpuEnergy&& other) noexcept;
    GpuEnergy& operator=(GpuEnergy&&) = delete;
    GpuEnergy(const GpuEnergy&) = delete;

    /// Since the driver was loaded. Throws as the constructor.
    double joules() const;

  private:
    void* library_ = nullptr;
    void* device_ = nullptr;
    int (*total_)(void*, unsigned long long*) = nullptr;
    int (*shutdown_)() = nullptr;
    const char* (*text_)(int) = nullptr;
};

}  // namespace riptide
