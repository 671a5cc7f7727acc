// Numbers for pages, counted references to them, nothing else.
#pragma once

#include <cstdint>
#include <vector>

namespace riptide {

/// Hands out page ids 0 .. size-1. A page lives while somebody holds a reference. Holds no memory of pages and no
/// policy. Misuse (an id that is not held, a double release) aborts. Not thread-safe: the engine thread owns it. Ids
/// come out last released first, and 0, 1, 2, ... from a fresh pool, so runs repeat exactly.
class PagePool {
  public:
    explicit PagePool(int32_t size);

    /// A page with one reference, or -1 when none is free.
    int32_t acquire();
    /// One more reference to a held page.
    void retain(int32_t page);
    /// One reference less; the last one frees the page.
    void release(int32_t page);

    /// 0 for a free page.
    int32_t refcount(int32_t page) const;
    int32_t free_count() const { return static_cast<int32_t>(free_.size()); }
    int32_t size() const { return static_cast<int32_t>(refs_.size()); }

  private:
    std::vector<int32_t> free_;  // a stack
    std::vector<int32_t> refs_;
};

}  // namespace riptide
