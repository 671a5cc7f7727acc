#include "server/http/fetch.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>

#include "base/error.h"
#include "server/http/authority.h"

namespace riptide::server {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

namespace {

constexpr uint32_t kReplyHeader = 32 << 10;

/// One request and its reply, on a loop of its own.
class Exchange {
  public:
    Exchange(const RemoteUrl& url, const FetchLimits& limits, std::stop_token stop)
        : url_(url), limits_(limits), stop_(std::move(stop)), stream_(io_), tls_(net::ssl::context::tls_client) {}

    HttpReply run(const http::request<http::string_body>& request) {
        const std::stop_callback on_stop(stop_, [this] { net::post(io_, [this] { stream_.close(); }); });
        stream_.expires_after(limits_.time);
        net::ip::tcp::resolver resolver(io_);
        net::ip::tcp::resolver::results_type found;
        step("cannot be found", [&](auto done) {
            resolver.async_resolve(url_.host, url_.port, [&found, done](const beast::error_code& ec, auto results) {
                found = std::move(results);
                done(ec);
            });
        });
        step("cannot be reached", [&](auto done) {
            stream_.async_connect(found, [done](const beast::error_code& ec, const auto&) { done(ec); });
        });
        if (!url_.tls) return talk(stream_, request);
        beast::ssl_stream<beast::tcp_stream&> secure(stream_, tls_);
        tls_.set_default_verify_paths();
        secure.set_verify_mode(net::ssl::verify_peer);
        secure.set_verify_callback(net::ssl::host_name_verification(url_.host));
        SSL_set_tlsext_host_name(secure.native_handle(), url_.host.c_str());
        step("has no TLS that can be trusted",
             [&](auto done) { secure.async_handshake(net::ssl::stream_base::client, done); });
        return talk(secure, request);
    }

  private:
    template <class Stream>
    HttpReply talk(Stream& stream, const http::request<http::string_body>& request) {
        step("does not take the request", [&](auto done) {
            http::async_write(stream, request, [done](const beast::error_code& ec, std::size_t) { done(ec); });
        });
        beast::flat_buffer buffer;
        http::response_parser<http::string_body> parser;
        parser.header_limit(kReplyHeader);
        parser.body_limit(limits_.reply_bytes);
        step("does not answer in HTTP", [&](auto done) {
            http::async_read(stream, buffer, parser, [done](const beast::error_code& ec, std::size_t) { done(ec); });
        });
        http::response<http::string_body> reply = parser.release();
        HttpReply out{static_cast<int>(reply.result_int()), std::move(reply.body()), ""};
        for (const auto& field : reply) {
            std::string value(field.value());
            if (field.name() == http::field::content_type) out.content_type = value;
            out.headers.emplace_back(std::string(field.name_string()), std::move(value));
        }
        return out;
    }

    /// Starts something and waits for its end.
    template <class Start>
    void step(const char* what, const Start& start) {
        beast::error_code ended = net::error::operation_aborted;
        start([&ended](const beast::error_code& ec) { ended = ec; });
        io_.restart();
        io_.run();
        RT_CHECK(!stop_.stop_requested(), ErrorKind::unavailable, "was not waited for");
        if (ended == beast::error::timeout)
            fail(ErrorKind::unavailable, "has not answered within {:.3g} s",
                 static_cast<double>(limits_.time.count()) / 1000);
        if (ended == http::error::body_limit)
            fail(ErrorKind::unavailable, "sends more than {} MiB", limits_.reply_bytes >> 20);
        if (ended) fail(ErrorKind::unavailable, "{}: {}", what, ended.message());
    }

    const RemoteUrl& url_;
    const FetchLimits& limits_;
    const std::stop_token stop_;
    net::io_context io_{1};
    beast::tcp_stream stream_;
    net::ssl::context tls_;
};

}  // namespace

RemoteUrl parse_url(const std::string& text, const std::string& what) {
    const bool tls = text.starts_with("https://");
    const auto wrong = [&](const char* why) {
        fail(ErrorKind::usage, "{}: {}, expected http(s)://HOST/PATH", what, why);
    };
    if (!tls && !text.starts_with("http://")) wrong("no address of HTTP");
    if (!std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; }))
        wrong("it holds white space or other signs");
    if (text.find('#') != std::string::npos) wrong("it has a fragment (#...)");
    const std::string rest = text.substr(tls ? 8 : 7);
    const std::size_t end = std::min(rest.find_first_of("/?"), rest.size());
    RemoteUrl url{tls, rest.substr(0, end), "", tls ? "443" : "80", rest.substr(end)};
    if (!url.target.starts_with('/')) url.target = "/" + url.target;
    if (url.authority.find('@') != std::string::npos) wrong("it has a user in it");
    const auto host = host_of(url.authority);
    if (!host) wrong("no host in it");
    url.host = *host;
    if (url.authority.size() > host->size() + 1) url.port = url.authority.substr(host->size() + 1);
    if (url.host.starts_with('[')) url.host = url.host.substr(1, url.host.size() - 2);
    return url;
}

HttpReply fetch(const RemoteUrl& url, const std::string& method, const Headers& headers, const std::string& body,
                const FetchLimits& limits, const std::stop_token& stop) {
    http::request<http::string_body> request;
    request.method_string(method);
    request.target(url.target);
    request.set(http::field::host, url.authority);
    request.set(http::field::connection, "close");
    for (const auto& [name, value] : headers) request.set(name, value);
    request.body() = body;
    if (!body.empty() || method != "DELETE") request.prepare_payload();
    return Exchange(url, limits, stop).run(request);
}

}  // namespace riptide::server
