#include "cache/saved_page.h"

#include <cstring>

#include "base/error.h"

namespace riptide {

namespace {

/// Calls copy(address in the page, place in the saved bytes, bytes) for K and V of each paged layer.
template <class Copy>
void for_each_part(const KvCache& cache, int32_t page, int32_t rows, const Copy& copy) {
    RT_ASSERT(page >= 0 && page < cache.pool().size() && rows >= 0 && rows <= cache.options().page_rows);
    int64_t offset = 0;
    for (const KvView& view : cache.views()) {
        if (view.page_rows == 0) continue;
        const int64_t first = int64_t{page} * view.page_rows;
        copy(static_cast<std::byte*>(view.k) + first * view.k_slot_bytes, offset, rows * view.k_slot_bytes);
        offset += rows * view.k_slot_bytes;
        copy(static_cast<std::byte*>(view.v) + first * view.v_slot_bytes, offset, rows * view.v_slot_bytes);
        offset += rows * view.v_slot_bytes;
    }
}

}  // namespace

int64_t saved_page_bytes(const KvCache& cache, int32_t rows) { return rows * cache.bytes_per_token(); }

void save_page(const KvCache& cache, int32_t page, int32_t rows, std::span<std::byte> to) {
    RT_ASSERT(static_cast<int64_t>(to.size()) == saved_page_bytes(cache, rows));
    for_each_part(cache, page, rows, [&](const std::byte* stored, int64_t offset, int64_t bytes) {
        if (cache.gpu() == nullptr) std::memcpy(to.data() + offset, stored, static_cast<size_t>(bytes));
        else cache.gpu()->to_host(to.data() + offset, stored, bytes);
    });
}

void load_page(KvCache& cache, int32_t page, int32_t rows, std::span<const std::byte> saved) {
    RT_ASSERT(static_cast<int64_t>(saved.size()) == saved_page_bytes(cache, rows));
    for_each_part(cache, page, rows, [&](std::byte* stored, int64_t offset, int64_t bytes) {
        if (cache.gpu() == nullptr) std::memcpy(stored, saved.data() + offset, static_cast<size_t>(bytes));
        else cache.gpu()->to_device(stored, saved.data() + offset, bytes);
    });
}

}  // namespace riptide
