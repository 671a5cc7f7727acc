// What /v1/responses has answered, for clients that send references instead of the conversation, or ask for it again.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/json.h"

namespace riptide::server {

/// In memory only, and bounded in bytes, of which each response and each item takes some hundred beside its text: so in
/// number, too. The oldest goes first. Who asks with another key (`isolation`) finds nothing. Thread-safe.
class ResponseStore {
  public:
    explicit ResponseStore(int64_t most_bytes) : most_bytes_(most_bytes) {}

    /// A response that is complete, and its output's items by their own ids. `input`: all items before its output,
    /// those of earlier responses first.
    void put(const std::string& isolation, const json::object& response, const json::array& input);
    /// A response, as it was answered: JSON.
    std::optional<std::string> response(const std::string& isolation, const std::string& id) const;
    std::optional<json::array> input(const std::string& isolation, const std::string& id) const;
    /// A response's input and output.
    std::optional<json::array> conversation(const std::string& isolation, const std::string& id) const;
    /// An item of a response's output, by its id.
    std::optional<json::value> item(const std::string& isolation, const std::string& id) const;
    /// Forgets a response and its output's items; responses that go on from it have their own copy. False: there is
    /// none.
    bool remove(const std::string& isolation, const std::string& id);

  private:
    struct Entry {
        std::string key;
        std::string text;   // the JSON of a response, or of an item
        std::string input;  // of a response; of an item ""
        int64_t bytes() const;
    };

    std::optional<Entry> find(const std::string& isolation, const std::string& id, bool response) const;
    void keep(Entry entry);
    void forget(std::list<Entry>::iterator entry);

    const int64_t most_bytes_;
    mutable std::mutex mutex_;
    std::list<Entry> entries_;  // oldest first
    std::unordered_map<std::string, std::list<Entry>::iterator> index_;
    int64_t bytes_ = 0;
};

/// What the references of one request may lead to.
struct Stored {
    const ResponseStore& store;
    std::string isolation;  // whose it is
    std::string session;    // of a WebSocket: what is kept for it alone, first; or ""

    /// As of the store.
    std::optional<json::array> conversation(const std::string& id) const;
    std::optional<json::value> item(const std::string& id) const;
};

}  // namespace riptide::server
