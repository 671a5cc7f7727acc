// Numbers for pages, counted references to them, nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace riptide {

/// Hands out page ids 0 .. size-1. A page lives while somebody holds a reference: a user (a sequence), who needs it, or
/// the prefix cache, which keeps it until others need room. Holds no memory of pages and no policy. Misuse (an id that
/// is not held, a double release) aborts. Not thread-safe: the engine thread owns it. Ids come out last released first,
/// and 0, 1, 2, ... from a fresh pool, so runs repeat exactly.
class PagePool {
  public:
    explicit PagePool(int32_t size);

    /// A page with one user, or -1 when none is free.
    int32_t acquire();
    /// One more user of a held page.
    void retain(int32_t page);
    /// One user less; the last reference frees the page.
    void release(int32_t page);
    /// One more reference of the cache to a held page, and one less.
    void keep(int32_t page);
    void drop(int32_t page);

    /// References of both kinds; 0 for a free page.
    int32_t refcount(int32_t page) const;
    /// Those of the cache.
    int32_t kept(int32_t page) const;
    int32_t free_count() const { return static_cast<int32_t>(free_.size()); }
    /// Pages that have users.
    int32_t used_count() const { return used_; }
    /// Pages that the cache holds, some of which have users too.
    int32_t kept_count() const { return kept_; }
    /// Pages that the cache alone holds.
    int32_t spare_count() const { return size() - free_count() - used_; }
    int32_t size() const { return static_cast<int32_t>(refs_.size()); }

  private:
    struct References {
        int32_t users = 0, kept = 0;
    };
    size_t at(int32_t page) const;
    void free_if_unheld(int32_t page);

    std::vector<int32_t> free_;  // a stack
    std::vector<References> refs_;
    int32_t used_ = 0, kept_ = 0;
};

}  // namespace riptide
