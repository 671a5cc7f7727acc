#include "server/http/authority.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string>

namespace riptide::server {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool of_a_name(char c) { return is_letter(c) || is_digit(c) || c == '-' || c == '.' || c == '_'; }

/// "", or ":" and a port.
bool ends_as_port(std::string_view rest) {
    if (rest.empty()) return true;
    const std::string digits(rest.substr(1));
    return rest.front() == ':' && !digits.empty() && digits.size() <= 5 &&
           std::all_of(digits.begin(), digits.end(), is_digit) && std::stoi(digits) <= 65535;
}

}  // namespace

std::optional<std::string_view> host_of(std::string_view authority) {
    const bool bracketed = authority.starts_with('[');
    const std::size_t end = bracketed ? authority.find(']') + 1  // 0: there is none
                                      : std::min(authority.find(':'), authority.size());
    const std::string_view host = authority.substr(0, end);
    if (host.empty() || !ends_as_port(authority.substr(end))) return std::nullopt;
    if (!bracketed) return std::all_of(host.begin(), host.end(), of_a_name) ? std::optional(host) : std::nullopt;
    in6_addr address{};
    const std::string inside(host.substr(1, host.size() - 2));
    return ::inet_pton(AF_INET6, inside.c_str(), &address) == 1 ? std::optional(host) : std::nullopt;
}

std::optional<std::string_view> authority_of(std::string_view origin) {
    const std::size_t end = origin.find("://");
    if (end == std::string_view::npos || end == 0 || !is_letter(origin.front())) return std::nullopt;
    const auto of_a_scheme = [](char c) { return is_letter(c) || is_digit(c) || c == '+' || c == '-' || c == '.'; };
    const std::string_view scheme = origin.substr(0, end);
    if (!std::all_of(scheme.begin(), scheme.end(), of_a_scheme)) return std::nullopt;
    return origin.substr(end + 3);
}

bool same_name(std::string_view a, std::string_view b) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace riptide::server
