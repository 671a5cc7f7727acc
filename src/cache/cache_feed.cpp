#include "cache/cache_feed.h"

#include <utility>

namespace riptide {

uint64_t short_name(const Digest& name) {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof value; ++i) value = value << 8 | name[i];
    return value == 0 ? 1 : value;
}

void CacheChanges::clear() {
    list.clear();
    tokens.clear();
    owners.clear();
    lost = fresh = false;
}

/// Under the mutex. False once changes are lost, until all is told.
bool CacheFeed::has_room() {
    if (waiting_.lost || wants_all_) return false;
    if (telling_all_ || waiting_.list.size() - all_ < most_) return true;
    waiting_.clear();
    all_ = 0;
    waiting_.lost = true;
    return false;
}

void CacheFeed::add(CacheChange change) {
    const std::lock_guard lock(mutex_);
    if (has_room()) waiting_.list.push_back(change);
}

void CacheFeed::page(CacheTier tier, const Digest& name, const Digest& parent, std::span<const int32_t> tokens,
                     bool first, std::string_view isolation) {
    const std::lock_guard lock(mutex_);
    if (!has_room()) return;
    CacheChange change{.tier = tier,
                       .held = true,
                       .first = first,
                       .name = short_name(name),
                       .parent = short_name(parent),
                       .tokens = waiting_.tokens.size(),
                       .rows = tokens.size()};
    waiting_.tokens.insert(waiting_.tokens.end(), tokens.begin(), tokens.end());
    if (first && !isolation.empty()) {
        waiting_.owners.emplace_back(isolation);
        change.owner = waiting_.owners.size();
    }
    waiting_.list.push_back(change);
}

void CacheFeed::checkpoint(CacheTier tier, const Digest& name, const Digest& page) {
    add({.kind = CacheChange::Kind::checkpoint,
         .tier = tier,
         .held = true,
         .name = short_name(name),
         .parent = short_name(page)});
}

void CacheFeed::gone(CacheChange::Kind kind, CacheTier tier, const Digest& name) {
    add({.kind = kind, .tier = tier, .name = short_name(name)});
}

void CacheFeed::cleared(CacheTier tier) { add({.kind = CacheChange::Kind::cleared, .tier = tier}); }

void CacheFeed::begin_all() {
    const std::lock_guard lock(mutex_);
    waiting_.clear();
    all_ = 0;
    waiting_.fresh = telling_all_ = true;
    wants_all_ = false;
}

void CacheFeed::end_all() {
    const std::lock_guard lock(mutex_);
    telling_all_ = false;
    all_ = waiting_.list.size();
}

void CacheFeed::take(CacheChanges& changes) {
    changes.clear();
    const std::lock_guard lock(mutex_);
    std::swap(changes, waiting_);
    all_ = 0;
    if (!changes.lost) return;
    ++told.lost;
    wants_all_ = true;
}

}  // namespace riptide
