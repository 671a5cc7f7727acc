// A connection that has become a WebSocket (RFC 6455). Internal to the HTTP server.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "server/http/connection.h"

namespace riptide::server {

/// Each text message of the client is a request with the header of the one that opened it, and is answered by messages:
/// the events of a stream, or what HttpHandlers::message makes of another reply. One is answered at a time, and one may
/// wait. Pings are answered whatever else goes on. Everything happens on the I/O thread, as in Connection.
class WebSocket : public std::enable_shared_from_this<WebSocket> {
  public:
    /// `tls`: around `stream`, or null. `opening` has passed the door.
    WebSocket(HttpShared& shared, ClientStream& stream, TlsStream* tls, HttpRequest opening);
    /// Until the client leaves, or close_when_idle() or stop() have their way. Needs a shared_ptr to this that lives as
    /// long.
    boost::asio::awaitable<void> run();

    /// As in Connection.
    void close_when_idle();
    void stop();

  private:
    /// A request, and the memory that it may take.
    struct Message {
        std::string text;
        HttpRoom::Share room;
    };

    boost::asio::awaitable<boost::beast::error_code> accept();
    boost::asio::awaitable<void> read_all();
    boost::asio::awaitable<bool> read_message(Message& message);
    boost::asio::awaitable<void> serve(Message& message);
    boost::asio::awaitable<Outcome> handle(HttpRequest request);
    boost::asio::awaitable<void> follow(PendingReply& reply, HttpRoom::Share& room);
    boost::asio::awaitable<bool> send_events(std::string_view events);
    boost::asio::awaitable<bool> send(std::string_view message);
    boost::asio::awaitable<void> close();
    void deadline(std::optional<std::chrono::milliseconds> time);
    void end(boost::beast::websocket::close_code code, const char* why);

    HttpShared& shared_;
    std::optional<boost::beast::websocket::stream<ClientStream&>> plain_;  // one of the two
    std::optional<boost::beast::websocket::stream<TlsStream&>> tls_;
    const HttpRequest opening_;
    boost::asio::steady_timer news_;  // cancelled when there is something to do
    boost::asio::steady_timer late_;  // of the message that is being read
    std::unique_ptr<Message> waiting_;
    std::stop_source work_;  // of the handler that is at work
    bool busy_ = false, reading_ = false;
    bool gone_ = false;                                            // nobody is there any more
    bool stopping_ = false;                                        // replies are broken off
    std::optional<boost::beast::websocket::close_reason> ending_;  // what the client is told at the end
};

}  // namespace riptide::server
