// What goes wrong, and how the server takes it: bad requests, clients that leave, too many of them, its own end.
#include <unistd.h>

#include <filesystem>

#include "tests/server/http_client.h"

#include "base/json.h"

namespace riptide::testing {
namespace {

using Milliseconds = std::chrono::milliseconds;

class ServerBehaviour : public ServerTest {
  protected:
    /// A long answer, streamed.
    json::object long_answer(int64_t tokens = 900) {
        return {{"prompt", "x"}, {"max_tokens", tokens}, {"ignore_eos", true}, {"stream", true}, {"temperature", 1}};
    }
};

TEST_F(ServerBehaviour, a_bad_field_is_named) {
    start();
    const json::array hello = user_says("Hi");
    const auto with = [&](const std::string& key, json::value value) {
        json::object body = {{"messages", hello}, {"max_tokens", 1}};
        body[key] = std::move(value);
        return body;
    };
    const std::vector<std::pair<json::object, std::string>> cases = {
        {{}, "messages"},
        {{{"messages", json::array()}}, "messages"},
        {{{"messages", "Hi"}}, "messages"},
        {{{"messages", json::array{1}}}, "messages[0]"},
        {{{"messages", {{{"role", "robot"}, {"content", "x"}}}}}, "messages[0].role"},
        {{{"messages", {{{"role", "user"}, {"content", 5}}}}}, "messages[0].content"},
        {{{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}}, "messages[0].content[0].type"},
        {with("max_tokens", 0), "max_tokens"},
        {with("max_tokens", -2), "max_tokens"},
        {with("max_tokens", 4294967297), "max_tokens"},
        {with("max_tokens", 1.9), "max_tokens"},
        {with("max_tokens", "5"), "max_tokens"},
        {with("max_completion_tokens", 0), "max_completion_tokens"},
        {with("temperature", -1), "temperature"},
        {with("temperature", 1e9), "temperature"},
        {with("temperature", "hot"), "temperature"},
        {with("top_p", 0), "top_p"},
        {with("top_p", 1.5), "top_p"},
        {with("top_k", -2), "top_k"},
        {with("min_p", 2), "min_p"},
        {with("n", 0), "n"},
        {with("n", 1000000000), "n"},
        {with("seed", 18446744073709551615u), "seed"},
        {with("stop", 5), "stop"},
        {with("stop", ""), "stop"},
        {with("stop", json::array{"a", 1}), "stop[1]"},
        {with("stream", "yes"), "stream"},
        {with("logprobs", 1000000), "logprobs"},
        {with("top_logprobs", 3), "top_logprobs"},
        {with("logit_bias", {{"99999999", 1}}), "logit_bias"},
        {with("logit_bias", {{"x", 1}}), "logit_bias"},
        {with("logit_bias", {{"5", 1000}}), "logit_bias"},
        {with("frequency_penalty", 9), "frequency_penalty"},
        {with("tools", 1), "tools"},
        {with("tools", {{{"type", "function"}}}), "tools[0].function"},
        {with("tools", {{{"type", "web_search"}}, {{"type", "function"}}}), "tools[1].function"},
        {with("tools", {{{"type", "web_search"}}, {{"function", json::object()}}}), "tools[1].function.name"},
        {with("tool_choice", "required"), "tool_choice"},
        {with("tool_choice", "sometimes"), "tool_choice"},
        {with("tool_choice", {{"type", "function"}, {"function", {{"name", "none"}}}}), "tool_choice"},
        {with("response_format", {{"type", "yaml"}}), "response_format"},
        {with("response_format", {{"type", "json_schema"}}), "response_format"},
        {with("response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", {{"not", true}}}}}}),
         "response_format"},
        {with("regex", "(?<=a)b"), "regex"},
        {with("regex", 5), "regex"},
        {with("grammar", "root ::= x"), "grammar"},
        {with("chat_template_kwargs", {{"messages", 1}}), "chat_template_kwargs.messages"},
    };
    Client client(port());  // one connection for all: an error ends nothing
    for (const auto& [body, param] : cases) {
        const Answer answer = client.post("/v1/chat/completions", body);
        EXPECT_EQ(answer.status, 400) << json::serialize(body) << answer.body;
        if (answer.status == 400) {
            EXPECT_EQ(answer.param(), param) << json::serialize(body) << answer.body;
        }
    }
    for (const json::object& body : {json::object{}, json::object{{"prompt", 5}},
                                     json::object{{"prompt", json::array()}}, json::object{{"prompt", {1, -1}}},
                                     json::object{{"prompt", {99999999}}}, json::object{{"prompt", {{"x", 1}}}}})
        EXPECT_EQ(client.post("/v1/completions", body).status, 400) << json::serialize(body);
    const json::object unknown = {{"messages", hello}, {"max_tokens", 1}, {"store", false}, {"metadata", {{"a", 1}}}};
    EXPECT_EQ(client.post("/v1/chat/completions", unknown).status, 200) << "unknown fields are ignored";
    expect_alive();
}

TEST_F(ServerBehaviour, a_prompt_beyond_the_context_is_said_to_be_so) {
    start();
    const std::string text(8000, 'z');
    const Answer chat = post("/v1/chat/completions", {{"messages", user_says(text)}, {"stream", true}});
    EXPECT_EQ(chat.status, 400);
    EXPECT_EQ(chat.object().at("error").at("code").as_string(), "context_length_exceeded");
    EXPECT_NE(chat.body.find("maximum context length is 1024 tokens"), std::string::npos);
    const json::array ids(1023, 5);
    const json::object full =
        post("/v1/completions", {{"prompt", ids}, {"max_tokens", 50}, {"ignore_eos", true}}).object();
    EXPECT_EQ(full.at("choices").as_array().at(0).at("finish_reason").as_string(), "length")
        << "the room is what there is";
    EXPECT_EQ(post("/v1/completions", {{"prompt", json::array(1024, 5)}}).status, 400);
    expect_alive();
}

TEST_F(ServerBehaviour, bodies_that_are_no_json_are_refused) {
    start();
    const std::string deep = std::string(100000, '[') + std::string(100000, ']');
    for (const std::string& body :
         {std::string("{"), std::string("[]"), std::string("{} x"), std::string("{\"a\": NaN}"), deep,
          std::string("{\"messages\": \"\xff\"}"), std::string("{\"a\": 1e99999}"), std::string("nonsense")}) {
        const Answer answer = Client(port()).ask("POST", "/v1/chat/completions", body);
        EXPECT_EQ(answer.status, 400) << body.substr(0, 40);
        EXPECT_NO_THROW(answer.param()) << "in OpenAI's shape";
    }
    expect_alive();
}

TEST_F(ServerBehaviour, requests_that_are_no_http_or_not_for_us_are_refused) {
    server::ServerOptions options = server_options();
    options.strict_model = true;
    options.http.body_bytes = 1 << 20;
    start(options);
    const std::string host = "Host: localhost\r\n", json_type = "Content-Type: application/json\r\n";
    const std::string post_head = "POST /v1/chat/completions HTTP/1.1\r\n" + host + json_type;
    const std::vector<std::pair<std::string, int>> cases = {
        {"nonsense\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\n\r\n", 400},                      // no Host
        {"GET /health HTTP/1.1\r\n" + host + host + "\r\n", 400},   // two of them
        {"GET http://x/health HTTP/1.1\r\n" + host + "\r\n", 400},  // absolute form
        {"GET /health HTTP/3.0\r\n" + host + "\r\n", 505},
        {"GET /" + std::string(5000, 'a') + " HTTP/1.1\r\n" + host + "\r\n", 414},
        {"GET /health HTTP/1.1\r\n" + host + "X: " + std::string(40000, 'a') + "\r\n\r\n", 431},
        {post_head + "Content-Length: 1048577\r\n\r\n", 413},  // before a byte of it is sent
        {post_head + "Content-Length: -1\r\n\r\n", 400},
        {post_head + "Content-Length: 3junk\r\n\r\n", 400},
        {post_head + "Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400},
        {post_head + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {post_head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
        {post_head + "Transfer-Encoding: chunked\r\n\r\n200000\r\n" + std::string(1 << 20, ' ') + " ", 413},
        {post_head + "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415},
        {"POST /v1/chat/completions HTTP/1.1\r\n" + host + "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
         415},
        {"GET /v1/chat/completions HTTP/1.1\r\n" + host + "\r\n", 405},
        {"POST /v1/models HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n", 405},
        {"GET /v1/nothing HTTP/1.1\r\n" + host + "\r\n", 404},
        {"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403},
        {"GET /v1/models HTTP/1.1\r\n" + host + "Origin: http://evil.example\r\n\r\n", 403},
        {"GET /v1/models HTTP/1.1\r\n" + host + "Origin: http://localhost:3000\r\n\r\n", 200},
        {"HEAD / HTTP/1.1\r\n" + host + "\r\n", 200},
    };
    for (const auto& [bytes, status] : cases) {
        Client client(port());
        client.send(bytes);
        EXPECT_EQ(client.receive(bytes.starts_with("HEAD")).status, status) << bytes.substr(0, 120);
    }
    const Answer wrong = Client(port()).ask("GET", "/v1/chat/completions");
    EXPECT_EQ(wrong.headers.at("Allow"), "POST");
    const Answer model = post("/v1/chat/completions", {{"model", "gpt-x"}, {"messages", user_says("Hi")}});
    EXPECT_EQ(model.status, 404);
    EXPECT_EQ(model.object().at("error").at("code").as_string(), "model_not_found");
    expect_alive();
}

TEST_F(ServerBehaviour, clients_that_stall_are_sent_away) {
    server::ServerOptions options = server_options();
    options.http.header_time = options.http.body_time = options.http.idle_time = Milliseconds(50);
    start(options);
    Client idle(port()), header(port());
    header.send("GET /health HTT");
    EXPECT_EQ(header.receive().status, 408);
    Client body(port());
    body.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        "9\r\n\r\n{");
    EXPECT_EQ(body.receive().status, 408);
    EXPECT_TRUE(idle.closed());
}

TEST_F(ServerBehaviour, a_connection_serves_many_requests) {
    start();
    Client client(port());
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(client.ask("GET", "/health").status, 200);
        EXPECT_EQ(client.post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 2}}).status, 200);
        json::object streamed = long_answer(3);
        EXPECT_EQ(client.post("/v1/completions", streamed).status, 200);
    }
    client.send("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(client.receive().status, 200);
    EXPECT_TRUE(client.closed());
}

TEST_F(ServerBehaviour, a_client_that_leaves_frees_its_place) {
    start();
    for (const bool stream : {true, false}) {
        const int64_t before = engine->stats().cancelled, submitted = engine->stats().submitted;
        Client client(port());
        json::object body = long_answer(1000);
        body["stream"] = stream;
        engine->pause();  // so that the answer cannot be complete before the client leaves
        client.send("POST", "/v1/completions", json::serialize(body));
        if (stream) {
            EXPECT_EQ(client.receive_header().status, 200);
        }
        EXPECT_TRUE(becomes([&] { return engine->stats().submitted > submitted; }));
        client.close();
        engine->resume();
        EXPECT_TRUE(becomes([&] { return engine->stats().cancelled == before + 1; })) << "stream " << stream;
        expect_alive();
    }
}

TEST_F(ServerBehaviour, a_client_that_stops_reading_is_given_up_and_delays_nobody) {
    server::ServerOptions options = server_options();
    options.http.write_time = Milliseconds(100);
    options.http.send_buffer = 4096;
    start(options);
    Client slow(port(), 4096);
    slow.send("POST", "/v1/completions", json::serialize(long_answer(1000)));
    EXPECT_EQ(slow.receive_header().status, 200);
    const json::object other =
        post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 40}, {"ignore_eos", true}}).object();
    EXPECT_EQ(other.at("usage").at("completion_tokens").to_number<int64_t>(), 40);
    EXPECT_TRUE(
        becomes([&] { return get("/metrics").body.find("riptide_http_abandoned_total 1\n") != std::string::npos; }));
    expect_alive();
    EXPECT_EQ(slow.receive_rest().body.find("[DONE]"), std::string::npos);
}

TEST_F(ServerBehaviour, headers_come_before_the_prompt_is_read_and_silence_is_filled) {
    server::ServerOptions options = server_options();
    options.http.heartbeat_time = Milliseconds(20);
    start(options);
    engine->pause();
    Client client(port());
    client.send("POST", "/v1/chat/completions",
                json::serialize(json::object{{"messages", user_says("Hi")}, {"stream", true}, {"max_tokens", 4}}));
    EXPECT_EQ(client.receive_header().status, 200);
    const Answer silent = client.receive_until([](const std::string& body) { return events_of(body).size() >= 4; });
    EXPECT_EQ(join(silent.body).text, "") << "the engine has not begun";
    engine->resume();
    EXPECT_TRUE(join(client.receive_rest().body).done);
}

TEST_F(ServerBehaviour, who_finds_no_place_is_told_when_to_come_back) {
    EngineOptions engine_options = demo_options();
    engine_options.max_queue = 2;
    start(server_options(), engine_options);
    engine->pause();
    std::vector<std::unique_ptr<Client>> clients;
    Answer refused;
    for (int i = 0; i < 20 && refused.status == 0; ++i) {
        auto client = std::make_unique<Client>(port());
        client->send("POST", "/v1/completions", json::serialize(long_answer(4)));
        const Answer header = client->receive_header();
        if (header.status == 200) clients.push_back(std::move(client));
        else refused = header;
    }
    EXPECT_EQ(refused.status, 429);
    EXPECT_GE(std::stoi(refused.headers.at("Retry-After")), 1);
    EXPECT_GE(clients.size(), 2u);
    engine->resume();
    for (const auto& client : clients) EXPECT_NE(client->receive_rest().body.find("[DONE]"), std::string::npos);
    expect_alive();
}

TEST_F(ServerBehaviour, keys_are_asked_for_everywhere_but_at_the_door) {
    server::ServerOptions options = server_options();
    options.api_keys = {"first-key", "second-key"};
    start(options);
    EXPECT_EQ(get("/health").status, 200);
    for (const char* path : {"/v1/models", "/metrics", "/props", "/nothing"}) {
        const Answer refused = get(path);
        EXPECT_EQ(refused.status, 401) << path;
        EXPECT_TRUE(refused.headers.contains("WWW-Authenticate"));
    }
    const auto with = [&](const std::string& header) {
        return Client(port()).ask("GET", "/v1/models", "", header).status;
    };
    EXPECT_EQ(with("Authorization: Bearer second-key\r\n"), 200);
    EXPECT_EQ(with("x-api-key: first-key\r\n"), 200);
    EXPECT_EQ(with("Authorization: Bearer first-ke\r\n"), 401);
    EXPECT_EQ(with("Authorization: Bearer first-key\r\nAuthorization: Bearer first-key\r\n"), 401);
    EXPECT_EQ(with("Authorization: Basic first-key\r\n"), 401);
    EXPECT_EQ(Client(port()).ask("GET", "/v1/models?key=first-key", "", "").status, 401);
}

TEST_F(ServerBehaviour, before_the_model_is_there_the_server_says_so) {
    server = std::make_unique<server::Server>(server_options());
    EXPECT_EQ(get("/health").status, 503);
    const Answer refused = post("/v1/completions", {{"prompt", "x"}});
    EXPECT_EQ(refused.status, 503);
    EXPECT_GE(std::stoi(refused.headers.at("Retry-After")), 1);
    EXPECT_EQ(get("/v1/models").status, 503);
    EXPECT_NE(get("/metrics").body.find("riptide_ready 0\n"), std::string::npos);
    engine = Engine::open(demo_path(), demo_options());
    server->serve(*engine);
    expect_alive();
    server.reset();
}

TEST_F(ServerBehaviour, a_drained_server_ends_what_it_has_begun) {
    start();
    engine->pause();
    Client busy(port()), idle(port());
    EXPECT_EQ(idle.ask("GET", "/health").status, 200);
    busy.send("POST", "/v1/completions", json::serialize(long_answer(20)));
    EXPECT_EQ(busy.receive_header().status, 200);
    std::thread drain([&] { server->drain(std::chrono::seconds(60)); });
    EXPECT_TRUE(idle.closed()) << "an idle connection ends at once";
    EXPECT_THROW(Client(port()).closed(), boost::system::system_error) << "nobody is accepted";
    engine->resume();
    EXPECT_NE(busy.receive_rest().body.find("[DONE]"), std::string::npos);
    drain.join();
}

TEST_F(ServerBehaviour, what_takes_longer_than_the_grace_is_broken_off_with_an_error) {
    start();
    engine->pause();
    Client stream(port()), whole(port());
    stream.send("POST", "/v1/completions", json::serialize(long_answer(1000)));
    EXPECT_EQ(stream.receive_header().status, 200);
    json::object body = long_answer(1000);
    body["stream"] = false;
    whole.send("POST", "/v1/completions", json::serialize(body));
    EXPECT_TRUE(becomes([&] { return engine->stats().waiting + engine->stats().running == 2; }));
    server->drain(Milliseconds(1));
    const std::string end = stream.receive_rest().body;
    EXPECT_NE(end.find("\"error\""), std::string::npos) << end;
    EXPECT_EQ(end.find("[DONE]"), std::string::npos) << "not an end like any other";
    EXPECT_EQ(whole.receive().status, 503);
    server.reset();
    engine->resume();
    EXPECT_TRUE(becomes([&] { return engine->stats().cancelled == 2; }));
}

TEST(ServerQueue, never_blocks_the_engine_and_wakes_its_reader_once) {
    const auto queue = std::make_shared<server::EventQueue>();
    int woken = 0;
    queue->on_news([&] { ++woken; });
    const Sink sink = queue->sink(3);
    sink({.id = 1});
    EXPECT_EQ(woken, 0) << "nobody has found it empty";
    EXPECT_EQ(queue->take().at(0).request, 3);
    EXPECT_TRUE(queue->take().empty());
    sink({.id = 2});
    sink({.id = 3});
    EXPECT_EQ(woken, 1);
    EXPECT_EQ(queue->take().size(), 2u);
    for (size_t i = 0; i < server::EventQueue::kMost; ++i) sink({.id = 4});
    EXPECT_THROW(sink({.id = 5}), Error) << "the reader is too slow";
    queue->close();
    EXPECT_THROW(sink({.id = 6}), Error);
    EXPECT_TRUE(queue->take().empty());
}

TEST(ServerQueue, counts_as_memory_of_requests_until_it_is_read_or_closed) {
    constexpr int64_t kRoom = 1 << 20;
    server::HttpRoom room(kRoom);
    const auto fits = [&](int64_t bytes) {
        server::HttpRoom::Share probe;
        return probe.take(room, bytes);
    };
    const auto queue = std::make_shared<server::EventQueue>();
    const Sink sink = queue->sink(0);
    sink({.id = 1, .body = TextDelta{std::string(1000, 'a')}});  // before anybody counts
    queue->count_in(room);
    EXPECT_FALSE(fits(kRoom - 999));
    for (int i = 0; i < 99; ++i) sink({.id = 1, .body = ToolCallArguments{0, std::string(1000, 'a')}});
    EXPECT_FALSE(fits(kRoom - 100'000));
    EXPECT_TRUE(fits(kRoom - 150'000)) << "and not much more than the text";
    EXPECT_EQ(queue->take().size(), 100u);
    EXPECT_TRUE(fits(kRoom));
    sink({.id = 1, .body = TokensDrawn{std::vector<Sampled>(1000)}});
    EXPECT_FALSE(fits(kRoom - 16'000));
    queue->close();
    EXPECT_TRUE(fits(kRoom));
}

TEST_F(ServerBehaviour, records_that_cannot_be_saved_are_counted) {
    const std::string folder = ::testing::TempDir() + fmt::format("riptide_metrics_{}", ::getpid());
    EngineOptions o = demo_options();
    o.disk_cache = folder;
    o.host_cache_bytes = 0;  // what the pages have no room for goes to disk at once
    o.context = o.kv_tokens = 512;
    start(server_options(), o);
    std::filesystem::remove_all(folder);
    for (int i = 0; i < 3; ++i) {
        const json::array prompt = json::value_from(std::vector<int32_t>(450, 100 + i)).as_array();
        EXPECT_EQ(post("/v1/completions", {{"prompt", prompt}, {"max_tokens", 2}}).status, 200);
    }
    EXPECT_TRUE(becomes([&] {
        const std::string page = get("/metrics").body;
        return page.find("riptide_cache_failed_writes_total ") != std::string::npos &&
               page.find("riptide_cache_failed_writes_total 0\n") == std::string::npos;
    }));
}

}  // namespace
}  // namespace riptide::testing
