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

/// One card of each architecture, for plans of chips that are not there. bandwidth: of its memory, bytes a second, from
/// NVIDIA's data sheets.
struct NamedChip {
    const char *name, *card;
    Chip chip;
    double bandwidth;
};
inline constexpr NamedChip kNamedChips[] = {
    {"sm_75", "T4", {7, 5, 40, 64 << 10}, 320e9},       {"sm_80", "A100", {8, 0, 108, 163 << 10}, 2039e9},
    {"sm_86", "RTX 3090", {8, 6, 82, 99 << 10}, 936e9}, {"sm_89", "RTX 4090", {8, 9, 128, 99 << 10}, 1008e9},
    {"sm_90", "H100", {9, 0, 132, 227 << 10}, 3350e9},  {"sm_120", "RTX 5090", {12, 0, 170, 99 << 10}, 1792e9},
};

}  // namespace riptide::ops::cuda
