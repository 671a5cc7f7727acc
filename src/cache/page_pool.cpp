#include "cache/page_pool.h"

#include "base/error.h"

namespace riptide {

PagePool::PagePool(int32_t size) : refs_(static_cast<size_t>(size)) {
    free_.reserve(refs_.size());
    for (int32_t page = size - 1; page >= 0; --page) free_.push_back(page);
}

size_t PagePool::at(int32_t page) const {
    RT_ASSERT(page >= 0 && page < size());
    return static_cast<size_t>(page);
}

void PagePool::free_if_unheld(int32_t page) {
    if (refcount(page) == 0) free_.push_back(page);
}

int32_t PagePool::acquire() {
    if (free_.empty()) return -1;
    const int32_t page = free_.back();
    free_.pop_back();
    refs_[at(page)].users = 1;
    ++used_;
    return page;
}

void PagePool::retain(int32_t page) {
    RT_ASSERT(refcount(page) > 0 && refcount(page) < INT32_MAX);
    used_ += ++refs_[at(page)].users == 1;
}

void PagePool::release(int32_t page) {
    RT_ASSERT(refs_[at(page)].users > 0);
    used_ -= --refs_[at(page)].users == 0;
    free_if_unheld(page);
}

void PagePool::keep(int32_t page) {
    RT_ASSERT(refcount(page) > 0 && refcount(page) < INT32_MAX);
    kept_ += ++refs_[at(page)].kept == 1;
}

void PagePool::drop(int32_t page) {
    RT_ASSERT(kept(page) > 0);
    kept_ -= --refs_[at(page)].kept == 0;
    free_if_unheld(page);
}

int32_t PagePool::refcount(int32_t page) const { return refs_[at(page)].users + kept(page); }
int32_t PagePool::kept(int32_t page) const { return refs_[at(page)].kept; }

}  // namespace riptide
