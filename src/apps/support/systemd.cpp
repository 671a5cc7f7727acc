#include "apps/support/systemd.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>

#include "apps/support/environment.h"

namespace riptide::apps {

namespace {

int64_t number(const std::string& text) {
    int64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

}  // namespace

Systemd::Systemd() : socket_(environment("NOTIFY_SOCKET")) {
    const std::string pid = environment("WATCHDOG_PID");
    if (pid.empty() || number(pid) == ::getpid())
        interval_ = std::chrono::microseconds(std::max<int64_t>(0, number(environment("WATCHDOG_USEC"))));
}

void Systemd::alive() {
    const auto now = std::chrono::steady_clock::now();
    if (interval_.count() == 0 || now - last_ < interval_ / 2) return;
    last_ = now;
    send("WATCHDOG=1");
}

/// A message that is lost is systemd's affair: the service goes on.
void Systemd::send(const std::string& message) const {
    sockaddr_un address{};
    if (socket_.empty() || socket_.size() >= sizeof address.sun_path) return;
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, socket_.data(), socket_.size());
    if (socket_[0] == '@') address.sun_path[0] = '\0';  // the abstract namespace
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
    ::sendto(fd, message.data(), message.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), length);
    ::close(fd);
}

}  // namespace riptide::apps
