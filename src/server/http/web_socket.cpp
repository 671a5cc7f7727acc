#include "server/http/web_socket.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/websocket/ssl.hpp>
#include <tuple>

#include "server/http/reply_ending.h"

namespace riptide::server {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;
using Clock = std::chrono::steady_clock;
using How = ReplyEnding::How;

namespace {

constexpr std::size_t kPiece = 65536;
constexpr std::string_view kData = "data: ";
/// For the client's side of the farewell.
constexpr std::chrono::seconds kFarewell{2};

template <class Socket>
void set_up(Socket& socket, const HttpOptions& options) {
    websocket::stream_base::timeout times{kFarewell, options.idle_time, true};  // pings: is the client still there?
    socket.set_option(times);
    socket.read_message_max(options.body_bytes);
    socket.text(true);
}

}  // namespace

WebSocket::WebSocket(HttpShared& shared, ClientStream& stream, TlsStream* tls, HttpRequest opening)
    : shared_(shared), opening_(std::move(opening)), news_(stream.get_executor()), late_(stream.get_executor()) {
    stream.expires_never();  // from here on the WebSocket looks after the time
    if (tls != nullptr) set_up(tls_.emplace(*tls), shared.options);
    else set_up(plain_.emplace(stream), shared.options);
}

net::awaitable<void> WebSocket::run() {
    if (co_await accept()) co_return;  // the client has been told
    reading_ = true;
    const auto self = shared_from_this();
    auto reader = [self]() { return self->read_all(); };
    net::co_spawn(news_.get_executor(), reader, [self](const std::exception_ptr&) {
        self->reading_ = false;
        self->gone_ = true;
        self->work_.request_stop();
        self->news_.cancel();
    });
    while (!gone_ && !ending_) {
        if (waiting_) {
            const std::unique_ptr<Message> message = std::move(waiting_);
            busy_ = true;
            co_await serve(*message);
            busy_ = false;
            if (shared_.draining) end(websocket::close_code::going_away, "the server is shutting down");
            continue;
        }
        news_.expires_after(std::chrono::hours(24));
        co_await news_.async_wait(kAwait);
    }
    if (!gone_) co_await close();
    while (reading_) {
        news_.expires_after(std::chrono::hours(24));
        co_await news_.async_wait(kAwait);
    }
}

net::awaitable<beast::error_code> WebSocket::accept() {
    http::request<http::empty_body> request(http::verb::get, opening_.path, 11);
    for (const auto& [name, value] : opening_.headers) request.insert(name, value);
    std::tuple<beast::error_code> done;
    if (tls_) done = co_await tls_->async_accept(request, kAwait);
    else done = co_await plain_->async_accept(request, kAwait);
    co_return std::get<0>(done);
}

/// Always reads, for pings are answered and a client that leaves is noticed by reading.
net::awaitable<void> WebSocket::read_all() {
    while (true) {
        auto message = std::make_unique<Message>();
        if (!co_await read_message(*message)) co_return;
        if (ending_) continue;
        if (waiting_) {
            end(websocket::close_code::policy_error, "one answer at a time, and one request may wait");
            continue;
        }
        waiting_ = std::move(message);
        news_.cancel();
    }
}

/// False: nothing more will come.
net::awaitable<bool> WebSocket::read_message(Message& message) {
    auto buffer = net::dynamic_buffer(message.text);
    for (bool begun = false, done = false; !done; begun = true) {
        std::tuple<beast::error_code, std::size_t> got;
        if (tls_) got = co_await tls_->async_read_some(buffer, kPiece, kAwait);
        else got = co_await plain_->async_read_some(buffer, kPiece, kAwait);
        if (std::get<0>(got)) co_return false;
        if (!begun) deadline(shared_.options.body_time);
        const bool text = tls_ ? tls_->got_text() : plain_->got_text();
        done = tls_ ? tls_->is_message_done() : plain_->is_message_done();
        if (!text) end(websocket::close_code::unknown_data, "messages are JSON, and text");
        message.room.become(0);
        if (!message.room.take(shared_.room, std::ssize(message.text) * HttpOptions::kBytesOfBody))
            end(websocket::close_code::try_again_later, "the requests that are being read need too much memory");
        if (ending_) buffer.consume(buffer.size());
    }
    deadline({});
    co_return true;
}

/// A message that comes by and by holds memory.
void WebSocket::deadline(std::optional<std::chrono::milliseconds> time) {
    late_.cancel();
    if (!time) return;
    late_.expires_after(*time);
    late_.async_wait([self = weak_from_this()](const beast::error_code& ec) {
        const auto alive = self.lock();
        if (!ec && alive) alive->end(websocket::close_code::policy_error, "the message took too long");
    });
}

net::awaitable<void> WebSocket::serve(Message& message) {
    HttpRequest request = opening_;
    request.body = std::move(message.text);
    Outcome outcome = co_await handle(std::move(request));
    const auto* whole = std::get_if<HttpReply>(&outcome);
    message.room.become(whole != nullptr ? std::ssize(whole->body) : 0);
    if (whole == nullptr) co_await follow(std::get<PendingReply>(outcome), message.room);
    else if (whole->content_type.starts_with("text/event-stream")) co_await send_events(whole->body);
    else if (!whole->body.empty()) co_await send(shared_.handlers.message(*whole));
}

net::awaitable<Outcome> WebSocket::handle(HttpRequest request) {
    work_ = std::stop_source();
    if (gone_ || stopping_) work_.request_stop();
    request.stop = work_.get_token();
    request.received = Clock::now();
    auto work = [&shared = shared_, &request]() -> net::awaitable<Outcome> {
        co_return shared.handlers.handle(std::move(request));
    };
    co_return co_await net::co_spawn(shared_.workers, work, net::use_awaitable);
}

net::awaitable<void> WebSocket::follow(PendingReply& reply, HttpRoom::Share& room) {
    ReplyGuard guard{reply};
    ReplyEnding& ending = guard.is;
    reply.events->count_in(shared_.room);
    const std::weak_ptr<WebSocket> self = weak_from_this();
    reply.events->on_news([self, executor = news_.get_executor()] {
        net::post(executor, [self] {
            if (const auto alive = self.lock()) alive->news_.cancel();
        });
    });
    std::string out = reply.opening;
    auto last_write = Clock::now();
    while (!gone_) {
        const std::vector<Item> items = reply.events->take();
        take_all(reply, items, out, ending);
        room.become(std::ssize(out));
        if (items.empty() && out.empty() && !stopping_) {
            const auto beat = last_write + shared_.options.heartbeat_time;
            news_.expires_at(beat);
            co_await news_.async_wait(kAwait);
            if (Clock::now() >= beat) reply.heartbeat(out);
        }
        if (stopping_ && ending.how == How::client_gone) ending = {How::server_stops, "the server stops"};
        tell_ending(reply, ending, out);
        if (!out.empty() && !co_await send_events(out)) co_return;
        if (!out.empty()) last_write = Clock::now();
        out.clear();
        if (ending.how != How::client_gone) co_return;
    }
}

/// The data of each event of a stream of server-sent events is a message.
net::awaitable<bool> WebSocket::send_events(std::string_view events) {
    while (!events.empty()) {
        const std::size_t end = events.find("\n\n");
        const std::string_view event = events.substr(0, end);
        events.remove_prefix(end == std::string_view::npos ? events.size() : end + 2);
        const std::size_t data = event.find(kData);  // no name of an event holds it
        if (data != std::string_view::npos && !co_await send(event.substr(data + kData.size()))) co_return false;
    }
    co_return true;
}

net::awaitable<bool> WebSocket::send(std::string_view message) {
    if (gone_) co_return false;
    const auto bytes = net::buffer(message.data(), message.size());
    std::tuple<beast::error_code, std::size_t> done;
    if (tls_) done = co_await tls_->async_write(bytes, kAwait);
    else done = co_await plain_->async_write(bytes, kAwait);
    co_return !std::get<0>(done);
}

net::awaitable<void> WebSocket::close() {
    if (tls_) co_await tls_->async_close(*ending_, kAwait);
    else co_await plain_->async_close(*ending_, kAwait);
}

void WebSocket::end(websocket::close_code code, const char* why) {
    if (!ending_) ending_.emplace(code, why);
    news_.cancel();
}

void WebSocket::close_when_idle() {
    if (!busy_ && !waiting_) end(websocket::close_code::going_away, "the server is shutting down");
}

void WebSocket::stop() {
    stopping_ = true;
    work_.request_stop();
    end(websocket::close_code::going_away, "the server is shutting down");
}

}  // namespace riptide::server
