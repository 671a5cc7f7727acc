#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>

#include "server/http/connection.h"
#include "server/http/reply_ending.h"

// From a request that has been read to its reply.

namespace riptide::server {

namespace net = boost::asio;
using Clock = std::chrono::steady_clock;
using How = ReplyEnding::How;

/// False: the connection is of no more use.
net::awaitable<bool> Connection::serve(Input& in) {
    if (in.status != 0) {
        in.keep_alive = in.keep_alive && !in.unread;
        HttpReply refusal{in.status, shared_.handlers.error_body(in.request, in.status, in.problem)};
        if (in.status == 503) refusal.headers.emplace_back("Retry-After", "1");
        co_return co_await write_reply(refusal, in);
    }
    if (in.reply) {
        if (in.unread) in.keep_alive = false;
        co_return co_await write_reply(*in.reply, in);
    }
    const bool is_head = in.request.method == "HEAD";
    HttpRequest request = std::move(in.request);
    in.request = {};
    in.request.method = is_head ? "HEAD" : "";
    may_half_close_ = !tls_ && !in.http_1_0;
    half_closed_ = probe_ = false;
    Outcome outcome = co_await handle(std::move(request));
    std::shared_ptr<LaterReply> later;
    if (auto* found = std::get_if<std::shared_ptr<LaterReply>>(&outcome)) {
        later = std::move(*found);
        outcome = co_await wait_for(*later, in);
    }
    auto* whole = std::get_if<HttpReply>(&outcome);
    in.room.become(whole != nullptr ? std::ssize(whole->body) : 0);
    if (whole != nullptr && in.beats > 0) co_return co_await end_stream(later->early, *whole, in);
    if (whole != nullptr) co_return co_await write_reply(*whole, in);
    co_return co_await answer(std::get<PendingReply>(outcome), in);
}

/// The handler runs on a worker thread; a client that leaves meanwhile stops it.
net::awaitable<Outcome> Connection::handle(HttpRequest request) {
    work_ = std::stop_source();
    request.stop = work_.get_token();
    request.received = Clock::now();
    auto work = [&shared = shared_, &request]() -> net::awaitable<Outcome> {
        co_return shared.handlers.handle(std::move(request));
    };
    working_ = true;
    watch();
    const bool waits = shared_.handlers.waits && shared_.handlers.waits(request);
    Outcome outcome = co_await net::co_spawn(waits ? shared_.waiters : shared_.workers, work, net::use_awaitable);
    unwatch();
    working_ = false;
    co_return outcome;
}

/// What comes of it. The stream lives meanwhile: its client hears heartbeats.
net::awaitable<Outcome> Connection::wait_for(LaterReply& later, Input& in) {
    std::optional<Outcome> made;
    net::post(shared_.workers, [&later, &made, this, executor = stream_.get_executor()] {
        net::post(executor, [&made, this, outcome = std::make_shared<Outcome>(later.make())] {
            made = std::move(*outcome);
            news_.cancel();
        });
    });
    working_ = beating_ = true;
    watch();
    for (auto beat = Clock::now() + shared_.options.heartbeat_time; !made;) {
        news_.expires_at(gone_ ? Clock::now() + std::chrono::hours(24) : beat);
        if (!probe_ || gone_) co_await news_.async_wait(kAwait);
        const bool due = std::exchange(probe_, false) || Clock::now() >= beat;
        if (made || gone_ || !due) continue;
        std::string out;
        later.early.heartbeat(out);
        if (in.beats++ == 0) out = stream_head(later.early, in) + framed(later.early.opening + out, in.http_1_0);
        else out = framed(out, in.http_1_0);
        gone_ = !co_await write(out);
        if (gone_) work_.request_stop();
        beat = Clock::now() + shared_.options.heartbeat_time;
    }
    unwatch();
    working_ = beating_ = false;
    later.make = nullptr;  // and the request with it
    co_return std::move(*made);
}

/// A stream that has begun turns out to be a refusal, or is complete already.
net::awaitable<bool> Connection::end_stream(PendingReply& early, const HttpReply& whole, const Input& in) {
    std::string out = whole.body;
    if (whole.status != 200) {
        out.clear();
        early.abort(whole.status, whole.refusal, out);
    }
    const bool written = co_await write(framed(out, in.http_1_0) + (in.http_1_0 ? "" : "0\r\n\r\n"));
    co_return written && !in.http_1_0;
}

std::string Connection::stream_head(const PendingReply& reply, const Input& in) const {
    Headers headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    if (!in.http_1_0) headers.emplace_back("Transfer-Encoding", "chunked");
    headers.insert(headers.end(), in.also.begin(), in.also.end());
    return reply_head(200, reply.stream_type, headers, in.keep_alive && !in.http_1_0) + "\r\n";
}

net::awaitable<bool> Connection::answer(PendingReply& reply, Input& in) {
    ReplyGuard ending(reply);
    reply.events->count_in(shared_.room);
    // The timer may be gone by the time that the I/O thread hears of it, the executor may not.
    std::weak_ptr<Connection> self = weak_from_this();
    reply.events->on_news([self, executor = stream_.get_executor()] {
        net::post(executor, [self] {
            if (const auto alive = self.lock()) alive->news_.cancel();
        });
    });
    if (reply.stream && in.beats == 0) {
        std::string begin = stream_head(reply, in);
        if (!reply.opening.empty()) begin += framed(reply.opening, in.http_1_0);
        if (!co_await write(begin)) co_return false;
    }
    for (std::string said; in.beats > 0; --in.beats) reply.heartbeat(said);
    half_closed_ = probe_ = false;
    watch();
    following_ = true;
    const bool usable = co_await follow(reply, in, ending.is);
    following_ = false;
    unwatch();
    if (!usable || reply.stream) co_return usable && !in.http_1_0;
    const HttpReply whole = whole_of(reply, ending.is);
    in.room.become(std::ssize(whole.body));
    co_return co_await write_reply(whole, in);
}

/// Passes events on until the reply is complete (or the server stops). False: the client has gone.
net::awaitable<bool> Connection::follow(PendingReply& reply, Input& in, ReplyEnding& ending) {
    std::string out;
    int64_t taken = 0;
    auto last_write = Clock::now();
    while (ending.how == How::client_gone && !gone_) {
        const std::vector<Item> items = reply.events->take();
        for (const Item& item : items) taken += payload_bytes(item.event);
        take_all(reply, items, out, ending);
        in.room.become(reply.stream ? std::ssize(out) : taken);
        if (items.empty() && !stopping_) {
            const auto beat = last_write + shared_.options.heartbeat_time;
            news_.expires_at(reply.stream || half_closed_ ? beat : Clock::now() + std::chrono::hours(24));
            if (!probe_) co_await news_.async_wait(kAwait);
            const bool due = std::exchange(probe_, false) || Clock::now() >= beat;
            if (due && reply.stream) reply.heartbeat(out);
            const bool probing = due && !reply.stream && half_closed_;
            if (probing && !co_await write(kContinue)) co_return false;
            if (probing) last_write = Clock::now();
        }
        if (stopping_ && ending.how == How::client_gone) ending = {How::server_stops, "the server stops"};
        if (reply.stream) tell_ending(reply, ending, out);
        if (out.empty() || !reply.stream) continue;
        if (!co_await write(framed(out, in.http_1_0))) co_return false;
        out.clear();
        last_write = Clock::now();
    }
    if (ending.how == How::client_gone) co_return false;
    if (reply.stream && !in.http_1_0) co_return co_await write("0\r\n\r\n");
    co_return true;
}

}  // namespace riptide::server
