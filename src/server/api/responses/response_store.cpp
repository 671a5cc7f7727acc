#include "server/api/responses/response_store.h"

#include "base/json.h"

namespace riptide::server {

namespace {

constexpr int64_t kEntryCost = 256;  // beside its text

std::string stored_as(const std::string& isolation, const std::string& id) { return isolation + '/' + id; }

}  // namespace

void ResponseStore::put(const std::string& isolation, const std::string& id, const json::array& conversation,
                        std::size_t output_items) {
    const std::size_t first = conversation.size() - std::min(output_items, conversation.size());
    for (std::size_t i = first; i < conversation.size(); ++i)
        if (const json::value* name = conversation[i].as_object().if_contains("id"); name != nullptr)
            keep(isolation, std::string(name->as_string()), json::serialize(conversation[i]));
    keep(isolation, id, json::serialize(conversation));
}

void ResponseStore::keep(const std::string& isolation, const std::string& id, std::string text) {
    const int64_t size = std::ssize(text) + kEntryCost;
    if (size > most_bytes_) return;
    const std::lock_guard lock(mutex_);
    while (bytes_ + size > most_bytes_ && !entries_.empty()) {
        bytes_ -= std::ssize(entries_.front().text) + kEntryCost;
        index_.erase(entries_.front().key);
        entries_.pop_front();
    }
    std::string key = stored_as(isolation, id);
    if (index_.contains(key)) return;  // ids are random: it is the same
    entries_.push_back({key, std::move(text)});
    index_.emplace(std::move(key), std::prev(entries_.end()));
    bytes_ += size;
}

std::optional<std::string> ResponseStore::find(const std::string& isolation, const std::string& id) const {
    const std::lock_guard lock(mutex_);
    const auto found = index_.find(stored_as(isolation, id));
    if (found == index_.end()) return std::nullopt;
    return found->second->text;
}

std::optional<json::array> ResponseStore::conversation(const std::string& isolation, const std::string& id) const {
    const auto text = find(isolation, id);
    if (!text || !text->starts_with('[')) return std::nullopt;
    return parse_json(*text, "a stored conversation").as_array();
}

std::optional<json::value> ResponseStore::item(const std::string& isolation, const std::string& id) const {
    const auto text = find(isolation, id);
    if (!text || !text->starts_with('{')) return std::nullopt;
    return parse_json(*text, "a stored item");
}

}  // namespace riptide::server
