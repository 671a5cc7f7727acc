// /v1/responses over a WebSocket: the events of the stream, one response after the other on one connection.
#include <boost/beast/websocket/stream.hpp>

#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

namespace net = boost::asio;
namespace websocket = boost::beast::websocket;
using Headers = std::vector<std::pair<std::string, std::string>>;

/// Blocks, and answers pings while it reads.
class SocketClient {
  public:
    explicit SocketClient(int port) : socket_(io_), port_(port) {
        socket_.next_layer().connect({net::ip::address_v4::loopback(), static_cast<uint16_t>(port)});
    }
    /// The status of the server's answer: 101 if it is a WebSocket now.
    int open(const Headers& headers = {}, const std::string& path = "/v1/responses") {
        socket_.set_option(websocket::stream_base::decorator([headers](websocket::request_type& request) {
            for (const auto& [name, value] : headers) request.set(name, value);
        }));
        websocket::response_type answer;
        boost::beast::error_code ec;
        socket_.handshake(answer, "localhost:" + std::to_string(port_), path, ec);
        return static_cast<int>(answer.result_int());
    }
    void send(const json::object& message) { send(json::serialize(message)); }
    void send(const std::string& text) { socket_.write(net::buffer(text)); }
    void create(json::object body) {
        body["type"] = "response.create";
        if (!body.contains("max_output_tokens")) body["max_output_tokens"] = 4;
        send(body);
    }
    /// The next message; {} if there is none any more.
    json::object receive() {
        boost::beast::flat_buffer buffer;
        socket_.read(buffer, error_);
        if (error_) return {};
        const auto bytes = buffer.data();
        return parse_json({static_cast<const char*>(bytes.data()), bytes.size()}, "a message").as_object();
    }
    static std::string type_of(const json::object& event) {
        return event.empty() ? "" : std::string(event.at("type").as_string());
    }
    /// The event that ends the response, and all types up to it.
    json::object last(std::vector<std::string>* types = nullptr) {
        while (true) {
            json::object event = receive();
            const std::string type = type_of(event);
            if (types != nullptr) types->push_back(type);
            if (type.empty() || type == "error" || type == "response.completed" || type == "response.incomplete" ||
                type == "response.failed")
                return event;
        }
    }
    json::object response(json::object body) {
        create(std::move(body));
        json::object event = last();
        EXPECT_TRUE(event.contains("response")) << json::serialize(event);
        return event.contains("response") ? event.at("response").as_object() : json::object();
    }
    /// Reads until the server has closed, and says with which code.
    int closed() {
        while (!error_) receive();
        return socket_.reason().code;
    }
    void ping() { socket_.ping("are you there?"); }
    void hang_up() { socket_.next_layer().close(); }

    websocket::stream<net::ip::tcp::socket>& stream() { return socket_; }

  private:
    net::io_context io_;
    websocket::stream<net::ip::tcp::socket> socket_;
    boost::beast::error_code error_;
    int port_;
};

class ServerSocket : public ServerTest {
  protected:
    void SetUp() override { start(); }
    /// Waits until `condition` holds, as long as that takes on a machine with other things to do.
    static void expect_becomes(const std::function<bool()>& condition, const char* what) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(100);
        while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
        EXPECT_TRUE(condition()) << what;
    }
    static std::string text_of(const json::object& response) {
        std::string out;
        for (const json::value& item : response.at("output").as_array())
            if (item.at("type") == "message") out += item.at("content").at(0).at("text").as_string();
        return out;
    }
    static int64_t input_tokens(const json::object& response) {
        return response.at("usage").at("input_tokens").to_number<int64_t>();
    }
};

const json::object kAsk = {{"input", "What is 12 plus 30?"},
                           {"temperature", 0},
                           {"max_output_tokens", 16},
                           {"reasoning", {{"effort", "none"}}}};

TEST_F(ServerSocket, messages_are_the_events_of_the_stream) {
    json::object streamed = kAsk;
    streamed["stream"] = true;
    const Answer answer = post("/v1/responses", streamed);
    std::vector<std::string> expected, types;
    for (size_t at = 0; (at = answer.body.find("event: ", at)) != std::string::npos; ++at)
        expected.push_back(answer.body.substr(at + 7, answer.body.find('\n', at) - at - 7));
    SocketClient client(port());
    ASSERT_EQ(client.open(), 101);
    client.create(kAsk);
    const json::object last = client.last(&types);
    std::erase(types, "response.in_progress");  // as many as there is silence
    std::erase(expected, "response.in_progress");
    EXPECT_EQ(types, expected);
    const json::object whole = post("/v1/responses", kAsk).object();
    EXPECT_EQ(text_of(last.at("response").as_object()), text_of(whole));
    EXPECT_FALSE(text_of(whole).empty());
    const std::string path = "/v1/responses/" + std::string(last.at("response").at("id").as_string());
    EXPECT_EQ(json::value(get(path).object()), last.at("response")) << "it is stored like others";
}

TEST_F(ServerSocket, a_connection_goes_on_from_its_last_response_also_where_that_is_not_stored) {
    SocketClient client(port());
    ASSERT_EQ(client.open({{"OpenAI-Beta", "responses_websockets=2026-02-06"}}), 101);
    json::object body = kAsk;
    body["store"] = false;
    const json::object first = client.response(body);
    EXPECT_EQ(first.at("store"), false);
    body["previous_response_id"] = first.at("id");
    body["input"] = "And now?";
    const json::object second = client.response(body);
    EXPECT_GT(input_tokens(second), input_tokens(first));
    const auto cached = second.at("usage").at("input_tokens_details").at("cached_tokens").to_number<int64_t>();
    EXPECT_GE(cached, input_tokens(first) - 2);

    EXPECT_EQ(get("/v1/responses/" + std::string(second.at("id").as_string())).status, 404);
    EXPECT_EQ(post("/v1/responses", {{"input", "x"}, {"previous_response_id", second.at("id")}}).status, 400);
    SocketClient other(port());
    ASSERT_EQ(other.open(), 101);
    other.create({{"input", "x"}, {"previous_response_id", second.at("id")}});
    const json::object refused = other.last();
    EXPECT_EQ(refused.at("type").as_string(), "error");
    EXPECT_EQ(refused.at("status").to_number<int>(), 400);
    EXPECT_EQ(refused.at("error").at("code").as_string(), "previous_response_not_found");
    EXPECT_EQ(refused.at("error").at("param").as_string(), "previous_response_id");
    client.create(body);  // only the last one is kept
    EXPECT_EQ(client.last().at("error").at("code").as_string(), "previous_response_not_found");
    body["previous_response_id"] = second.at("id");
    EXPECT_GT(input_tokens(client.response(body)), input_tokens(second));
}

TEST_F(ServerSocket, what_is_not_to_be_generated_can_be_gone_on_from) {
    SocketClient client(port());
    ASSERT_EQ(client.open(), 101);
    const json::object warm = client.response(
        {{"instructions", "You add."}, {"input", json::array()}, {"generate", false}, {"store", false}});
    EXPECT_EQ(warm.at("status").as_string(), "completed");
    EXPECT_TRUE(warm.at("output").as_array().empty());
    EXPECT_EQ(input_tokens(warm), 0);
    json::object body = kAsk;
    const json::object plain = client.response(body);
    body["previous_response_id"] = warm.at("id");
    body["store"] = false;
    EXPECT_EQ(input_tokens(client.response(body)), input_tokens(plain));
    client.send(json::object{{"type", "response.processed"}, {"response_id", plain.at("id")}});  // no answer
    const json::object half = client.response({{"input", "What is 12"}, {"generate", false}, {"store", false}});
    body["previous_response_id"] = half.at("id");
    EXPECT_GT(input_tokens(client.response(body)), input_tokens(plain));
}

TEST_F(ServerSocket, a_bad_message_is_an_error_and_the_connection_goes_on) {
    SocketClient client(port());
    ASSERT_EQ(client.open(), 101);
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"{", ""},
        {"[]", ""},
        {"{}", "type"},
        {R"({"type": "session.update"})", "type"},
        {R"({"type": "response.create"})", "input"},
        {R"({"type": "response.create", "input": "x", "stream_id": "a"})", "stream_id"},
        {R"({"type": "response.create", "input": "x", "background": true})", "background"},
        {R"({"type": "response.create", "input": "x", "temperature": -1})", "temperature"},
    };
    for (const auto& [message, param] : cases) {
        client.send(message);
        const json::object event = client.receive();
        ASSERT_EQ(SocketClient::type_of(event), "error") << message;
        EXPECT_EQ(event.at("status").to_number<int>(), 400) << message;
        const json::value& named = event.at("error").at("param");
        EXPECT_EQ(named.is_null() ? "" : std::string(named.as_string()), param) << message;
    }
    EXPECT_EQ(client.response(kAsk).at("object").as_string(), "response");
    expect_alive();
}

TEST_F(ServerSocket, only_who_may_ask_may_open_one) {
    server::ServerOptions options = server_options();
    options.api_keys = {"first-key", "second-key"};
    start(options);
    const std::pair<std::string, std::string> key = {"Authorization", "Bearer first-key"};
    EXPECT_EQ(SocketClient(port()).open(), 401);
    EXPECT_EQ(SocketClient(port()).open({{"Authorization", "Bearer no-key"}}), 401);
    EXPECT_EQ(SocketClient(port()).open({key, {"Origin", "https://evil.example"}}), 403);
    EXPECT_EQ(SocketClient(port()).open({key, {"Host", "evil.example"}}), 403);
    EXPECT_EQ(SocketClient(port()).open({key}, "/v1/models"), 200);
    EXPECT_EQ(SocketClient(port()).open({key}, "/v1/chat/completions"), 405);
    const std::string own = fmt::format("http://localhost:{}", port());
    SocketClient mine(port()), theirs(port());
    ASSERT_EQ(mine.open({key, {"Origin", own}}), 101);
    ASSERT_EQ(theirs.open({{"x-api-key", "second-key"}}), 101);
    const json::object response = mine.response({{"input", "Hi"}});
    theirs.create({{"input", "x"}, {"previous_response_id", response.at("id")}});
    EXPECT_EQ(theirs.last().at("error").at("code").as_string(), "previous_response_not_found");

    const std::string headers = "x-api-key: first-key\r\n";
    const Answer plain = Client(port()).ask("GET", "/v1/responses", "", headers);
    EXPECT_EQ(plain.status, 426);
    EXPECT_EQ(plain.headers.at("Upgrade"), "websocket");
    const std::string half = headers + "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    EXPECT_EQ(Client(port()).ask("GET", "/v1/responses", "", half).status, 400) << "no key of its own";
    Client hasty(port());
    hasty.send("GET /v1/responses HTTP/1.1\r\nHost: localhost\r\n" + half + "\r\n" + "a frame");
    EXPECT_EQ(hasty.receive().status, 400);
}

TEST_F(ServerSocket, a_client_that_leaves_ends_its_answer) {
    engine->pause();
    for (const bool politely : {true, false}) {
        SocketClient client(port());
        ASSERT_EQ(client.open(), 101);
        client.create({{"input", "Hi"}, {"max_output_tokens", 200}});
        EXPECT_EQ(SocketClient::type_of(client.receive()), "response.created");
        expect_becomes([&] { return engine->stats().running + engine->stats().waiting == 1; }, "it is asked");
        if (politely) client.stream().close(websocket::close_code::normal);
        else client.hang_up();
        expect_becomes([&] { return get("/v1/requests").object().at("data").as_array().empty(); }, "it is over");
        EXPECT_TRUE(!politely || client.closed() == websocket::close_code::normal);
    }
    engine->resume();
    expect_alive();
}

TEST_F(ServerSocket, pings_are_answered_while_the_engine_is_silent_and_one_request_may_wait) {
    server::ServerOptions options = server_options();
    options.http.heartbeat_time = std::chrono::milliseconds(20);
    start(options);
    engine->pause();
    SocketClient client(port());
    ASSERT_EQ(client.open(), 101);
    bool answered = false;
    client.stream().control_callback([&](websocket::frame_type kind, boost::beast::string_view text) {
        answered = answered || (kind == websocket::frame_type::pong && text == "are you there?");
    });
    client.create(kAsk);
    client.ping();
    while (!answered) ASSERT_FALSE(client.receive().empty());  // heartbeats, and between them the pong
    json::object next = kAsk;
    next["input"] = "And now?";
    client.create(next);
    engine->resume();
    const json::object first = client.last(), second = client.last();
    EXPECT_NE(first.at("response").at("id"), second.at("response").at("id"));
    engine->pause();
    for (int i = 0; i < 3; ++i) client.create(kAsk);
    engine->resume();
    EXPECT_EQ(client.closed(), websocket::close_code::policy_error);
    expect_alive();
}

TEST_F(ServerSocket, a_message_has_the_limits_of_a_body) {
    server::ServerOptions options = server_options();
    options.http.body_bytes = 4096;
    start(options);
    SocketClient large(port()), binary(port());
    ASSERT_EQ(large.open(), 101);
    large.send(std::string(4097, ' '));
    EXPECT_EQ(large.closed(), websocket::close_code::too_big);
    ASSERT_EQ(binary.open(), 101);
    binary.stream().binary(true);
    binary.send("{}");
    EXPECT_EQ(binary.closed(), websocket::close_code::unknown_data);
    expect_alive();
    options.http.inflight_bytes = 2048 * server::HttpOptions::kBytesOfBody;
    start(options);
    SocketClient greedy(port());
    ASSERT_EQ(greedy.open(), 101);
    greedy.send(std::string(3000, ' '));
    EXPECT_EQ(greedy.closed(), websocket::close_code::try_again_later);
    expect_alive();
    options = server_options();
    options.http.body_time = std::chrono::milliseconds(50);
    start(options);
    SocketClient slow(port());
    ASSERT_EQ(slow.open(), 101);
    slow.stream().write_some(false, net::buffer(std::string("{")));
    EXPECT_EQ(slow.closed(), websocket::close_code::policy_error);
}

TEST_F(ServerSocket, a_server_that_ends_says_goodbye) {
    engine->pause();
    SocketClient idle(port()), busy(port());
    ASSERT_EQ(idle.open(), 101);
    ASSERT_EQ(busy.open(), 101);
    busy.create(kAsk);
    EXPECT_EQ(SocketClient::type_of(busy.receive()), "response.created");
    expect_becomes([&] { return engine->stats().running + engine->stats().waiting == 1; }, "it is asked");
    std::thread drain([&] { server->drain(std::chrono::seconds(100)); });
    EXPECT_EQ(idle.closed(), websocket::close_code::going_away);
    engine->resume();
    EXPECT_TRUE(busy.last().contains("response")) << "its answer ends";
    EXPECT_EQ(busy.closed(), websocket::close_code::going_away);
    drain.join();
}

TEST_F(ServerSocket, an_answer_that_is_broken_off_fails) {
    engine->pause();
    SocketClient client(port());
    ASSERT_EQ(client.open(), 101);
    client.create(kAsk);
    EXPECT_EQ(SocketClient::type_of(client.receive()), "response.created");
    std::thread drain([&] { server->drain(std::chrono::milliseconds(1)); });
    const json::object last = client.last();
    EXPECT_EQ(SocketClient::type_of(last), "response.failed");
    EXPECT_EQ(client.closed(), websocket::close_code::going_away);
    drain.join();
    server.reset();
    engine->resume();
}

}  // namespace
}  // namespace riptide::testing
