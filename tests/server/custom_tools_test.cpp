// Tools that take free text, and the text held to a form: by both of OpenAI's APIs.
#include "base/json.h"
#include "server/api/responses/responses_request.h"
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
    static json::object lark(const std::string& definition) {
        return {{"type", "grammar"}, {"syntax", "lark"}, {"definition", definition}};
    }
    /// The same of the chat API.
    static json::object chat_tool(const char* name, const std::string& definition) {
        const json::object format = {{"type", "grammar"},
                                     {"grammar", {{"syntax", "lark"}, {"definition", definition}}}};
        return {{"type", "custom"}, {"custom", {{"name", name}, {"format", format}}}};
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

/// A note: its title, and lines. What is between is markup of answers, or looks like it.
constexpr const char* kNote = R"(start: "<" TITLE ">" LF line~1..3 "</" TITLE ">"
line: INT /[a-c<\/"\\]{1,3}/ LF
TITLE: "T" /[xyz]/
%import common (LF, INT)
%override INT: "1".."3")";

/// Whether a text is a note, told by hand.
bool is_note(std::string_view text) {
    if (text.size() < 10 || !text.starts_with("<T") || text.substr(3, 2) != ">\n") return false;
    const auto is = [](char c, std::string_view all) { return all.find(c) != std::string_view::npos; };
    if (!is(text[2], "xyz") || !is(text[text.size() - 2], "xyz")) return false;
    const std::string_view tail = text.substr(text.size() - 5);
    if (!tail.starts_with("</T") || tail.back() != '>') return false;
    std::string_view lines = text.substr(5, text.size() - 10);
    int count = 0;
    for (; !lines.empty(); ++count) {
        const std::string_view line = lines.substr(0, lines.find('\n'));
        if (line.size() == lines.size() || line.size() < 2 || line.size() > 4 || !is(line[0], "123")) return false;
        for (const char c : line.substr(1))
            if (!is(c, "abc</\"\\")) return false;
        lines.remove_prefix(line.size() + 1);
    }
    return count >= 1 && count <= 3;
}

TEST_F(ServerCustomTools, text_of_a_lark_grammar_is_held_to_it) {
    for (int seed = 0; seed < 6; ++seed) {
        json::object body = asks(tool(lark(kNote)));
        body["seed"] = seed;
        const json::object call = call_of(body);
        ASSERT_EQ(call.at("type").as_string(), "custom_tool_call") << json::serialize(call);
        EXPECT_TRUE(is_note(call.at("input").as_string())) << call.at("input").as_string();
    }
}

TEST_F(ServerCustomTools, the_chat_api_has_them_too_streamed_or_not_and_in_the_history) {
    json::object body = {{"messages", {{{"role", "user"}, {"content", "Take a note."}}}},
                         {"tools", {chat_tool("note", kNote)}},
                         {"tool_choice", {{"type", "custom"}, {"custom", {{"name", "note"}}}}},
                         {"max_tokens", 200},
                         {"temperature", 1},
                         {"seed", 3}};
    const Answer answer = post("/v1/chat/completions", body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    const json::object choice = answer.object().at("choices").at(0).as_object();
    EXPECT_EQ(choice.at("finish_reason").as_string(), "tool_calls");
    const json::object message = choice.at("message").as_object();
    const json::object call = message.at("tool_calls").at(0).as_object();
    EXPECT_EQ(call.at("type").as_string(), "custom");
    EXPECT_FALSE(call.contains("function"));
    EXPECT_EQ(call.at("custom").at("name").as_string(), "note");
    const std::string input(call.at("custom").at("input").as_string());
    EXPECT_TRUE(is_note(input)) << input;

    body["stream"] = true;
    const std::string streamed = Client(port()).ask("POST", "/v1/chat/completions", json::serialize(body)).body;
    EXPECT_NE(streamed.find("\"custom\":{\"input\":" + json::serialize(json::value(input)) + "}"), std::string::npos)
        << streamed;
    EXPECT_EQ(streamed.find("\"function\""), std::string::npos) << streamed;

    body.erase("stream");
    body["tool_choice"] = "auto";
    body["messages"].as_array().push_back(message);
    body["messages"].as_array().push_back({{"role", "tool"}, {"tool_call_id", call.at("id")}, {"content", "taken"}});
    EXPECT_EQ(post("/v1/chat/completions", body).status, 200);

    body["tools"] = json::array{chat_tool("note", "start: a")};
    EXPECT_EQ(post("/v1/chat/completions", body).param(), "tools[0].custom.format.grammar.definition");
    body["tools"] = json::array{json::object{{"type", "custom"}}};
    EXPECT_EQ(post("/v1/chat/completions", body).param(), "tools[0].custom");
}

TEST_F(ServerCustomTools, free_text_needs_no_form) {
    const json::object plain = call_of(asks(tool({}))), text = call_of(asks(tool({{"type", "text"}})));
    EXPECT_EQ(plain.at("type").as_string(), "custom_tool_call");
    EXPECT_EQ(plain.at("input"), text.at("input"));
}

TEST_F(ServerCustomTools, a_grammar_is_read_where_the_form_is_compiled_and_there_alone) {
    WorkBudget work;
    server::RequestDefaults defaults;
    defaults.work = &work;
    const json::object chat = {{"messages", {{{"role", "user"}, {"content", "x"}}}},
                               {"tools", {chat_tool("note", kNote)}}};
    EXPECT_EQ(server::parse_chat(chat, defaults).custom.at("note"), "tools[0].custom.format.grammar.definition");
    for (const json::object& format : {lark(kNote), regex("[A-Z]{2,900}")})
        EXPECT_TRUE(server::parse_responses(asks(tool(format)), defaults, nullptr).generation.custom.contains("note"));
    EXPECT_EQ(work.steps_spent(), 0);
    json::object other = tool(lark("start: a"));
    other["name"] = "other";
    json::object two = asks(tool(regex("[a-z]{3}")));
    two["tools"].as_array().push_back(other);
    EXPECT_EQ(post("/v1/responses", two).status, 200) << "only the other may be called";
    two["tool_choice"] = "auto";
    two["tools"].as_array().insert(two["tools"].as_array().begin(), json::object{{"type", "web_search"}});
    const Answer refused = post("/v1/responses", two);
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.param(), "tools[2].format.definition") << refused.body;
    EXPECT_NE(refused.body.find("\"tools[2].format.definition: grammar, line 1"), std::string::npos) << refused.body;
    two["tools"].as_array().pop_back();
    other["format"] = regex("(?<=a)b");
    two["tools"].as_array().push_back(other);
    const Answer pattern = post("/v1/responses", two);
    EXPECT_EQ(pattern.param(), "tools[2].format.definition") << pattern.body;
    EXPECT_EQ(pattern.body.find("#/properties"), std::string::npos) << pattern.body;
}

TEST_F(ServerCustomTools, a_grammar_that_cannot_be_held_is_refused_by_its_field) {
    const auto refused = [&](const json::object& format) {
        const Answer answer = post("/v1/responses", asks(tool(format)));
        EXPECT_EQ(answer.status, 400) << answer.body;
        return answer.status == 400 ? answer.param() : "";
    };
    EXPECT_EQ(refused(lark("start: a")), "tools[0].format.definition");
    EXPECT_EQ(refused(lark("start: \"a\" start")), "tools[0].format.definition");
    EXPECT_EQ(refused(lark(std::string(1 << 20, 'a'))), "tools[0].format.definition");
    EXPECT_EQ(refused({{"type", "grammar"}, {"syntax", "gbnf"}, {"definition", "root ::= \"a\""}}),
              "tools[0].format.syntax");
    EXPECT_EQ(refused(regex("(?<=a)b")), "tools[0].format.definition");
    EXPECT_EQ(refused({{"type", "grammar"}, {"syntax", "regex"}}), "tools[0].format.definition");
    EXPECT_EQ(refused({{"type", "yaml"}}), "tools[0].format.type");
    json::object many = asks(tool({}));
    many["tool_choice"] = "required";
    const std::string large = "start: \"a\" //" + std::string(200 << 10, '-');
    for (const char* name : {"a", "b", "c"}) {
        json::object one = tool(lark(large));
        one["name"] = name;
        many["tools"].as_array().push_back(one);
    }
    EXPECT_EQ(post("/v1/responses", many).param(), "tools[3].format.definition");
    json::object nameless = tool({});
    nameless.erase("name");
    EXPECT_EQ(post("/v1/responses", {{"input", "x"}, {"tools", {nameless}}}).param(), "tools[0].name");
    expect_alive();
}

}  // namespace
}  // namespace riptide::testing
