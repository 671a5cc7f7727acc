// The bounded state of a sequence, kept apart from its slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/gpu.h"

namespace riptide {

class KvCache;

/// What SequenceState::save has copied out of a slot: the last window - 1 tokens of each window layer and the state of
/// each delta layer, packed (ops/kv/kv_pack.h), in the memory of the cache's device. Belongs to that cache.
class SavedState {
  public:
    /// Of so many tokens; 0: nothing is kept.
    int64_t length() const { return length_; }
    /// The packed bytes. On a GPU this waits for the device.
    std::vector<std::byte> bytes() const;

  private:
    friend class SequenceState;

    const KvCache* cache_ = nullptr;
    int64_t length_ = 0, bytes_ = 0;
    DeviceMemory packed_;
};

}  // namespace riptide
