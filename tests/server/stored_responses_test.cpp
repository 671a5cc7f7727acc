// Stored responses: read again, listed, deleted, by the key that made them and nobody else.
#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

class ServerStored : public ServerTest {
  protected:
    json::object ask(json::object body) {
        body["max_output_tokens"] = 4;
        const Answer answer = post("/v1/responses", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.status == 200 ? answer.object() : json::object();
    }
    static std::string path_of(const json::object& response) {
        return "/v1/responses/" + std::string(response.at("id").as_string());
    }
    Answer remove(const std::string& path, const std::string& headers = "") {
        return Client(port()).ask("DELETE", path, "", headers);
    }
    void expect_unknown(const Answer& answer) {
        EXPECT_EQ(answer.status, 404) << answer.body;
        const std::string message(answer.object().at("error").at("message").as_string());
        EXPECT_TRUE(message.starts_with("Response with id 'resp_")) << message;
        EXPECT_NE(message.find("' not found"), std::string::npos) << message;
    }
};

TEST_F(ServerStored, a_response_is_read_again_as_it_was_answered_and_deleted_with_its_items) {
    start();
    const json::object asked = ask({{"input", "Hi"}, {"metadata", {{"topic", "tea"}}}});
    const json::object next = ask({{"input", "Go on"}, {"previous_response_id", asked.at("id")}});
    const Answer again = get(path_of(asked));
    EXPECT_EQ(again.status, 200);
    EXPECT_EQ(json::value(again.object()), json::value(asked));
    EXPECT_EQ(Client(port()).ask("HEAD", path_of(asked), "", "").status, 200);
    EXPECT_EQ(get(path_of(asked) + "?stream=true").status, 400);
    const json::object reference = {{"type", "item_reference"}, {"id", asked.at("output").at(0).at("id")}};
    EXPECT_EQ(ask({{"input", json::array{reference}}}).at("object").as_string(), "response");

    const Answer gone = remove(path_of(asked));
    EXPECT_EQ(gone.status, 200);
    const json::object told = {{"id", asked.at("id")}, {"object", "response"}, {"deleted", true}};
    EXPECT_EQ(json::value(gone.object()), json::value(told));
    expect_unknown(get(path_of(asked)));
    expect_unknown(get(path_of(asked) + "/input_items"));
    expect_unknown(remove(path_of(asked)));
    EXPECT_EQ(post("/v1/responses", {{"input", json::array{reference}}}).param(), "input[0].id");
    const Answer onwards = post("/v1/responses", {{"input", "x"}, {"previous_response_id", asked.at("id")}});
    EXPECT_EQ(onwards.object().at("error").at("code").as_string(), "previous_response_not_found");
    EXPECT_EQ(get(path_of(next)).status, 200) << "what goes on from it has its own copy";
    EXPECT_EQ(get(path_of(next) + "/input_items").object().at("data").as_array().size(),
              2 + asked.at("output").as_array().size());
}

TEST_F(ServerStored, a_streamed_response_is_stored_and_one_that_is_not_to_be_is_not) {
    start();
    const Answer streamed =
        post("/v1/responses", {{"input", "Hi"}, {"stream", true}, {"max_output_tokens", 4}, {"temperature", 0}});
    const size_t data = streamed.body.rfind("data: ");
    const json::object last = parse_json(streamed.body.substr(data + 6), "the last event").as_object();
    const json::object& response = last.at("response").as_object();
    EXPECT_EQ(json::value(get(path_of(response)).object()), json::value(response));
    const json::object unstored = ask({{"input", "Hi"}, {"store", false}});
    expect_unknown(get(path_of(unstored)));
    expect_unknown(remove(path_of(unstored)));
}

TEST_F(ServerStored, items_of_the_input_come_in_pages) {
    start();
    const json::object said = {{"role", "assistant"}, {"content", "b"}};
    const json::array parts = {{{"type", "input_text"}, {"text", "c"}}};
    const json::object asked =
        ask({{"input",
              {{{"role", "user"}, {"content", "a"}},
               said,
               {{"type", "message"}, {"id", "msg_mine"}, {"role", "user"}, {"content", parts}}}}});
    const std::string path = path_of(asked) + "/input_items";
    const json::object all = get(path + "?order=asc").object();
    EXPECT_EQ(all.at("object").as_string(), "list");
    EXPECT_EQ(all.at("has_more"), false);
    const json::array& data = all.at("data").as_array();
    ASSERT_EQ(data.size(), 3u);
    EXPECT_EQ(data[0].at("content").at(0).at("type").as_string(), "input_text");
    EXPECT_EQ(data[0].at("content").at(0).at("text").as_string(), "a");
    EXPECT_EQ(data[1].at("content").at(0).at("type").as_string(), "output_text");
    EXPECT_EQ(data[2].at("content"), json::value(parts));
    EXPECT_EQ(data[2].at("id").as_string(), "msg_mine");
    EXPECT_EQ(all.at("first_id"), data[0].at("id"));
    EXPECT_EQ(all.at("last_id"), data[2].at("id"));

    json::array paged;
    std::string after;
    for (int page = 0; page < 3; ++page) {
        const json::object one = get(path + "?limit=1" + (after.empty() ? "" : "&after=" + after)).object();
        ASSERT_EQ(one.at("data").as_array().size(), 1u);
        EXPECT_EQ(one.at("has_more"), page < 2);
        paged.push_back(one.at("data").at(0));
        after = one.at("last_id").as_string();
    }
    std::reverse(paged.begin(), paged.end());
    EXPECT_EQ(json::value(paged), json::value(data));
    const json::object none = get(path + "?after=" + after).object();
    EXPECT_TRUE(none.at("data").as_array().empty());
    EXPECT_TRUE(none.at("first_id").is_null());
    const std::vector<std::pair<std::string, std::string>> bad = {{"?limit=0", "limit"},
                                                                  {"?limit=101", "limit"},
                                                                  {"?limit=x", "limit"},
                                                                  {"?order=up", "order"},
                                                                  {"?after=msg_0", "after"}};
    for (const auto& [query, param] : bad) {
        const Answer answer = get(path + query);
        EXPECT_EQ(answer.status, 400) << query;
        EXPECT_EQ(answer.param(), param);
    }
    expect_alive();
}

TEST_F(ServerStored, another_key_and_a_foreign_page_neither_see_nor_delete_it) {
    server::ServerOptions options = server_options();
    options.api_keys = {"first-key", "second-key"};
    start(options);
    const std::string mine = "x-api-key: first-key\r\n", theirs = "x-api-key: second-key\r\n";
    const Answer asked = Client(port()).ask("POST", "/v1/responses",
                                            json::serialize(json::object{{"input", "Hi"}, {"max_output_tokens", 4}}),
                                            "Content-Type: application/json\r\n" + mine);
    ASSERT_EQ(asked.status, 200) << asked.body;
    const std::string path = path_of(asked.object());
    for (const std::string& each : {path, path + "/input_items"}) {
        expect_unknown(Client(port()).ask("GET", each, "", theirs));
        EXPECT_EQ(Client(port()).ask("GET", each, "", "").status, 401);
        EXPECT_EQ(Client(port()).ask("GET", each, "", mine + "Origin: https://evil.example\r\n").status, 403);
        EXPECT_EQ(Client(port()).ask("GET", each, "", mine + "Host: evil.example\r\n").status, 403);
    }
    expect_unknown(remove(path, theirs));
    EXPECT_EQ(remove(path).status, 401);
    EXPECT_EQ(remove(path, mine + "Origin: https://evil.example\r\n").status, 403);
    EXPECT_EQ(remove(path, mine + "Host: evil.example\r\n").status, 403);
    const Answer posted = Client(port()).ask("POST", path, "{}", "Content-Type: application/json\r\n" + mine);
    EXPECT_EQ(posted.status, 405);
    EXPECT_EQ(posted.headers.at("Allow"), "GET, HEAD, DELETE");
    EXPECT_EQ(Client(port()).ask("GET", path, "", mine).body, asked.body);
    EXPECT_EQ(remove(path, mine).status, 200);
}

TEST_F(ServerStored, the_oldest_makes_room) {
    server::ServerOptions options = server_options();
    options.stored_bytes = 32 << 10;
    start(options);
    std::vector<std::string> paths;
    for (int i = 0; i < 24; ++i) paths.push_back(path_of(ask({{"input", std::string(100, 'a')}})));
    expect_unknown(get(paths.front()));
    EXPECT_EQ(get(paths.back()).status, 200);
    const json::object large = ask({{"input", "Hi"}, {"metadata", {{"much", std::string(33 << 10, 'a')}}}});
    expect_unknown(get(path_of(large)));
    EXPECT_EQ(get(paths.back()).status, 200) << "one that is too large pushes nothing out";
}

}  // namespace
}  // namespace riptide::testing
