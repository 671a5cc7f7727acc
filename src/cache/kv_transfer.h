// Pages and bounded state (rings, recurrent state) between the caches' memory and blocks of a host heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "cache/host_heap.h"
#include "cache/kv_cache.h"

namespace riptide {

/// On a GPU every call only puts work on the stream: one launch and one copy for the state of a sequence (for each
/// staging_bytes of them), one launch for each batch of pages and one copy for each page. Nothing is waited for: the
/// K/V may be overwritten, and pages freed, as soon as a call returns, and blocks may be freed too (HostBlock::ready
/// tells who wants to look). On the CPU copies are done when a call returns.
/// Bytes are those of ops/kv/kv_pack.h. Not thread-safe.
class KvTransfer {
  public:
    static constexpr int64_t kStagingBytes = int64_t{32} << 20;

    /// On a GPU it takes kStagingBytes of device memory, more where a page or the state of one layer is larger, less
    /// (and more launches) when they are not there. Throws Error (unavailable) when not even they fit.
    KvTransfer(KvCache& cache, HostHeap& heap);

    int64_t page_bytes(int64_t rows) const;
    int64_t state_bytes(int64_t length) const;
    /// Pages that load_pages handles best together.
    int64_t batch_pages() const;

    /// REQUIRES block sizes of page_bytes(rows) and state_bytes(length).
    void save_page(int32_t page, int64_t rows, HostBlock& to);
    void save_state(int64_t slot, int64_t length, HostBlock& to);
    void load_state(int64_t slot, int64_t length, HostBlock& from);
    /// from[i]: the bytes of pages[i], in blocks that the caller marks. threads: for copies on the CPU.
    void load_pages(std::span<const int32_t> pages, int64_t rows, std::span<const std::byte* const> from,
                    ThreadPool* threads);
    /// The caller has put copies of this block on the stream.
    void mark(HostBlock& block) const { block.ready = heap_.clock().mark(); }

  private:
    std::byte* staging() const { return staging_.data(); }
    template <class Move>
    void for_state_parts(int64_t length, const Move& move);

    KvCache& cache_;
    HostHeap& heap_;
    int64_t staging_bytes_ = kStagingBytes;
    DeviceMemory staging_;
};

}  // namespace riptide
