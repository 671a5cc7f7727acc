// The arrays of a step in device memory.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/batch.h"
#include "tensor/gpu.h"

namespace riptide {

/// Copies of a Batch's arrays in device memory, at addresses that depend only on the arrays' sizes, so that a recorded
/// graph can be launched again for another step of the same numbers of rows and sequences that has gaps too, or none.
/// Not thread-safe.
class DeviceBatch {
  public:
    /// Room for steps of this many rows and sequences, with this many pages in a sequence.
    DeviceBatch(Gpu& gpu, int64_t rows, int64_t sequences, int64_t pages);

    /// One copy, in stream order. The result points to device memory and has max_pages = `pages`; its sizes are those
    /// of `host`. Valid until the next upload. Throws Error for a batch beyond the room.
    const Batch& upload(const Batch& host);
    const Batch& batch() const { return batch_; }
    int64_t pages() const { return pages_; }

  private:
    Gpu& gpu_;
    int64_t rows_, sequences_, pages_;
    DeviceMemory memory_;
    std::vector<int32_t> staging_;
    Batch batch_;
};

}  // namespace riptide
