// What operators and trainers do with a server: look at requests and end them, pause, other weights, the log.
#include <filesystem>

#include "tests/engine/fake_model.h"
#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

json::object long_answer() {
    return {{"prompt", "x"}, {"max_tokens", 900}, {"ignore_eos", true}, {"stream", true}, {"temperature", 1}};
}

class ServerSteering : public ServerTest {
  protected:
    void start_with_admin() {
        server::ServerOptions options = server_options();
        options.admin = true;
        start(options);
    }
    json::array live() { return get("/v1/requests").object().at("data").as_array(); }
    Answer bare_post(const std::string& target) { return Client(port()).ask("POST", target, "", ""); }
};

TEST_F(ServerSteering, who_may_not_steer_is_refused) {
    start();
    for (const char* path : {"/pause", "/resume", "/update_weights", "/v1/pause"}) {
        EXPECT_EQ(post(path, {}).status, 403) << path;
        EXPECT_EQ(bare_post(path).status, 403) << path;
    }
    EXPECT_FALSE(engine->stats().paused);
    server::ServerOptions options = server_options();
    options.admin = true;
    options.api_keys = {"secret"};
    start(options);
    EXPECT_EQ(bare_post("/pause").status, 401);
    EXPECT_FALSE(engine->stats().paused);
}

TEST_F(ServerSteering, a_paused_answer_goes_on_as_if_nothing_had_been) {
    start_with_admin();
    const json::object body = {
        {"prompt", "x"}, {"max_tokens", 60}, {"ignore_eos", true}, {"seed", 3}, {"temperature", 1}};
    const json::object alone = post("/v1/completions", body).object();
    Client client(port());
    EXPECT_EQ(bare_post("/pause?mode=keep&clear_cache=false").object().at("paused"), true);
    client.send("POST", "/v1/completions", json::serialize(body));
    EXPECT_TRUE(becomes([&] { return engine->stats().waiting == 1; }));
    EXPECT_EQ(live().at(0).at("state").as_string(), "waiting");
    EXPECT_EQ(bare_post("/resume").object().at("paused"), false);
    EXPECT_EQ(client.receive().object().at("choices").at(0).at("text"), alone.at("choices").at(0).at("text"));
    EXPECT_EQ(post("/pause", {{"mode", "sideways"}}).param(), "mode");
    EXPECT_EQ(bare_post("/pause?mode=wait").status, 200);
    EXPECT_EQ(bare_post("/resume").status, 200);
    expect_alive();
}

TEST_F(ServerSteering, other_weights_are_said_in_every_reply) {
    start_with_admin();
    const json::object chat = {{"messages", user_says("Hi")}, {"max_tokens", 4}, {"temperature", 0}};
    const json::object before = post("/v1/chat/completions", chat).object();
    EXPECT_EQ(before.at("weights_version").to_number<int>(), 1);
    const std::string copy = ::testing::TempDir() + "riptide-weights.gguf";
    std::filesystem::copy_file(demo_path(), copy, std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(bare_post("/pause?mode=abort").status, 200);
    const Answer updated = post("/update_weights", {{"weight_dir", copy}});
    ASSERT_EQ(updated.status, 200) << updated.body;
    EXPECT_EQ(updated.object().at("weights_version").to_number<int>(), 2);
    EXPECT_EQ(bare_post("/resume").status, 200);
    const json::object after = post("/v1/chat/completions", chat).object();
    EXPECT_EQ(after.at("weights_version").to_number<int>(), 2);
    EXPECT_EQ(after.at("choices"), before.at("choices")) << "the same weights";
    EXPECT_EQ(after.at("usage").at("prompt_tokens_details").at("cached_tokens").to_number<int>(), 0);
    json::object body = {{"prompt", "x"}, {"max_tokens", 1}};
    EXPECT_EQ(post("/v1/completions", body).object().at("weights_version").to_number<int>(), 2);
    body = {{"input", "x"}, {"max_output_tokens", 1}};
    EXPECT_EQ(post("/v1/responses", body).object().at("weights_version").to_number<int>(), 2);
    EXPECT_EQ(post("/v1/messages", chat).object().at("usage").at("weights_version").to_number<int>(), 2);
    EXPECT_EQ(get("/props").object().at("weights_version").to_number<int>(), 2);

    const Answer missing = post("/update_weights", {{"weight_dir", copy + ".none"}});
    EXPECT_EQ(missing.status, 400);
    EXPECT_EQ(missing.param(), "weight_dir");
    EXPECT_EQ(post("/update_weights", {}).param(), "weight_dir");
    EXPECT_EQ(post("/v1/chat/completions", chat).object().at("weights_version").to_number<int>(), 2);
    expect_alive();
    std::filesystem::remove(copy);
}

TEST_F(ServerSteering, a_request_is_seen_while_it_lives_and_can_be_ended) {
    start();
    EXPECT_TRUE(live().empty());
    Client client(port());
    client.send("POST", "/v1/completions", json::serialize(long_answer()),
                "Content-Type: application/json\r\nx-session-id: tea\r\n");
    EXPECT_EQ(client.receive_header().status, 200);
    json::object seen;
    EXPECT_TRUE(becomes([&] {
        const json::array all = live();
        if (!all.empty()) seen = all[0].as_object();
        return !seen.empty() && seen.at("state").as_string() == "answering";
    }));
    EXPECT_EQ(seen.at("session").as_string(), "tea");
    EXPECT_EQ(seen.at("route").as_string(), "/v1/completions");
    EXPECT_GT(seen.at("prompt_tokens").to_number<int64_t>(), 0);
    const std::string id(seen.at("id").as_string());
    const auto end = [&] { return Client(port()).ask("DELETE", "/v1/requests/" + id, "", "").status; };
    EXPECT_EQ(end(), 200);
    EXPECT_NE(client.receive_rest().body.find("the request was cancelled"), std::string::npos)
        << "no end like any other";
    EXPECT_TRUE(becomes([&] { return live().empty(); }));
    EXPECT_EQ(end(), 404);
    EXPECT_EQ(Client(port()).ask("DELETE", "/v1/requests/", "", "").status, 404);
    EXPECT_EQ(Client(port()).ask("DELETE", "/v1/chat/completions", "", "").status, 405);
    EXPECT_TRUE(becomes([&] { return engine->stats().cancelled == 1; }));
    expect_alive();
}

TEST_F(ServerSteering, requests_of_another_key_are_neither_seen_nor_ended) {
    server::ServerOptions options = server_options();
    options.api_keys = {"first-key", "second-key"};
    start(options);
    Client client(port());
    client.send("POST", "/v1/completions", json::serialize(long_answer()),
                "Content-Type: application/json\r\nx-api-key: first-key\r\n");
    EXPECT_EQ(client.receive_header().status, 200);
    const auto list = [&](const std::string& key) {
        return Client(port())
            .ask("GET", "/v1/requests", "", "x-api-key: " + key + "\r\n")
            .object()
            .at("data")
            .as_array();
    };
    const json::array own = list("first-key");
    ASSERT_EQ(own.size(), 1u);
    EXPECT_TRUE(list("second-key").empty());
    const std::string path = "/v1/requests/" + std::string(own[0].at("id").as_string());
    EXPECT_EQ(Client(port()).ask("DELETE", path, "", "x-api-key: second-key\r\n").status, 404);
    EXPECT_EQ(Client(port()).ask("DELETE", path, "", "x-api-key: first-key\r\n").status, 200);
    client.receive_rest();
}

TEST_F(ServerSteering, the_log_has_a_line_for_each_answer_and_content_only_if_asked) {
    for (const bool content : {false, true})
        for (const bool as_json : {false, true}) {
            std::mutex mutex;
            std::string lines;
            server::ServerOptions options = server_options();
            options.log = {[&](const std::string& line) {
                               const std::lock_guard lock(mutex);
                               EXPECT_EQ(line.find('\n'), std::string::npos);
                               if (as_json) {
                                   EXPECT_NO_THROW(parse_json(line, "a line"));
                               }
                               lines += line + '\n';
                           },
                           as_json, content};
            start(options);
            const json::object reply =
                post("/v1/chat/completions", {{"messages", user_says("Reverse the word lamp.")}, {"temperature", 0}})
                    .object();
            const std::string said(reply.at("choices").at(0).at("message").at("content").as_string());
            server.reset();
            EXPECT_EQ(lines.find("lamp") != std::string::npos, content);
            EXPECT_EQ(lines.find(said) != std::string::npos, content) << said << lines;
            EXPECT_NE(lines.find("stop_id"), std::string::npos) << lines;
        }
}

/// Fails as a device does.
class BurningModel final : public FakeModel {
  public:
    Tensor logits(Context&, const Tensor&, const Batch&) const override {
        fail(ErrorKind::system, "the device has caught fire");
    }
};

TEST(ServerHealth, a_failed_engine_is_unhealthy_also_while_nobody_asks_it) {
    RT_CPU_ONLY("the fake model is host code");
    EngineOptions o;
    o.threads = 1;
    o.context = 128;
    o.kv_tokens = 512;
    o.k_dtype = o.v_dtype = DType::f32;
    o.page_rows = 4;
    o.chunk_rows = 32;
    Engine engine(std::make_unique<BurningModel>(), o);
    server::Server server(server_options());
    server.serve(engine);
    const auto health = [&] { return Client(server.port()).ask("GET", "/health").status; };
    EXPECT_EQ(health(), 200);
    EXPECT_FALSE(server.engine_failed());
    engine.submit(continuation({1, 2, 3}, 4), [](const Event&) {});
    EXPECT_TRUE(becomes([&] { return health() == 500; }));
    EXPECT_TRUE(server.engine_failed());
    EXPECT_EQ(Client(server.port()).post("/v1/completions", {{"prompt", {1, 2}}}).status, 500);
}

TEST_F(ServerSteering, another_salt_finds_nothing_in_the_cache) {
    start();
    const auto cached = [&](const char* salt) {
        json::object body = {{"messages", user_says("What is 12 plus 30? " + std::string(200, 'a'))},
                             {"max_tokens", 2}};
        if (*salt != 0) body["cache_salt"] = salt;
        const json::object out = post("/v1/chat/completions", body).object();
        return out.at("usage").at("prompt_tokens_details").at("cached_tokens").to_number<int>();
    };
    for (const char* salt : {"", "a", "b"}) {
        EXPECT_EQ(cached(salt), 0) << salt;
        EXPECT_GT(cached(salt), 0) << salt;
    }
}

}  // namespace
}  // namespace riptide::testing
