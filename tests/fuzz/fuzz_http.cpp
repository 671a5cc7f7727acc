// Laws: whether a request is taken, and as what, does not depend on how its bytes are cut; what is read has a target
// within limits and at most the allowed fields; what cannot be read has a status of its own; header and body take no
// more than their limits. Input: one byte for the cuts, then what a client sends.
#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <string_view>

#include "server/http/head.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace riptide::server;
using riptide::fuzz::require;

struct Read {
    int status = 0;
    bool done = false;
    std::string problem;
    HttpRequest request;
    bool operator==(const Read& o) const {
        return status == o.status && done == o.done && problem == o.problem && request.method == o.request.method &&
               request.path == o.request.path && request.query == o.request.query &&
               request.headers == o.request.headers && request.body == o.request.body;
    }
};

/// As Connection::read_request does, with bytes that are there in pieces.
Read read(std::string_view bytes, size_t piece, const HttpOptions& options) {
    Read out;
    Parser parser;
    std::string head;
    parser.header_limit(options.header_bytes);
    parser.body_limit(options.body_bytes);
    parser.eager(false);
    size_t there = std::min(piece, bytes.size());
    boost::beast::error_code ec;
    const auto feed = [&](const auto& enough) {
        const bool chunked = parser.is_header_done() && parser.chunked();
        for (size_t least = 1; !enough();) {
            there = std::max(there, least);
            if (there > bytes.size()) return;
            const bool in_head = !parser.is_header_done();
            const size_t used = parser.put(boost::asio::buffer(bytes.data(), there), ec);
            if (in_head) head.append(bytes.substr(0, used));
            bytes.remove_prefix(used);
            there -= used;
            if (ec == boost::beast::http::error::need_more || (!ec && used == 0)) {
                ec = {};
                least = chunked ? kLeastChunked : 1;
                if (there == bytes.size()) return;
                there = std::min(bytes.size(), there + piece);
            } else if (ec) {
                return;
            } else {
                least = 1;
            }
        }
    };
    feed([&] { return parser.is_header_done(); });
    if (ec) out.status = status_of(ec);
    if (ec || !parser.is_header_done()) return out;
    out.status = check_header(parser, head, options, out.problem);
    copy_header(parser, out.request);
    require(out.status != 0 || out.request.path.starts_with('/') || out.request.path == "*");
    if (out.status != 0) return out;
    require(out.request.headers.size() <= options.header_fields);
    parser.eager(true);
    feed([&] { return parser.is_done(); });
    if (ec) out.status = status_of(ec);
    out.done = parser.is_done();
    if (out.done) out.request.body = parser.get().body();
    require(out.request.body.size() <= options.body_bytes);
    return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 1) return 0;
    HttpOptions options;
    options.header_bytes = 4096;
    options.body_bytes = 4096;
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    const Read whole = read(bytes, bytes.size(), options);
    // What is wrong with a request may show sooner or later; whether it is right may not depend on the cuts.
    const Read cut = read(bytes, 1 + data[0] % 37, options);
    const auto taken = [](const Read& r) { return r.done && r.status == 0; };
    require(taken(whole) == taken(cut));
    if (taken(whole)) require(whole == cut);
    return 0;
}
