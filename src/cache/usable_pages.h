// Which pages of a prefix cache a prompt can be gone on with, from what its tiers hold.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/cache_feed.h"

namespace riptide {

/// What others are to be told: pages that a tier holds and that are usable, or no longer.
struct PageNews {
    enum class Kind : uint8_t { stored, removed, cleared };
    Kind kind = Kind::stored;
    CacheTier tier = CacheTier::device;
    std::vector<uint64_t> pages;  // stored: each the parent of the next; removed: what is behind others comes first
    uint64_t parent = 0;          // stored: of the first; 0: nothing is before it
    std::vector<int32_t> tokens;  // stored: of all of them
    std::string isolation;        // stored, with parent 0: PrefixSalt::isolation
};

/// A page is usable if it and all pages before it are held in tiers that are told of, and a checkpoint (in any tier)
/// hangs at it or, with nothing missing between, behind it. A prompt goes on from a checkpoint: pages behind the last
/// one would be computed again, and those behind a missing page are never asked for.
///
/// A page that is held in a tier already, or gone already, may be said to be so again. Names are short: of two pages
/// with one name, which nobody has by accident, the first is told. Not thread-safe.
class UsablePages {
  public:
    /// Whether the disk tier is told of.
    explicit UsablePages(bool disk) : told_tiers_(disk ? 7 : 3) {}

    /// Forgets what it knows if the changes say so. Cost: what has changed times the depth of the tree, at most.
    void hear(const CacheChanges& changes);
    /// What has changed for others since the last call, in an order in which all pages are told after those before
    /// them, and a page moves to another tier before it leaves its own. At most kMostPages in each.
    std::vector<PageNews> news();
    /// From now on nobody has been told anything.
    void forget_told();

    int64_t told() const { return told_; }
    static constexpr size_t kMostPages = 256;

  private:
    struct Node {
        uint64_t parent = 0;
        int64_t depth = 0;        // pages up to and with it; only while linked
        int64_t checkpoints = 0;  // that hang here
        int64_t below = 0;        // of linked nodes, here and behind
        uint8_t tiers = 0;        // that hold it and are told of, a bit each
        uint8_t told = 0;         // that others know of
        bool first = false;
        bool linked = false;  // this page and all before it are held
        bool dirty = false;
        std::vector<int32_t> tokens;
        std::string isolation;
        std::vector<uint64_t> children;
    };
    struct Checkpoint {
        uint64_t page = 0;
        uint8_t tiers = 0;
    };

    void hold(const CacheChange& change, const CacheChanges& changes);
    void drop(uint64_t name, uint8_t tiers);
    void hold_checkpoint(const CacheChange& change);
    void drop_checkpoint(uint64_t name, uint8_t tiers);
    void clear_tier(uint8_t tier);
    void link(uint64_t name);
    void unlink(uint64_t name);
    void count(uint64_t page, int64_t checkpoints);
    void add_below(uint64_t name, int64_t checkpoints);
    void mark(uint64_t name, Node& node);
    void forget_if_empty(uint64_t name);
    uint8_t wanted(const Node& node) const;
    bool is_new(const Node& node, CacheTier tier) const;
    PageNews run_from(uint64_t name, CacheTier tier);
    void remove_from(std::vector<PageNews>& news, std::span<const uint64_t> pages, CacheTier tier);

    const uint8_t told_tiers_;
    std::unordered_map<uint64_t, Node> nodes_;  // also names that only others refer to
    std::unordered_map<uint64_t, Checkpoint> checkpoints_;
    std::vector<uint64_t> dirty_;
    int64_t told_ = 0;  // pages, once for each tier
};

}  // namespace riptide
