#include "server/http/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <tuple>

#include "base/error.h"
#include "server/http/head.h"
#include "server/http/web_socket.h"

namespace riptide::server {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t kReadAtOnce = 16384, kReadOfBody = 65536;
constexpr std::size_t kAtOnce = std::size_t{256} << 10;  // of a reply, before others get their turn
constexpr std::chrono::milliseconds kNextLook{200};

}  // namespace

Connection::Connection(Socket socket, HttpShared& shared)
    : shared_(shared),
      stream_(std::move(socket)),
      buffer_(shared.options.header_bytes + 65536),
      news_(stream_.get_executor()),
      peek_(stream_.get_executor()) {
    if (shared.tls) tls_.emplace(stream_, *shared.tls);
    beast::error_code ignored;  // a Unix socket has no such option
    stream_.socket().set_option(net::ip::tcp::no_delay(true), ignored);
    if (const int bytes = shared.options.send_buffer; bytes > 0)
        stream_.socket().set_option(net::socket_base::send_buffer_size(bytes), ignored);
}

net::awaitable<bool> Connection::shake_hands() {
    if (!tls_) co_return true;
    stream_.expires_after(shared_.options.header_time);
    const auto [ec] = co_await tls_->async_handshake(net::ssl::stream_base::server, kAwait);
    co_return !ec;
}

net::awaitable<void> Connection::run() {
    if (shared_.handlers.line) {
        if (co_await write(shared_.handlers.line())) co_await linger();
        co_return shut();
    }
    bool more = co_await shake_hands();
    while (more && !stopping_) {
        Input in;
        idle_ = true;
        const bool there = co_await wait_for_bytes();
        idle_ = false;
        if (!there) break;
        reading_ = true;
        const bool usable = co_await read_request(in);
        reading_ = false;
        if (!usable) break;
        if (in.request.session) {
            socket_ = std::make_shared<WebSocket>(shared_, stream_, tls_ ? &*tls_ : nullptr, std::move(in.request));
            co_await socket_->run();
            break;
        }
        more = co_await serve(in) && in.keep_alive && !in.unread && !shared_.draining;
        if (!more && in.unread) co_await linger();
    }
    shut();
}

/// The first bytes of a request, for which a client may take its time.
net::awaitable<bool> Connection::wait_for_bytes() {
    if (buffer_.size() > 0) co_return true;
    if (shared_.draining) co_return false;
    stream_.expires_after(shared_.options.idle_time);
    co_return !co_await read_some(kReadAtOnce, tls_.has_value());
}

net::awaitable<beast::error_code> Connection::read_some(std::size_t most, bool decrypted) {
    const auto room = buffer_.prepare(most);
    std::tuple<beast::error_code, std::size_t> got;  // no co_await inside ?: GCC 12 runs both
    if (decrypted) got = co_await tls_->async_read_some(room, kAwait);
    else got = co_await stream_.async_read_some(room, kAwait);
    if (!std::get<0>(got)) buffer_.commit(std::get<1>(got));
    co_return std::get<0>(got);
}

/// Feeds the parser until it has the header, or all of the request; `head` gets the header's bytes. This is Beast's
/// async_read_header() and async_read() without an instance of them for each kind of stream, and with a floor for
/// chunked bodies: see kLeastChunked.
net::awaitable<beast::error_code> Connection::feed(Parser& parser, bool whole, std::string& head) {
    parser.eager(whole);
    const bool chunked = whole && parser.chunked();
    for (std::size_t least = 1; whole ? !parser.is_done() : !parser.is_header_done();) {
        beast::error_code ec;
        if (buffer_.size() >= least) {
            const auto used = parser.put(buffer_.data(), ec);
            if (!whole) head.append(static_cast<const char*>(buffer_.data().data()), used);
            buffer_.consume(used);
            if (ec && ec != http::error::need_more) co_return ec;
            least = ec && chunked ? kLeastChunked : 1;
            if (!ec) continue;
        }
        if (chunked && buffer_.size() >= kReadAtOnce)
            co_return http::error::header_limit;  // of a chunk, or behind the last
        ec = co_await read_some(whole && !chunked ? kReadOfBody : kReadAtOnce, tls_.has_value());
        if (ec == net::error::eof)
            co_return parser.got_some() ? http::error::partial_message : http::error::end_of_stream;
        if (ec) co_return ec;
    }
    co_return beast::error_code{};
}

/// False: the client has gone. A request that cannot be read has a status.
net::awaitable<bool> Connection::read_request(Input& in) {
    const HttpOptions& options = shared_.options;
    Parser parser;
    std::string head;
    parser.header_limit(options.header_bytes);
    parser.body_limit(options.body_bytes);
    in.unread = true;
    deadline(options.header_time);
    const beast::error_code header_error = co_await feed(parser, false, head);
    if (header_error) {
        in.problem = "not a valid HTTP request: " + header_error.message();
        in.status = why_unread(header_error, "header", in.problem);
        copy_header(parser, in.request);  // what there is of it: the path says in which words to refuse
        co_return in.status != 0;
    }
    in.http_1_0 = parser.get().version() < 11;
    in.keep_alive = parser.keep_alive();
    in.status = check_header(parser, head, options, in.problem);
    copy_header(parser, in.request);
    if (shared_.handlers.headers) in.also = shared_.handlers.headers(in.request);
    if (in.status == 0) in.reply = shared_.handlers.door(in.request);
    if (in.status == 0 && !in.reply && shared_.handlers.session)
        in.request.session = shared_.handlers.session(in.request);
    if (in.request.session && buffer_.size() > 0) {
        in.request.session = nullptr;
        in.problem = "a client waits for the answer before it sends to a WebSocket";
        in.status = 400;
    }
    if (in.status != 0 || in.reply || in.request.session) {
        in_time();
        in.unread = in.status != 0 || !parser.is_done();  // where a bad request ends is not to be trusted
        co_return true;
    }
    const auto size = static_cast<int64_t>(parser.content_length().value_or(parser.chunked() ? options.body_bytes : 0));
    if (!in.room.take(shared_.room, size * HttpOptions::kBytesOfBody)) {
        in.problem = fmt::format("the requests that are being read need more than {} bytes of memory: try again later",
                                 shared_.room.most());
        in.status = 503;
        co_return true;
    }
    if (beast::iequals(parser.get()[http::field::expect], "100-continue") && !co_await write(kContinue))
        co_return false;
    deadline(options.body_time);
    const beast::error_code body_error = co_await feed(parser, true, head);
    if (body_error) {
        in.problem = "the request's body: " + body_error.message();
        in.status = why_unread(body_error, "body", in.problem);
        co_return in.status != 0;
    }
    in_time();
    in.unread = false;
    in.request.body = std::move(parser.get().body());
    co_return true;
}

/// Breaks off what is read, unless in_time() or another deadline comes before. (The stream's own timeouts close the
/// socket, and then the client cannot be told.)
void Connection::deadline(std::chrono::milliseconds time) {
    stream_.expires_never();
    overdue_ = false;
    news_.expires_after(time);
    news_.async_wait([self = weak_from_this(), number = ++deadline_](const beast::error_code&) {
        const auto alive = self.lock();
        if (!alive || alive->deadline_ != number) return;
        alive->overdue_ = true;
        beast::error_code ignored;
        alive->stream_.socket().cancel(ignored);
    });
}

/// The status for a request that was not read to its end: ours if we broke it off.
int Connection::why_unread(const beast::error_code& ec, std::string_view part, std::string& problem) const {
    const bool shedding = shared_.draining && ec == net::error::operation_aborted;
    if (!overdue_ && !shedding) return status_of(ec);
    problem = overdue_ ? fmt::format("the request's {} took too long", part) : "the server is shutting down";
    return overdue_ ? 408 : 503;
}

void Connection::in_time() {
    ++deadline_;
    news_.cancel();
}

net::awaitable<bool> Connection::write_reply(const HttpReply& reply, const Input& in) {
    const bool keep = in.keep_alive && !shared_.draining;
    std::string out = reply_head(reply.status, reply.body.empty() ? "" : reply.content_type, reply.headers, keep);
    for (const auto& [name, value] : in.also) out += fmt::format("{}: {}\r\n", name, value);
    if (keep && in.http_1_0) out += "Connection: keep-alive\r\n";
    if (reply.status != 204) out += fmt::format("Content-Length: {}\r\n", reply.body.size());
    out += "\r\n";
    if (in.request.method == "HEAD") co_return co_await write(out);
    if (reply.body.size() > kAtOnce) co_return co_await write(out) && co_await write(reply.body);
    out += reply.body;
    co_return co_await write(out);
}

/// A client must take some bytes now and then; how many is its own affair.
net::awaitable<bool> Connection::write(std::string_view bytes) {
    while (!bytes.empty()) {
        // Most of the time the system takes all of it at once, and neither a timer nor the loop is needed.
        const std::size_t size = std::min(bytes.size(), kAtOnce);
        const auto taken =
            tls_ ? -1 : ::send(stream_.socket().native_handle(), bytes.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (taken > 0) {
            bytes.remove_prefix(static_cast<std::size_t>(taken));
            // A client that reads fast would keep the others waiting for as long as there is something to send.
            if (!bytes.empty()) co_await net::post(stream_.get_executor(), net::use_awaitable);
            continue;
        }
        stream_.expires_after(shared_.options.write_time);
        const auto piece = net::buffer(bytes.data(), size);
        std::tuple<beast::error_code, std::size_t> done;
        if (tls_) done = co_await tls_->async_write_some(piece, kAwait);
        else done = co_await stream_.async_write_some(piece, kAwait);
        if (std::get<0>(done)) co_return false;
        bytes.remove_prefix(std::get<1>(done));
    }
    co_return true;
}

/// A refusal would be lost if the socket were closed while the client still sends: reads a little of it.
net::awaitable<void> Connection::linger() {
    beast::error_code ec;
    stream_.socket().shutdown(Socket::shutdown_send, ec);
    stream_.expires_after(std::chrono::seconds(1));
    for (int i = 0; i < 256 && !ec; ++i) {
        buffer_.clear();
        ec = co_await read_some(kReadAtOnce, false);  // whatever it is
    }
}

/// Notices, without reading, that the client closes its side. What a client sends ahead ends the watch.
void Connection::watch() {
    const uint64_t number = ++watching_;
    stream_.socket().async_wait(Socket::wait_read, [self = shared_from_this(), number](const beast::error_code& ec) {
        if (!ec) self->look(number);
    });
}

/// The client has sent something, or closed its side.
void Connection::look(uint64_t number) {
    if (number != watching_) return;
    const int fd = stream_.socket().native_handle();
    char byte = 0;
    const auto got = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return watch();
    pollfd state{fd, POLLRDHUP, 0};
    const bool closed = ::poll(&state, 1, 0) != 0;
    if (got > 0 && !closed) {
        if (tls_) look_again(number);  // most likely a farewell, and the end of the connection follows at once
        return;
    }
    if (got < 0 || !may_half_close_ || (state.revents & (POLLHUP | POLLERR)) != 0) {
        gone_ = true;
        work_.request_stop();
    } else {  // it may still read, or have closed all: what is written to it tells
        probe_ = !std::exchange(half_closed_, true);
        if (probe_ && working_ && !beating_)
            (void)::send(fd, kContinue.data(), kContinue.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        look_again(number);
        if (!probe_) return;
    }
    news_.cancel();
}

void Connection::look_again(uint64_t number) {
    peek_.expires_after(kNextLook);
    peek_.async_wait([self = shared_from_this(), number](const beast::error_code& ec) {
        if (!ec) self->look(number);
    });
}

void Connection::unwatch() {
    ++watching_;
    peek_.cancel();
    beast::error_code ignored;
    if (stream_.socket().is_open()) stream_.socket().cancel(ignored);
}

void Connection::close_when_idle() {
    if (socket_) return socket_->close_when_idle();
    if (idle_) return shut();
    if (!reading_) return;
    // Nothing is made for it yet, and nobody knows when the rest would come. As in deadline(): it can still be told.
    beast::error_code ignored;
    stream_.socket().cancel(ignored);
}

void Connection::stop() {
    if (socket_) return socket_->stop();
    stopping_ = true;
    work_.request_stop();
    if (following_) news_.cancel();
    else if (!working_) shut();
}

void Connection::shut() {
    beast::error_code ignored;
    if (!stream_.socket().is_open()) return;
    stream_.socket().shutdown(Socket::shutdown_send, ignored);
    stream_.close();
}

}  // namespace riptide::server
