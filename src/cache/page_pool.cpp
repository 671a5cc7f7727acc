#include "cache/page_pool.h"

#include "base/error.h"

namespace riptide {

PagePool::PagePool(int32_t size) : refs_(static_cast<size_t>(size), 0) {
    free_.reserve(refs_.size());
    for (int32_t page = size - 1; page >= 0; --page) free_.push_back(page);
}

int32_t PagePool::acquire() {
    if (free_.empty()) return -1;
    const int32_t page = free_.back();
    free_.pop_back();
    refs_[static_cast<size_t>(page)] = 1;
    return page;
}

void PagePool::retain(int32_t page) {
    RT_ASSERT(refcount(page) > 0 && refcount(page) < INT32_MAX);
    ++refs_[static_cast<size_t>(page)];
}

void PagePool::release(int32_t page) {
    RT_ASSERT(refcount(page) > 0);
    if (--refs_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

int32_t PagePool::refcount(int32_t page) const {
    RT_ASSERT(page >= 0 && page < size());
    return refs_[static_cast<size_t>(page)];
}

}  // namespace riptide
