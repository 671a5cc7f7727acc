// A small blocking HTTP client for the server's tests, and a server with the demo model to talk to.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "base/json.h"
#include "server/server.h"
#include "tests/engine/engine_world.h"

namespace riptide::testing {

namespace http = boost::beast::http;

struct Answer {
    int status = 0;
    std::map<std::string, std::string> headers;  // names as sent
    std::string body;
    json::object object() const { return parse_json(body, "the answer").as_object(); }
    std::string param() const {
        const json::value value = object().at("error").at("param");
        return value.is_null() ? "" : std::string(value.as_string());
    }
};

class Client {
  public:
    /// `window`: bytes that the system takes in before they are read; 0: its own choice.
    explicit Client(int port, int window = 0) : socket_(io_), port_(port) {
        socket_.open(boost::asio::ip::tcp::v4());
        if (window > 0) socket_.set_option(boost::asio::socket_base::receive_buffer_size(window));
        socket_.connect({boost::asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)});
    }

    void send(std::string_view bytes) { boost::asio::write(socket_, boost::asio::buffer(bytes.data(), bytes.size())); }
    void send(const std::string& method, const std::string& target, const std::string& body = "",
              const std::string& more_headers = "Content-Type: application/json\r\n") {
        std::string text = method + " " + target + " HTTP/1.1\r\n";
        if (more_headers.find("Host:") == std::string::npos)
            text += "Host: localhost:" + std::to_string(port_) + "\r\n";
        text += more_headers;
        if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
        send(text + "\r\n" + body);
    }

    /// The whole reply. Status 0: the connection ended without one.
    Answer receive(bool head = false) {
        begin(head);
        boost::beast::error_code ec;
        http::read(socket_, buffer_, *parser_, ec);
        return ec ? Answer{} : answer();
    }
    /// The header, and what has come of the body.
    Answer receive_header() {
        begin(false);
        boost::beast::error_code ec;
        http::read_header(socket_, buffer_, *parser_, ec);
        return ec ? Answer{} : answer();
    }
    /// Reads on until the body holds what `enough` wants, or ends.
    Answer receive_until(const std::function<bool(const std::string&)>& enough) {
        boost::beast::error_code ec;
        while (!ec && !parser_->is_done() && !enough(parser_->get().body()))
            http::read_some(socket_, buffer_, *parser_, ec);
        return answer();
    }
    Answer receive_rest() {
        return receive_until([](const std::string&) { return false; });
    }
    /// The server has closed the connection.
    bool closed() {
        char byte = 0;
        boost::beast::error_code ec;
        return boost::asio::read(socket_, boost::asio::buffer(&byte, 1), ec) == 0 && ec;
    }
    void close() { socket_.close(); }
    /// Bytes have come that nobody has read.
    bool has_news() { return socket_.available() > 0; }
    /// Says that no more requests will come, and still reads.
    void finish_sending() { socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_send); }

    Answer ask(const std::string& method, const std::string& target, const std::string& body = "",
               const std::string& headers = "Content-Type: application/json\r\n") {
        send(method, target, body, headers);
        return receive(method == "HEAD");
    }
    Answer post(const std::string& target, const json::object& body) {
        return ask("POST", target, json::serialize(body));
    }

  private:
    void begin(bool head) {
        parser_.emplace();
        parser_->body_limit(boost::none);
        if (head) parser_->skip(true);
    }
    Answer answer() const {
        Answer out;
        out.status = static_cast<int>(parser_->get().result_int());
        for (const auto& field : parser_->get())
            out.headers[std::string(field.name_string())] = std::string(field.value());
        out.body = parser_->get().body();
        return out;
    }

    boost::asio::io_context io_;
    boost::asio::ip::tcp::socket socket_;
    int port_;
    boost::beast::flat_buffer buffer_;
    std::optional<http::response_parser<http::string_body>> parser_;
};

/// The JSON of each `data:` line, without [DONE]; `done`: that has come, and nothing behind it.
inline std::vector<json::object> events_of(const std::string& body, bool* done = nullptr) {
    std::vector<json::object> out;
    bool over = false;
    for (size_t at = 0; at < body.size();) {
        const size_t end = body.find("\n\n", at);
        if (end == std::string::npos) break;
        const std::string line = body.substr(at, end - at);
        at = end + 2;
        EXPECT_FALSE(over) << "an event behind [DONE]";
        EXPECT_TRUE(line.starts_with("data: ") && line.find('\n') == std::string::npos) << line;
        if (line == "data: [DONE]") over = true;
        else out.push_back(parse_json(line.substr(6), "an event").as_object());
    }
    if (done != nullptr) *done = over;
    return out;
}

/// What a reader of a chat's stream puts together, for one choice.
struct Joined {
    std::string text, reasoning, finish_reason;
    std::vector<std::string> calls, arguments;
    json::object usage;
    bool done = false;
};

inline Joined join(const std::string& body, int64_t choice = 0) {
    Joined out;
    for (const json::object& event : events_of(body, &out.done)) {
        if (const json::value* usage = event.if_contains("usage"); usage != nullptr && usage->is_object())
            out.usage = usage->as_object();
        for (const json::value& c : event.at("choices").as_array()) {
            if (c.at("index").to_number<int64_t>() != choice) continue;
            if (c.at("finish_reason").is_string()) out.finish_reason = c.at("finish_reason").as_string();
            const json::object& delta = c.at("delta").as_object();
            if (const json::value* text = delta.if_contains("content")) out.text += std::string(text->as_string());
            if (const json::value* text = delta.if_contains("reasoning_content"))
                out.reasoning += std::string(text->as_string());
            const json::value* calls = delta.if_contains("tool_calls");
            if (calls == nullptr) continue;
            for (const json::value& call : calls->as_array()) {
                const auto index = call.at("index").to_number<size_t>();
                if (index == out.calls.size()) {
                    out.calls.emplace_back(call.at("function").at("name").as_string());
                    out.arguments.emplace_back();
                }
                out.arguments.at(index) += std::string(call.at("function").at("arguments").as_string());
            }
        }
    }
    return out;
}

/// Waits for something that must become true.
inline bool becomes(const std::function<bool()>& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return condition();
}

inline server::ServerOptions server_options() {
    server::ServerOptions o;
    o.model = "laguna-demo";
    return o;
}

/// A server in front of an engine with the demo model.
class ServerTest : public ::testing::Test {
  protected:
    void start(server::ServerOptions options = server_options(), EngineOptions engine_options = demo_options(),
               const std::string& model = demo_path()) {
        server.reset();
        engine = Engine::open(model, engine_options);
        server = std::make_unique<server::Server>(std::move(options));
        server->serve(*engine);
    }
    int port() const { return server->port(); }
    Answer post(const std::string& target, const json::object& body) { return Client(port()).post(target, body); }
    Answer get(const std::string& target) { return Client(port()).ask("GET", target); }
    /// Pauses the engine when it has begun to answer a prompt of 20 tokens: the first is drawn, far more are to come.
    RequestId stop_midway(Listener& listener) {
        std::promise<void> gate;
        listener.also = [opened = gate.get_future().share()](const Event& event) {
            if (std::holds_alternative<TokensDrawn>(event.body)) opened.wait();
        };
        const RequestId id = engine->submit(continuation(std::vector<int32_t>(20, 9), 900), listener.sink(0));
        listener.also = {};
        listener.wait(0, [](const Heard& h) { return !h.tokens.empty(); });
        std::thread pauser([this] { engine->pause(); });
        EXPECT_TRUE(becomes([&] { return engine->stats().paused; }));
        gate.set_value();
        pauser.join();
        return id;
    }
    /// Nothing of what was asked is left in the engine, and the next request is answered.
    void expect_alive() {
        EXPECT_TRUE(becomes([&] { return engine->stats().running == 0 && engine->stats().waiting == 0; }));
        EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
    }

    std::unique_ptr<Engine> engine;  // outlives the server
    std::unique_ptr<server::Server> server;
};

inline json::array user_says(const std::string& text) { return {json::object{{"role", "user"}, {"content", text}}}; }

}  // namespace riptide::testing
