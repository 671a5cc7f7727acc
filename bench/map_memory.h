// Memory for benchmarks, on pages of a chosen size.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace riptide {

/// Fresh memory, never given back, aligned to 2 MB; it is the fault of the filling thread where its pages lie.
inline std::byte* map_memory(int64_t bytes, bool huge) {
    constexpr int64_t kPage = int64_t{2} << 20;
    void* p = mmap(nullptr, static_cast<size_t>(bytes + kPage), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RT_CHECK(p != MAP_FAILED, "no memory for {} bytes", bytes);
    auto* base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(p) + kPage - 1) / kPage * kPage);
    madvise(base, static_cast<size_t>(bytes), huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return base;
}

}  // namespace riptide
