// What one WebSocket of /v1/responses may refer to.
#pragma once

#include <string>

#include "server/api/responses/response_store.h"
#include "server/http/message.h"

namespace riptide::server {

/// Its last response, also where that is not to be stored (`"store": false`): kept for this connection alone, and
/// forgotten with the next one, or with the connection. For one request at a time.
class ResponseSession {
  public:
    /// `store` outlives it.
    explicit ResponseSession(ResponseStore& store);
    ~ResponseSession() { store_.remove(key_, last_); }
    ResponseSession(const ResponseSession&) = delete;
    ResponseSession& operator=(const ResponseSession&) = delete;

    /// As ResponseStore::put.
    void put(const json::object& response, const json::array& input);
    /// Under which it is in the store.
    const std::string& key() const { return key_; }

  private:
    ResponseStore& store_;
    const std::string key_;
    std::string last_;
};

/// Makes the body of POST /v1/responses of a message. False: it asks for nothing. Throws ApiError that names `type`.
bool take_message(json::object& body);

/// What is sent in place of an error's reply: {"type": "error", "status", "error"}.
std::string error_message(const HttpReply& reply);

}  // namespace riptide::server
