#include "server/api/responses/response_store.h"

#include "base/json.h"

namespace riptide::server {

namespace {

constexpr int64_t kEntryCost = 256;  // beside its texts

std::string stored_as(const std::string& isolation, std::string_view id) { return isolation + '/' + std::string(id); }

}  // namespace

int64_t ResponseStore::Entry::bytes() const {
    return 2 * std::ssize(key) + std::ssize(text) + std::ssize(input) + kEntryCost;  // the index has the key, too
}

void ResponseStore::put(const std::string& isolation, const json::object& response, const json::array& input) {
    for (const json::value& item : response.at("output").as_array())
        keep({stored_as(isolation, item.at("id").as_string()), json::serialize(item), ""});
    keep({stored_as(isolation, response.at("id").as_string()), json::serialize(response), json::serialize(input)});
}

void ResponseStore::keep(Entry entry) {
    const int64_t size = entry.bytes();
    if (size > most_bytes_) return;
    const std::lock_guard lock(mutex_);
    while (bytes_ + size > most_bytes_ && !entries_.empty()) forget(entries_.begin());
    if (index_.contains(entry.key)) return;  // ids are random: it is the same
    entries_.push_back(std::move(entry));
    index_.emplace(entries_.back().key, std::prev(entries_.end()));
    bytes_ += size;
}

void ResponseStore::forget(std::list<Entry>::iterator entry) {
    bytes_ -= entry->bytes();
    index_.erase(entry->key);
    entries_.erase(entry);
}

std::optional<ResponseStore::Entry> ResponseStore::find(const std::string& isolation, const std::string& id,
                                                        bool response) const {
    const std::lock_guard lock(mutex_);
    const auto found = index_.find(stored_as(isolation, id));
    if (found == index_.end() || found->second->input.empty() == response) return std::nullopt;
    return *found->second;
}

std::optional<std::string> ResponseStore::response(const std::string& isolation, const std::string& id) const {
    auto entry = find(isolation, id, true);
    if (!entry) return std::nullopt;
    return std::move(entry->text);
}

std::optional<json::array> ResponseStore::input(const std::string& isolation, const std::string& id) const {
    const auto entry = find(isolation, id, true);
    if (!entry) return std::nullopt;
    return parse_json(entry->input, "a stored input").as_array();
}

std::optional<json::array> ResponseStore::conversation(const std::string& isolation, const std::string& id) const {
    const auto entry = find(isolation, id, true);
    if (!entry) return std::nullopt;
    json::array out = parse_json(entry->input, "a stored input").as_array();
    const json::value response = parse_json(entry->text, "a stored response");
    for (const json::value& item : response.at("output").as_array()) out.push_back(item);
    return out;
}

std::optional<json::value> ResponseStore::item(const std::string& isolation, const std::string& id) const {
    const auto entry = find(isolation, id, false);
    if (!entry) return std::nullopt;
    return parse_json(entry->text, "a stored item");
}

bool ResponseStore::remove(const std::string& isolation, const std::string& id) {
    const auto text = response(isolation, id);
    if (!text) return false;
    std::vector<std::string> keys = {stored_as(isolation, id)};
    const json::value parsed = parse_json(*text, "a stored response");
    for (const json::value& item : parsed.at("output").as_array())
        keys.push_back(stored_as(isolation, item.at("id").as_string()));
    const std::lock_guard lock(mutex_);
    for (const std::string& key : keys)
        if (const auto found = index_.find(key); found != index_.end()) forget(found->second);
    return true;
}

std::optional<json::array> Stored::conversation(const std::string& id) const {
    auto own = session.empty() ? std::nullopt : store.conversation(session, id);
    return own ? std::move(own) : store.conversation(isolation, id);
}

std::optional<json::value> Stored::item(const std::string& id) const {
    auto own = session.empty() ? std::nullopt : store.item(session, id);
    return own ? std::move(own) : store.item(isolation, id);
}

}  // namespace riptide::server
