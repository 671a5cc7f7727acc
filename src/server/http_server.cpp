#include "server/http_server.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "server/http_connection.h"

namespace riptide::server {

namespace net = boost::asio;
using net::ip::tcp;

namespace {

constexpr auto kAwait = net::as_tuple(net::use_awaitable);
/// For aborted replies to reach their clients.
constexpr std::chrono::seconds kAbortTime{5};

tcp::endpoint address_of(const HttpOptions& o) {
    boost::system::error_code ec;
    const auto address = net::ip::make_address(o.host == "localhost" ? "127.0.0.1" : o.host, ec);
    RT_CHECK(!ec, ErrorKind::usage, "--host {}: expected an IP address, such as 127.0.0.1, ::1 or 0.0.0.0", o.host);
    RT_CHECK(o.port >= 0 && o.port <= 65535, ErrorKind::usage, "--port {}: expected 0 to 65535", o.port);
    return {address, static_cast<net::ip::port_type>(o.port)};
}

}  // namespace

struct HttpServer::Impl {
    Impl(const HttpOptions& options, HttpHandlers handlers) : shared(options, std::move(handlers)), acceptor(io) {
        const tcp::endpoint where = address_of(options);
        boost::system::error_code ec;
        acceptor.open(where.protocol(), ec);
        if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
        if (!ec) acceptor.bind(where, ec);
        if (!ec) acceptor.listen(net::socket_base::max_listen_connections, ec);
        if (ec == net::error::address_in_use)
            fail(ErrorKind::unavailable, "port {} of {} is in use; choose another with --port", options.port,
                 options.host);
        if (ec)
            fail(ErrorKind::unavailable, "cannot listen on {} port {}: {}", options.host, options.port, ec.message());
        port = acceptor.local_endpoint().port();
        net::co_spawn(io, accept(), net::detached);
        thread = std::thread([this] { io.run(); });
    }

    ~Impl() {
        net::post(io, [this] { stop_all(); });
        wait_until_empty(kAbortTime);
        io.stop();
        thread.join();
        shared.workers.join();
    }

    net::awaitable<void> accept();
    void stop_all();
    bool wait_until_empty(std::chrono::milliseconds time);

    HttpShared shared;
    net::io_context io{1};
    tcp::acceptor acceptor;
    int port = 0;
    std::thread thread;

    // The I/O thread's.
    std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;
    // Everybody's.
    std::atomic<int64_t> count = 0;
    std::mutex mutex;
    std::condition_variable emptied;
};

net::awaitable<void> HttpServer::Impl::accept() {
    net::steady_timer pause(io);
    while (acceptor.is_open()) {
        auto [ec, socket] = co_await acceptor.async_accept(kAwait);
        if (!acceptor.is_open()) break;
        if (ec) {  // no more descriptors, most likely: wait for some, do not spin
            pause.expires_after(std::chrono::milliseconds(100));
            co_await pause.async_wait(kAwait);
            continue;
        }
        if (std::ssize(connections) >= shared.options.max_connections) continue;  // closes the socket
        const auto connection = std::make_shared<Connection>(std::move(socket), shared);
        connections.emplace(connection.get(), connection);
        ++count;
        auto session = [connection]() { return connection->run(); };
        net::co_spawn(io, session, [this, key = connection.get()](const std::exception_ptr&) {
            connections.erase(key);
            const std::lock_guard lock(mutex);
            if (--count == 0) emptied.notify_all();
        });
    }
}

void HttpServer::Impl::stop_all() {
    boost::system::error_code ignored;
    acceptor.close(ignored);
    shared.draining = true;
    for (const auto& [key, weak] : connections)
        if (const auto connection = weak.lock()) connection->stop();
}

bool HttpServer::Impl::wait_until_empty(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex);
    return emptied.wait_for(lock, time, [&] { return count == 0; });
}

HttpServer::HttpServer(const HttpOptions& options, HttpHandlers handlers)
    : impl_(std::make_unique<Impl>(options, std::move(handlers))) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->port; }
int64_t HttpServer::connections() const { return impl_->count; }

void HttpServer::drain(std::chrono::milliseconds grace) {
    Impl& impl = *impl_;
    net::post(impl.io, [&impl] {
        boost::system::error_code ignored;
        impl.acceptor.close(ignored);
        impl.shared.draining = true;
        for (const auto& [key, weak] : impl.connections)
            if (const auto connection = weak.lock()) connection->close_when_idle();
    });
    // The first wait may find no connection before the I/O thread has heard: that is no harm, none is left then.
    if (impl.wait_until_empty(grace)) return;
    net::post(impl.io, [&impl] { impl.stop_all(); });
    impl.wait_until_empty(kAbortTime);
}

}  // namespace riptide::server
