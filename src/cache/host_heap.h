// Host memory for cached state, which a GPU fills and reads on its own time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "tensor/gpu.h"
#include "tensor/host_memory.h"

namespace riptide {

/// A piece of a HostHeap. Copies between it and a GPU are put on the stream and not waited for; `ready` is the point of
/// the heap's clock behind which the host may touch it. Later work on the stream needs no such care.
struct HostBlock {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    uint64_t ready = 0;
    std::span<std::byte> span() const { return {data, static_cast<size_t>(bytes)}; }
};
/// Shared by whoever needs the bytes; back in the heap when nobody does. May outlive the owner of the heap.
using HostBytes = std::shared_ptr<HostBlock>;

/// Hands out blocks of a few large regions, which it takes from the system as they are wanted and keeps: pinned memory
/// with a GPU, else memory that is resident only where written, or where keep_ready() has made it so. The smallest free
/// range that fits is taken; adjacent free ranges are joined. Whoever takes blocks keeps the budget. Not thread-safe.
class HostHeap : public std::enable_shared_from_this<HostHeap> {
  public:
    static constexpr int64_t kRegionBytes = int64_t{128} << 20;

    /// `gpu`: null on the CPU.
    static std::shared_ptr<HostHeap> make(Gpu* gpu);
    ~HostHeap();
    HostHeap(const HostHeap&) = delete;
    HostHeap& operator=(const HostHeap&) = delete;

    /// Takes regions until there are so many bytes of them, or the system gives no more.
    void reserve(int64_t bytes);
    /// From now on a thread of the heap's own keeps `ahead` bytes of regions ready, until it has made `most` in all: to
    /// pin 128 MiB takes 50 to 67 ms on an H200's host, and to touch them up to 500 ms on a virtual machine; whoever
    /// takes a block would wait for that. One who needs a region before it is pinned waits for the thread. REQUIRES
    /// ahead <= most and that it was not called before.
    void keep_ready(int64_t ahead, int64_t most);
    /// A block with any contents, for a GPU to write into. Null when the system gives no more memory.
    HostBytes take(int64_t bytes);
    /// The same for the host to write into: waits for what a GPU may still read there.
    HostBytes take_for_host(int64_t bytes);
    /// Waits until the host may touch the block.
    void wait(const HostBlock& block) { clock_.wait(block.ready); }
    /// Of the stream that copies to and from the blocks.
    GpuClock& clock() { return clock_; }

    /// Bytes of all regions, and of the blocks in use.
    int64_t reserved() const { return reserved_; }
    int64_t used() const { return used_; }
    /// Bytes of regions that keep_ready() has made and nobody has taken.
    int64_t ready();

  private:
    struct Region {
        HostMemory plain;
        PinnedMemory pinned;
        std::byte* data() const { return pinned.data() != nullptr ? pinned.data() : plain.data(); }
    };
    struct Free {
        int64_t bytes = 0;
        size_t region = 0;
    };

    /// Regions made by another thread. All but `thread` under the mutex.
    struct Behind {
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<Region> ready;
        bool making = true, stop = false;  // making: more will be ready
        std::thread thread;
    };

    explicit HostHeap(Gpu* gpu) : gpu_(gpu), clock_(gpu) {}
    Region make_region(int64_t bytes) const;
    void make_behind(size_t ahead, int64_t most);
    bool take_ready(Region& region);
    bool grow(int64_t bytes);
    void add_free(std::byte* at, Free range);
    void remove_free(std::map<std::byte*, Free>::iterator at);
    void give_back(std::byte* at, int64_t bytes, size_t region, uint64_t ready);

    Gpu* gpu_;
    GpuClock clock_;
    std::vector<Region> regions_;
    std::map<std::byte*, Free> free_;                   // by address
    std::set<std::pair<int64_t, std::byte*>> by_size_;  // the same
    int64_t reserved_ = 0;
    int64_t used_ = 0;
    uint64_t freed_ready_ = 0;  // the latest `ready` of blocks given back
    Behind behind_;
};

}  // namespace riptide
