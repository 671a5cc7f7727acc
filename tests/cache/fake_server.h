// Servers on loopback that answer as a test says.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace riptide {

/// One client's connection. What is read is "" once the client has gone, or the server ends.
class FakeConnection {
  public:
    explicit FakeConnection(int fd) : fd_(fd) {}
    /// Without its CR LF.
    std::string line() {
        size_t end = 0;
        while ((end = got_.find("\r\n")) == std::string::npos)
            if (!more()) return {};
        std::string line = got_.substr(0, end);
        got_.erase(0, end + 2);
        return line;
    }
    std::string bytes(size_t count) {
        while (got_.size() < count)
            if (!more()) return {};
        std::string bytes = got_.substr(0, count);
        got_.erase(0, count);
        return bytes;
    }
    bool gone() const { return gone_; }
    void write(std::string_view text) {
        while (!text.empty() && !gone_) {
            const ssize_t some = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
            gone_ = some <= 0;
            if (!gone_) text.remove_prefix(static_cast<size_t>(some));
        }
    }

  private:
    bool more() {
        std::string some(1 << 16, 0);
        const ssize_t count = ::recv(fd_, some.data(), some.size(), 0);
        gone_ = count <= 0;
        if (!gone_) got_.append(some, 0, static_cast<size_t>(count));
        return !gone_;
    }
    const int fd_;
    std::string got_;
    bool gone_ = false;
};

/// What a kind of server holds and says, whoever asks.
class FakeState {
  public:
    auto locked(const auto& what) {
        const std::lock_guard lock(mutex_);
        return what();
    }
    /// What is answered to questions of this kind, or of all ("*"), instead; "hang": nothing; "": the connection ends.
    void say(const std::string& kind, const std::string& answer) {
        locked([&] { instead_[kind] = answer; });
    }
    void be_well() {
        locked([&] { instead_.clear(); });
    }

  protected:
    /// Answers a question of this kind with what is to be said instead, else with reply(). False: to end the
    /// connection.
    bool write(FakeConnection& connection, const std::string& kind, const auto& reply) {
        const std::string said = locked([&]() -> std::string {
            for (const std::string& one : {kind, std::string("*")})
                if (instead_.contains(one)) return instead_[one];
            return reply();
        });
        if (said != "hang") connection.write(said);
        return !said.empty() && said.find("Connection: close") == std::string::npos;
    }

  private:
    std::mutex mutex_;
    std::map<std::string, std::string> instead_;
};

/// `answer` reads one question of a connection and answers it; false: the connection is to be ended. It is called on
/// threads of the server's.
class FakeServer {
  public:
    using Answer = std::function<bool(FakeConnection&)>;

    explicit FakeServer(Answer answer) : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in at = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
        socklen_t size = sizeof at;
        EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&at), size), 0);
        EXPECT_EQ(::listen(listener_, 64), 0);
        EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size), 0);
        port_ = ntohs(at.sin_port);
        accepter_ = std::thread([this] { accept(); });
    }
    ~FakeServer() { end(); }
    FakeServer(const FakeServer&) = delete;
    FakeServer& operator=(const FakeServer&) = delete;

    int port() const { return port_; }
    /// Nobody answers at its port any more.
    void end() {
        if (!accepter_.joinable()) return;
        ::shutdown(listener_, SHUT_RDWR);
        accepter_.join();
        end_connections();
        for (std::thread& talk : talks_) talk.join();
        ::close(listener_);
    }
    void end_connections() {
        const std::lock_guard lock(mutex_);
        for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
    }
    int connections() {
        const std::lock_guard lock(mutex_);
        return static_cast<int>(talks_.size());
    }

  private:
    void accept() {
        for (int fd = 0; (fd = ::accept(listener_, nullptr, nullptr)) >= 0;) {
            const int yes = 1;  // else a second answer waits for the client's word that it has the first
            ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
            const std::lock_guard lock(mutex_);
            open_.push_back(fd);
            talks_.emplace_back([this, fd] {
                FakeConnection connection(fd);
                while (!connection.gone() && answer_(connection)) {
                }
                const std::lock_guard ending(mutex_);
                std::erase(open_, fd);
                ::close(fd);
            });
        }
    }
    const Answer answer_;
    const int listener_;
    int port_ = 0;
    std::thread accepter_;
    std::mutex mutex_;
    std::vector<int> open_;
    std::vector<std::thread> talks_;
};

}  // namespace riptide
