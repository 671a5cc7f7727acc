// What one request may cost others: its work can be stopped, its memory has a limit.
#include "tests/server/http_client.h"

#include "base/json.h"
#include "server/api/generation_request.h"

namespace riptide::testing {
namespace {

class ServerBounds : public ServerTest {
  protected:
    /// One piece of text that is merged letter by letter: seconds of a worker's time.
    static std::string long_work() {
        return json::serialize(json::object{{"content", std::string(std::size_t{30} << 20, 'a')}});
    }
    /// Patterns of thousands of states each: seconds, too.
    static json::object long_form() {
        json::object properties;
        for (char last = 'c'; last <= 'w'; ++last) {
            const std::string pattern = fmt::format("^(?=.*a[^x]{{12}}$)[a-{}]*$", last);
            properties[std::string(1, last)] = {{"type", "string"}, {"pattern", pattern}};
        }
        return {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
    }
    void start_with_one_worker() {
        server::ServerOptions options = server_options();
        options.http.worker_threads = 1;
        start(options);
    }
};

TEST_F(ServerBounds, a_client_that_leaves_stops_the_work_that_it_asked_for) {
    start_with_one_worker();
    Client client(port());
    client.send("POST", "/tokenize", long_work());
    client.close();
    const std::string stopped = "riptide_http_replies_total{route=\"/tokenize\",status=\"503\"} 1\n";
    EXPECT_TRUE(becomes([&] { return get("/metrics").body.find(stopped) != std::string::npos; }))
        << get("/metrics").body;
    expect_alive();
}

TEST_F(ServerBounds, a_client_that_leaves_stops_the_form_that_it_asked_for) {
    start_with_one_worker();
    const json::object format = {{"type", "json_schema"}, {"json_schema", {{"schema", long_form()}}}};
    const json::object tool = {{"type", "function"},
                               {"function", {{"name", "f"}, {"strict", true}, {"parameters", long_form()}}}};
    int gone = 0;
    for (const auto& [key, value] : {std::pair<const char*, json::value>("response_format", format),
                                     std::pair<const char*, json::value>("tools", json::array{tool})}) {
        Client client(port());
        client.send("POST", "/v1/chat/completions",
                    json::serialize(json::object{{"messages", user_says("x")}, {key, value}}));
        client.close();
        const std::string stopped =
            fmt::format("riptide_http_replies_total{{route=\"/v1/chat/completions\",status=\"503\"}} {}\n", ++gone);
        EXPECT_TRUE(becomes([&] { return get("/metrics").body.find(stopped) != std::string::npos; }))
            << key << get("/metrics").body;
    }
    EXPECT_EQ(engine->stats().submitted, 0);
    expect_alive();
}

TEST_F(ServerBounds, a_server_that_ends_stops_its_workers_and_says_so) {
    const json::object form = {{"messages", user_says("x")}, {"json_schema", long_form()}};
    for (const auto& [path, body] :
         {std::pair("/tokenize", long_work()), std::pair("/v1/chat/completions", json::serialize(form))}) {
        start_with_one_worker();
        Client busy(port());
        busy.send("POST", path, body);
        EXPECT_EQ(get("/health").status, 200);  // behind it, so that most of its body has been read
        server->drain(std::chrono::milliseconds(500));
        EXPECT_EQ(busy.receive().status, 503);
        server.reset();
    }
}

TEST_F(ServerBounds, bodies_beyond_the_room_for_all_are_told_to_come_back) {
    server::ServerOptions options = server_options();
    options.http.inflight_bytes = 48 << 20;
    start(options);
    const std::string body = json::serialize(json::object{{"content", std::string(1 << 20, 'a')}});
    Client slow(port());
    slow.send(
        fmt::format("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    "Content-Length: {}\r\nExpect: 100-continue\r\n\r\n",
                    body.size()));
    EXPECT_EQ(slow.receive_header().status, 100);
    const Answer refused = Client(port()).ask("POST", "/tokenize", body);
    EXPECT_EQ(refused.status, 503);
    EXPECT_GE(std::stoi(refused.headers.at("Retry-After")), 1);
    EXPECT_NE(refused.body.find("50331648 bytes"), std::string::npos) << refused.body;
    EXPECT_EQ(post("/tokenize", {{"content", "small"}}).status, 200);
    slow.close();
    EXPECT_TRUE(becomes([&] { return Client(port()).ask("POST", "/tokenize", body).status == 200; }));
}

TEST_F(ServerBounds, a_body_whose_values_need_far_more_memory_is_refused) {
    start();
    std::string body = "{\"tokens\":[";
    for (int i = 0; i < (4 << 20); ++i) body += "1,";
    const Answer refused = Client(port()).ask("POST", "/detokenize", body + "1]}");
    EXPECT_EQ(refused.status, 400);
    EXPECT_NE(refused.body.find("the body: its values need more than"), std::string::npos) << refused.body;
    expect_alive();
}

TEST_F(ServerBounds, tokens_that_spell_far_more_than_they_take_are_refused) {
    start();
    const Tokenizer& tokenizer = *engine->tokenizer();
    int32_t longest = 0;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
        if (tokenizer.piece(id).size() > tokenizer.piece(longest).size()) longest = id;
    const std::size_t size = tokenizer.piece(longest).size();
    const std::string id = std::to_string(longest) + ",";
    std::string body = "{\"tokens\":[";
    for (std::size_t bytes = 0; bytes < (std::size_t{17} << 20) + 8 * body.size(); bytes += size) body += id;
    body.back() = ']';
    const Answer answer = Client(port()).ask("POST", "/detokenize", body + "}");
    EXPECT_EQ(answer.status, 400) << size;
    EXPECT_NE(answer.body.find("spell more than"), std::string::npos) << answer.body.substr(0, 200);
}

TEST_F(ServerBounds, tokens_and_their_texts_come_back_as_they_went) {
    start();
    const std::string text = "Hello \"world\"\n\u00e4\u20ac \xF0\x9F\x98\x80 12";
    for (const char* each : {"", text.c_str()}) {
        const json::object reply = post("/tokenize", {{"content", each}, {"with_pieces", true}}).object();
        EXPECT_EQ(reply.at("count").to_number<std::size_t>(), reply.at("tokens").as_array().size());
        EXPECT_EQ(reply.at("pieces").as_array().size(), reply.at("tokens").as_array().size());
        EXPECT_GT(reply.at("max_model_len").to_number<int64_t>(), 0);
        const json::object back = post("/detokenize", {{"tokens", reply.at("tokens")}}).object();
        EXPECT_EQ(back.at("content"), json::value(each));
        EXPECT_EQ(back.at("prompt"), json::value(each));
    }
}

TEST_F(ServerBounds, a_timeout_that_is_no_time_is_refused_by_its_name) {
    start();
    for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
        for (const json::value& timeout : json::array{0, -1, 1e10, "1", true, json::array{1}}) {
            json::object asked = {{"messages", user_says("x")}, {"max_tokens", 5}, {"timeout", timeout}};
            asked["prompt"] = "x";
            if (std::string_view(path) == "/v1/responses") asked = {{"input", "x"}, {"timeout", timeout}};
            const Answer answer = post(path, asked);
            EXPECT_EQ(answer.status, 400) << path << json::serialize(timeout) << answer.body;
            EXPECT_NE(answer.body.find("\"timeout"), std::string::npos) << answer.body;
            if (std::string_view(path) == "/v1/messages") continue;  // its errors name no field apart
            EXPECT_EQ(answer.param(), "timeout");
        }
    expect_alive();
}

TEST_F(ServerBounds, a_request_ends_at_its_timeout_wherever_it_is) {
    start();
    const json::object endless = {{"prompt", "x"}, {"max_tokens", -1}, {"ignore_eos", true}, {"n", 8}};
    const auto with = [](json::object asked, const json::object& more) {
        for (const auto& [key, value] : more) asked[key] = value;
        return asked;
    };
    // On a busy machine a short one passes before the request is understood.
    const auto late = [&](const json::object& asked) {
        Answer out;
        for (double timeout = 0.02; timeout < 10 && out.body.find("the deadline of ") == std::string::npos;
             timeout *= 2)
            out = post("/v1/completions", with(asked, {{"timeout", timeout}}));
        return out;
    };
    const Answer whole = late(endless);
    EXPECT_EQ(whole.status, 503) << whole.body;
    EXPECT_EQ(whole.headers.at("Retry-After"), "1");
    EXPECT_NE(whole.body.find("the deadline of "), std::string::npos) << whole.body;
    const Answer stream = late(with(endless, {{"stream", true}}));
    EXPECT_EQ(stream.status, 200);
    EXPECT_NE(stream.body.find("the deadline of "), std::string::npos) << stream.body;
    EXPECT_EQ(stream.body.find("\"finish_reason\":\"length\""), std::string::npos) << stream.body;
    const json::object form = {{"messages", user_says("x")}, {"json_schema", long_form()}, {"timeout", 0.05}};
    const Answer compiled = post("/v1/chat/completions", form);  // seconds, if nothing ended it
    EXPECT_EQ(compiled.status, 503) << compiled.body;
    EXPECT_NE(compiled.body.find("the deadline has passed before the request was understood"), std::string::npos)
        << compiled.body;
    EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 2}, {"timeout", 3600}}).status, 200);
    expect_alive();
}

TEST_F(ServerBounds, a_form_is_not_compiled_where_a_request_is_read) {
    json::object properties;
    for (int i = 0; i < 2000; ++i) properties[fmt::format("p{}", i)] = {{"type", "string"}};
    const json::object format = {{"type", "json_schema"}, {"json_schema", {{"schema", {{"properties", properties}}}}}};
    WorkBudget work;
    server::RequestDefaults defaults;
    defaults.work = &work;
    const auto asked = server::parse_chat({{"messages", user_says("x")}, {"response_format", format}}, defaults);
    EXPECT_EQ(asked.prompts.at(0).format.kind, AnswerFormat::Kind::json_schema);
    EXPECT_EQ(work.steps_spent(), 0) << "the engine compiles it, once for all who ask for it";
}

}  // namespace
}  // namespace riptide::testing
