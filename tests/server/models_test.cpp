// Several models in one server: loaded when asked for, leased while they answer, put away for others.
#include <atomic>

#include "base/json.h"
#include "tests/server/several_models.h"

namespace riptide::testing {
namespace {

TEST_F(ServerModels, ollamas_clients_see_all_and_get_the_one_they_name) {
    start();
    const auto names = [&](const std::string& path) {
        std::string out;
        const json::object listed = get(path).object();
        for (const json::value& model : listed.at("models").as_array())
            out += std::string(model.at("name").as_string()) + (model.at("size").as_int64() > 0 ? "+" : "");
        return out;
    };
    EXPECT_EQ(names("/api/tags"), "abc");
    EXPECT_EQ(names("/api/ps"), "");
    const json::object asked = {{"model", "b:latest"}, {"prompt", "x"}, {"raw", true}, {"stream", false}};
    EXPECT_EQ(post("/api/generate", asked).object().at("done"), true);
    EXPECT_EQ(post("/api/show", {{"name", "b"}}).status, 200);
    EXPECT_EQ(names("/api/tags"), "ab+c");
    EXPECT_EQ(names("/api/ps"), "b+");
    EXPECT_EQ(loader.loads("a") + loader.loads("c"), 0);
}

TEST_F(ServerModels, a_model_is_loaded_when_first_asked_for) {
    start();
    EXPECT_EQ(get("/health").status, 200);
    json::array all = get("/v1/models").object().at("data").as_array();
    ASSERT_EQ(all.size(), 3u);
    for (const json::value& model : all) EXPECT_EQ(model.at("state"), "unloaded");
    EXPECT_EQ(ask("b").object().at("model"), "b");
    EXPECT_EQ(ask("b").object().at("model"), "b");
    EXPECT_EQ(loader.loads("b"), 1);
    EXPECT_EQ(loader.loads("a"), 0);
    all = get("/v1/models").object().at("data").as_array();
    EXPECT_EQ(all[0].at("state"), "unloaded");
    EXPECT_EQ(all[1].at("state"), "ready");
    EXPECT_EQ(all[1].at("context_length").to_number<int64_t>(), demo_options().context);
    EXPECT_FALSE(all[0].as_object().contains("context_length"));
    EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}}).object().at("model"), "a");
    EXPECT_EQ(ask("claude-something").object().at("model"), "a") << "an unknown name means the first";
    EXPECT_EQ(post("/v1/completions", {{"model", 5}, {"prompt", "x"}}).param(), "model");
    EXPECT_EQ(post("/v1/completions", {{"model", "c"}, {"prompt", "x"}, {"timeout", -1}}).param(), "timeout");
    EXPECT_EQ(Client(port()).ask("POST", "/v1/completions", "{\"model\": \"c\", ").status, 400);
    EXPECT_EQ(loader.loads("c"), 0) << "for a body that is not JSON, or has no sense, nothing is loaded";
}

TEST_F(ServerModels, a_strict_server_knows_its_names_only) {
    server::ServerOptions options = several();
    options.strict_model = true;
    start(options);
    const Answer refused = ask("d");
    EXPECT_EQ(refused.status, 404);
    EXPECT_NE(message(refused).find("'a', 'b', 'c'"), std::string::npos) << refused.body;
    EXPECT_EQ(ask("").object().at("model"), "a");
    EXPECT_EQ(ask("c").object().at("model"), "c");
}

TEST_F(ServerModels, many_first_requests_load_once) {
    start();
    std::vector<std::thread> clients;
    std::atomic<int> answered = 0;
    for (int i = 0; i < 8; ++i) clients.emplace_back([&, i] { answered += ask(i % 2 == 0 ? "a" : "b").status == 200; });
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(answered, 8);
    EXPECT_EQ(loader.loads("a"), 1);
    EXPECT_EQ(loader.loads("b"), 1);
}

TEST_F(ServerModels, what_was_used_least_recently_goes) {
    server::ServerOptions options = several();
    options.several.memory_bytes = 2 * bytes_of_one();
    start(options);
    for (const char* name : {"a", "b", "a", "c"}) EXPECT_EQ(ask(name).status, 200) << name;
    EXPECT_EQ(state("a"), "ready");
    EXPECT_EQ(state("b"), "unloaded");
    EXPECT_EQ(state("c"), "ready");
    EXPECT_EQ(ask("b").status, 200);
    EXPECT_EQ(state("a"), "unloaded");
    EXPECT_EQ(loader.loads("b"), 2);
}

TEST_F(ServerModels, a_model_that_answers_stays) {
    server::ServerOptions options = several();
    options.several.memory_bytes = bytes_of_one();
    options.several.keep_alive = std::chrono::milliseconds(1);
    start(options);
    Client client(port());
    client.send("POST", "/v1/completions", json::serialize(long_answer("a")));
    ASSERT_EQ(client.receive_header().status, 200);
    const Answer refused = ask("b");
    EXPECT_EQ(refused.status, 503);
    EXPECT_TRUE(refused.headers.contains("Retry-After"));
    EXPECT_NE(message(refused).find("in use leave no room"), std::string::npos) << refused.body;
    EXPECT_EQ(state("b"), "unloaded");
    EXPECT_EQ(post("/models/unload", {{"model", "a"}}).status, 409);
    EXPECT_EQ(state("a"), "ready");
    bool done = false;
    events_of(client.receive_rest().body, &done);
    EXPECT_TRUE(done) << "it has been answered to its end";
    EXPECT_TRUE(becomes([&] { return ask("b").status == 200; }));
    EXPECT_EQ(state("a"), "unloaded");
}

TEST_F(ServerModels, a_client_that_leaves_gives_its_model_back) {
    start();
    {
        Client client(port());
        client.send("POST", "/v1/completions", json::serialize(long_answer("a")));
        ASSERT_EQ(client.receive_header().status, 200);
        EXPECT_EQ(get("/v1/requests").object().at("data").at(0).at("model"), "a");
    }
    EXPECT_TRUE(becomes([&] { return post("/models/unload", {{"model", "a"}}).status == 200; }));
    EXPECT_EQ(ask("a").status, 200);
}

TEST_F(ServerModels, one_that_cannot_be_loaded_says_why_and_is_tried_again) {
    loader.breaks("b");
    start();
    const Answer refused = ask("b");
    EXPECT_EQ(refused.status, 503);
    EXPECT_NE(message(refused).find("'b' cannot be loaded: b.gguf: no tensor"), std::string::npos) << refused.body;
    const json::object entry = get("/v1/models/b").object();
    EXPECT_EQ(entry.at("state"), "failed");
    EXPECT_NE(entry.at("reason").as_string().find("no tensor"), std::string::npos);
    EXPECT_EQ(get("/health").status, 200);
    EXPECT_EQ(ask("a").status, 200);
    loader.mend("b");
    EXPECT_EQ(ask("b").status, 200);
    EXPECT_EQ(loader.loads("b"), 2);
}

TEST_F(ServerModels, who_looks_at_one_that_cannot_be_loaded_is_told_why_when_the_attempt_has_ended) {
    loader.breaks("b");
    start();
    const Answer first = get("/props?model=b");
    EXPECT_EQ(first.status, 503);
    EXPECT_NE(message(first).find("'b' is being loaded"), std::string::npos) << first.body;
    Answer refused;
    const auto told = [&] {
        return !refused.body.empty() && refused.object().at("error").at("code") == "model_not_loaded";
    };
    ASSERT_TRUE(becomes([&] {
        if (!told()) refused = get("/props?model=b");
        return told();
    }));
    EXPECT_EQ(refused.status, 503);
    EXPECT_NE(message(refused).find("no tensor"), std::string::npos) << refused.body;
    loader.mend("b");
    EXPECT_TRUE(becomes([&] { return get("/props?model=b").status == 200; })) << "that was asking for it again";
    EXPECT_LE(loader.loads("b"), 3);
}

TEST_F(ServerModels, one_that_is_too_big_is_refused) {
    server::ServerOptions options = several();
    options.several.memory_bytes = bytes_of_one() - 1;
    options.several.models[2].bytes = bytes_of_one();
    start(options);
    for (const char* name : {"b", "c"}) {
        const Answer refused = ask(name);
        EXPECT_EQ(refused.status, 503);
        EXPECT_NE(message(refused).find("--models-memory"), std::string::npos) << refused.body;
        EXPECT_EQ(state(name), "failed");
    }
    EXPECT_EQ(loader.loads("b"), 1);
    EXPECT_EQ(loader.loads("c"), 0) << "known beforehand";
}

TEST_F(ServerModels, who_waits_for_a_model_holds_up_nobody) {
    server::ServerOptions options = several();
    options.several.most_waiting = 4;
    start(options);
    EXPECT_EQ(ask("a").status, 200);
    loader.hold("b");
    std::vector<std::unique_ptr<Client>> waiting;
    for (int i = 0; i < 5; ++i) {
        waiting.push_back(std::make_unique<Client>(port()));
        waiting.back()->send("POST", "/v1/completions", json::serialize(short_answer("b")));
    }
    size_t refused = 0;
    const auto is_refused = [&] {
        for (refused = 0; refused < waiting.size() && !waiting[refused]->has_news();) ++refused;
        return refused < waiting.size();
    };
    ASSERT_TRUE(becomes(is_refused)) << "four wait, and more may not";
    EXPECT_EQ(waiting[refused]->receive().status, 503);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(refused));
    EXPECT_TRUE(ask("b").headers.contains("Retry-After"));
    EXPECT_TRUE(becomes([&] { return state("b") == "loading"; }));
    EXPECT_EQ(ask("a").status, 200);
    EXPECT_EQ(post("/models/unload", {{"model", "b"}}).status, 409);
    json::object late = short_answer("b");
    waiting.front()->close();
    late["timeout"] = 0.2;
    EXPECT_TRUE(becomes([&] {
        const Answer answer = post("/v1/completions", late);
        return answer.status == 503 && message(answer).find("deadline") != std::string::npos;
    })) << "a client that leaves makes room for another, whose deadline is heard";
    loader.release("b");
    for (size_t i = 1; i < waiting.size(); ++i) EXPECT_EQ(waiting[i]->receive().status, 200);
    EXPECT_EQ(loader.loads("b"), 1);
}

TEST_F(ServerModels, patience_has_an_end) {
    server::ServerOptions options = several();
    options.several.patience = std::chrono::milliseconds(20);
    start(options);
    loader.hold("a");
    const Answer refused = ask("a");
    EXPECT_EQ(refused.status, 503);
    EXPECT_TRUE(refused.headers.contains("Retry-After"));
    EXPECT_NE(message(refused).find("still being loaded"), std::string::npos) << refused.body;
    loader.release("a");
    EXPECT_TRUE(becomes([&] { return state("a") == "ready"; }));
    EXPECT_EQ(ask("a").status, 200);
    EXPECT_EQ(loader.loads("a"), 1);
}

TEST_F(ServerModels, who_is_unused_goes_after_a_while) {
    server::ServerOptions options = several();
    options.several.keep_alive = std::chrono::milliseconds(30);
    start(options);
    EXPECT_EQ(ask("a").status, 200);
    EXPECT_TRUE(becomes([&] { return state("a") == "unloaded"; }));
    EXPECT_EQ(ask("a").status, 200);
    EXPECT_EQ(loader.loads("a"), 2);
}

TEST_F(ServerModels, they_are_loaded_and_unloaded_by_name) {
    start();
    EXPECT_EQ(post("/models/load", {{"model", "b"}}).object().at("state"), "ready");
    EXPECT_EQ(post("/v1/models/unload", {{"model", "b"}}).object().at("state"), "unloaded");
    EXPECT_EQ(post("/models/unload", {{"model", "b"}}).status, 200) << "it is already";
    for (const char* path : {"/models/load", "/models/unload"}) {
        EXPECT_EQ(post(path, {{"model", "d"}}).status, 404);
        EXPECT_EQ(post(path, {}).param(), "model");
        const auto with = [&](const std::string& headers) {
            return Client(port()).ask("POST", path, R"({"model": "c"})", headers).status;
        };
        EXPECT_EQ(with("Content-Type: application/json\r\nOrigin: http://evil.example\r\n"), 403);
        EXPECT_EQ(with("Content-Type: application/json\r\nHost: evil.example\r\n"), 403);
        EXPECT_EQ(with("Content-Type: text/plain\r\n"), 415);
    }
    EXPECT_EQ(loader.loads("c"), 0);
    server::ServerOptions options = several();
    options.admin = false;
    start(options);
    EXPECT_EQ(post("/models/load", {{"model", "c"}}).status, 403);
    EXPECT_EQ(post("/models/unload", {{"model", "c"}}).status, 403);
    EXPECT_EQ(loader.loads("c"), 0);
    options.admin = true;
    options.api_keys = {"secret"};
    start(options);
    EXPECT_EQ(post("/models/load", {{"model", "c"}}).status, 401);
}

TEST_F(ServerModels, facts_and_steering_are_of_one_model) {
    start();
    EXPECT_EQ(get("/props?model=b").status, 503) << "and it is loaded";
    EXPECT_TRUE(becomes([&] { return get("/props?model=b").status == 200; }));
    EXPECT_EQ(get("/props?model=b").object().at("model"), "b");
    EXPECT_EQ(loader.loads("a"), 0);
    EXPECT_EQ(ask("a").status, 200);
    const std::string page = get("/metrics").body;
    EXPECT_NE(page.find("riptide_requests_submitted_total{model=\"a\"} 1\n"), std::string::npos) << page;
    EXPECT_NE(page.find("riptide_requests_submitted_total{model=\"b\"} 0\n"), std::string::npos) << page;
    EXPECT_NE(page.find("riptide_rows_total{model=\"a\",kind=\"decode\"}"), std::string::npos) << page;
    EXPECT_EQ(page.find("# HELP riptide_steps_total"), page.rfind("# HELP riptide_steps_total"));
    EXPECT_EQ(post("/pause", {{"model", "b"}, {"mode", "abort"}}).object().at("paused"), true);
    EXPECT_EQ(ask("a").status, 200) << "only b has been paused";
    EXPECT_EQ(post("/resume", {{"model", "b"}}).object().at("paused"), false);
    EXPECT_EQ(ask("b").status, 200);
}

TEST_F(ServerModels, each_model_ends_its_own_requests) {
    start();
    Client on_a(port()), on_b(port());
    on_a.send("POST", "/v1/completions", json::serialize(long_answer("a")));
    on_b.send("POST", "/v1/completions", json::serialize(long_answer("b")));
    ASSERT_EQ(on_a.receive_header().status, 200);
    ASSERT_EQ(on_b.receive_header().status, 200);
    const json::object running = get("/v1/requests").object();
    for (const json::value& request : running.at("data").as_array())
        if (request.at("model") == "b") {
            const std::string path = "/v1/requests/" + std::string(request.at("id").as_string());
            EXPECT_EQ(Client(port()).ask("DELETE", path, "", "").status, 200);
        }
    EXPECT_NE(on_b.receive_rest().body.find("the request was cancelled"), std::string::npos);
    EXPECT_EQ(on_a.receive_rest().body.find("cancelled"), std::string::npos) << "it has the same number in its engine";
}

TEST_F(ServerTest, the_only_model_is_loaded_already_and_stays) {
    server::ServerOptions options = server_options();
    options.admin = true;
    start(options);
    EXPECT_EQ(post("/models/load", {{"model", "laguna-demo"}}).object().at("state"), "ready");
    EXPECT_EQ(post("/models/load", {{"model", "other"}}).status, 404);
    EXPECT_EQ(post("/models/unload", {{"model", "laguna-demo"}}).status, 400);
    expect_alive();
}

}  // namespace
}  // namespace riptide::testing
