// Another server, for those that ours asks: it answers as a test wants it, and keeps what it was asked.
#pragma once

#include <atomic>
#include <boost/beast/http/write.hpp>
#include <list>
#include <mutex>
#include <sstream>
#include <vector>

#include "tests/server/http_client.h"

namespace riptide::testing {

/// One connection after the other.
class FakeServer {
  public:
    /// Answers the n-th connection with the n-th of these bytes, later ones with the last. Empty: it hangs. `times`:
    /// how often each reply is sent.
    explicit FakeServer(std::vector<std::string> replies, int times = 1) : replies_(std::move(replies)), times_(times) {
        thread_ = std::thread([this] { accept(); });
    }
    ~FakeServer() {
        over_ = true;
        Client(port()).close();
        thread_.join();
    }
    FakeServer(const FakeServer&) = delete;
    FakeServer& operator=(const FakeServer&) = delete;

    int port() const { return acceptor_.local_endpoint().port(); }
    int asked() const { return asked_; }
    /// Header and body of each request, so far.
    std::vector<std::string> all() {
        const std::lock_guard lock(mutex_);
        return requests_;
    }
    std::string last() { return all().back(); }

  private:
    using tcp = boost::asio::ip::tcp;

    void accept() {
        std::list<tcp::socket> open;
        while (!over_) {
            open.emplace_back(io_);
            acceptor_.accept(open.back());
            if (over_) continue;
            const std::string& reply = replies_.at(std::min(replies_.size() - 1, static_cast<std::size_t>(asked_)));
            answer(open.back(), reply);
            if (!reply.empty()) open.pop_back();
        }
    }
    void answer(tcp::socket& socket, const std::string& reply) {
        boost::beast::flat_buffer buffer;
        http::request_parser<http::string_body> parser;
        boost::beast::error_code ec;
        http::read(socket, buffer, parser, ec);
        {
            std::ostringstream text;
            text << parser.get().base() << parser.get().body();
            const std::lock_guard lock(mutex_);
            requests_.push_back(text.str());
        }
        ++asked_;
        for (int i = 0; i < times_ && !ec && !reply.empty(); ++i)
            boost::asio::write(socket, boost::asio::buffer(reply), ec);
    }

    boost::asio::io_context io_;
    tcp::acceptor acceptor_{io_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)};
    const std::vector<std::string> replies_;
    const int times_;
    std::atomic<bool> over_ = false;
    std::atomic<int> asked_ = 0;
    std::mutex mutex_;
    std::vector<std::string> requests_;
    std::thread thread_;
};

inline std::string reply_of(const std::string& head, const std::string& body = "") {
    return "HTTP/1.1 " + head + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace riptide::testing
