// The insides of PrefixCache, shared by its source files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/cache_feed.h"
#include "cache/prefix_cache.h"

namespace riptide {

struct PrefixCache::Checkpoint {
    std::vector<int32_t> tail;  // tokens after the node's pages, fewer than a page
    int32_t page = -1;          // holds their K/V; -1 without a tail
    HostBytes state;            // packed bounded state
    Mark mark = Mark::message;
    bool side = true;     // only side requests have used it
    bool shared = false;  // the shared store has it, or will be given it
    uint64_t stamp = 0;
};

/// One full page, or (parent null) the root of a salt.
struct PrefixCache::Node {
    Node* parent = nullptr;
    std::vector<int32_t> tokens;
    int32_t page = -1;                  // -1 in roots and in caches without paged layers
    int64_t length = 0;                 // tokens up to and with this page
    Digest name{};                      // of its record, and the group of what follows it
    const std::string* salt = nullptr;  // the key in roots_
    int32_t live = 0;                   // sessions whose prefix goes through this node
    bool side = true;
    bool shared = false;  // and so are those above it
    uint64_t stamp = 0;
    std::vector<std::unique_ptr<Node>> children;
    std::vector<std::unique_ptr<Checkpoint>> checkpoints;
};

struct PrefixCache::Session {
    Node* head = nullptr;
    std::string salt;
    std::vector<int32_t> tokens;  // of the last publish, to say what has changed since
    uint64_t stamp = 0;
};

/// Which state a prompt can start from.
struct PrefixCache::Plan {
    std::string salt;
    std::vector<Node*> path;       // root and pages in memory; empty without a root
    std::vector<Digest> names;     // of root and pages in memory and then in the tiers
    std::vector<RecordKey> below;  // the pages in the tiers
    int64_t known = 0;
    int64_t length = 0;    // of the best checkpoint; 0: none
    size_t depth = 0;      // pages before its tail
    Node* node = nullptr;  // where it hangs, when it is in memory
    Checkpoint* checkpoint = nullptr;
    RecordKey checkpoint_id;  // when it is in a tier
    int32_t pages_to_load = 0;
    size_t held() const { return path.empty() ? 0 : std::min(depth, path.size() - 1); }  // pages that it starts with
};

/// Where the tiers hold a record: blocks of the host tier, or (no parts) on disk.
struct PrefixCache::Found {
    const RecordKey* id = nullptr;
    std::vector<HostBytes> parts;
    int32_t tag = 0;
};

struct PrefixCache::Victim {
    int32_t rank = 0;
    uint64_t stamp = 0;
    Node* node = nullptr;
    Checkpoint* checkpoint = nullptr;  // null: the page itself
};

}  // namespace riptide
