// One client's connection. Internal to the HTTP server.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include "server/http/head.h"
#include "server/http/room.h"
#include "server/http/server.h"

namespace riptide::server {

/// Errors are values of the co_await, not exceptions.
inline constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

/// TCP or a Unix socket.
using Socket = boost::asio::generic::stream_protocol::socket;

using ClientStream = boost::beast::basic_stream<boost::asio::generic::stream_protocol>;
using TlsStream = boost::asio::ssl::stream<ClientStream&>;

class WebSocket;

/// What all connections have in common; outlives them.
struct HttpShared {
    HttpOptions options;
    std::optional<boost::asio::ssl::context> tls;
    HttpHandlers handlers;
    boost::asio::thread_pool workers;
    boost::asio::thread_pool waiters;
    std::atomic<bool> draining = false;
    HttpRoom room;

    /// Throws Error (usage): certificate or key cannot be used.
    HttpShared(const HttpOptions& o, HttpHandlers h);
};

/// Reads requests and writes replies, one after the other. Everything happens on the I/O thread, except
/// HttpHandlers::handle and the wake-up from the engine.
class Connection : public std::enable_shared_from_this<Connection> {
  public:
    Connection(Socket socket, HttpShared& shared);
    /// Until the client leaves, a limit is reached, or close() or stop(). Needs a shared_ptr to this that lives as
    /// long.
    boost::asio::awaitable<void> run();

    /// Ends the connection if it waits for a request; refuses one of which a part is still to come; else it ends after
    /// the reply.
    void close_when_idle();
    /// Aborts the reply that is being made, and ends.
    void stop();

  private:
    struct Input {
        HttpRequest request;
        Headers also;  // for the reply's header
        bool keep_alive = false, http_1_0 = false;
        bool unread = false;  // a body that nobody has read
        int status = 0;       // not 0: the request is refused
        std::string problem;
        std::optional<HttpReply> reply;  // of the door
        HttpRoom::Share room;
        int64_t beats = 0;  // of a stream that has begun before its reply was there
    };

    boost::asio::awaitable<bool> shake_hands();
    boost::asio::awaitable<bool> wait_for_bytes();
    boost::asio::awaitable<bool> read_request(Input& in);
    boost::asio::awaitable<boost::beast::error_code> feed(Parser& parser, bool whole, std::string& head);
    /// Into buffer_, at most `most` bytes; as they came through the socket unless `decrypted`.
    boost::asio::awaitable<boost::beast::error_code> read_some(std::size_t most, bool decrypted);
    boost::asio::awaitable<bool> serve(Input& in);
    boost::asio::awaitable<Outcome> handle(HttpRequest request);
    boost::asio::awaitable<Outcome> wait_for(LaterReply& later, Input& in);
    boost::asio::awaitable<bool> end_stream(PendingReply& early, const HttpReply& whole, const Input& in);
    std::string stream_head(const PendingReply& reply, const Input& in) const;
    boost::asio::awaitable<bool> answer(PendingReply& reply, Input& in);
    boost::asio::awaitable<bool> follow(PendingReply& reply, Input& in, ReplyEnding& ending);
    boost::asio::awaitable<bool> write_reply(const HttpReply& reply, const Input& in);
    boost::asio::awaitable<bool> write(std::string_view bytes);
    boost::asio::awaitable<void> linger();
    void deadline(std::chrono::milliseconds time);
    void in_time();
    int why_unread(const boost::beast::error_code& ec, std::string_view part, std::string& problem) const;
    void watch();
    void look(uint64_t number);
    void look_again(uint64_t number);
    void unwatch();
    void shut();

    HttpShared& shared_;
    ClientStream stream_;
    std::optional<TlsStream> tls_;       // around it
    std::shared_ptr<WebSocket> socket_;  // once this has become one
    boost::beast::flat_buffer buffer_;
    /// Of reading a request; then of waiting for the engine: cancelled when there is something to do.
    boost::asio::steady_timer news_;
    boost::asio::steady_timer peek_;  // until the next look() at a client that has sent something
    bool idle_ = true, reading_ = false, working_ = false, following_ = false, stopping_ = false;
    bool beating_ = false;   // a LaterReply is being made, and its client hears heartbeats meanwhile
    std::stop_source work_;  // of the handler that is at work
    uint64_t deadline_ = 0;  // number of the one that is on
    bool overdue_ = false;   // the request took too long
    bool gone_ = false;      // nobody reads the reply
    /// The client has closed its side, and may still read. Whether it does shows in what is written to it: a heartbeat
    /// or, where the reply is not a stream, 100 Continue. HTTP/1.0 has nothing to write, TLS clients end both sides.
    bool half_closed_ = false, may_half_close_ = false;
    bool probe_ = false;     // something is to be written now
    uint64_t watching_ = 0;  // number of the watch that is on
};

}  // namespace riptide::server
