// `timeout`, and clients that leave, where nothing is being made for them: a paused server, a scorer, a busy worker.
#include "base/json.h"
#include "tests/engine/scorer_gate.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

class ServerDeadline : public ServerTest {
  protected:
    ~ServerDeadline() override {
        gate.open();
        server.reset();
        engine.reset();
    }
    void start_with_scorer() {
        server::ServerOptions options = server_options();
        options.admin = true;
        EngineOptions o = demo_options();
        o.scorer = gate.scorer();
        o.compression = {.mode = CompressMode::automatic, .keep = 0.25, .least = 0, .above = 300};
        start(options, o);
    }
    /// A question, with what each API calls it.
    static json::object asked(std::string_view path, const std::string& text, bool stream) {
        json::object out = {{"stream", stream}};
        out[path == "/v1/responses" ? "max_output_tokens" : "max_tokens"] = 4;
        if (path == "/v1/completions") out["prompt"] = text;
        else if (path == "/v1/responses") out["input"] = text;
        else out["messages"] = user_says(text);
        return out;
    }
    void expect_timeouts(const std::string& text) {
        for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
            for (const bool stream : {false, true}) {
                Answer answer;  // a busy machine may need longer to understand the question
                json::object question = asked(path, text, stream);
                for (double time = 0.03; time < 10 && answer.body.find("the deadline of ") == std::string::npos;
                     time *= 2) {
                    question["timeout"] = time;
                    answer = post(path, question);
                }
                EXPECT_EQ(answer.status, stream ? 200 : 503) << path << answer.body;
                EXPECT_NE(answer.body.find("the deadline of "), std::string::npos) << path << answer.body;
                if (!stream) {
                    EXPECT_EQ(answer.headers.at("Retry-After"), "1") << path;
                }
                for (const char* end : {"\"finish_reason\":\"", "response.completed", "message_stop"})
                    EXPECT_EQ(answer.body.find(end), std::string::npos) << path << answer.body;
            }
    }
    Gate gate;
};

TEST_F(ServerDeadline, is_heard_by_a_paused_server) {
    start_with_scorer();
    EXPECT_EQ(post("/pause", {}).status, 200);
    expect_timeouts("What is 12 plus 30?");
    EXPECT_TRUE(engine->stats().paused);
    EXPECT_EQ(post("/resume", {}).status, 200);
    expect_alive();
}

TEST_F(ServerDeadline, is_heard_while_a_prompt_is_with_the_scorer) {
    start_with_scorer();
    gate.close();
    expect_timeouts(short_pump_log(60));
    EXPECT_EQ(post("/pause", {}).status, 200);
    expect_timeouts(short_pump_log(60));
    EXPECT_EQ(post("/resume", {}).status, 200);
    EXPECT_EQ(engine->stats().scoring, 0);
    expect_alive();
}

TEST_F(ServerDeadline, a_client_that_leaves_is_heard_while_the_server_is_paused_and_its_prompt_scored) {
    start_with_scorer();
    gate.close();
    for (const bool paused : {false, true}) {
        if (paused) {
            EXPECT_EQ(post("/pause", {}).status, 200);
        }
        for (const std::string& text : {std::string("x"), short_pump_log(60)}) {
            if (!paused && text.size() == 1) continue;  // it would be answered
            const int64_t before = engine->stats().cancelled;
            Client client(port());
            const json::object body = asked("/v1/chat/completions", text, false);
            client.send("POST", "/v1/chat/completions", json::serialize(body));
            EXPECT_TRUE(becomes([&] { return engine->stats().waiting == 1; }));
            client.close();
            EXPECT_TRUE(becomes([&] { return engine->stats().cancelled == before + 1; })) << paused << text;
        }
    }
}

TEST_F(ServerDeadline, who_leaves_does_not_wait_for_a_drain_and_its_worker_is_free) {
    server::ServerOptions options = server_options();
    options.admin = true;
    options.http.worker_threads = 1;
    EngineOptions o = demo_options();
    o.scorer = gate.scorer();
    o.compression = {.mode = CompressMode::always, .keep = 0.25, .least = 0, .above = 300};
    start(options, o);
    gate.close();
    Listener listener;
    engine->submit(chat(short_pump_log(60), 4), listener.sink(0));
    Client trainer(port()), late(port());
    trainer.send("POST", "/pause", R"({"mode": "wait"})");
    const auto refuses = [&] {
        try {
            engine->cancel(engine->submit(continuation({1, 2, 3}, 1), [](const Event&) {}));
        } catch (const QueueFull&) {
            return false;
        } catch (const Error&) {
            return true;
        }
        return false;
    };
    EXPECT_TRUE(becomes(refuses));
    late.send("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 1, "timeout": 0.02})");
    EXPECT_EQ(get("/health").status, 200);  // behind it, so that it has been received
    EXPECT_EQ(get("/health").status, 200);
    const auto sent = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - sent < std::chrono::milliseconds(25)) {
    }
    trainer.close();
    const Answer answer = late.receive();
    EXPECT_EQ(answer.status, 503);
    EXPECT_NE(answer.body.find("the deadline has passed before the request was understood"), std::string::npos)
        << answer.body;
    EXPECT_FALSE(engine->stats().paused);
    gate.open();
    EXPECT_TRUE(listener.answer(0).done);
    expect_alive();
}

}  // namespace
}  // namespace riptide::testing
