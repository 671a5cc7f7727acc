#include "cache/kv_transfer.h"

#include <algorithm>

#include "base/error.h"
#include "ops/kv/kv_pack.h"

namespace riptide {

KvTransfer::KvTransfer(KvCache& cache, HostHeap& heap) : cache_(cache), heap_(heap) {
    if (cache.gpu() == nullptr) return;
    int64_t least = page_bytes(cache.options().page_rows);
    const ops::BoundedViews bounded = cache.bounded();
    for (size_t l = 0; l < bounded.kv.size(); ++l)
        least = std::max(least, ops::packed_state_bytes(bounded.layers(l, 1), std::max(1, bounded.kv[l].window)));
    const int64_t room = cache.gpu()->available();
    staging_bytes_ = std::max(least, std::min(kStagingBytes, room / 2));
    staging_ = DeviceMemory(cache.gpu(), staging_bytes_, "buffers for cached state");
}

int64_t KvTransfer::page_bytes(int64_t rows) const { return ops::packed_page_bytes(cache_.views(), rows); }
int64_t KvTransfer::state_bytes(int64_t length) const { return ops::packed_state_bytes(cache_.bounded(), length); }

int64_t KvTransfer::batch_pages() const {
    const int64_t page = page_bytes(cache_.options().page_rows);
    return page == 0 ? 1 : std::clamp<int64_t>(staging_bytes_ / page, 1, 64);
}

/// Calls move(views, offset in the packed state, bytes) for runs of layers that fit the staging memory.
template <class Move>
void KvTransfer::for_state_parts(int64_t length, const Move& move) {
    const ops::BoundedViews views = cache_.bounded();
    int64_t offset = 0;
    for (size_t begin = 0; begin < views.kv.size();) {
        size_t end = begin;
        int64_t bytes = 0;
        for (; end < views.kv.size(); ++end) {
            const int64_t layer = ops::packed_state_bytes(views.layers(end, 1), length);
            RT_ASSERT(layer <= staging_bytes_);
            if (bytes + layer > staging_bytes_) break;
            bytes += layer;
        }
        if (bytes > 0) move(views.layers(begin, end - begin), offset, bytes);
        offset += bytes;
        begin = end;
    }
}

void KvTransfer::save_page(int32_t page, int64_t rows, HostBlock& to) {
    RT_ASSERT(to.bytes == page_bytes(rows));
    Gpu* const gpu = cache_.gpu();
    if (to.bytes == 0) return;
    ops::pack_pages(gpu, cache_.views(), {&page, 1}, rows, gpu == nullptr ? to.data : staging());
    if (gpu == nullptr) return;
    gpu->copy(to.data, staging(), to.bytes);
    mark(to);
}

void KvTransfer::save_state(int64_t slot, int64_t length, HostBlock& to) {
    RT_ASSERT(to.bytes == state_bytes(length));
    Gpu* const gpu = cache_.gpu();
    if (gpu == nullptr) return ops::pack_state(nullptr, cache_.bounded(), slot, length, to.data);
    for_state_parts(length, [&](const ops::BoundedViews& views, int64_t offset, int64_t bytes) {
        ops::pack_state(gpu, views, slot, length, staging());
        gpu->copy(to.data + offset, staging(), bytes);
    });
    mark(to);
}

void KvTransfer::load_state(int64_t slot, int64_t length, HostBlock& from) {
    RT_ASSERT(from.bytes == state_bytes(length));
    Gpu* const gpu = cache_.gpu();
    if (gpu == nullptr) return ops::unpack_state(nullptr, cache_.bounded(), slot, length, from.data);
    for_state_parts(length, [&](const ops::BoundedViews& views, int64_t offset, int64_t bytes) {
        gpu->copy(staging(), from.data + offset, bytes);
        ops::unpack_state(gpu, views, slot, length, staging());
    });
    mark(from);
}

void KvTransfer::load_pages(std::span<const int32_t> pages, int64_t rows, std::span<const std::byte* const> from,
                            ThreadPool* threads) {
    RT_ASSERT(pages.size() == from.size());
    const int64_t bytes = page_bytes(rows);
    Gpu* const gpu = cache_.gpu();
    if (bytes == 0) return;
    if (gpu == nullptr) {
        const auto load = [&](int64_t begin, int64_t end, int) {
            for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
                ops::unpack_pages(nullptr, cache_.views(), pages.subspan(i, 1), rows, from[i]);
        };
        const auto count = static_cast<int64_t>(pages.size());
        if (threads != nullptr) threads->parallel_for(count, 1, load);
        else load(0, count, 0);
        return;
    }
    const auto most = static_cast<size_t>(staging_bytes_ / bytes);
    for (size_t begin = 0; begin < pages.size(); begin += most) {
        const size_t count = std::min(most, pages.size() - begin);
        for (size_t i = 0; i < count; ++i)
            gpu->copy(staging() + static_cast<int64_t>(i) * bytes, from[begin + i], bytes);
        ops::unpack_pages(gpu, cache_.views(), pages.subspan(begin, count), rows, staging());
    }
}

}  // namespace riptide
