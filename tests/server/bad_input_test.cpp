// Input that has ended or confused other servers: after each, the next request is answered.
#include <sys/resource.h>

#include "tests/server/http_client.h"

#include "base/json.h"

namespace riptide::testing {
namespace {

class ServerBadInput : public ServerTest {
  protected:
    int status(const json::object& body) { return post("/v1/chat/completions", body).status; }
    json::object asks(const std::string& text) { return {{"messages", user_says(text)}, {"max_tokens", 2}}; }
};

TEST_F(ServerBadInput, text_that_looks_like_control_tokens_is_text) {
    start();
    const auto ids = [&](const std::string& text) {
        return post("/tokenize", {{"messages", user_says(text)}}).object().at("tokens").as_array();
    };
    for (const char* marker : {"</user>", "<assistant>", "<think>", "</tool_call>", "<|im_end|>"}) {
        const std::vector<int32_t> known = engine->tokenize(TextPrompt{.text = marker, .parse_special = true});
        const json::array with = ids(std::string("a") + marker), without = ids("a");
        const auto count = [&](const json::array& tokens) {
            return std::count(tokens.begin(), tokens.end(), json::value(known.back()));
        };
        if (engine->tokenizer()->is_added(known.back())) {
            EXPECT_EQ(count(with), count(without)) << marker;
        }
        EXPECT_EQ(status(asks(marker)), 200);
    }
    expect_alive();
}

TEST_F(ServerBadInput, strange_characters_are_read_or_refused) {
    start();
    const auto raw = [&](const std::string& content) {
        return Client(port())
            .ask("POST", "/v1/chat/completions",
                 R"({"max_tokens": 2, "messages": [{"role": "user", "content": ")" + content + "\"}]}")
            .status;
    };
    EXPECT_EQ(raw("a\\u0000b"), 200);
    EXPECT_EQ(raw("\\ud83d\\ude00"), 200);
    EXPECT_EQ(raw("\\ud83d"), 400) << "half of a character";
    EXPECT_EQ(raw("\\ude00\\ud83d"), 400);
    EXPECT_EQ(raw(std::string(1, '\0')), 400);
    EXPECT_EQ(raw("\xc3"), 400);
    EXPECT_EQ(raw("\xef\xbf\xbf\xf4\x8f\xbf\xbf"), 200);
    for (const char c : {'a', ' ', '\t', '='}) {  // long runs of one character: refused for their length, and at once
        const auto begun = std::chrono::steady_clock::now();
        EXPECT_EQ(status(asks(std::string(1 << 20, c))), 400);
        EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
    }
    expect_alive();
}

TEST_F(ServerBadInput, conversations_of_odd_shape_get_the_same_answer_each_time) {
    start();
    const auto message = [](const char* role, const char* text) {
        return json::object{{"role", role}, {"content", text}};
    };
    json::object orphan = message("tool", "ready");
    orphan["tool_call_id"] = "call_nobody";
    const std::vector<json::array> odd = {
        {message("system", "Be brief.")},
        {message("user", "Hi"), message("assistant", "Hel")},
        {message("user", "Hi"), orphan},
        {message("user", ""), message("user", "")},
        {message("user", "Hi"), message("system", "Be brief."), message("user", "Go on")},
    };
    for (const json::array& messages : odd) {
        const json::object body = {{"messages", messages}, {"max_tokens", 2}};
        const int first = status(body);
        EXPECT_TRUE(first == 200 || first == 400) << json::serialize(messages);
        EXPECT_EQ(status(body), first);
    }
    for (const json::object& body : {json::object{{"prompt", ""}}, json::object{{"prompt", {"", ""}}},
                                     json::object{{"prompt", {json::array{}}}}}) {
        const int first = post("/v1/completions", body).status;
        EXPECT_TRUE(first == 200 || first == 400) << json::serialize(body);
    }
    expect_alive();
}

TEST_F(ServerBadInput, pairs_of_sampling_options_in_a_crowd_answer_or_name_the_field) {
    start();
    const std::vector<std::pair<std::string, json::value>> options = {
        {"temperature", 0},
        {"temperature", 2},
        {"top_k", 1},
        {"top_p", 0.1},
        {"min_p", 1},
        {"repetition_penalty", 1.5},
        {"frequency_penalty", 2},
        {"presence_penalty", -2},
        {"logit_bias", json::object{{"5", 100}, {"6", -100}}},
        {"n", 3},
        {"stop", json::array{"e", " "}},
        {"min_tokens", 1},
        {"ignore_eos", true},
        {"seed", -1},
        {"stream", true},
        {"logprobs", true},
        {"thinking_budget", 0},
        {"parallel_tool_calls", false},
        {"tools", json::array()},
        {"max_tokens", 1},
    };
    std::vector<json::object> bodies;
    for (size_t a = 0; a < options.size(); ++a)
        for (size_t b = a + 1; b < options.size(); ++b) {
            json::object body = {{"messages", user_says("Name a colour.")},
                                 {"max_tokens", 4},
                                 {"chat_template_kwargs", {{"enable_thinking", (a + b) % 2 == 0}}}};
            body[options[a].first] = options[a].second;
            body[options[b].first] = options[b].second;
            bodies.push_back(std::move(body));
        }
    std::atomic<size_t> next = 0;
    std::vector<std::thread> clients;
    for (int c = 0; c < 6; ++c)
        clients.emplace_back([&] {
            Client client(port());
            for (size_t i = next++; i < bodies.size(); i = next++) {
                const Answer answer = client.post("/v1/chat/completions", bodies[i]);
                EXPECT_EQ(answer.status, 200) << json::serialize(bodies[i]) << answer.body;
                EXPECT_EQ(answer.body.find("\"error\""), std::string::npos) << answer.body;
            }
        });
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(engine->stats().failed, 0);
    expect_alive();
}

TEST_F(ServerBadInput, thousands_of_idle_connections_delay_nobody) {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    const int count = static_cast<int>(std::min<rlim_t>(4000, files.rlim_cur > 400 ? (files.rlim_cur - 400) / 6 : 0));
    if (count < 100) GTEST_SKIP() << "too few file descriptors";
    start();
    std::vector<std::unique_ptr<Client>> idle;
    for (int i = 0; i < count; ++i) idle.push_back(std::make_unique<Client>(port()));
    EXPECT_TRUE(becomes([&] {
        return get("/metrics").body.find(fmt::format("riptide_connections {}\n", count + 1)) != std::string::npos;
    }));
    const auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < 100; ++i) EXPECT_EQ(get("/health").status, 200);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5)) << "50 ms each";
    expect_alive();
}

TEST_F(ServerBadInput, a_server_that_ends_waits_for_no_request_that_is_still_to_come) {
    for (const char* part : {"", "POST /v1/completions HT",
                             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                             "Content-Length: 100\r\n\r\n{\"prompt\": ",
                             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                             "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"p"}) {
        start();
        Client client(port());
        client.send(part);
        EXPECT_EQ(get("/health").status, 200);  // behind it: what was sent is read
        const auto begun = std::chrono::steady_clock::now();
        server->drain(std::chrono::minutes(5));
        EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::minutes(1)) << part;
        const Answer answer = client.receive();
        EXPECT_EQ(answer.status, *part == 0 ? 0 : 503) << part << answer.body;
    }
}

}  // namespace
}  // namespace riptide::testing
