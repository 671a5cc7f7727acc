#include "server/page/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/error.h"
#include "base/sha256.h"
#include "server/http/authority.h"

extern "C" const char riptide_page_begin[];
extern "C" const char riptide_page_end[];
extern "C" const char riptide_page_gzip_begin[];
extern "C" const char riptide_page_gzip_end[];

namespace riptide::server {

namespace {

/// Does a list such as Accept's name `wanted`, with a weight that is not 0 (RFC 9110, 12.4.2)?
bool list_names(std::string_view list, std::string_view wanted) {
    while (!list.empty()) {
        std::string_view item = list.substr(0, list.find(','));
        list.remove_prefix(std::min(item.size() + 1, list.size()));
        item.remove_prefix(std::min(item.find_first_not_of(" \t"), item.size()));
        if (!same_name(item.substr(0, item.find_first_of("; \t")), wanted)) continue;
        const std::size_t weight = std::min(item.find("q="), item.find("Q="));
        return weight == std::string_view::npos || item.find_first_of("123456789", weight) != std::string_view::npos;
    }
    return false;
}

/// 'sha256-...' of what stands between two marks of the page.
std::string source_hash(std::string_view opening, std::string_view closing) {
    const std::string_view page = page_text();
    const std::size_t begin = page.find(opening);
    RT_ASSERT(begin != std::string_view::npos);
    const std::string_view inside = page.substr(begin + opening.size());
    const Digest digest = sha256(std::as_bytes(std::span(inside.substr(0, inside.find(closing)))));
    std::array<unsigned char, 45> base64{};  // of 32 bytes, and a zero
    EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(digest.size()));
    return fmt::format("'sha256-{}'", reinterpret_cast<const char*>(base64.data()));
}

const std::string& content_policy() {
    static const std::string policy = fmt::format(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; form-action "
        "'none'; frame-ancestors 'none'",
        source_hash("<script type=\"module\">", "</script>"), source_hash("<style>", "</style>"));
    return policy;
}

}  // namespace

std::string_view page_text() { return {riptide_page_begin, riptide_page_end}; }

bool wants_page(const HttpRequest& request) { return list_names(request.header("accept"), "text/html"); }

HttpReply page_reply(const HttpRequest& request) {
    HttpReply reply{200, "", "text/html; charset=utf-8"};
    reply.headers = {{"Content-Security-Policy", content_policy()},
                     {"X-Content-Type-Options", "nosniff"},
                     {"Referrer-Policy", "no-referrer"},
                     {"Cross-Origin-Opener-Policy", "same-origin"},
                     {"Cache-Control", "no-cache"},
                     {"Vary", "Accept, Accept-Encoding"}};
    if (list_names(request.header("accept-encoding"), "gzip")) {
        reply.body.assign(riptide_page_gzip_begin, riptide_page_gzip_end);
        reply.headers.emplace_back("Content-Encoding", "gzip");
    } else {
        reply.body = page_text();
    }
    return reply;
}

HttpReply hello_reply(const HttpRequest& request, bool page) {
    if (page && wants_page(request)) return page_reply(request);
    HttpReply reply{200, "riptide\n", "text/plain"};
    if (page) reply.headers.emplace_back("Vary", "Accept");
    return reply;
}

}  // namespace riptide::server
