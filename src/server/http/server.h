// HTTP/1.1 on one I/O thread: keep-alive, limits on every size and time, server-sent events.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "server/http/message.h"

namespace riptide::server {

struct HttpOptions {
    std::string host = "127.0.0.1";  // an address, or "localhost"
    int port = 0;                    // 0: any that is free
    std::string unix_socket;         // a path: listen there and nowhere else
    std::string tls_certificate;     // a PEM file (the chain): speak TLS
    std::string tls_key;             // its private key; empty: it is in the same file
    int worker_threads = 2;          // parse, render and tokenise requests
    int waiting_threads = 4;         // for requests that wait for other servers
    int64_t max_connections = 16384;
    uint64_t body_bytes = uint64_t{32} << 20;
    /// Memory of all requests at one time: kBytesOfBody for each byte of a body until it has been parsed, rendered and
    /// tokenised, then the reply's. 0: a quarter of the machine's, and room for two of the largest bodies.
    int64_t inflight_bytes = 0;
    static constexpr int64_t kBytesOfBody = 32;
    uint32_t header_bytes = 32 << 10;
    std::size_t header_fields = 100;
    std::size_t target_bytes = 4096;
    int send_buffer = 0;                              // bytes that the system holds for a client; 0: its own choice
    std::chrono::milliseconds header_time{10'000};    // from a request's first byte to the end of its header
    std::chrono::milliseconds body_time{60'000};      // for the whole body
    std::chrono::milliseconds idle_time{75'000};      // between requests
    std::chrono::milliseconds write_time{30'000};     // without a byte taken by the client
    std::chrono::milliseconds heartbeat_time{2'500};  // of silence in a stream
    std::string host_flag = "--host", port_flag = "--port";  // what errors call host and port
};

/// Listens from construction on. All functions may be called from any thread, but not from a handler.
class HttpServer {
  public:
    /// Throws Error: the address cannot be bound (in use, not allowed, not of this machine).
    HttpServer(const HttpOptions& options, HttpHandlers handlers);
    /// Breaks off what is still going on.
    ~HttpServer();
    HttpServer(const HttpServer&) = delete;
    HttpServer& operator=(const HttpServer&) = delete;

    /// 0 for a Unix socket.
    int port() const;
    int64_t connections() const;

    /// Accepts nobody any more, closes idle connections, refuses requests of which a part is missing, lets replies end
    /// for as long as `grace`, then aborts them.
    void drain(std::chrono::milliseconds grace);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace riptide::server
