// Masks of allowed tokens that a device keeps.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/sampling/form_cache.h"
#include "ops/sample.h"
#include "tensor/gpu.h"

namespace riptide {

/// Which masks lie at which of `count` places: the last used stay. No device code; not thread-safe.
class MaskPool {
  public:
    explicit MaskPool(int64_t count) : count_(count) {}

    struct Place {
        int32_t number = -1;
        bool fresh = false;  // the mask is not there yet
    };
    /// Where the mask of a set lies from now on. The masks of the last `count` calls stay where they are. REQUIRES
    /// !set.any_token().
    Place find(const AllowedSet& set);
    int64_t size() const { return static_cast<int64_t>(by_key_.size()); }
    void clear();

  private:
    // Sets of one answer's place are alike if mask, end and stop ids are. A kept mask lives on, so that no other has
    // its address; one that the constraint has forgotten and found again is another.
    using Key = std::pair<std::pair<const TokenMask*, bool>, std::vector<int32_t>>;
    struct Entry {
        std::shared_ptr<const TokenMask> mask;
        int32_t number;
        std::map<Key, std::list<Entry>::iterator>::iterator where;
    };

    int64_t count_;
    std::list<Entry> used_;  // the last used first
    std::map<Key, std::list<Entry>::iterator> by_key_;
};

/// The same in a GPU's memory. A mask is uploaded when it is met first; from then on rows name it by its number, 4
/// bytes each. Takes its memory at the first use. Not thread-safe.
class DeviceMasks {
  public:
    static constexpr int64_t kMostRows = 256;  // of a step, which may all differ
    static constexpr int64_t kMostBytes = int64_t{16} << 20, kMostKept = 1024;
    /// Masks that are kept: as many as kMostBytes hold, kMostRows to kMostKept.
    static int64_t count(int64_t vocab_size);
    /// Of device memory, at most.
    static int64_t bytes(int64_t vocab_size);

    DeviceMasks(Gpu& gpu, int64_t vocab_size) : gpu_(gpu), vocab_size_(vocab_size), pool_(count(vocab_size)) {}

    /// Two uses that may be under way at a time.
    enum class Use { step, rows };
    /// What rows may draw, in stream order, without waiting for the device; REQUIRES at most kMostRows, and that what
    /// was drawn with the last result for this use has arrived. The arrays stay where they are: valid until the next
    /// call.
    ops::SampleMasks upload(std::span<const AllowedSet> rows, Use use);

  private:
    void take_memory();

    Gpu& gpu_;
    int64_t vocab_size_;
    MaskPool pool_;
    DeviceMemory masks_, of_row_;    // [count, words]; [2][kMostRows]
    PinnedMemory staged_;            // of each use: numbers of masks, then masks
    std::vector<int32_t> known_[2];  // what of_row_ holds
};

}  // namespace riptide
