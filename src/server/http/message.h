// What goes in and out of the HTTP server: plain structs, no library types.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "server/http/event_queue.h"

namespace riptide::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
    std::string method, path, query;  // path and query as sent, without the '?'
    Headers headers;                  // names in lower case
    std::string body;
    std::stop_token stop;                                 // asked for once nobody waits for the reply
    std::chrono::steady_clock::time_point received = {};  // when it was there, to its end
    std::shared_ptr<void> session;                        // of a WebSocket's messages: HttpHandlers::session

    /// The first field of this (lower-case) name, or "".
    std::string_view header(std::string_view name) const {
        for (const auto& [key, value] : headers)
            if (key == name) return value;
        return {};
    }
};

struct HttpReply {
    int status = 200;
    std::string body;
    std::string content_type = "application/json";
    Headers headers = {};
    std::string refusal = {};  // of an error: what it says
};

/// How a reply ended, and why in words, if it is not complete.
struct ReplyEnding {
    enum class How {
        client_gone,   // or has stopped reading; also: not over yet
        complete,      // the client has all of it, be it an error that the engine reported
        server_stops,  // before the reply was complete
        mistake,       // the reply could not be made of what the engine said
    } how = How::client_gone;
    std::string why = {};
};

/// A reply that the engine is still working on. The functions are called on the I/O thread, `ended` once and last.
/// What `take` and `finish` throw ends the reply as a mistake of the server.
struct PendingReply {
    std::shared_ptr<EventQueue> events;
    /// true: the header and `opening` are sent at once, and parts as they come. false: one reply when all has come.
    bool stream = false;
    std::string stream_type = "text/event-stream; charset=utf-8";  // Content-Type of a stream
    std::string opening;
    /// Takes one event; for a stream appends what the client gets to see. Returns true when the reply is complete:
    /// nothing more is taken then.
    std::function<bool(const Item& item, std::string& out)> take;
    /// For a stream that has been silent: something that clients take for life.
    std::function<void(std::string& out)> heartbeat;
    /// For a stream that ends before its time: an error in the client's dialect.
    std::function<void(int status, const std::string& message, std::string& out)> abort;
    /// The reply, once take() has returned true; not for a stream.
    std::function<HttpReply()> finish;
    /// In its place, if it does not get so far: an error in the client's dialect.
    std::function<HttpReply(int status, const std::string& message)> refusal;
    /// Ends the engine's work; called if the reply is given up.
    std::function<void()> cancel;
    std::function<void(const ReplyEnding& ending)> ended;
};

struct LaterReply;
using Outcome = std::variant<HttpReply, PendingReply, std::shared_ptr<LaterReply>>;

/// A stream for which something has to come first that takes its time. It begins when the client has heard nothing for
/// HttpOptions::heartbeat_time; what is there sooner is sent as if it had been there at once.
struct LaterReply {
    /// The stream until then: its stream_type, opening, heartbeat and abort.
    PendingReply early;
    /// What has come of it, on a worker thread: a whole reply, which a stream that has begun turns into its last part,
    /// or a stream that goes on. Of that the opening is not sent again, and heartbeats are taken from it unsent until
    /// it has given as many as `early`. Must not throw, and should end soon once HttpRequest::stop asks for it.
    std::function<Outcome()> make;
};

/// Who answers requests.
struct HttpHandlers {
    /// From the header alone, on the I/O thread, so it must be quick: a refusal, or a reply that needs no body.
    /// nullopt: read the body and call `handle`.
    std::function<std::optional<HttpReply>(const HttpRequest&)> door;
    /// On a worker thread, several at a time. Must not throw, and should end soon once HttpRequest::stop asks for it.
    std::function<Outcome(HttpRequest&&)> handle;
    /// Whether `handle` waits for another server: it then has a thread of few that are there for this, so that others
    /// keep theirs. May be empty.
    std::function<bool(const HttpRequest&)> waits = {};
    /// What the messages of a WebSocket have in common, if this request, which has passed the door, opens one. Each of
    /// them is then a request with this one's header. Null: it is a request like others. On the I/O thread; may be
    /// empty.
    std::function<std::shared_ptr<void>(const HttpRequest&)> session = {};
    /// What a WebSocket gets in place of a reply that is no stream.
    std::function<std::string(const HttpReply&)> message = {};
    /// Header fields for whatever this request is answered with; before all others, and may put right what the request
    /// says in its own. On the I/O thread; may be empty.
    std::function<Headers(HttpRequest&)> headers;
    /// If it is there, no HTTP is spoken: each connection is told this line, and ends.
    std::function<std::string()> line = {};
    /// The body of an error that the HTTP server itself has found (400, 408, 413, ...). Of the request there may be the
    /// header only, a part of it, or nothing.
    std::function<std::string(const HttpRequest&, int status, const std::string& message)> error_body;
};

}  // namespace riptide::server
