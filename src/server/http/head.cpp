#include "server/http/head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <cctype>
#include <iterator>

#include "server/http/authority.h"

namespace riptide::server {

namespace beast = boost::beast;
namespace http = beast::http;

namespace {

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
}

std::string string_from(beast::string_view view) { return {view.data(), view.size()}; }

/// What decides where a request ends, whom it is for, or who asks: two readers could take a different one of two.
constexpr std::array kOnce = {http::field::content_length, http::field::transfer_encoding,
                              http::field::host,           http::field::origin,
                              http::field::content_type,   http::field::content_encoding};

/// The parser puts such lines together, others do not.
bool has_folded_line(std::string_view head) {
    return head.find("\n ") != std::string_view::npos || head.find("\n\t") != std::string_view::npos;
}

std::string_view reason_of(int status) {
    const auto reason = http::obsolete_reason(static_cast<http::status>(status));
    return {reason.data(), reason.size()};
}

}  // namespace

int status_of(const beast::error_code& ec) {
    if (ec == http::error::header_limit || ec == http::error::buffer_overflow) return 431;
    if (ec == http::error::body_limit) return 413;
    if (ec == http::error::bad_version) return 505;
    if (ec == http::error::end_of_stream || ec == http::error::partial_message) return 0;
    return ec.category() == http::make_error_code(http::error::bad_method).category() ? 400 : 0;
}

int check_header(const Parser& parser, std::string_view head, const HttpOptions& options, std::string& problem) {
    const auto& message = parser.get();
    const auto refuse = [&](int status, std::string text) {
        problem = std::move(text);
        return status;
    };
    if (message.target().size() > options.target_bytes) return refuse(414, "the request target is too long");
    const bool star = message.target() == "*" && message.method() == http::verb::options;
    if (!star && !message.target().starts_with('/'))
        return refuse(400, "the request target must be a path that starts with '/'");
    const auto fields = std::distance(message.begin(), message.end());
    if (fields > static_cast<std::ptrdiff_t>(options.header_fields)) return refuse(431, "too many header fields");
    if (has_folded_line(head)) return refuse(400, "a header line is continued on the next: not allowed any more");
    for (const http::field name : kOnce)
        if (message.count(name) > 1)
            return refuse(400, fmt::format("expected one {} header", string_from(to_string(name))));
    // The parser is content with "3, 3", other codings, and a coding in HTTP/1.0, which knows none.
    const auto length = message[http::field::content_length];
    if (!std::all_of(length.begin(), length.end(), [](char c) { return c >= '0' && c <= '9'; }))
        return refuse(400, "Content-Length: expected one number");
    if (message.count(http::field::transfer_encoding) > 0 &&
        (message.version() < 11 || !beast::iequals(message[http::field::transfer_encoding], "chunked")))
        return refuse(400, "the only Transfer-Encoding that is understood is chunked, in HTTP/1.1");
    if (message.count(http::field::host) == 0 && message.version() >= 11)
        return refuse(400, "expected one Host header");
    const std::string_view host(message[http::field::host].data(), message[http::field::host].size());
    if (!host.empty() && !host_of(host)) return refuse(400, "Host: expected a name or an address, and perhaps a port");
    if (const auto encoding = message[http::field::content_encoding]; !encoding.empty() && encoding != "identity")
        return refuse(415, "Content-Encoding is not supported: send the body as it is");
    return 0;
}

void copy_header(const Parser& parser, HttpRequest& out) {
    const auto& message = parser.get();
    out.method = string_from(message.method_string());
    const std::string target = string_from(message.target());
    const std::size_t mark = target.find('?');
    out.path = target.substr(0, mark);
    if (mark != std::string::npos) out.query = target.substr(mark + 1);
    for (const auto& field : message)
        out.headers.emplace_back(lower(string_from(field.name_string())), string_from(field.value()));
}

std::string reply_head(int status, std::string_view type, const Headers& headers, bool keep_alive) {
    std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, reason_of(status));
    if (!type.empty()) out += fmt::format("Content-Type: {}\r\n", type);
    for (const auto& [name, value] : headers) out += fmt::format("{}: {}\r\n", name, value);
    if (!keep_alive) out += "Connection: close\r\n";
    return out;
}

std::string framed(std::string_view bytes, bool plain) {
    return plain ? std::string(bytes) : fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

}  // namespace riptide::server
