// Which records a store holds, in which order they go. Shared by the stores in RAM and on disk.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "cache/host_heap.h"

namespace riptide {

/// What a record is found by. Keys of one group are found together; a name can be the group of others, which makes
/// chains.
struct RecordKey {
    Digest group{};
    std::string key;  // opaque; compared in full on every hit
    Digest name{};    // SHA-256(group, key)

    /// With its name.
    static RecordKey of(const Digest& group, std::string key);
};

/// A piece of cached state.
struct Record {
    RecordKey id;
    int32_t rank = 0;              // a record never drives out one of a higher rank
    int32_t tag = 0;               // kept with it
    std::vector<HostBytes> parts;  // one after the other they are the payload
    int64_t payload_bytes() const;
};

struct DigestHash {
    size_t operator()(const Digest& digest) const {
        size_t hash = 0;
        std::memcpy(&hash, digest.data(), sizeof hash);
        return hash;
    }
};

/// Names, keys and sizes of records, ordered by rank and last use. Not thread-safe.
class RecordIndex {
  public:
    struct Entry {
        Digest group{};
        std::string key;
        int32_t rank = 0;
        int32_t tag = 0;
        int64_t bytes = 0;
        uint64_t stamp = 0;  // set by the index
    };

    /// Who hears what is inserted (held) and erased.
    using Hear = std::function<void(const Digest& group, const std::string& key, bool held)>;
    void on_change(Hear hear) { hear_ = std::move(hear); }

    /// REQUIRES that the name is not held.
    void insert(const Digest& name, Entry entry);
    /// Null when the name is not held or held for another group or key.
    const Entry* find(const RecordKey& id) const;
    const Entry* find(const Digest& name) const;
    /// Makes it the last to go among its rank, which may rise.
    void touch(const Digest& name, int32_t rank);
    void erase(const Digest& name);
    /// All go, and nobody hears of each.
    void clear();
    /// The one to go first, if its rank is not above max_rank.
    std::optional<Digest> victim(int32_t max_rank) const;
    /// All names, the first to go first.
    std::vector<Digest> names() const;
    /// The keys of a group that begin with `front`, oldest insertion first.
    std::vector<std::string> keys(const Digest& group, std::string_view front) const;

    int64_t bytes() const { return bytes_; }
    int64_t count() const { return static_cast<int64_t>(entries_.size()); }

  private:
    std::unordered_map<Digest, Entry, DigestHash> entries_;
    std::unordered_map<Digest, std::vector<Digest>, DigestHash> groups_;
    std::set<std::tuple<int32_t, uint64_t, Digest>> order_;
    uint64_t clock_ = 0;
    int64_t bytes_ = 0;
    Hear hear_;
};

}  // namespace riptide
