#include "cache/host_store.h"

#include <utility>

namespace riptide {

bool HostStore::has(const Digest& group, const std::string& key) const {
    return index_.find(record_name(group, key), group, key) != nullptr;
}

std::vector<Record> HostStore::put(Record record) {
    std::vector<Record> out;
    const Digest name = record_name(record.group, record.key);
    if (index_.find(name) != nullptr) {
        index_.touch(name, record.rank);
        return out;
    }
    const auto bytes = static_cast<int64_t>(record.payload.size() + record.key.size());
    while (bytes <= budget_ && index_.bytes() + bytes > budget_) {
        const std::optional<Digest> victim = index_.victim(record.rank);
        if (!victim) break;
        const RecordIndex::Entry& entry = *index_.find(*victim);
        out.push_back({entry.group, entry.key, entry.rank, std::move(payloads_.at(*victim))});
        payloads_.erase(*victim);
        index_.erase(*victim);
    }
    if (index_.bytes() + bytes > budget_) {
        out.push_back(std::move(record));
        return out;
    }
    index_.insert(name, {.group = record.group, .key = std::move(record.key), .rank = record.rank, .bytes = bytes});
    payloads_.emplace(name, std::move(record.payload));
    return out;
}

const std::vector<std::byte>* HostStore::get(const Digest& group, const std::string& key) {
    const Digest name = record_name(group, key);
    if (index_.find(name, group, key) == nullptr) return nullptr;
    index_.touch(name, 0);
    return &payloads_.at(name);
}

void HostStore::erase(const Digest& group, const std::string& key) {
    const Digest name = record_name(group, key);
    if (index_.find(name, group, key) == nullptr) return;
    index_.erase(name);
    payloads_.erase(name);
}

}  // namespace riptide
