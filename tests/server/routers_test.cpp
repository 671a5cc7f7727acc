// What routers in front of several servers send and ask: names of requests, token ids, an end to what runs.
#include <mutex>
#include <set>

#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

class ServerRouters : public ServerTest {
  protected:
    Answer named(const std::string& path, const std::string& id) {
        return Client(port()).ask("GET", path, "", "x-request-id: " + id + "\r\n");
    }
};

TEST_F(ServerRouters, the_name_of_a_request_comes_back) {
    server::ServerOptions options = server_options();
    options.management_port = 0;
    start(options);
    const std::string longest(128, 'x');
    for (const std::string& id : {std::string("a"), std::string("7f3c {odd} \"name\""), longest})
        for (const std::string path : {"/health", "/v1/models", "/none"})
            EXPECT_EQ(named(path, id).headers.at("x-request-id"), id) << path;
    const Answer answer =
        Client(port()).ask("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 1, "stream": true})",
                           "Content-Type: application/json\r\nX-Request-Id: upper\r\n");
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.at("x-request-id"), "upper");
    const auto watched = Client(server->management_port()).ask("GET", "/metrics", "", "x-request-id: scrape\r\n");
    EXPECT_EQ(watched.headers.at("x-request-id"), "scrape");
}

TEST_F(ServerRouters, a_name_that_is_no_name_is_replaced) {
    start();
    std::set<std::string> made;
    for (const std::string& id : {std::string(), std::string(129, 'x'), std::string(10'000, 'x'),
                                  std::string("caf\xc3\xa9"), std::string("a\tb")}) {
        const Answer answer = named("/health", id);
        ASSERT_EQ(answer.status, 200) << id;
        const std::string name = answer.headers.at("x-request-id");
        EXPECT_TRUE(name.starts_with("req-") && name.size() == 28) << name;
        EXPECT_TRUE(made.insert(name).second) << "each has its own";
    }
    EXPECT_TRUE(get("/health").headers.contains("x-request-id"));
}

TEST_F(ServerRouters, a_name_cannot_write_header_lines) {
    start();
    for (const std::string id : {"a\r\n b", "a\r b", "a\n b", "a\x01", "a\x7f"}) {
        Client client(port());
        client.send("GET /health HTTP/1.1\r\nHost: localhost\r\nx-request-id: " + id + "\r\n\r\n");
        const Answer answer = client.receive();
        EXPECT_EQ(answer.status, 400) << id;
        if (const auto name = answer.headers.find("x-request-id"); name != answer.headers.end()) {
            for (const char c : name->second) EXPECT_TRUE(c >= ' ' && c <= '~') << name->second;
        }
    }
    Client client(port());
    client.send("GET /health HTTP/1.1\r\nHost: localhost\r\nx-request-id: a\r\nx-other: b\r\n\r\n");
    const Answer answer = client.receive();
    EXPECT_EQ(answer.headers.at("x-request-id"), "a");
    EXPECT_FALSE(answer.headers.contains("x-other"));
}

TEST_F(ServerRouters, the_log_and_the_list_of_requests_have_the_name) {
    std::mutex mutex;
    std::vector<std::string> lines;
    server::ServerOptions options = server_options();
    options.log.json = true;
    options.log.write = [&](const std::string& line) {
        const std::lock_guard lock(mutex);
        lines.push_back(line);
    };
    start(options);
    const std::string headers = "Content-Type: application/json\r\nx-request-id: turn 7\r\n";
    EXPECT_EQ(Client(port()).ask("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 1})", headers).status,
              200);
    {
        const std::lock_guard lock(mutex);
        ASSERT_EQ(lines.size(), 1u);
        EXPECT_EQ(parse_json(lines[0], "the log").at("x_request_id").as_string(), "turn 7");
    }
    engine->pause();
    Client waiting(port());
    waiting.send("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 1, "stream": true})", headers);
    waiting.receive_header();
    const json::array list = get("/v1/requests").object().at("data").as_array();
    ASSERT_EQ(list.size(), 1u);
    EXPECT_EQ(list[0].at("x_request_id").as_string(), "turn 7");
    engine->resume();
    waiting.receive_rest();
    server.reset();  // before what it writes to
}

TEST_F(ServerRouters, a_request_ends_by_its_name_or_by_that_of_its_reply) {
    server::ServerOptions options = server_options();
    options.api_keys = {"one", "two"};
    start(options);
    engine->pause();  // what comes stays
    const auto key = [](const std::string& who) {
        return "Content-Type: application/json\r\nAuthorization: Bearer " + who + "\r\n";
    };
    const auto abort = [&](const std::string& rid, const std::string& who) {
        return Client(port()).ask("POST", "/abort_request", json::serialize(json::object{{"rid", rid}}), key(who));
    };
    for (const bool by_name : {true, false}) {
        Client client(port());
        client.send("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 1, "stream": true})",
                    key("one") + "x-request-id: turn 7\r\n");
        client.receive_header();
        const std::string list = Client(port()).ask("GET", "/v1/requests", "", key("one")).body;
        const json::object live = parse_json(list, "the list").at("data").as_array().back().as_object();
        const std::string id(by_name ? "turn 7" : live.at("id").as_string().c_str());
        EXPECT_EQ(abort(id, "two").status, 404) << "another key's";
        EXPECT_EQ(abort("turn", "one").status, 404);
        const Answer done = abort(id, "one");
        EXPECT_EQ(done.status, 200) << done.body;
        EXPECT_EQ(done.object().at("id").as_string(), id);
        EXPECT_NE(client.receive_rest().body.find("error"), std::string::npos);
    }
    EXPECT_EQ(Client(port()).ask("POST", "/abort_request", R"({"rid": "x"})").status, 401);
    EXPECT_EQ(
        Client(port())
            .ask("POST", "/abort_request", R"({"rid": "x"})", key("one") + "Origin: https://elsewhere.example\r\n")
            .status,
        403);
    EXPECT_EQ(Client(port()).ask("POST", "/abort_request", "{}", key("one")).status, 400);
    EXPECT_EQ(Client(port())
                  .ask("POST", "/abort_request", "rid=x", "Authorization: Bearer one\r\nContent-Type: text/plain\r\n")
                  .status,
              415);
    engine->resume();
}

TEST_F(ServerRouters, rendered_ids_are_those_that_are_read) {
    start();
    const json::array tools = {json::object{
        {"type", "function"},
        {"function", {{"name", "read"}, {"parameters", {{"type", "object"}, {"properties", json::object()}}}}}}};
    const std::vector<json::object> chats = {
        {{"messages", user_says("What is 12 plus 30?")}},
        {{"messages", user_says("Read it")}, {"tools", tools}},
        {{"messages", user_says("Think")}, {"chat_template_kwargs", {{"enable_thinking", true}}}},
    };
    for (json::object chat : chats) {
        chat["max_tokens"] = 1;
        chat["model"] = "whatever";
        const json::array ids = post("/v1/chat/completions/render", chat).object().at("token_ids").as_array();
        const json::object usage = post("/v1/chat/completions", chat).object().at("usage").as_object();
        EXPECT_EQ(std::ssize(ids), usage.at("prompt_tokens").to_number<int64_t>());
        EXPECT_EQ(ids, post("/tokenize", chat).object().at("tokens").as_array());
    }
    const json::object several = {{"prompt", {"one two", "three"}}, {"max_tokens", 1}};
    const json::array each = parse_json(post("/v1/completions/render", several).body, "the ids").as_array();
    ASSERT_EQ(each.size(), 2u);
    const int64_t together =
        std::ssize(each[0].at("token_ids").as_array()) + std::ssize(each[1].at("token_ids").as_array());
    const json::object usage = post("/v1/completions", several).object().at("usage").as_object();
    EXPECT_EQ(together, usage.at("prompt_tokens").to_number<int64_t>());
    const json::array ids = {5, 6, 7};
    const json::array same = parse_json(post("/v1/completions/render", {{"prompt", ids}}).body, "the ids").as_array();
    EXPECT_EQ(same.at(0).at("token_ids").as_array(), ids);
    EXPECT_EQ(post("/v1/chat/completions/render", {{"messages", 1}}).status, 400);
    engine->drain();
    EXPECT_EQ(engine->stats().answer_tokens, std::ssize(chats) + 2) << "rendering answers nothing";
}

TEST_F(ServerRouters, a_flushed_cache_holds_nothing) {
    server::ServerOptions options = server_options();
    start(options);
    EXPECT_EQ(Client(port()).ask("POST", "/flush_cache", "", "").status, 403) << "for those with --admin";
    options.admin = true;
    start(options);
    json::array ids;
    for (int i = 0; i < 300; ++i) ids.push_back(10 + i % 50);
    const auto cached = [&] {
        const json::object body = {{"prompt", ids}, {"max_tokens", 1}};
        const json::object usage = post("/v1/completions", body).object().at("usage").as_object();
        return usage.at("prompt_tokens_details").at("cached_tokens").to_number<int64_t>();
    };
    EXPECT_EQ(cached(), 0);
    EXPECT_GT(cached(), 0);
    EXPECT_EQ(Client(port()).ask("POST", "/flush_cache", "", "Origin: https://elsewhere.example\r\n").status, 403);
    const Answer flushed = Client(port()).ask("POST", "/flush_cache", "", "");
    EXPECT_EQ(flushed.status, 200) << flushed.body;
    EXPECT_EQ(engine->stats().cached_pages, 0);
    EXPECT_EQ(engine->stats().free_pages, engine->stats().pages);
    EXPECT_EQ(cached(), 0);
}

}  // namespace
}  // namespace riptide::testing
