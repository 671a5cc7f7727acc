#include "server/http/server.h"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "base/host_memory.h"
#include "server/http/connection.h"

namespace riptide::server {

namespace net = boost::asio;
using net::ip::tcp;
using local_protocol = net::local::stream_protocol;

namespace {

/// For aborted replies to reach their clients.
constexpr std::chrono::seconds kAbortTime{5};

tcp::endpoint address_of(const HttpOptions& o) {
    boost::system::error_code ec;
    const auto address = net::ip::make_address(o.host == "localhost" ? "127.0.0.1" : o.host, ec);
    RT_CHECK(!ec, ErrorKind::usage, "{} {}: expected an IP address, such as 127.0.0.1, ::1 or 0.0.0.0", o.host_flag,
             o.host);
    RT_CHECK(o.port >= 0 && o.port <= 65535, ErrorKind::usage, "{} {}: expected 0 to 65535", o.port_flag, o.port);
    return {address, static_cast<net::ip::port_type>(o.port)};
}

int64_t inflight_bytes(const HttpOptions& o) {
    if (o.inflight_bytes > 0) return o.inflight_bytes;
    return std::max(physical_memory() / 4, 2 * HttpOptions::kBytesOfBody * static_cast<int64_t>(o.body_bytes));
}

}  // namespace

HttpShared::HttpShared(const HttpOptions& o, HttpHandlers h)
    : options(o),
      handlers(std::move(h)),
      workers(static_cast<std::size_t>(o.worker_threads)),
      waiters(static_cast<std::size_t>(o.waiting_threads)),
      room(inflight_bytes(o)) {
    if (o.tls_certificate.empty()) return;
    using ssl = net::ssl::context;
    tls.emplace(ssl::tls_server);
    tls->set_options(ssl::default_workarounds | ssl::no_sslv2 | ssl::no_sslv3 | ssl::no_tlsv1 | ssl::no_tlsv1_1);
    // TLS 1.2 with forward secrecy and authenticated ciphers, or 1.3, whose ciphers are all such.
    const bool set = SSL_CTX_set_cipher_list(tls->native_handle(), "ECDHE+AESGCM:ECDHE+CHACHA20") == 1;
    RT_CHECK(set, ErrorKind::system, "this OpenSSL has no cipher that is good enough for TLS 1.2");
    SSL_CTX_set_options(tls->native_handle(), SSL_OP_NO_RENEGOTIATION);
    boost::system::error_code ec;
    tls->use_certificate_chain_file(o.tls_certificate, ec);
    RT_CHECK(!ec, ErrorKind::usage, "{}: not a certificate (PEM): {}", o.tls_certificate, ec.message());
    const std::string& key = o.tls_key.empty() ? o.tls_certificate : o.tls_key;
    tls->use_private_key_file(key, ssl::pem, ec);
    RT_CHECK(!ec, ErrorKind::usage, "{}: not the private key (PEM) of {}: {}", key, o.tls_certificate, ec.message());
}

struct HttpServer::Impl {
    Impl(const HttpOptions& options, HttpHandlers handlers)
        : shared(options, std::move(handlers)), acceptor(io), local(io) {
        if (options.unix_socket.empty()) {
            listen_on_port();
            net::co_spawn(io, accept(acceptor), net::detached);
        } else {
            listen_on_path();
            net::co_spawn(io, accept(local), net::detached);
        }
        thread = std::thread([this] { io.run(); });
        ::pthread_setname_np(thread.native_handle(), "riptide-io");  // for those who look at its CPU time
    }

    void listen_on_port() {
        const HttpOptions& options = shared.options;
        const tcp::endpoint where = address_of(options);
        boost::system::error_code ec;
        acceptor.open(where.protocol(), ec);
        if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
        if (!ec) acceptor.bind(where, ec);
        if (!ec) acceptor.listen(net::socket_base::max_listen_connections, ec);
        if (ec == net::error::address_in_use)
            fail(ErrorKind::unavailable, "port {} of {} is in use; choose another with {}", options.port, options.host,
                 options.port_flag);
        if (ec == net::error::access_denied)
            fail(ErrorKind::permission, "port {} of {}: {}; choose one from 1024 on with {}", options.port,
                 options.host, ec.message(), options.port_flag);
        if (ec)
            fail(ErrorKind::unavailable, "cannot listen on {} port {}: {}", options.host, options.port, ec.message());
        port = acceptor.local_endpoint().port();
    }

    void listen_on_path() {
        const std::string& path = shared.options.unix_socket;
        RT_CHECK(path.size() < sizeof(sockaddr_un::sun_path), ErrorKind::usage,
                 "{}: the path of a socket has at most {} bytes", path, sizeof(sockaddr_un::sun_path) - 1);
        remove_dead_socket(path);
        boost::system::error_code ec;
        local.open(local_protocol(), ec);
        if (!ec) local.bind(local_protocol::endpoint(path), ec);
        if (!ec && ::chmod(path.c_str(), 0600) != 0) ec = {errno, boost::system::system_category()};
        if (!ec) local.listen(net::socket_base::max_listen_connections, ec);
        if (ec) fail(ErrorKind::unavailable, "{}: cannot listen on this socket: {}", path, ec.message());
    }

    /// What a server that was killed has left.
    void remove_dead_socket(const std::string& path) {
        struct stat facts {};
        if (::lstat(path.c_str(), &facts) != 0) return;
        RT_CHECK(S_ISSOCK(facts.st_mode), ErrorKind::usage, "{}: is there already, and is no socket", path);
        boost::system::error_code ec;
        local_protocol::socket probe(io);
        probe.connect(local_protocol::endpoint(path), ec);
        if (!ec) fail(ErrorKind::unavailable, "{}: another server listens on this socket", path);
        ::unlink(path.c_str());
    }

    ~Impl() {
        net::post(io, [this] { stop_all(); });
        wait_until_empty(kAbortTime);
        io.stop();
        thread.join();
        stop_accepting();  // in case the I/O thread did not come to it
        shared.workers.join();
        shared.waiters.join();
    }

    template <class Acceptor>
    net::awaitable<void> accept(Acceptor& from);
    void stop_accepting();
    void stop_all();
    bool wait_until_empty(std::chrono::milliseconds time);

    HttpShared shared;
    net::io_context io{1};
    tcp::acceptor acceptor;
    local_protocol::acceptor local;
    int port = 0;
    std::thread thread;

    // The I/O thread's.
    std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;
    // Everybody's.
    std::atomic<int64_t> count = 0;
    std::mutex mutex;
    std::condition_variable emptied;
};

void HttpServer::Impl::stop_accepting() {
    boost::system::error_code ignored;
    if (local.is_open()) ::unlink(shared.options.unix_socket.c_str());
    acceptor.close(ignored);
    local.close(ignored);
    shared.draining = true;
}

template <class Acceptor>
net::awaitable<void> HttpServer::Impl::accept(Acceptor& from) {
    net::steady_timer pause(io);
    while (from.is_open()) {
        auto [ec, socket] = co_await from.async_accept(kAwait);
        if (!from.is_open()) break;
        if (ec) {  // no more descriptors, most likely: wait for some, do not spin
            pause.expires_after(std::chrono::milliseconds(100));
            co_await pause.async_wait(kAwait);
            continue;
        }
        if (std::ssize(connections) >= shared.options.max_connections) continue;  // closes the socket
        const auto connection = std::make_shared<Connection>(Socket(std::move(socket)), shared);
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
    stop_accepting();
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
        impl.stop_accepting();
        for (const auto& [key, weak] : impl.connections)
            if (const auto connection = weak.lock()) connection->close_when_idle();
    });
    // The first wait may find no connection before the I/O thread has heard: that is no harm, none is left then.
    if (impl.wait_until_empty(grace)) return;
    net::post(impl.io, [&impl] { impl.stop_all(); });
    impl.wait_until_empty(kAbortTime);
}

}  // namespace riptide::server
