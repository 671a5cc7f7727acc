// The names that servers go by: what Host and Origin hold.
#pragma once

#include <optional>
#include <string_view>

namespace riptide::server {

/// The host of "HOST" or "HOST:PORT": a name, an IPv4 address, or an IPv6 address in brackets (RFC 3986, 3.2.2; no
/// user, no zone, no percent signs). PORT is 0 to 65535 in digits. nullopt: it is none of these. "" is none either.
std::optional<std::string_view> host_of(std::string_view authority);

/// The authority of "SCHEME://AUTHORITY" (RFC 6454, 6.1), without a look at what it holds; nullopt: no such thing.
std::optional<std::string_view> authority_of(std::string_view origin);

/// Do two names or origins mean the same? ASCII letters in any case.
bool same_name(std::string_view a, std::string_view b);

}  // namespace riptide::server
