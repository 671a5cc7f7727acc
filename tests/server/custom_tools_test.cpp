// Tools of /v1/responses that take free text, and the text held to a form.
#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

class ServerCustomTools : public ServerTest {
  protected:
    void SetUp() override { start(); }
    static json::object tool(json::object format) {
        json::object out = {{"type", "custom"}, {"name", "note"}, {"description", "Takes a note."}};
        if (!format.empty()) out["format"] = std::move(format);
        return out;
    }
    static json::object regex(const char* definition) {
        return {{"type", "grammar"}, {"syntax", "regex"}, {"definition", definition}};
    }
    static json::object asks(const json::object& tool) {
        return {{"input", "Take a note."},  {"tools", {tool}},  {"tool_choice", {{"type", "custom"}, {"name", "note"}}},
                {"max_output_tokens", 200}, {"temperature", 1}, {"seed", 2}};
    }
    json::object call_of(const json::object& body) {
        const Answer answer = post("/v1/responses", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.status == 200 ? answer.object().at("output").as_array().back().as_object() : json::object();
    }
};

TEST_F(ServerCustomTools, a_call_has_its_text_and_comes_back_in_the_history) {
    json::object body = asks(tool(regex("^[A-Z]{2}[0-9]{2}$")));
    const json::object call = call_of(body);
    ASSERT_EQ(call.at("type").as_string(), "custom_tool_call") << json::serialize(call);
    EXPECT_EQ(call.at("name").as_string(), "note");
    const std::string input(call.at("input").as_string());
    ASSERT_EQ(input.size(), 4u) << input;
    EXPECT_TRUE(input[0] >= 'A' && input[0] <= 'Z' && input[3] >= '0' && input[3] <= '9') << input;

    body["stream"] = true;
    const std::string streamed = Client(port()).ask("POST", "/v1/responses", json::serialize(body)).body;
    for (const char* name : {"delta\ndata: ", "done\ndata: "})
        EXPECT_NE(streamed.find(std::string("event: response.custom_tool_call_input.") + name), std::string::npos);
    EXPECT_NE(streamed.find("\"input\":\"" + input + "\""), std::string::npos) << streamed;
    EXPECT_EQ(streamed.find("function_call_arguments"), std::string::npos);

    body.erase("stream");
    body["tool_choice"] = "auto";
    body["input"] = {{{"role", "user"}, {"content", "Take a note."}},
                     call,
                     {{"type", "custom_tool_call_output"}, {"call_id", call.at("call_id")}, {"output", "taken"}}};
    EXPECT_EQ(post("/v1/responses", body).status, 200);
}

TEST_F(ServerCustomTools, free_text_needs_no_form) {
    const json::object plain = call_of(asks(tool({}))), text = call_of(asks(tool({{"type", "text"}})));
    EXPECT_EQ(plain.at("type").as_string(), "custom_tool_call");
    EXPECT_EQ(plain.at("input"), text.at("input"));
}

TEST_F(ServerCustomTools, a_grammar_that_cannot_be_held_is_refused_by_its_field) {
    const auto refused = [&](const json::object& format) {
        const Answer answer = post("/v1/responses", asks(tool(format)));
        EXPECT_EQ(answer.status, 400) << answer.body;
        return answer.status == 400 ? answer.param() : "";
    };
    EXPECT_EQ(refused({{"type", "grammar"}, {"syntax", "lark"}, {"definition", "start: \"a\""}}),
              "tools[0].format.syntax");
    EXPECT_EQ(refused(regex("(?<=a)b")), "tools[0].format.definition");
    EXPECT_EQ(refused({{"type", "grammar"}, {"syntax", "regex"}}), "tools[0].format.definition");
    EXPECT_EQ(refused({{"type", "yaml"}}), "tools[0].format.type");
    json::object nameless = tool({});
    nameless.erase("name");
    EXPECT_EQ(post("/v1/responses", {{"input", "x"}, {"tools", {nameless}}}).param(), "tools[0].name");
    expect_alive();
}

}  // namespace
}  // namespace riptide::testing
