#include "apps/support/local_http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>
#include <string_view>

#include "base/error.h"

namespace riptide::apps {

namespace {

class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return fd_; }

  private:
    int fd_;
};

/// OpenSSL writes to sockets that may be closed, without a way to forbid the signal.
class NoPipeSignal {
  public:
    NoPipeSignal() {
        struct sigaction ignore {};
        ignore.sa_handler = SIG_IGN;
        ::sigaction(SIGPIPE, &ignore, &before_);
    }
    ~NoPipeSignal() { ::sigaction(SIGPIPE, &before_, nullptr); }
    NoPipeSignal(const NoPipeSignal&) = delete;
    NoPipeSignal& operator=(const NoPipeSignal&) = delete;

  private:
    struct sigaction before_ {};
};

constexpr std::size_t kMostBytes = std::size_t{64} << 20;

std::string address_of(const ServerAddress& server) {
    return server.host == "localhost" || server.host == "0.0.0.0" ? "127.0.0.1" : server.host;
}

/// Below 0: nobody listens.
int connect_to(const ServerAddress& server, int seconds) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server.port));
    RT_CHECK(::inet_pton(AF_INET, address_of(server).c_str(), &address.sin_addr) == 1, ErrorKind::usage,
             "--host {}: expected an IPv4 address", server.host);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval wait{seconds, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
    if (fd >= 0) ::close(fd);
    return -1;
}

/// The client's side of TLS on a socket.
class Tls {
  public:
    explicit Tls(int fd) : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free), ssl_(nullptr, SSL_free), fd_(fd) {
        RT_CHECK(context_ != nullptr, ErrorKind::system, "OpenSSL cannot be started");
    }
    /// Only what `file` vouches for. On this machine a server need not be called by a name in its certificate: that
    /// says what others call it.
    void trust(const std::string& file, const std::string& address) {
        RT_CHECK(SSL_CTX_load_verify_locations(context_.get(), file.c_str(), nullptr) == 1, ErrorKind::usage,
                 "--tls-ca {}: not a certificate (PEM)", file);
        SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
        // Its own certificate will do, be it signed by whomever.
        X509_VERIFY_PARAM* const rules = SSL_CTX_get0_param(context_.get());
        X509_VERIFY_PARAM_set_flags(rules, X509_V_FLAG_PARTIAL_CHAIN);
        if (!address.starts_with("127.")) X509_VERIFY_PARAM_set1_ip_asc(rules, address.c_str());
    }
    bool shake_hands() {
        ssl_.reset(SSL_new(context_.get()));
        return ssl_ != nullptr && SSL_set_fd(ssl_.get(), fd_) == 1 && SSL_connect(ssl_.get()) == 1;
    }
    /// After a handshake that failed; "": not for the certificate.
    std::string refusal() const {
        const long code = SSL_get_verify_result(ssl_.get());
        return code == X509_V_OK ? "" : X509_verify_cert_error_string(code);
    }
    bool send(std::string_view bytes) {
        return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) == static_cast<int>(bytes.size());
    }
    /// As recv().
    ssize_t receive(char* to, std::size_t size) {
        const int got = SSL_read(ssl_.get(), to, static_cast<int>(size));
        if (got > 0) return got;
        return SSL_get_error(ssl_.get(), got) == SSL_ERROR_WANT_READ ? -1 : 0;
    }

  private:
    std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_;
    std::unique_ptr<SSL, void (*)(SSL*)> ssl_;
    int fd_;
};

bool send_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const auto sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
}

/// All that comes until the end of the connection. nullopt: it has not come to its end.
template <class Receive>
std::optional<std::string> read_all(const Receive& receive) {
    std::string text;
    char piece[16384];
    while (text.size() < kMostBytes) {
        const ssize_t got = receive(piece, sizeof piece);
        if (got < 0) return std::nullopt;
        if (got == 0) break;
        text.append(piece, static_cast<std::size_t>(got));
    }
    return text;
}

std::optional<std::string> exchange_plain(int fd, const std::string& request) {
    if (!send_all(fd, request)) return std::nullopt;
    return read_all([fd](char* to, std::size_t size) { return ::recv(fd, to, size, 0); });
}

std::optional<std::string> exchange_tls(int fd, const std::string& request, const ServerAddress& server) {
    const NoPipeSignal quiet;
    Tls tls(fd);
    tls.trust(server.tls_ca, address_of(server));
    if (!tls.shake_hands()) {
        const std::string why = tls.refusal();
        fail(ErrorKind::unavailable, "{} port {}: {}", server.host, server.port,
             why.empty() ? "the server does not speak TLS: leave --tls-ca out"
                         : fmt::format("{} does not vouch for its certificate: {}", server.tls_ca, why));
    }
    if (!tls.send(request)) return std::nullopt;
    return read_all([&tls](char* to, std::size_t size) { return tls.receive(to, size); });
}

bool speaks_tls(const ServerAddress& server, int seconds) {
    const NoPipeSignal quiet;
    const Descriptor fd(connect_to(server, seconds));
    return fd.get() >= 0 && Tls(fd.get()).shake_hands();
}

std::optional<LocalReply> parse_reply(const std::string& text) {
    const std::size_t head = text.find("\r\n\r\n");
    if (!text.starts_with("HTTP/1.") || text.size() < 12 || head == std::string::npos) return std::nullopt;
    LocalReply reply;
    for (const char c : text.substr(9, 3)) reply.status = 10 * reply.status + (c - '0');
    reply.body = text.substr(head + 4);  // the server sends lengths, not chunks, to such requests
    return reply;
}

}  // namespace

std::optional<LocalReply> get_local(const ServerAddress& server, const std::string& path, int seconds) {
    const Descriptor fd(connect_to(server, seconds));
    if (fd.get() < 0) return std::nullopt;
    const std::string key = server.key.empty() ? "" : fmt::format("x-api-key: {}\r\n", server.key);
    const std::string request = fmt::format("GET {} HTTP/1.1\r\nHost: {}:{}\r\n{}Connection: close\r\n\r\n", path,
                                            address_of(server), server.port, key);
    const bool tls = !server.tls_ca.empty();
    const auto text = tls ? exchange_tls(fd.get(), request, server) : exchange_plain(fd.get(), request);
    auto reply = text ? parse_reply(*text) : std::nullopt;
    if (!reply && !tls && speaks_tls(server, seconds))
        fail(ErrorKind::unavailable,
             "{} port {}: the server there speaks TLS: give --tls-ca FILE (ps, doctor) or another --port (launch)",
             server.host, server.port);
    return reply;
}

}  // namespace riptide::apps
