#include "cache/record_index.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace riptide {

RecordKey RecordKey::of(const Digest& group, std::string key) {
    std::string text(reinterpret_cast<const char*>(group.data()), group.size());
    text += key;
    const Digest name = sha256(std::as_bytes(std::span(text)));
    return {group, std::move(key), name};
}

int64_t Record::payload_bytes() const {
    int64_t bytes = 0;
    for (const HostBytes& part : parts) bytes += part->bytes;
    return bytes;
}

void RecordIndex::insert(const Digest& name, Entry entry) {
    entry.stamp = ++clock_;
    bytes_ += entry.bytes;
    order_.emplace(entry.rank, entry.stamp, name);
    groups_[entry.group].push_back(name);
    const auto [at, added] = entries_.emplace(name, std::move(entry));
    RT_ASSERT(added);
    if (hear_) hear_(at->second.group, at->second.key, true);
}

const RecordIndex::Entry* RecordIndex::find(const Digest& name) const {
    const auto at = entries_.find(name);
    return at == entries_.end() ? nullptr : &at->second;
}

const RecordIndex::Entry* RecordIndex::find(const RecordKey& id) const {
    const Entry* entry = find(id.name);
    return entry != nullptr && entry->group == id.group && entry->key == id.key ? entry : nullptr;
}

void RecordIndex::touch(const Digest& name, int32_t rank) {
    const auto at = entries_.find(name);
    RT_ASSERT(at != entries_.end());
    Entry& entry = at->second;
    order_.erase({entry.rank, entry.stamp, name});
    entry.rank = std::max(entry.rank, rank);
    entry.stamp = ++clock_;
    order_.emplace(entry.rank, entry.stamp, name);
}

void RecordIndex::erase(const Digest& name) {
    const auto at = entries_.find(name);
    RT_ASSERT(at != entries_.end());
    if (hear_) hear_(at->second.group, at->second.key, false);
    bytes_ -= at->second.bytes;
    order_.erase({at->second.rank, at->second.stamp, name});
    const auto group = groups_.find(at->second.group);
    std::erase(group->second, name);
    if (group->second.empty()) groups_.erase(group);
    entries_.erase(at);
}

void RecordIndex::clear() {
    entries_.clear();
    groups_.clear();
    order_.clear();
    bytes_ = 0;
}

std::optional<Digest> RecordIndex::victim(int32_t max_rank) const {
    if (order_.empty() || std::get<0>(*order_.begin()) > max_rank) return std::nullopt;
    return std::get<2>(*order_.begin());
}

std::vector<Digest> RecordIndex::names() const {
    std::vector<Digest> names;
    for (const auto& [rank, stamp, name] : order_) names.push_back(name);
    return names;
}

std::vector<std::string> RecordIndex::keys(const Digest& group, std::string_view front) const {
    std::vector<std::string> keys;
    const auto at = groups_.find(group);
    if (at == groups_.end()) return keys;
    for (const Digest& name : at->second)
        if (const std::string& key = entries_.at(name).key; key.starts_with(front)) keys.push_back(key);
    return keys;
}

}  // namespace riptide
