// Who may ask: API keys, and names under which the server may be called.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "server/api_error.h"
#include "server/http_message.h"

namespace riptide::server {

/// Immutable: threads may share it.
class Access {
  public:
    /// `host`: the address that the server listens on. No keys: everybody may ask. Names: further ones that a Host
    /// header may hold. Throws Error (usage) for an empty key.
    Access(const std::vector<std::string>& keys, const std::string& host, std::vector<std::string> names);

    /// Refuses a page of somebody else's that a browser shows (DNS rebinding, foreign Origin). Host is checked where
    /// the server listens on a loopback address, or where names are given. Throws ApiError(403).
    void check_origin(const HttpRequest& request) const;

    /// Checks `Authorization: Bearer KEY` or `x-api-key: KEY` in a time that does not depend on the key. Throws
    /// ApiError(401).
    void check_key(const HttpRequest& request) const;

    /// A name for the key of a request that has passed: requests with different keys share no cache. "" without keys.
    std::string isolation(const HttpRequest& request) const;

  private:
    bool is_ours(std::string_view authority) const;

    std::vector<Digest> keys_;
    std::vector<std::string> names_;
    bool check_host_;
};

/// 127.0.0.0/8, ::1, localhost.
bool is_loopback(std::string_view host);

}  // namespace riptide::server
