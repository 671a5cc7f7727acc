// Who may ask: API keys, and names under which the server may be called.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "server/api/api_error.h"
#include "server/http/message.h"

namespace riptide::server {

/// Immutable: threads may share it.
class Access {
  public:
    /// `host`: the address that the server listens on. No keys: everybody may ask. Names: further ones that a Host
    /// header may hold. Origins ("https://example.org", or "*" where there are no keys): whose pages may ask. Throws
    /// Error (usage) for an empty key, or an origin that is none.
    Access(const std::vector<std::string>& keys, const std::string& host, std::vector<std::string> names,
           std::vector<std::string> origins = {});

    /// Refuses a page of somebody else's that a browser shows (DNS rebinding, foreign Origin). Host is checked where
    /// the server listens on a loopback address, or where names are given. Throws ApiError(403).
    void check_origin(const HttpRequest& request) const;

    /// What a browser wants to read in the reply, if the page may ask; with OPTIONS, what the page may send.
    Headers cors(const HttpRequest& request) const;

    /// Checks `Authorization: Bearer KEY` or `x-api-key: KEY` in a time that does not depend on the key. Throws
    /// ApiError(401).
    void check_key(const HttpRequest& request) const;

    /// A name for the key of a request that has passed: requests with different keys share no cache. "" without keys.
    std::string isolation(const HttpRequest& request) const;

  private:
    bool is_ours(std::string_view authority) const;
    bool is_invited(std::string_view origin) const;

    std::vector<Digest> keys_;
    std::vector<std::string> names_, origins_;
    bool check_host_;
};

/// What keeps a request's K/V apart from those of others: its key (Access::isolation), and the salt that it names.
std::string salted(const std::string& isolation, const std::string& salt);
/// The salt in it; "" when there is none.
std::string salt_in(std::string_view isolation);

/// 127.0.0.0/8, ::1, localhost.
bool is_loopback(std::string_view host);

}  // namespace riptide::server
