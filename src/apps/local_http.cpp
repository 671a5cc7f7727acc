#include "apps/local_http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

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

constexpr std::size_t kMostBytes = std::size_t{64} << 20;

bool send_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const auto sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
}

}  // namespace

std::optional<LocalReply> get_local(const ServerAddress& server, const std::string& path, int seconds) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server.port));
    const std::string host = server.host == "localhost" || server.host == "0.0.0.0" ? "127.0.0.1" : server.host;
    RT_CHECK(::inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1, ErrorKind::usage,
             "--host {}: expected an IPv4 address", server.host);
    const Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval wait{seconds, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return std::nullopt;
    const std::string key = server.key.empty() ? "" : fmt::format("x-api-key: {}\r\n", server.key);
    if (!send_all(fd.get(), fmt::format("GET {} HTTP/1.1\r\nHost: {}:{}\r\n{}Connection: close\r\n\r\n", path, host,
                                        server.port, key)))
        return std::nullopt;
    std::string text;
    char piece[16384];
    while (text.size() < kMostBytes) {
        const auto got = ::recv(fd.get(), piece, sizeof piece, 0);
        if (got < 0) return std::nullopt;
        if (got == 0) break;
        text.append(piece, static_cast<std::size_t>(got));
    }
    const std::size_t head = text.find("\r\n\r\n");
    if (!text.starts_with("HTTP/1.") || text.size() < 12 || head == std::string::npos) return std::nullopt;
    LocalReply reply;
    for (const char c : text.substr(9, 3)) reply.status = 10 * reply.status + (c - '0');
    reply.body = text.substr(head + 4);  // the server sends lengths, not chunks, to such requests
    return reply;
}

}  // namespace riptide::apps
