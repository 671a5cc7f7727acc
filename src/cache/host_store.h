// The second tier: records in host RAM under a byte budget.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/record_index.h"

namespace riptide {

/// Least recently used records of the lowest rank go first. Memory is pageable for now; who fills it from a GPU waits
/// for the copy. Not thread-safe.
class HostStore {
  public:
    explicit HostStore(int64_t budget) : budget_(budget) {}

    bool has(const Digest& group, const std::string& key) const;
    /// Takes the record (of one that is held: counts it as used). Returns the records that had to go, the new one
    /// itself when it is larger than the budget or only records of a higher rank would make room.
    std::vector<Record> put(Record record);
    /// The payload, valid until the next put or erase; null when absent. Counts as a use.
    const std::vector<std::byte>* get(const Digest& group, const std::string& key);
    void erase(const Digest& group, const std::string& key);
    std::vector<std::string> keys(const Digest& group) const { return index_.keys(group); }

    /// Payloads and keys.
    int64_t bytes() const { return index_.bytes(); }
    int64_t budget() const { return budget_; }
    int64_t count() const { return index_.count(); }

  private:
    int64_t budget_;
    RecordIndex index_;
    std::unordered_map<Digest, std::vector<std::byte>, DigestHash> payloads_;
};

}  // namespace riptide
