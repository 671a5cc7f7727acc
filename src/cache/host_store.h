// The second tier: records in host RAM under a byte budget.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/record_index.h"

namespace riptide {

/// Least recently used records of the lowest rank go first. Payloads lie in blocks of somebody's HostHeap and are
/// shared with whoever still needs them, so a record may go while it is being loaded. Never waits. Not thread-safe.
class HostStore {
  public:
    explicit HostStore(int64_t budget) : budget_(budget) {}

    bool has(const RecordKey& id) const { return index_.find(id) != nullptr; }
    /// Counts a record as used; its rank may rise. False when it is not held.
    bool touch(const RecordKey& id, int32_t rank);
    /// Takes the record (of one that is held: counts it as used). Returns the records that had to go, the new one
    /// itself when it is larger than the budget or only records of a higher rank would make room.
    std::vector<Record> put(Record record);
    /// A use of the record.
    std::optional<Record> get(const RecordKey& id);
    void erase(const RecordKey& id);
    void clear();
    std::vector<std::string> keys(const Digest& group, std::string_view front) const {
        return index_.keys(group, front);
    }
    /// Who hears what is held from now on, and what no longer; not of clear().
    void on_change(RecordIndex::Hear hear) { index_.on_change(std::move(hear)); }
    /// All records, the first to go first.
    std::vector<Record> all() const;

    /// Payloads and keys.
    int64_t bytes() const { return index_.bytes(); }
    int64_t budget() const { return budget_; }
    int64_t count() const { return index_.count(); }

  private:
    Record record(const Digest& name) const;

    int64_t budget_;
    RecordIndex index_;
    std::unordered_map<Digest, std::vector<HostBytes>, DigestHash> payloads_;
};

}  // namespace riptide
