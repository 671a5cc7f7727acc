// What /v1/responses has answered, for clients that send references instead of the conversation.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/json.h"

namespace riptide::server {

/// In memory only, and bounded: the oldest goes first. Who asks with another key (`isolation`) finds nothing.
/// Thread-safe.
class ResponseStore {
  public:
    explicit ResponseStore(int64_t most_bytes) : most_bytes_(most_bytes) {}

    /// `conversation`: all items up to this response's own output, which is its last `output_items`.
    void put(const std::string& isolation, const std::string& id, const json::array& conversation,
             std::size_t output_items);
    /// The conversation of a response, with its output.
    std::optional<json::array> conversation(const std::string& isolation, const std::string& id) const;
    /// An item of a response's output, by its id.
    std::optional<json::value> item(const std::string& isolation, const std::string& id) const;

  private:
    struct Entry {
        std::string key, text;  // the JSON of a conversation, or of an item
    };

    std::optional<std::string> find(const std::string& isolation, const std::string& id) const;
    void keep(const std::string& isolation, const std::string& id, std::string text);

    const int64_t most_bytes_;
    mutable std::mutex mutex_;
    std::list<Entry> entries_;  // oldest first
    std::unordered_map<std::string, std::list<Entry>::iterator> index_;
    int64_t bytes_ = 0;
};

}  // namespace riptide::server
