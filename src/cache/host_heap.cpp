#include "cache/host_heap.h"

#include <sys/resource.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "tensor/gpu_thread.h"
#include "tensor/resident.h"

namespace riptide {

namespace {

constexpr int64_t kAlign = 256;

}  // namespace

std::shared_ptr<HostHeap> HostHeap::make(Gpu* gpu) { return std::shared_ptr<HostHeap>(new HostHeap(gpu)); }

HostHeap::~HostHeap() {
    if (!behind_.thread.joinable()) return;
    {
        const std::lock_guard lock(behind_.mutex);
        behind_.stop = true;
    }
    behind_.changed.notify_all();
    behind_.thread.join();
}

HostHeap::Region HostHeap::make_region(int64_t bytes) const {
    Region region;
    if (gpu_ != nullptr) region.pinned = PinnedMemory(*gpu_, bytes);
    else region.plain = HostMemory(bytes, "cached state");
    return region;
}

void HostHeap::keep_ready(int64_t ahead, int64_t most) {
    RT_ASSERT(!behind_.thread.joinable() && ahead <= most);
    const auto regions = [](int64_t bytes) { return (bytes + kRegionBytes - 1) / kRegionBytes; };
    if (ahead > 0)
        behind_.thread =
            std::thread([this, n = static_cast<size_t>(regions(ahead)), all = regions(most)] { make_behind(n, all); });
}

/// On the thread. Ends early when the system gives no more memory: who needs it then hears that from grow().
void HostHeap::make_behind(size_t ahead, int64_t most) {
    try {
        if (gpu_ != nullptr) use_on_this_thread(*gpu_);
        else ::setpriority(PRIO_PROCESS, 0, 10);  // of this thread: nobody waits for it
        for (int64_t made = 0; made < most; ++made) {
            {
                std::unique_lock lock(behind_.mutex);
                behind_.changed.wait(lock, [&] { return behind_.stop || behind_.ready.size() < ahead; });
                if (behind_.stop) break;
            }
            Region region = make_region(kRegionBytes);
            if (gpu_ == nullptr)
                make_resident({region.data(), static_cast<size_t>(kRegionBytes)}, [this] {
                    const std::lock_guard lock(behind_.mutex);
                    return behind_.stop;
                });
            const std::lock_guard lock(behind_.mutex);
            behind_.ready.push_back(std::move(region));
            behind_.changed.notify_all();
        }
    } catch (const Error&) {
    }
    const std::lock_guard lock(behind_.mutex);
    behind_.making = false;
    behind_.changed.notify_all();
}

/// A region that the thread has made, or is about to pin. False if there will be none, or none yet that is resident:
/// the caller can touch what it needs sooner than the thread a region.
bool HostHeap::take_ready(Region& region) {
    if (!behind_.thread.joinable()) return false;
    std::unique_lock lock(behind_.mutex);
    if (gpu_ != nullptr) behind_.changed.wait(lock, [this] { return !behind_.ready.empty() || !behind_.making; });
    if (behind_.ready.empty()) return false;
    region = std::move(behind_.ready.front());
    behind_.ready.pop_front();
    behind_.changed.notify_all();
    return true;
}

int64_t HostHeap::ready() {
    const std::lock_guard lock(behind_.mutex);
    return std::ssize(behind_.ready) * kRegionBytes;
}

/// A further region of at least `bytes`. False when the system refuses.
bool HostHeap::grow(int64_t bytes) {
    const int64_t size = std::max(bytes, kRegionBytes);
    Region region;
    if (size > kRegionBytes || !take_ready(region)) {
        try {
            region = make_region(size);
        } catch (const Error&) {  // no more memory: less is cached
            return false;
        }
    }
    add_free(region.data(), {size, regions_.size()});
    regions_.push_back(std::move(region));
    reserved_ += size;
    return true;
}

void HostHeap::reserve(int64_t bytes) {
    while (reserved_ < bytes && grow(kRegionBytes)) {
    }
}

void HostHeap::add_free(std::byte* at, Free range) {
    free_.emplace(at, range);
    by_size_.emplace(range.bytes, at);
}

void HostHeap::remove_free(std::map<std::byte*, Free>::iterator at) {
    by_size_.erase({at->second.bytes, at->first});
    free_.erase(at);
}

HostBytes HostHeap::take(int64_t bytes) {
    RT_ASSERT(bytes >= 0);
    const int64_t size = std::max((bytes + kAlign - 1) / kAlign * kAlign, kAlign);
    auto best = by_size_.lower_bound({size, nullptr});
    if (best == by_size_.end()) {
        if (!grow(size)) return nullptr;
        best = by_size_.lower_bound({size, nullptr});
    }
    const auto found = free_.find(best->second);
    std::byte* const data = found->first;
    const Free range = found->second;
    remove_free(found);
    if (range.bytes > size) add_free(data + size, {range.bytes - size, range.region});
    used_ += size;
    return HostBytes(new HostBlock{data, bytes},
                     [heap = shared_from_this(), size, region = range.region](HostBlock* block) {
                         heap->give_back(block->data, size, region, block->ready);
                         delete block;
                     });
}

HostBytes HostHeap::take_for_host(int64_t bytes) {
    HostBytes block = take(bytes);
    if (block != nullptr) clock_.wait(freed_ready_);
    return block;
}

void HostHeap::give_back(std::byte* at, int64_t bytes, size_t region, uint64_t ready) {
    used_ -= bytes;
    freed_ready_ = std::max(freed_ready_, ready);
    Free range{bytes, region};
    const auto next = free_.lower_bound(at);
    if (next != free_.end() && next->second.region == region && next->first == at + range.bytes) {
        range.bytes += next->second.bytes;
        remove_free(next);
    }
    const auto after = free_.lower_bound(at);
    if (after != free_.begin()) {
        const auto before = std::prev(after);
        if (before->second.region == region && before->first + before->second.bytes == at) {
            at = before->first;
            range.bytes += before->second.bytes;
            remove_free(before);
        }
    }
    add_free(at, range);
}

}  // namespace riptide
