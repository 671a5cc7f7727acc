#include "server/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "server/http/authority.h"

namespace riptide::server {

namespace {

Digest digest_of(std::string_view text) { return sha256(std::as_bytes(std::span(text))); }

std::string_view given_key(const HttpRequest& request) {
    std::string_view value = request.header("authorization");
    const std::size_t space = value.find(' ');
    if (space != std::string_view::npos && same_name(value.substr(0, space), "bearer")) {
        value.remove_prefix(value.find_first_not_of(' ', space) == std::string_view::npos
                                ? value.size()
                                : value.find_first_not_of(' ', space));
        return value;
    }
    return request.header("x-api-key");
}

}  // namespace

std::string salted(const std::string& isolation, const std::string& salt) {
    return salt.empty() ? isolation : fmt::format("salted {} {}{}", isolation.size(), isolation, salt);
}

std::string salt_in(std::string_view isolation) {
    constexpr std::string_view kFront = "salted ";
    if (!isolation.starts_with(kFront)) return "";
    isolation.remove_prefix(kFront.size());
    std::size_t key = 0, digits = 0;
    for (; digits < isolation.size() && isolation[digits] >= '0' && isolation[digits] <= '9' && digits < 9; ++digits)
        key = key * 10 + static_cast<std::size_t>(isolation[digits] - '0');
    return key + digits + 1 <= isolation.size() ? std::string(isolation.substr(digits + 1 + key)) : "";
}

bool is_loopback(std::string_view host) {
    return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
}

Access::Access(const std::vector<std::string>& keys, const std::string& host, std::vector<std::string> names,
               std::vector<std::string> origins)
    : names_(std::move(names)), origins_(std::move(origins)), check_host_(is_loopback(host) || !names_.empty()) {
    for (const std::string& origin : origins_) {
        const std::size_t scheme = origin.find("://");
        RT_CHECK(origin == "*" || (scheme != std::string::npos && origin.find('/', scheme + 3) == std::string::npos),
                 ErrorKind::usage, "--cors-origin {}: expected an origin, such as https://example.org", origin);
        RT_CHECK(origin != "*" || keys.empty(), ErrorKind::usage,
                 "--cors-origin *: not with an API key; name the origins");
    }
    for (const std::string& key : keys) {
        RT_CHECK(!key.empty(), ErrorKind::usage, "an API key is empty");
        keys_.push_back(digest_of(key));
    }
    for (const char* name : {"localhost", "127.0.0.1", "[::1]"}) names_.emplace_back(name);
    names_.push_back(host.find(':') == std::string::npos ? host : fmt::format("[{}]", host));
}

bool Access::is_ours(std::string_view authority) const {
    const auto name = host_of(authority);
    return name &&
           std::any_of(names_.begin(), names_.end(), [&](const std::string& ours) { return same_name(ours, *name); });
}

bool Access::is_invited(std::string_view origin) const {
    return std::any_of(origins_.begin(), origins_.end(),
                       [&](const std::string& ours) { return ours == "*" || same_name(ours, origin); });
}

Headers Access::cors(const HttpRequest& request) const {
    const std::string_view origin = request.header("origin");
    if (origin.empty() || !is_invited(origin)) return {};
    Headers out = {{"Access-Control-Allow-Origin", std::string(origin)}, {"Vary", "Origin"}};
    if (request.method != "OPTIONS") return out;
    const std::string_view wanted = request.header("access-control-request-headers");
    out.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE");
    if (!wanted.empty()) out.emplace_back("Access-Control-Allow-Headers", std::string(wanted));
    out.emplace_back("Access-Control-Max-Age", "600");
    return out;
}

void Access::check_origin(const HttpRequest& request) const {
    if (check_host_ && !is_ours(request.header("host")) && !request.header("host").empty())
        throw ApiError(403, "this server is not called by the name in the Host header; --allowed-host NAME allows it");
    const std::string_view origin = request.header("origin");
    if (origin.empty() || is_invited(origin)) return;
    const auto authority = authority_of(origin);
    if (!authority || !is_ours(*authority)) throw ApiError(403, "web pages of other origins may not use this server");
}

void Access::check_key(const HttpRequest& request) const {
    if (keys_.empty()) return;
    const auto fields = std::count_if(request.headers.begin(), request.headers.end(),
                                      [](const auto& field) { return field.first == "authorization"; });
    const std::string_view given = given_key(request);
    const Digest digest = digest_of(given);
    unsigned matches = 0;
    for (const Digest& key : keys_) {
        unsigned different = 0;
        for (std::size_t i = 0; i < key.size(); ++i) different |= static_cast<unsigned>(key[i] ^ digest[i]);
        matches |= static_cast<unsigned>(different == 0);
    }
    if (given.empty()) throw ApiError(401, "an API key is needed: send Authorization: Bearer KEY");
    if (matches == 0 || fields > 1) throw ApiError(401, "the API key is not valid", "", "invalid_api_key");
}

std::string Access::isolation(const HttpRequest& request) const {
    return keys_.empty() ? std::string() : to_hex(digest_of(given_key(request)));
}

}  // namespace riptide::server
