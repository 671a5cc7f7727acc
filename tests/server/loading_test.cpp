// Streams that wait for their model to be loaded.
#include "base/json.h"
#include "tests/server/several_models.h"

namespace riptide::testing {
namespace {

/// A route, what asks for a stream on it, and what stands in each of its heartbeats.
struct Waiting {
    std::string path;
    json::object body;
    std::string beat;
};

class ServerLoading : public ServerModels {
  protected:
    static server::ServerOptions impatient() {
        server::ServerOptions o = several();
        o.http.heartbeat_time = std::chrono::milliseconds(20);
        return o;
    }
    /// Of each dialect.
    static std::vector<Waiting> streams() {
        const json::array says = user_says("Hi");
        return {
            {"/v1/chat/completions", {{"messages", says}, {"max_tokens", 4}, {"stream", true}}, R"("delta":{})"},
            {"/v1/completions", {{"prompt", "x"}, {"max_tokens", 4}, {"stream", true}}, R"("text":"","logprobs")"},
            {"/v1/responses",
             {{"input", "Hi"}, {"max_output_tokens", 4}, {"stream", true}},
             "event: response.in_progress\n"},
            {"/v1/messages", {{"messages", says}, {"max_tokens", 4}, {"stream", true}}, "event: ping\n"},
            {"/api/chat", {{"messages", says}, {"options", {{"num_predict", 4}}}}, R"("content":""},"done":false)"},
            {"/api/generate", {{"prompt", "x"}, {"options", {{"num_predict", 4}}}}, R"("response":"","done":false)"}};
    }
    static int64_t count(const std::string& text, const std::string& what) {
        int64_t out = 0;
        for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++out;
        return out;
    }
    /// Asks for a stream of model b, and hears some heartbeats.
    static void wait_with(Client& client, const Waiting& asked) {
        json::object body = asked.body;
        body["model"] = "b";
        client.send("POST", asked.path, json::serialize(body));
        EXPECT_EQ(client.receive_header().status, 200) << asked.path;
        client.receive_until([&](const std::string& heard) { return count(heard, asked.beat) >= 4; });
    }
    /// What has been streamed: the same values of `key`, wherever it stands in an object of a line.
    static void expect_one(const std::string& key, const std::string& body) {
        const std::string mark = "\"" + key + "\":\"";
        std::set<std::string> values;
        for (size_t at = 0; (at = body.find(mark, at)) != std::string::npos;) {
            at += mark.size();
            values.insert(body.substr(at, body.find('"', at) - at));
        }
        EXPECT_EQ(values.size(), 1u) << key << body;
    }
};

TEST_F(ServerLoading, streams_live_while_their_model_is_loaded) {
    for (const Waiting& asked : streams()) {
        start(impatient());
        const int loads = loader.loads("b");
        loader.hold("b");
        Client client(port());
        wait_with(client, asked);
        EXPECT_TRUE(becomes([&] { return state("b") == "loading"; }));
        loader.release("b");
        const std::string body = client.receive_rest().body;
        int64_t ends = 0;
        for (const char* end : {"\"done\":true", "event: message_stop\n", "event: response.incomplete\n",
                                "event: response.completed\n", "data: [DONE]"})
            ends += count(body, end);
        EXPECT_EQ(ends, 1) << body;
        EXPECT_EQ(count(body, "rror"), count(body, "\"error\":null")) << body;
        expect_one("model", body);
        if (asked.path.ends_with("completions")) expect_one("id", body);
        EXPECT_EQ(count(body, "\"role\":\"assistant\",\"content\":\"\"},\"finish"),
                  asked.path == "/v1/chat/completions");
        EXPECT_EQ(count(body, "event: message_start\n"), asked.path == "/v1/messages") << "it begins once";
        EXPECT_EQ(loader.loads("b"), loads + 1);
        EXPECT_NE(get("/metrics").body.find("riptide_http_abandoned_total 0\n"), std::string::npos);
    }
}

TEST_F(ServerLoading, a_response_goes_on_with_its_numbers) {
    start(impatient());
    loader.hold("b");
    Client client(port());
    wait_with(client, streams()[2]);
    loader.release("b");
    const std::string body = client.receive_rest().body;
    int64_t next = 0;
    std::set<std::string> ids;
    for (size_t at = 0; (at = body.find("data: ", at)) != std::string::npos; at += 6) {
        const json::object event =
            parse_json(body.substr(at + 6, body.find('\n', at) - at - 6), "an event").as_object();
        EXPECT_EQ(event.at("sequence_number").to_number<int64_t>(), next++) << body;
        EXPECT_EQ(event.at("type") == "response.created", next == 1);
        if (const json::value* response = event.if_contains("response"))
            ids.insert(std::string(response->at("id").as_string()));
    }
    EXPECT_GT(next, 6);
    EXPECT_EQ(ids.size(), 1u) << body;
}

TEST_F(ServerLoading, a_stream_that_has_begun_ends_with_the_refusal_in_its_words) {
    loader.breaks("b");
    for (const Waiting& asked : streams()) {
        start(impatient());
        loader.hold("b");
        Client client(port());
        wait_with(client, asked);
        loader.release("b");
        const std::string body = client.receive_rest().body;
        EXPECT_EQ(count(body, "no tensor of this name"), 1) << body;
        EXPECT_EQ(count(body, "[DONE]") + count(body, "\"done\":true"), 0) << body;
        const std::string marks = asked.path.starts_with("/api/") ? "\n{\"error\":\"the model 'b' cannot"
                                  : asked.path == "/v1/messages"  ? "event: error\ndata: {\"type\":\"error\""
                                  : asked.path == "/v1/responses" ? "event: response.failed\n"
                                                                  : "data: {\"error\":{\"message\"";
        EXPECT_EQ(count(body, marks), 1) << body;
        EXPECT_EQ(Client(port()).ask("GET", "/health").status, 200);
    }
}

TEST_F(ServerLoading, what_is_known_before_the_first_heartbeat_has_its_status) {
    server::ServerOptions options = several();
    options.http.heartbeat_time = std::chrono::minutes(5);
    loader.breaks("c");
    start(options);
    for (Waiting& asked : streams()) {
        asked.body["model"] = "c";
        EXPECT_EQ(post(asked.path, asked.body).status, 503) << asked.path;
        asked.body["model"] = "b";
        (asked.path.starts_with("/api/") ? asked.body["options"].as_object() : asked.body)["top_p"] = "much";
        EXPECT_EQ(post(asked.path, asked.body).status, 400) << asked.path;
    }
    EXPECT_EQ(loader.loads("b"), 0) << "nothing is loaded for what no model would answer";
    for (Waiting& asked : streams()) {
        asked.body["model"] = "b";
        EXPECT_EQ(post(asked.path, asked.body).status, 200) << asked.path;
    }
    const json::object echo = {
        {"model", "a"}, {"prompt", json::array{5, 6}}, {"echo", true}, {"max_tokens", 1}, {"stream", true}};
    EXPECT_EQ(post("/v1/completions", echo).status, 200) << "the echo of ids needs the model's tokenizer";
}

TEST_F(ServerLoading, ollamas_way_to_load_a_model_ends_a_stream_that_has_begun) {
    start(impatient());
    loader.hold("b");
    Client client(port());
    wait_with(client, {"/api/generate", {}, R"("response":"","done":false)"});
    loader.release("b");
    const std::string body = client.receive_rest().body;
    EXPECT_EQ(count(body, "\"done_reason\":\"load\""), 1) << body;
}

TEST_F(ServerLoading, a_client_that_leaves_a_stream_waits_no_more) {
    server::ServerOptions options = impatient();
    options.several.most_waiting = 1;
    for (const bool half : {false, true}) {
        start(options);
        loader.hold("b");
        Client client(port());
        wait_with(client, streams()[0]);
        ASSERT_TRUE(becomes([&] { return state("b") == "loading"; })) << "for this client";
        EXPECT_EQ(ask("b").status, 503) << "one may wait";
        if (half) {  // and still reads
            client.finish_sending();
            client.receive_until([](const std::string& heard) { return count(heard, streams()[0].beat) >= 8; });
        }
        client.close();
        json::object late = short_answer("b");
        late["timeout"] = 0.2;
        EXPECT_TRUE(becomes([&] {
            return message(post("/v1/completions", late)).find("deadline") != std::string::npos;
        })) << "another may wait in its place";
        loader.release("b");
        EXPECT_TRUE(becomes([&] { return ask("b").status == 200; }));
    }
}

TEST_F(ServerLoading, a_server_that_ends_tells_the_streams_that_wait) {
    start(impatient());
    loader.hold("b");
    Client client(port());
    wait_with(client, streams()[0]);
    std::thread end([&] { server->drain(std::chrono::milliseconds(1)); });
    const std::string body = client.receive_rest().body;
    EXPECT_EQ(count(body, "\"error\""), 1) << body;
    loader.release("b");
    end.join();
}

}  // namespace
}  // namespace riptide::testing
