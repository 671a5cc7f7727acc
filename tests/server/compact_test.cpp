// POST /v1/responses/compact: fewer items that stand for the same conversation.
#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

class ServerCompact : public ServerTest {
  protected:
    void SetUp() override { start(); }
    json::object compact(json::object body) {
        body["max_output_tokens"] = 8;
        body["temperature"] = 0;
        const Answer answer = post("/v1/responses/compact", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.status == 200 ? answer.object() : json::object();
    }
    static int64_t count(const json::object& reply, const char* what) {
        return reply.at("usage").at(what).to_number<int64_t>();
    }
};

json::object said(const char* role, const char* text) { return {{"role", role}, {"content", text}}; }

TEST_F(ServerCompact, it_keeps_what_the_user_said_and_one_summary) {
    const json::array parts = {{{"type", "input_text"}, {"text", "And 2 more?"}}};
    const json::array input = {said("developer", "Be brief."),
                               said("user", "What is 12 plus 30?"),
                               said("assistant", "42"),
                               {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{}"}},
                               {{"type", "function_call_output"}, {"call_id", "c"}, {"output", "ready"}},
                               {{"type", "message"}, {"id", "msg_mine"}, {"role", "user"}, {"content", parts}}};
    const json::object out = compact({{"input", input}, {"instructions", "You add."}});
    EXPECT_EQ(out.at("object").as_string(), "response.compaction");
    EXPECT_TRUE(out.at("id").as_string().starts_with("resp_"));
    EXPECT_GT(count(out, "input_tokens"), 0);
    EXPECT_GT(count(out, "output_tokens"), 0);
    const json::array& output = out.at("output").as_array();
    ASSERT_EQ(output.size(), 3u);
    EXPECT_EQ(output[0].at("role").as_string(), "user");
    EXPECT_EQ(output[0].at("content").at(0).at("text").as_string(), "What is 12 plus 30?");
    EXPECT_EQ(output[1].at("id").as_string(), "msg_mine");
    EXPECT_EQ(output[1].at("content"), json::value(parts));
    EXPECT_EQ(output[2].at("type").as_string(), "compaction");
    const std::string sealed(output[2].at("encrypted_content").as_string());
    EXPECT_TRUE(sealed.starts_with("riptide:") && sealed.size() > 8) << sealed;
}

TEST_F(ServerCompact, what_comes_of_it_is_read_by_the_next_request) {
    const auto prompt = [&](const json::array& input) {
        const Answer answer = post("/v1/responses", {{"input", input}, {"max_output_tokens", 1}});
        EXPECT_EQ(answer.status, 200) << answer.body;
        return count(answer.object(), "input_tokens");
    };
    json::array output = compact({{"input", "What is 12 plus 30?"}}).at("output").as_array();
    const std::string summary(output.back().at("encrypted_content").as_string().subview(8));
    output.push_back(said("user", "And now?"));
    const std::string spelled = "Summary of the conversation so far:\n\n" + summary;
    EXPECT_EQ(prompt(output), prompt({said("user", "What is 12 plus 30?"),
                                      {{"role", "user"}, {"content", spelled}},
                                      said("user", "And now?")}));
    output[1].as_object()["type"] = "compaction_summary";  // its older name
    EXPECT_EQ(prompt(output), prompt({said("user", "What is 12 plus 30?"),
                                      {{"role", "user"}, {"content", spelled}},
                                      said("user", "And now?")}));
    output[1].as_object()["encrypted_content"] = "gAAAAABpM0Yj";
    const Answer refused = post("/v1/responses", {{"input", output}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.param(), "input[1].encrypted_content");
}

TEST_F(ServerCompact, the_conversation_is_found_in_the_cache_also_by_reference) {
    const char* instructions = "You add numbers for people who cannot.";
    const Answer answer = post("/v1/responses", {{"input", "What is 12 plus 30?"},
                                                 {"instructions", instructions},
                                                 {"max_output_tokens", 8},
                                                 {"temperature", 0}});
    ASSERT_EQ(answer.status, 200) << answer.body;
    const json::object before = answer.object();
    const json::object out = compact({{"previous_response_id", before.at("id")}, {"instructions", instructions}});
    EXPECT_EQ(out.at("output").as_array().size(), 2u);
    EXPECT_GE(out.at("usage").at("input_tokens_details").at("cached_tokens").to_number<int64_t>(),
              count(before, "input_tokens") - 2);
}

TEST_F(ServerCompact, an_item_that_asks_for_it_makes_a_response_of_it) {
    const json::array input = {said("user", "What is 12 plus 30?"), said("assistant", "42"),
                               json::object{{"type", "compaction_trigger"}}};
    const json::object body = {{"input", input}, {"max_output_tokens", 8}, {"temperature", 0}, {"stream", true}};
    const Answer streamed = post("/v1/responses", body);
    std::vector<std::string> types;
    for (size_t at = 0; (at = streamed.body.find("event: ", at)) != std::string::npos; ++at)
        types.push_back(streamed.body.substr(at + 7, streamed.body.find('\n', at) - at - 7));
    std::erase(types, "response.in_progress");
    ASSERT_EQ(types.size(), 4u) << streamed.body;
    EXPECT_EQ(types[1], "response.output_item.added");
    EXPECT_EQ(types[2], "response.output_item.done");
    const std::string last = streamed.body.substr(streamed.body.rfind("data: ") + 6);
    const json::object response = parse_json(last, "the last event").at("response").as_object();
    const json::array& output = response.at("output").as_array();
    ASSERT_EQ(output.size(), 1u);
    EXPECT_EQ(output[0].at("type").as_string(), "compaction");

    json::array spelled = {said("user", "What is 12 plus 30?"), output[0], said("user", "And now?")};
    const Answer by_value = post("/v1/responses", {{"input", spelled}, {"max_output_tokens", 1}});
    const Answer by_reference = post("/v1/responses", {{"input", json::array{said("user", "And now?")}},
                                                       {"previous_response_id", response.at("id")},
                                                       {"max_output_tokens", 1}});
    ASSERT_EQ(by_reference.status, 200) << by_reference.body;
    EXPECT_EQ(count(by_reference.object(), "input_tokens"), count(by_value.object(), "input_tokens"));
    spelled = {json::object{{"type", "compaction_trigger"}}, said("user", "And now?")};
    const Answer early = post("/v1/responses", {{"input", spelled}});
    EXPECT_EQ(early.status, 400);
    EXPECT_EQ(early.param(), "input[1]");
}

TEST_F(ServerCompact, what_cannot_be_is_refused_by_name) {
    const std::vector<std::pair<json::object, std::string>> cases = {
        {{}, "input"},
        {{{"input", json::array()}}, "input"},
        {{{"input", 5}}, "input"},
        {{{"input", json::array{5}}}, "input[0]"},
        {{{"previous_response_id", "resp_0"}}, "previous_response_id"},
        {{{"input", "x"}, {"max_output_tokens", 0}}, "max_output_tokens"},
        {{{"input", std::string(8000, 'z')}}, "input"},
    };
    for (const auto& [body, param] : cases) {
        const Answer answer = post("/v1/responses/compact", body);
        EXPECT_EQ(answer.status, 400) << answer.body;
        if (answer.status == 400) {
            EXPECT_EQ(answer.param(), param) << answer.body;
        }
    }
    EXPECT_EQ(Client(port()).ask("POST", "/v1/responses/compact", "{}", "Content-Type: text/plain\r\n").status, 415);
    const std::string foreign = "Content-Type: application/json\r\nOrigin: https://evil.example\r\n";
    EXPECT_EQ(Client(port()).ask("POST", "/v1/responses/compact", "{}", foreign).status, 403);
    expect_alive();
}

}  // namespace
}  // namespace riptide::testing
