#include "cache/host_store.h"

#include <utility>

namespace riptide {

Record HostStore::record(const Digest& name) const {
    const RecordIndex::Entry& entry = *index_.find(name);
    return {{entry.group, entry.key, name}, entry.rank, entry.tag, payloads_.at(name)};
}

bool HostStore::touch(const RecordKey& id, int32_t rank) {
    if (!has(id)) return false;
    index_.touch(id.name, rank);
    return true;
}

std::vector<Record> HostStore::put(Record record_in) {
    std::vector<Record> out;
    if (touch(record_in.id, record_in.rank)) return out;
    const Digest name = record_in.id.name;
    const auto bytes = record_in.payload_bytes() + static_cast<int64_t>(record_in.id.key.size());
    while (bytes <= budget_ && index_.bytes() + bytes > budget_) {
        const std::optional<Digest> victim = index_.victim(record_in.rank);
        if (!victim) break;
        out.push_back(record(*victim));
        payloads_.erase(*victim);
        index_.erase(*victim);
    }
    if (index_.bytes() + bytes > budget_) {
        out.push_back(std::move(record_in));
        return out;
    }
    index_.insert(name, {.group = record_in.id.group,
                         .key = std::move(record_in.id.key),
                         .rank = record_in.rank,
                         .tag = record_in.tag,
                         .bytes = bytes});
    payloads_.emplace(name, std::move(record_in.parts));
    return out;
}

std::optional<Record> HostStore::get(const RecordKey& id) {
    if (!touch(id, 0)) return std::nullopt;
    return record(id.name);
}

void HostStore::erase(const RecordKey& id) {
    if (!has(id)) return;
    index_.erase(id.name);
    payloads_.erase(id.name);
}

void HostStore::clear() {
    index_.clear();
    payloads_.clear();
}

std::vector<Record> HostStore::all() const {
    std::vector<Record> records;
    for (const Digest& name : index_.names()) records.push_back(record(name));
    return records;
}

}  // namespace riptide
