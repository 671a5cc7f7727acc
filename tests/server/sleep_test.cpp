// A server that sleeps has given its memory back, and answers as before when it is woken.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

json::object greedy(const std::string& prompt, int64_t tokens = 20) {
    return {{"prompt", prompt}, {"max_tokens", tokens}, {"temperature", 0}, {"ignore_eos", true}};
}

std::string text_of(const Answer& answer) { return json::serialize(answer.object().at("choices")); }

/// Bytes of this process that lie in memory.
int64_t resident() {
    std::ifstream file("/proc/self/statm");
    int64_t all = 0, there = 0;
    file >> all >> there;
    return there * ::sysconf(_SC_PAGESIZE);
}

bool is_mapped(const std::string& file) {
    std::ifstream maps("/proc/self/maps");
    std::ostringstream text;
    text << maps.rdbuf();
    return text.str().find(std::filesystem::canonical(file).string()) != std::string::npos;
}

class ServerSleep : public ::testing::Test {
  protected:
    void start(server::ServerOptions options = server_options(), EngineOptions engine = demo_options(),
               bool borrowed = false) {
        options.admin = options.api_keys.empty();
        server.reset();
        server = std::make_unique<server::Server>(std::move(options));
        const auto open = [this, engine] {
            ++loads;
            if (!broken.empty()) fail(ErrorKind::data, "{}", broken);
            return Engine::open(demo_path(), engine);
        };
        if (borrowed) server->serve(*(lent = open()));
        else server->serve(open(), open);
    }
    void TearDown() override { server.reset(); }

    Answer bare(const std::string& target) { return Client(server->port()).ask("POST", target, "", ""); }
    Answer get(const std::string& target) { return Client(server->port()).ask("GET", target, "", ""); }
    Answer post(const std::string& target, const json::object& body) {
        return Client(server->port()).post(target, body);
    }
    bool sleeps() { return get("/is_sleeping").object().at("is_sleeping").as_bool(); }
    static std::string message(const Answer& answer) {
        return std::string(answer.object().at("error").at("message").as_string());
    }

    std::atomic<int> loads = 0;
    std::string broken;            // why the model cannot be loaded
    std::unique_ptr<Engine> lent;  // outlives the server
    std::unique_ptr<server::Server> server;
};

TEST_F(ServerSleep, answers_are_the_same_before_and_after) {
    start();
    const json::object body = greedy("12 plus 30 is");
    const Answer before = post("/v1/completions", body);
    ASSERT_EQ(before.status, 200);
    EXPECT_FALSE(sleeps());
    for (const char* how : {"/sleep", "/sleep?level=1", "/sleep?level=2", "/sleep?level=1&mode=abort"}) {
        EXPECT_EQ(bare(how).status, 200) << how;
        EXPECT_TRUE(sleeps());
        EXPECT_EQ(bare("/wake_up").status, 200);
        EXPECT_FALSE(sleeps());
        EXPECT_EQ(text_of(post("/v1/completions", body)), text_of(before)) << how;
    }
    EXPECT_EQ(loads, 5);
}

TEST_F(ServerSleep, requests_are_told_in_words_and_probes_by_status) {
    server::ServerOptions options = server_options();
    options.management_port = 0;
    start(options);
    EXPECT_EQ(bare("/sleep").status, 200);
    EXPECT_EQ(get("/readyz").status, 503);
    EXPECT_EQ(get("/health").status, 503);
    EXPECT_EQ(get("/health").body, R"({"status":"asleep"})");
    for (const char* path : {"/livez", "/metrics", "/version", "/v1/models", "/v1/models/laguna-demo", "/server_info",
                             "/v1/loads", "/api/tags", "/api/ps", "/v1/requests", "/is_sleeping"})
        EXPECT_EQ(get(path).status, 200) << path;
    EXPECT_EQ(get("/v1/models/laguna-demo").object().at("state").as_string(), "unloaded");
    EXPECT_EQ(Client(server->management_port()).ask("GET", "/readyz", "", "").status, 503);
    EXPECT_EQ(get("/props").status, 503);
    const std::string messages = json::serialize(json::object{{"messages", user_says("Hi")}, {"max_tokens", 3}});
    for (const char* path : {"/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses", "/tokenize",
                             "/pause", "/flush_cache"}) {
        const Answer answer = Client(server->port()).ask("POST", path, messages);
        EXPECT_EQ(answer.status, 503) << path;
        EXPECT_NE(answer.body.find("the server sleeps: POST /wake_up"), std::string::npos) << answer.body;
        EXPECT_TRUE(answer.headers.contains("Retry-After")) << path;
    }
    EXPECT_EQ(bare("/wake_up?tags=weights").status, 200);
    EXPECT_EQ(get("/readyz").status, 200);
    EXPECT_EQ(Client(server->port()).ask("POST", "/v1/chat/completions", messages).status, 200);
}

TEST_F(ServerSleep, memory_is_given_back) {
    EngineOptions roomy = demo_options();
    roomy.kv_tokens = 64 * roomy.context;
    start(server_options(), roomy);
    EXPECT_EQ(post("/v1/completions", greedy("12 plus 30 is")).status, 200);
    const json::object model = get("/v1/models/laguna-demo").object();
    const auto weights = model.at("meta").at("size").to_number<int64_t>();
    ASSERT_GT(weights, 1 << 20);
    EXPECT_TRUE(is_mapped(demo_path()));
    const int64_t before = resident();
    EXPECT_EQ(bare("/sleep").status, 200);
    const int64_t asleep = resident();
    EXPECT_FALSE(is_mapped(demo_path()));
    EXPECT_GE(before - asleep, weights) << before << " bytes, asleep " << asleep;
}

TEST_F(ServerSleep, who_sleeps_twice_or_wakes_twice_is_at_ease) {
    start();
    for (int i = 0; i < 2; ++i) EXPECT_EQ(bare("/wake_up").status, 200);
    EXPECT_EQ(loads, 1) << "it was awake";
    for (int round = 0; round < 3; ++round)
        for (const char* path : {"/sleep", "/wake_up"}) {
            std::vector<std::future<int>> all;
            for (int i = 0; i < 3; ++i)
                all.push_back(std::async(std::launch::async, [&, path] { return bare(path).status; }));
            for (std::future<int>& each : all) EXPECT_EQ(each.get(), 200) << path;
            EXPECT_EQ(sleeps(), path == std::string("/sleep"));
        }
    EXPECT_EQ(loads, 1 + 3);
}

TEST_F(ServerSleep, an_answer_that_runs_ends_first_and_none_begins) {
    start();
    const Answer alone = post("/v1/completions", greedy("x", 300));
    Client client(server->port());
    json::object streamed = greedy("x", 300);
    streamed["stream"] = true;
    client.send("POST", "/v1/completions", json::serialize(streamed));
    client.receive_header();
    client.receive_until([](const std::string& body) { return !body.empty(); });
    std::future<int> sleep = std::async(std::launch::async, [&] { return bare("/sleep").status; });
    const std::string body = client.receive_rest().body;
    std::string text;
    for (const json::object& event : events_of(body))
        text += std::string(event.at("choices").at(0).at("text").as_string());
    EXPECT_EQ(text, std::string(alone.object().at("choices").at(0).at("text").as_string()));
    EXPECT_EQ(sleep.get(), 200);
    EXPECT_TRUE(sleeps());
}

TEST_F(ServerSleep, abort_ends_what_runs) {
    EngineOptions longer = demo_options();
    longer.context = longer.kv_tokens = 8192;
    start(server_options(), longer);
    Client client(server->port());
    json::object streamed = greedy("x", 8000);
    streamed["stream"] = true;
    client.send("POST", "/v1/completions", json::serialize(streamed));
    client.receive_header();
    client.receive_until([](const std::string& body) { return !body.empty(); });
    EXPECT_EQ(bare("/sleep?mode=abort").status, 200);
    const std::string body = client.receive_rest().body;
    EXPECT_NE(body.find("the answer was broken off"), std::string::npos) << body.substr(body.size() - 300);
    EXPECT_TRUE(sleeps());
}

TEST_F(ServerSleep, who_does_not_wait_for_it_leaves_it_awake) {
    EngineOptions longer = demo_options();
    longer.context = longer.kv_tokens = 8192;
    start(server_options(), longer);
    Client client(server->port());
    json::object streamed = greedy("x", 8000);
    streamed["stream"] = true;
    client.send("POST", "/v1/completions", json::serialize(streamed));
    client.receive_header();
    client.receive_until([](const std::string& body) { return !body.empty(); });
    {
        Client leaves(server->port());
        leaves.send("POST", "/sleep", "", "");
        EXPECT_TRUE(becomes([&] { return get("/readyz").status == 503; }));
        EXPECT_FALSE(sleeps()) << "it does not yet";
    }
    EXPECT_TRUE(becomes([&] { return get("/readyz").status == 200; }));
    EXPECT_EQ(post("/v1/completions", greedy("x", 1)).status, 200) << "beside the one that still runs";
    EXPECT_TRUE(client.receive_until([](const std::string& body) { return body.size() > 5000; }).status == 200);
}

TEST_F(ServerSleep, weights_that_no_file_has_are_not_lost_unasked) {
    start();
    ASSERT_EQ(post("/update_weights", {{"weight_dir", demo_path()}}).status, 200);
    const Answer refused = bare("/sleep");
    EXPECT_EQ(refused.status, 409);
    EXPECT_NE(message(refused).find("/sleep?level=2"), std::string::npos) << message(refused);
    EXPECT_EQ(get("/readyz").status, 200);
    EXPECT_EQ(bare("/sleep?level=2").status, 200);
    EXPECT_EQ(bare("/wake_up").status, 200);
    EXPECT_EQ(post("/v1/completions", greedy("x", 1)).status, 200);
}

TEST_F(ServerSleep, what_cannot_be_loaded_again_is_said_and_can_be_mended) {
    start();
    EXPECT_EQ(bare("/sleep").status, 200);
    broken = "demo.gguf: gone";
    const Answer refused = bare("/wake_up");
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(message(refused), "the model cannot be loaded again: demo.gguf: gone");
    EXPECT_TRUE(sleeps());
    EXPECT_EQ(get("/livez").status, 200);
    broken.clear();
    EXPECT_EQ(bare("/wake_up").status, 200);
    EXPECT_EQ(post("/v1/completions", greedy("x", 1)).status, 200);
}

TEST_F(ServerSleep, who_may_not_is_refused_and_so_is_what_means_nothing) {
    server::ServerOptions options = server_options();
    options.api_keys = {"secret"};
    start(options);
    EXPECT_EQ(bare("/sleep").status, 401);
    EXPECT_EQ(get("/is_sleeping").status, 401);
    EXPECT_EQ(Client(server->port()).ask("POST", "/sleep", "", "x-api-key: secret\r\n").status, 403);
    start();
    for (const char* wrong :
         {"/sleep?level=0", "/sleep?level=3", "/sleep?level=x", "/sleep?level=", "/sleep?mode=keep"})
        EXPECT_EQ(bare(wrong).status, 400) << wrong;
    EXPECT_FALSE(sleeps());
    start(server_options(), demo_options(), true);
    EXPECT_EQ(bare("/sleep").status, 400);
    EXPECT_EQ(post("/v1/completions", greedy("x", 1)).status, 200);
    server.reset();
    server::ServerOptions several;
    several.admin = true;
    several.several.models = {{"a"}};
    several.several.load = [](const std::string&) { return Engine::open(demo_path(), demo_options()); };
    server = std::make_unique<server::Server>(several);
    EXPECT_FALSE(sleeps());
    const Answer refused = bare("/sleep");
    EXPECT_EQ(refused.status, 400);
    EXPECT_NE(message(refused).find("/models/unload"), std::string::npos) << message(refused);
}

}  // namespace
}  // namespace riptide::testing
