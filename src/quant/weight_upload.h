// Bytes from a file's mapping into planes on a GPU, as fast as the bus takes them. The engine room of WeightStore.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "quant/placement.h"
#include "tensor/gpu.h"

namespace riptide {

/// Several host threads copy into pinned buffers; a buffer then travels to the device, where kernels repack it, while
/// the next ones fill and travel. What is handed in is read later, at the latest in finish(). Not thread-safe.
class WeightUpload {
  public:
    /// `on_progress`: host bytes that have been taken, ever growing; called on the caller's thread.
    WeightUpload(Gpu& gpu, std::function<void(int64_t)> on_progress);
    ~WeightUpload();
    WeightUpload(const WeightUpload&) = delete;
    WeightUpload& operator=(const WeightUpload&) = delete;

    /// `to` is plan.at() of device memory.
    void matrix(const Weight& host, const Placement& plan, const Weight& to);
    void bytes(const void* host, int64_t count, void* to);
    /// Returns when all is in place.
    void finish();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace riptide
